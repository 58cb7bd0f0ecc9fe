"""Heads that predict the uncertainty of a descriptor.

Every head has ``forward(normalized, pooled, raw, stages) -> Tensor`` of shape B (STUN: B×d), where

* ``normalized`` is the feature map with unit channels, B×C×H×W,
* ``pooled`` is this map after the GeM of the descriptor, B×C,
* ``raw`` is the descriptor before its final normalization, B×d,
* ``stages`` are statistics of the earlier stages of the backbone, B×S; None unless the head reads them.

A head gets all of them, so it does not repeat work of the descriptor. It has two steps: ``reduce`` selects
the input of the head, one vector per image, and ``from_reduced`` computes the output. With a frozen encoder,
the first step is needed only once per image.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kappaplace.checks import choice
from kappaplace.errors import KappaPlaceError
from kappaplace.models.aggregation import Aggregation, GeM, PlainAggregation, without_autocast

KAPPA_FLOOR = 1e-6  # κ is positive even if Softplus underflows

HeadName = Literal[
    "mirrored",
    "mirrored-tied",
    "folded",
    "folded-tied",
    "layers",
    "layers-mlp",
    "linear",
    "variance",
    "variance-linear",
    "variance-each",
    "variance-each-aggregation",
    "variance-each-linear",
    "stun",
    "stun-s",
    "dropout",
    "none",
]
Spread = Literal["kappa", "variance", "log-variance"]


def positive(x: Tensor) -> Tensor:
    """Apply Softplus and add the floor, so that κ > 0; B×1 → B, B×d → B×d."""
    x = x.squeeze(-1)
    return F.softplus(x if x.dtype == torch.float64 else x.float()).add_(KAPPA_FLOOR)


def exact_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Apply a Linear layer without autocast: bfloat16 has steps of 2 at κ = 300, which would cause ties."""
    with without_autocast(x.device):
        return layer(x.to(layer.weight.dtype))


def inverse_softplus(y: float) -> float:
    """Return the x with softplus(x) = y, for any y > 0."""
    return y + math.log(-math.expm1(-y))


class Head(nn.Module):
    """Base class of all heads."""

    spread: Spread = "kappa"
    """Meaning of the output."""

    def reduce(self, normalized: Tensor, pooled: Tensor, raw: Tensor, stages: Tensor | None = None) -> Tensor:
        """Return the input of the head, one vector per image.

        Args:
            normalized: Feature map with unit channels, B×C×H×W.
            pooled: This map after the GeM of the descriptor, B×C.
            raw: Descriptor before its normalization, B×d.
            stages: Statistics of the earlier stages, B×S.

        Returns:
            By default, the descriptor.
        """
        return raw

    def from_reduced(self, reduced: Tensor) -> Tensor:
        """Return the output of the head for the result of `reduce`."""
        raise NotImplementedError

    def forward(
        self, normalized: Tensor, pooled: Tensor, raw: Tensor, stages: Tensor | None = None
    ) -> Tensor:
        return self.from_reduced(self.reduce(normalized, pooled, raw, stages))


class KappaHead(Head):
    """Base class of heads that predict κ."""

    last: nn.Linear
    trained = False
    """Whether the weights come from an earlier run, so that κ must not be initialized again."""

    def start_at(self, kappa: float) -> None:
        """Set the last bias so that κ starts at a plausible value instead of softplus(0) = 0.7.

        At d = 512 a useful κ is a few hundred; gradient descent needs thousands of steps from 0.7.
        """
        if not kappa > 0:
            raise KappaPlaceError(f"The initial κ must be positive, got {kappa}.")
        with torch.no_grad():
            self.last.bias.fill_(inverse_softplus(kappa))


