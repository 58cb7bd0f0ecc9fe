"""Import torchvision where its compiled operators do not match the installed torch.

The common case: the registry's torchvision is linked to CUDA while torch is a CPU build. Then
``import torchvision`` fails with ``operator torchvision::nms does not exist``, and timm, lightning and
torchmetrics fail with it. Only the Python side is needed here (layers, transforms), so it is enough to
declare the two operators that the import looks up. Models and ``transforms.v2`` work afterwards;
torchvision's own image decoders and ``nms`` do not.
"""

from __future__ import annotations

import importlib
import types

import torch

# The library must live as long as the operators it defines.
_declared: list[torch.library.Library] = []


def import_torchvision() -> types.ModuleType:
    """Return torchvision, declaring its missing operators first where its binary cannot be loaded."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in (
        "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    ):
        library.define(schema)
    _declared.append(library)
    return importlib.import_module("torchvision")
