"""Fused forms of a model's parts for inference, without a compiler.

* `FusedResNet` uses cuDNN's fused kernels, which compute convolution, bias, shortcut and ReLU at once.
* `Tail` computes descriptor and κ from the feature map. Both exponents of GeM share one power, one mean and
  one root, and both projections share one product, and only the Softplus is computed for κ alone.
* `fold_batch_norms` folds each BatchNorm, a scale and a shift in evaluation mode, into the convolution before
  it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from kappaplace.models.aggregation import GEM_EPS, Aggregation, normalize_channels
from kappaplace.models.backbones.convolutional import BasicBlock, Bottleneck, ResNet
from kappaplace.models.encoder import unit
from kappaplace.models.heads import FoldedKappaHead, positive
from kappaplace.types import Embeddings

STEM_CHANNELS = 8


class FusedBlock(nn.Module):
    """A residual block of two or three kernels, and one more if the shortcut is a convolution."""

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
            # Both outputs are added, so one bias instead of two saves a kernel.
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
        """Return the shortcut and the stream to wait for.

        In a recorded graph, it runs in parallel to the block, because at batch size 1 neither uses the whole
        GPU. The caller keeps ``x`` until it has waited, so that its memory is not reused too early.
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
    """A `ResNet` for inference on CUDA, with the same output."""

    patch_stage = ResNet.patch_stage

    def __init__(self, resnet: ResNet) -> None:
        """Take over the weights of ``resnet``, whose BatchNorms must be folded; do not use it afterwards."""
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
        """Return the output, and the feature map of every stage before it."""
        x = F.pad(x, (0, 0, 0, 0, 0, self.conv1.in_channels - x.shape[1]))
        x = self.maxpool(_relu_after(self.conv1, x.contiguous(memory_format=torch.channels_last)))
        maps: list[Tensor] = []
        for layer in self.layers:
            x = layer(x)
            maps.append(x)
        return maps[-1], maps[:-1]


def _widened(conv: nn.Conv2d) -> nn.Conv2d:
    """Return the convolution with eight input channels, five of them zero, as tensor cores require."""
    wide = nn.Conv2d(STEM_CHANNELS, conv.out_channels, 7, stride=2, padding=3)  # as in every ResNet
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
    assert isinstance(conv.padding, tuple)  # not "same" in a ResNet
    return conv.padding


class Tail(nn.Module):
    """The aggregation and a folded kappa head, if there is one, as one module."""

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
                # Two vectors of pooled features, one for each projection.
                weight = torch.cat([weight, torch.zeros_like(weight)], 1)
                row = torch.cat([zeros, row], 1)
                p = torch.cat([p, head.gem.p])  # type: ignore[list-item]
            weight, bias = torch.cat([weight, row]), torch.cat([bias, head.last.bias])
        self.register_buffer("p", p.clone().view(-1, 1, 1, 1) if self.own else p.clone())
        self.register_buffer("root", (1.0 / p).view(-1, 1) if self.own else 1.0 / p)
        self.register_buffer("weight", weight.clone())
        self.register_buffer("bias", bias.clone())

    def forward(self, last: Tensor) -> Embeddings:
        """Compute descriptors B×d and κ of shape B from feature maps B×C×H×W."""
        x = normalize_channels(last).clamp(min=GEM_EPS)
        x = x.unsqueeze(1) if self.own else x
        pooled = x.pow(self.p).mean(dim=(-2, -1)).pow(self.root).flatten(1)
        both = F.linear(pooled, self.weight, self.bias)
        if both.shape[1] == self.dim:
            return Embeddings(unit(both))
        return Embeddings(unit(both[:, : self.dim]), positive(both[:, self.dim :]))


@torch.no_grad()
def fold_batch_norms(module: nn.Module, example: Tensor) -> int:
    """Fold in place every BatchNorm that reads the output of a convolution.

    Only the BatchNorm may read the output of its convolution, which is true for all backbones of this
    package.

    Args:
        module: The module, in evaluation mode.
        example: An input, to find out which BatchNorms these are.

    Returns:
        Number of folded BatchNorms.
    """
    outputs: dict[int, tuple[nn.Conv2d, Tensor]] = {}
    pairs: list[tuple[nn.Conv2d, nn.BatchNorm2d]] = []
    calls: dict[nn.Module, int] = {}

    def after_convolution(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        calls[layer] = calls.get(layer, 0) + 1
        assert isinstance(layer, nn.Conv2d)
        outputs[id(output)] = (layer, output)  # a reference, so that no other tensor gets this id

    def before_norm(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        calls[layer] = calls.get(layer, 0) + 1
        if id(inputs[0]) in outputs:
            assert isinstance(layer, nn.BatchNorm2d)
            pairs.append((outputs[id(inputs[0])][0], layer))

    handles = []
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            handles.append(layer.register_forward_hook(after_convolution))
        elif type(layer) is nn.BatchNorm2d:  # not the class of timm, which does more
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
    # In float64, so that scaling and shifting float32 weights does not lose digits.
    parts = [conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.weight, norm.bias]
    kernel, shift, mean, variance, *scale = (None if x is None else x.detach().double() for x in parts)
    weight, bias = fuse_conv_bn_weights(kernel, shift, mean, variance, norm.eps, *scale)  # type: ignore
    conv.weight = nn.Parameter(weight.to(conv.weight), requires_grad=False)
    conv.bias = nn.Parameter(bias.to(conv.weight), requires_grad=False)


@contextmanager
def cudnn_setting(name: str, value: bool) -> Iterator[None]:
    """Change a setting of cuDNN, and restore it at the end."""
    before = getattr(torch.backends.cudnn, name)
    setattr(torch.backends.cudnn, name, value)
    try:
        yield
    finally:
        setattr(torch.backends.cudnn, name, before)


def best_convolutions() -> AbstractContextManager[None]:
    """Let cuDNN try its algorithms and use the fastest."""
    return cudnn_setting("benchmark", True)


class InPrecision(nn.Module):
    """A backbone that computes in a given precision, channels-last, and returns float32."""

    def __init__(self, backbone: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.stages = ()  # no stages that could be frozen
        self.backbone = backbone.to(dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
        for name in ("stage_channels", "patch_stage"):
            if hasattr(backbone, name):
                setattr(self, name, getattr(backbone, name))

    def forward(self, images: Tensor) -> Tensor:
        return self.backbone(self._convert(images)).float()

    def forward_stages(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the output, and the feature map of every stage before it."""
        last, maps = self.backbone.forward_stages(self._convert(images))
        return last.float(), maps

    def _convert(self, images: Tensor) -> Tensor:
        return images.to(self.dtype, memory_format=torch.channels_last)
