"""A ResNet with cuDNN's fused kernels: convolution, bias, shortcut and ReLU in one.

From the feature map to descriptor and κ in inference, with nothing done twice.

Both exponents of GeM go through one power, one mean and one root, and both projections through one product,
so that κ starts no kernel of its own before its Softplus.

BatchNorm folded into the convolution before it: in evaluation it is a scale and a shift of its output.

Features of a frozen ResNet through cuDNN's fused kernels: no compiler, and fewer passes over memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from kappaplace.models.aggregation import GEM_EPS, Aggregation, normalize_channels
from kappaplace.models.backbones.resnet import BasicBlock, Bottleneck, ResNet
from kappaplace.models.heads import FoldedKappaHead, positive
from kappaplace.models.network import unit
from kappaplace.types import Embeddings

STEM_CHANNELS = 8


class FusedBlock(nn.Module):
    """A residual block as two or three kernels, one more where the shortcut is a convolution."""

    def __init__(self, block: BasicBlock | Bottleneck) -> None:
        super().__init__()
        names = ("conv1", "conv2", "conv3") if isinstance(block, Bottleneck) else ("conv1", "conv2")
        self.convolutions = nn.ModuleList(getattr(block, name) for name in names)
        self.shortcut: nn.Conv2d | None = None
        if block.downsample is not None:
            self.shortcut = block.downsample[0]  # type: ignore[index]
            last = self.convolutions[-1]
            assert isinstance(self.shortcut, nn.Conv2d)
            assert self.shortcut.bias is not None
            # The two are added anyway: one bias instead of two saves a kernel.
            last.bias = nn.Parameter(last.bias + self.shortcut.bias, requires_grad=False)  # type: ignore[operator]
            self.shortcut.bias = None

    def forward(self, x: Tensor) -> Tensor:
        shortcut, wait = self._shortcut_of(x)
        *first, last = self.convolutions
        inner = x
        for convolution in first:
            inner = _relu_after(convolution, inner)  # type: ignore[arg-type]
        if wait is not None:
            torch.cuda.current_stream().wait_stream(wait)
        return _relu_after_sum(last, inner, shortcut)  # type: ignore[arg-type]

    def _shortcut_of(self, x: Tensor) -> tuple[Tensor, torch.cuda.Stream | None]:
        """The shortcut, and what to wait for before it is used.

        In a recorded graph it runs beside the block: at batch 1 neither fills the GPU. ``x`` is alive until
        the block has waited, so that its memory is not used again too early.
        """
        if self.shortcut is None:
            return x, None
        if not (x.is_cuda and torch.cuda.is_current_stream_capturing()):
            return self.shortcut(x), None
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            return self.shortcut(x), side


class FusedResNet(nn.Module):
    """The same output as `ResNet`, in inference on CUDA."""

    patch_stage = ResNet.patch_stage

    def __init__(self, resnet: ResNet) -> None:
        """The weights of ``resnet``, whose BatchNorms must be folded, are taken over: it is spent."""
        super().__init__()
        self.conv1, self.maxpool = _widened(resnet.conv1), resnet.maxpool
        self.stage_channels = resnet.stage_channels
        layers = (resnet.layer1, resnet.layer2, resnet.layer3, resnet.layer4)
        self.layers = nn.ModuleList(
            nn.Sequential(*(FusedBlock(block) for block in layer))  # type: ignore[arg-type]
            for layer in layers
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_stages(x)[0]

    def forward_stages(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The output, and the map of every stage before it."""
        x = F.pad(x, (0, 0, 0, 0, 0, self.conv1.in_channels - x.shape[1]))
        x = self.maxpool(_relu_after(self.conv1, x.contiguous(memory_format=torch.channels_last)))
        maps: list[Tensor] = []
        for layer in self.layers:
            x = layer(x)
            maps.append(x)
        return maps[-1], maps[:-1]