class MirroredKappaHead(KappaHead):
    """The head of the paper: a separate aggregation, Linear(d, 1), Softplus.

    With ``tied``, it shares the exponent of GeM with the descriptor, so that both share one pooling.
    """

    def __init__(self, channels: int, dim: int, tied: bool = False) -> None:
        super().__init__()
        self.tied = tied
        self.aggregation: nn.Module = nn.Linear(channels, dim) if tied else Aggregation(channels, dim)
        self.last = nn.Linear(dim, 1)

    def reduce(self, normalized: Tensor, pooled: Tensor, raw: Tensor, stages: Tensor | None = None) -> Tensor:
        return pooled if self.tied else self.aggregation.gem(normalized)  # type: ignore[operator]

    @property
    def first(self) -> nn.Linear:
        """Projection before the last layer."""
        return self.aggregation if self.tied else self.aggregation.project  # type: ignore[return-value]

    def from_reduced(self, reduced: Tensor) -> Tensor:
        return positive(exact_linear(self.last, exact_linear(self.first, reduced)))

    def copy_aggregation(self, source: Aggregation | PlainAggregation) -> None:
        """Copy the weights of the descriptor's aggregation."""
        if isinstance(source, PlainAggregation):
            raise KappaPlaceError("This encoder has no projection that the head could copy. Use a new head.")
        self.first.load_state_dict(source.project.state_dict())
        if not self.tied:
            self.aggregation.gem.load_state_dict(source.gem.state_dict())  # type: ignore[union-attr]

    @torch.no_grad()
    def fold(self) -> FoldedKappaHead:
        """Return the exact inference form: two Linear layers in a row are one Linear layer."""
        first = self.first
        folded = FoldedKappaHead(first.in_features, self.tied)
        folded.to(device=first.weight.device, dtype=first.weight.dtype)
        # Products in float64, to keep the last digits of the trained head.
        outer = self.last.weight.double()
        folded.last.weight.copy_(outer @ first.weight.double())
        folded.last.bias.copy_(outer @ first.bias.double() + self.last.bias.double())
        if not self.tied:
            folded.gem.load_state_dict(self.aggregation.gem.state_dict())  # type: ignore[union-attr]
        return folded


class FoldedKappaHead(KappaHead):
    """The mirrored head with both Linear layers folded into one Linear(C, 1)."""

    def __init__(self, channels: int, tied: bool = False) -> None:
        super().__init__()
        self.gem: nn.Module = nn.Identity() if tied else GeM()
        self.tied = tied
        self.last = nn.Linear(channels, 1)

    def reduce(self, normalized: Tensor, pooled: Tensor, raw: Tensor, stages: Tensor | None = None) -> Tensor:
        return pooled if self.tied else self.gem(normalized)

    def from_reduced(self, reduced: Tensor) -> Tensor:
        last = self.last
        if reduced.dtype == torch.float32 == last.weight.dtype and not torch.is_autocast_enabled(
            reduced.device.type
        ):
            # The same in three calls: at batch size 1, the Python code around them costs more than the head.
            return F.softplus(F.linear(reduced, last.weight, last.bias).squeeze(-1)).add_(KAPPA_FLOOR)
        return positive(exact_linear(last, reduced))


class LayersKappaHead(KappaHead):
    """κ from the pooled features and the mean and deviation of every channel of the earlier stages.

    Unit channels do not contain brightness and sharpness of an image, but the first stages do. With
    ``hidden`` = 0, the head is one Linear layer.
    """

    def __init__(self, channels: int, statistics: int, hidden: int = 0) -> None:
        super().__init__()
        # Channels differ in scale by orders of magnitude; after training this is a fixed scaling.
        self.scale = nn.BatchNorm1d(channels + statistics, affine=False, momentum=0.01)
        self.hidden = nn.Linear(channels + statistics, hidden) if hidden else None
        self.last = nn.Linear(hidden or channels + statistics, 1)

    def reduce(self, normalized: Tensor, pooled: Tensor, raw: Tensor, stages: Tensor | None = None) -> Tensor:
        if stages is None:
            raise KappaPlaceError(
                "This head reads the stages of a backbone, which this encoder does not provide. Use another "
                "head."
            )
        return torch.cat([pooled.float(), stages.float()], dim=1)

    def from_reduced(self, reduced: Tensor) -> Tensor:
        with without_autocast(reduced.device):
            x = self.scale(reduced.to(self.last.weight.dtype))
        if self.hidden is not None:
            x = F.silu(exact_linear(self.hidden, x))
        return positive(exact_linear(self.last, x))


def stage_statistics(maps: Sequence[Tensor]) -> Tensor:
    """Return the mean and deviation of every channel of feature maps, B×(2·ΣC) in float32."""
    with without_autocast(maps[0].device):
        parts = [torch.var_mean(x.float(), dim=(-2, -1), correction=0) for x in maps]
        return torch.cat([part for var, mean in parts for part in (mean, (var + 1e-6).sqrt())], dim=1)


