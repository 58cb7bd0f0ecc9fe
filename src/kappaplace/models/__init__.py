"""Models that compute embeddings of image batches: backbones, aggregation, kappa heads, checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kappaplace._names import lazy_exports

if TYPE_CHECKING:
    from kappaplace.models.backbones import BACKBONES as BACKBONES
    from kappaplace.models.backbones.timm import import_torchvision as import_torchvision
    from kappaplace.models.checkpoint import CARD as CARD
    from kappaplace.models.checkpoint import AnyModel as AnyModel
    from kappaplace.models.checkpoint import ModelCard as ModelCard
    from kappaplace.models.checkpoint import checked_weights as checked_weights
    from kappaplace.models.checkpoint import load_model as load_model
    from kappaplace.models.checkpoint import read_card as read_card
    from kappaplace.models.checkpoint import save_model as save_model
    from kappaplace.models.embedding import Upload as Upload
    from kappaplace.models.embedding import embed_images as embed_images
    from kappaplace.models.embedding import join as join
    from kappaplace.models.embedding import loader_for as loader_for
    from kappaplace.models.embedding import usable_device as usable_device
    from kappaplace.models.embedding.store import EmbeddingStore as EmbeddingStore
    from kappaplace.models.encoder import Encoder as Encoder
    from kappaplace.models.export import Exported as Exported
    from kappaplace.models.export import ExportOptions as ExportOptions
    from kappaplace.models.export import export_model as export_model
    from kappaplace.models.exported import ExportedModel as ExportedModel
    from kappaplace.models.fast import Form as Form
    from kappaplace.models.fast import OptimizedModel as OptimizedModel
    from kappaplace.models.fast import optimize as optimize
    from kappaplace.models.frozen import FrozenEncoder as FrozenEncoder
    from kappaplace.models.frozen import load_encoder as load_encoder
    from kappaplace.models.frozen import plain_encoder as plain_encoder
    from kappaplace.models.place_model import PlaceModel as PlaceModel
    from kappaplace.models.published import cache_folder as cache_folder
    from kappaplace.models.published import cached as cached
    from kappaplace.models.published import read_prototypes as read_prototypes
    from kappaplace.models.registry import HUB as HUB
    from kappaplace.models.registry import list_models as list_models
    from kappaplace.models.shipped import CALIBRATION as CALIBRATION
    from kappaplace.models.shipped import DEFAULT as DEFAULT
    from kappaplace.models.shipped import PAGE as PAGE
    from kappaplace.models.shipped import SHIPPED as SHIPPED
    from kappaplace.models.shipped import installed as installed
    from kappaplace.models.shipped import is_shipped as is_shipped
    from kappaplace.models.shipped import model_page as model_page
    from kappaplace.models.shipped import shipped_folder as shipped_folder
    from kappaplace.models.shipped import size_bytes as size_bytes
else:
    __all__, __getattr__ = lazy_exports(__name__, __file__)