def _widened(conv: nn.Conv2d) -> nn.Conv2d:
    """The same convolution of eight channels, five of them empty: tensor cores take no three."""
    wide = nn.Conv2d(STEM_CHANNELS, conv.out_channels, 7, stride=2, padding=3)  # as every ResNet has it
    wide.to(conv.weight).requires_grad_(False)
    wide.weight.zero_()
    wide.weight[:, : conv.in_channels] = conv.weight
    assert wide.bias is not None
    assert conv.bias is not None
    wide.bias.copy_(conv.bias)
    return wide


def _relu_after(conv: nn.Conv2d, x: Tensor) -> Tensor:
    return torch.cudnn_convolution_relu(
        x, conv.weight, conv.bias, conv.stride, _padding(conv), conv.dilation, conv.groups
    )


def _relu_after_sum(conv: nn.Conv2d, x: Tensor, other: Tensor) -> Tensor:
    return torch.cudnn_convolution_add_relu(
        x, conv.weight, other, 1.0, conv.bias, conv.stride, _padding(conv), conv.dilation, conv.groups
    )


def _padding(conv: nn.Conv2d) -> tuple[int, ...]:
    assert isinstance(conv.padding, tuple)  # a ResNet has no "same" padding
    return conv.padding


class Tail(nn.Module):
    """The aggregation and a folded kappa head (or none) as one."""

    p: Tensor
    root: Tensor
    weight: Tensor
    bias: Tensor

    @torch.no_grad()
    def __init__(self, aggregation: Aggregation, head: FoldedKappaHead | None) -> None:
        super().__init__()
        project, self.own = aggregation.project, head is not None and not head.tied
        self.dim = len(project.weight)
        weight, bias, p = (x.detach() for x in (project.weight, project.bias, aggregation.gem.p))
        if head is not None:
            row, zeros = head.last.weight, torch.zeros_like(head.last.weight)
            if self.own:
                # Two vectors of pooled features in a row, of which each projection reads its own.
                weight = torch.cat([weight, torch.zeros_like(weight)], 1)
                row = torch.cat([zeros, row], 1)
                p = torch.cat([p, head.gem.p])  # type: ignore[list-item]
            weight, bias = torch.cat([weight, row]), torch.cat([bias, head.last.bias])
        self.register_buffer("p", p.clone().view(-1, 1, 1, 1) if self.own else p.clone())
        self.register_buffer("root", (1.0 / p).view(-1, 1) if self.own else 1.0 / p)
        self.register_buffer("weight", weight.clone())
        self.register_buffer("bias", bias.clone())

    def forward(self, last: Tensor) -> Embeddings:
        """B×C×H×W → descriptors B×d and κ of shape B."""
        x = normalize_channels(last).clamp(min=GEM_EPS)
        x = x.unsqueeze(1) if self.own else x
        pooled = x.pow(self.p).mean(dim=(-2, -1)).pow(self.root).flatten(1)
        both = F.linear(pooled, self.weight, self.bias)
        if both.shape[1] == self.dim:
            return Embeddings(unit(both))
        return Embeddings(unit(both[:, : self.dim]), positive(both[:, self.dim :]))


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


@contextmanager
def best_convolutions() -> Iterator[None]:
    """cuDNN tries its algorithms and keeps the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


class InPrecision(nn.Module):
    """A backbone that computes in its own precision, channels-last; float32 comes out."""

    def __init__(self, backbone: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.stages = ()  # nothing in it is frozen any more than the rest
        self.backbone = backbone.to(dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
        for name in ("stage_channels", "patch_stage"):
            if hasattr(backbone, name):
                setattr(self, name, getattr(backbone, name))

    def forward(self, images: Tensor) -> Tensor:
        return self.backbone(self._laid(images)).float()

    def forward_stages(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The output, and the map of every stage before it."""
        last, maps = self.backbone.forward_stages(self._laid(images))
        return last.float(), maps

    def _laid(self, images: Tensor) -> Tensor:
        return images.to(self.dtype, memory_format=torch.channels_last)