class LinearKappaHead(KappaHead):
    """Ablation: κ from the descriptor before its normalization."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.last = nn.Linear(dim, 1)

    def from_reduced(self, reduced: Tensor) -> Tensor:
        return positive(exact_linear(self.last, reduced))


class VarianceHead(MirroredKappaHead):
    """The mirrored form that predicts the variance of a Gaussian (GNLL ablation, Bayesian triplet loss)."""

    spread: Spread = "variance"


class LinearVarianceHead(LinearKappaHead):
    """The variance of a Gaussian from the descriptor before its normalization."""

    spread: Spread = "variance"


class EachVarianceHead(Head):
    """The variance of every dimension of a Gaussian, as in the GNLL ablations of the authors' release.

    Args:
        channels: Channels of the feature map. 0: the head reads the descriptor before its normalization.
        dim: Dimension of the descriptor.
        linear: Whether there is a Linear(d, d) before the Softplus.
    """

    spread: Spread = "variance"

    def __init__(self, channels: int, dim: int, linear: bool) -> None:
        super().__init__()
        self.aggregation = Aggregation(channels, dim) if channels else None
        self.last = nn.Linear(dim, dim) if linear else None

    def reduce(self, normalized: Tensor, pooled: Tensor, raw: Tensor, stages: Tensor | None = None) -> Tensor:
        return raw if self.aggregation is None else self.aggregation.gem(normalized)

    def from_reduced(self, reduced: Tensor) -> Tensor:
        parts = [None if self.aggregation is None else self.aggregation.project, self.last]
        for layer in parts:
            reduced = reduced if layer is None else exact_linear(layer, reduced)
        return positive(reduced)


class StunHead(Head):
    """The student of STUN: one sigmoid output s per dimension, with the variance exp(s)."""

    spread: Spread = "log-variance"

    def variance(self, spread: Tensor) -> Tensor:
        """Return the variance of each dimension, B×d, from the output of the head."""
        return spread.float().exp()

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.last = nn.Linear(dim, dim)

    def from_reduced(self, reduced: Tensor) -> Tensor:
        return torch.sigmoid(self.last(reduced))


class MeanStunHead(StunHead):
    """The student of STUN with s itself as its variance, as in the authors' release."""

    def variance(self, spread: Tensor) -> Tensor:
        return spread


class DropoutHead(nn.Module):
    """MC-dropout: the variance of descriptors when random pooled features are dropped.

    Training drops at random. Inference uses ``samples`` masks that are sampled once and stored with the
    weights, so that the variance depends only on the image.
    """

    masks: Tensor

    def __init__(self, channels: int, p: float = 0.2, samples: int = 16) -> None:
        super().__init__()
        self.p = p
        generator = torch.Generator().manual_seed(0)
        masks = torch.rand(samples, channels, generator=generator) >= p
        self.register_buffer("masks", masks.float() / (1 - p))

    def drop(self, pooled: Tensor) -> Tensor:
        """Drop pooled features at random, during training."""
        return F.dropout(pooled, self.p, self.training)

    def spread_of(self, pooled: Tensor, aggregation: Aggregation | PlainAggregation) -> tuple[Tensor, Tensor]:
        """Return the mean descriptor, B×d at unit length, and the mean variance of its dimensions, B."""
        samples = aggregation.from_pooled(pooled[:, None] * self.masks).float()
        samples = F.normalize(samples, dim=-1)
        return F.normalize(samples.mean(1), dim=-1), samples.var(1, correction=0).mean(-1)


Model = TypeVar("Model", bound=nn.Module)


def with_folded_head(model: Model) -> Model:
    """Return a copy of a model with a folded ``head``; everything else is shared."""
    head = model.head
    if not isinstance(head, MirroredKappaHead) or head.spread != "kappa":
        kind = type(head).__name__ if head is not None else "none"
        raise KappaPlaceError(f"Only a mirrored kappa head can be folded, got {kind}.")
    folded = copy.copy(model)
    folded._modules = dict(model._modules)
    folded.head = head.fold()
    return folded


def build_head(name: HeadName, channels: int, dim: int, statistics: int = 0) -> nn.Module | None:
    """Build a head.

    Args:
        name: Name of the head; ``none`` is a plain retrieval model.
        channels: Channels of the feature map.
        dim: Dimension of the descriptor.
        statistics: Number of statistics of the stages; 0 if the backbone does not provide stages.

    Returns:
        The head with random weights; None for ``none``.
    """
    builders = {
        "mirrored": lambda: MirroredKappaHead(channels, dim),
        "mirrored-tied": lambda: MirroredKappaHead(channels, dim, tied=True),
        "folded": lambda: FoldedKappaHead(channels),
        "folded-tied": lambda: FoldedKappaHead(channels, tied=True),
        "layers": lambda: LayersKappaHead(channels, statistics),
        "layers-mlp": lambda: LayersKappaHead(channels, statistics, hidden=64),
        "linear": lambda: LinearKappaHead(dim),
        "variance": lambda: VarianceHead(channels, dim),
        "variance-linear": lambda: LinearVarianceHead(dim),
        "variance-each": lambda: EachVarianceHead(channels, dim, linear=True),
        "variance-each-aggregation": lambda: EachVarianceHead(channels, dim, linear=False),
        "variance-each-linear": lambda: EachVarianceHead(0, dim, linear=True),
        "stun": lambda: StunHead(dim),
        "stun-s": lambda: MeanStunHead(dim),
        "dropout": lambda: DropoutHead(channels),
        "none": lambda: None,
    }
    choice(name, builders, "head")
    return builders[name]()
