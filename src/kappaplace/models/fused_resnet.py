"""A ResNet with cuDNN's fused kernels: convolution, bias, shortcut and ReLU in one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kappaplace.models.resnet import BasicBlock, Bottleneck, ResNet

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
