"""`load_model`: one way to any model, from a folder, a weights file or a name; without one, our own."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from kappaplace.errors import KappaPlaceError
from kappaplace.files import telling
from kappaplace.models.checkpoint import check_dim, load_checkpoint, load_head, read_card
from kappaplace.models.exported import ExportedModel, kind_of, load_exported
from kappaplace.models.frozen import FrozenEncoder
from kappaplace.models.place_model import PlaceModel
from kappaplace.models.published import HUB, fetch, load_foreign, load_torch_hub
from kappaplace.models.shipped import DEFAULT, is_shipped, shipped_folder

TrainableModel = PlaceModel | FrozenEncoder
AnyModel = TrainableModel | ExportedModel


def load_model(
    source: str | Path | None = None,
    *,
    dim: int | None = None,
    backbone: str | None = None,
    encoder: nn.Module | None = None,
) -> AnyModel:
    """Load a model for inference.

    ``source`` is a folder written by `save_model`, a file of ``kappaplace export`` (ONNX, OpenVINO,
    TorchScript), a foreign weights file, or a name that ``kappaplace models`` lists; without it, the
    pretrained model that comes with the package. ``dim``
    refuses any other descriptor dimension; ``backbone`` overrides what is recognised from a foreign file
    (``resnet50_v1`` cannot be told from ``resnet50`` by its weights); ``encoder`` is the module that a saved
    FrozenEncoder belongs to.

    >>> model = load_model()
    >>> model.dim, model.preprocessing.fixed_size
    (512, (320, 320))
    """
    source = DEFAULT if source is None else source
    # A name of ours comes before a folder that happens to be called so: a Path, or ./NAME, means the folder.
    path = shipped_folder(source) if isinstance(source, str) and is_shipped(source) else Path(source)
    if path.is_file() and kind_of(path) is None:
        return load_foreign(path, dim=dim, backbone=backbone)
    if backbone is not None:
        raise KappaPlaceError(
            f"A backbone can be stated for a foreign weights file only; '{source}' says itself what it is."
        )
    if path.is_file():
        exported = load_exported(path)
        check_dim(exported.dim, dim, str(path))
        return exported
    if path.is_dir():
        return _from_folder(path, dim, encoder)
    hub = HUB.get(str(source))
    if hub is None:
        raise KappaPlaceError(
            f"No model '{source}': it is neither a folder, nor a weights file, nor a known name; "
            "`kappaplace models` lists the names."
        )
    check_dim(hub.dim, dim, hub.name)
    if hub.kind == "torch.hub":
        return load_torch_hub(hub)
    return load_foreign(fetch(hub), dim=dim)


def trainable(model: AnyModel) -> TrainableModel:
    """A model whose weights are at hand; an exported file is refused."""
    if isinstance(model, ExportedModel):
        raise KappaPlaceError(
            f"The exported model {model.file} cannot be trained or fitted: its graph is fixed; give the "
            f"model it was made of ({model.record.name})."
        )
    return model


def _from_folder(folder: Path, dim: int | None, encoder: nn.Module | None) -> AnyModel:
    record = read_card(folder)
    if record["kind"] == "place-model":
        return load_checkpoint(folder, dim=dim)[0]
    with telling(f"The model card of {folder} names no encoder"):
        name = str(record["architecture"]["encoder"])
    if encoder is None and name in HUB:
        encoder = load_torch_hub(HUB[name]).encoder
    if encoder is None:
        raise KappaPlaceError(
            f"The model {folder} is a kappa head for an encoder of yours; give it: "
            "load_model(folder, encoder=your_module)."
        )
    return load_head(folder, encoder, dim=dim)
