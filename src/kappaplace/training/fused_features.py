"""Features of a frozen ResNet through cuDNN's fused kernels: no compiler, and fewer passes over memory."""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import Tensor

from kappaplace.models.aggregation import without_autocast
from kappaplace.models.cuda_graphs import best_convolutions
from kappaplace.models.folding import fold_batch_norms
from kappaplace.models.fused_resnet import FusedResNet
from kappaplace.models.loading import TrainableModel
from kappaplace.models.optimize import InPrecision
from kappaplace.models.place_model import PlaceModel
from kappaplace.models.resnet import ResNet
from kappaplace.training.features import Compute, compiled_features, frozen_features
from kappaplace.training.settings import RunSettings

LEAST_COSINE = 0.9999  # to the model's own descriptors in float32
PROBES, SIDE = 4, 224


def feature_function(model: TrainableModel, run: RunSettings) -> Compute:
    """From images to features, as fast as the run's settings allow."""
    on_gpu = next(model.parameters()).is_cuda
    fused = fused_features(model) if on_gpu and run.compile and run.precision == "bf16" else None
    return fused or partial(compiled_features() if run.compile else frozen_features, model)


@torch.inference_mode()
def fused_features(model: TrainableModel, dtype: torch.dtype = torch.float16) -> Compute | None:
    """`frozen_features` of a model on CUDA; None where fused kernels do not exist or do not agree.

    In float16, whose steps are eight times finer than bfloat16's: κ follows rounding of the features.
    """
    if not isinstance(model, PlaceModel) or not isinstance(model.backbone, ResNet):
        return None
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    probes = torch.randn(PROBES, 3, SIDE, SIDE, generator=generator).to(device)
    backbone = copy.deepcopy(model.backbone).float().eval()
    fold_batch_norms(backbone, probes[:1])
    if backbone.conv1.bias is None:
        return None
    fused = _with_backbone(model, InPrecision(FusedResNet(backbone), dtype))

    def compute(images: Tensor) -> tuple[Tensor, Tensor]:
        with best_convolutions(), without_autocast(device):
            return frozen_features(fused, images)

    try:
        cosine = (frozen_features(fused, probes)[1] * frozen_features(model, probes)[1]).sum(1).min()
    except (RuntimeError, NotImplementedError):  # no such kernel for this device
        return None
    return compute if cosine >= LEAST_COSINE else None  # NaN is not


def _with_backbone(model: PlaceModel, backbone: torch.nn.Module) -> PlaceModel:
    """The same model, sharing everything but the backbone."""
    other = copy.copy(model)
    other._modules = dict(model._modules)
    other.backbone = backbone
    return other
