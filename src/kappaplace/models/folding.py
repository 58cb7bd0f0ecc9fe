"""BatchNorm folded into the convolution before it: in evaluation it is a scale and a shift of its output."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights


@torch.no_grad()
def fold_batch_norms(module: nn.Module, example: Tensor) -> int:
    """Fold in place every BatchNorm that reads a convolution's output; how many there were.

    ``example`` is run once to see which those are. The module must be in evaluation mode, and a convolution
    whose output is read by something else as well must not exist in it: no backbone here has one.
    """
    made: dict[int, tuple[nn.Conv2d, Tensor]] = {}
    pairs: list[tuple[nn.Conv2d, nn.BatchNorm2d]] = []
    calls: dict[nn.Module, int] = {}

    def after_convolution(layer: nn.Module, inputs: Any, output: Tensor) -> None:
        calls[layer] = calls.get(layer, 0) + 1
        assert isinstance(layer, nn.Conv2d)
        made[id(output)] = (layer, output)  # held, so that no other tensor takes this id

    def before_norm(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        calls[layer] = calls.get(layer, 0) + 1
        if id(inputs[0]) in made:
            assert isinstance(layer, nn.BatchNorm2d)
            pairs.append((made[id(inputs[0])][0], layer))

    handles = []
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            handles.append(layer.register_forward_hook(after_convolution))
        elif type(layer) is nn.BatchNorm2d:  # not timm's, which does more
            handles.append(layer.register_forward_pre_hook(before_norm))
    try:
        module(example)
    finally:
        for handle in handles:
            handle.remove()
    once = [(conv, norm) for conv, norm in pairs if calls[conv] == calls[norm] == 1]
    for conv, norm in once:
        _fold(conv, norm)
    folded = {norm for _, norm in once}
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if child in folded:
                setattr(parent, name, nn.Identity())
    return len(once)


def _fold(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    # In float64: a scale and a shift of float32 weights must not cost digits.
    parts = [conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.weight, norm.bias]
    kernel, shift, mean, variance, *scale = (None if x is None else x.detach().double() for x in parts)
    weight, bias = fuse_conv_bn_weights(kernel, shift, mean, variance, norm.eps, *scale)  # type: ignore
    conv.weight = nn.Parameter(weight.to(conv.weight), requires_grad=False)
    conv.bias = nn.Parameter(bias.to(conv.weight), requires_grad=False)
