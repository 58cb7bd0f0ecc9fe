"""Heads that say how sure the model is, each from the channel-normalised map or from the descriptor.

Every head has ``forward(normalised, pooled, raw, stages) -> Tensor`` of shape B (STUN: B×d), where

* ``normalised`` is the feature map with unit channels, B×C×H×W,
* ``pooled`` is that map after the descriptor's own GeM, B×C,
* ``raw`` is the descriptor before its final normalisation, B×d,
* ``stages`` are statistics of the backbone's earlier stages, B×S, for a head that reads them, else None.

Taking all of them lets a head share work with the descriptor path instead of doing it again. A pass has two
steps: ``reduce`` takes what the head reads, one vector an image, and ``from_reduced`` does the rest. Beside
a frozen encoder the first needs to be done only once an image.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kappaplace.errors import KappaPlaceError
from kappaplace.models.aggregation import Aggregation, GeM, without_autocast

KAPPA_FLOOR = 1e-6  # κ stays positive where Softplus underflows

HeadName = Literal[
    "mirrored",
    "mirrored-tied",
    "folded",
    "folded-tied",
    "layers",
    "layers-mlp",
    "linear",
    "variance",
    "stun",
    "dropout",
    "none",
]
Spread = Literal["kappa", "variance", "log-variance"]


def positive(x: Tensor) -> Tensor:
    """Softplus plus the floor: κ > 0 always; B×1 → B."""
    x = x.squeeze(-1)
    return F.softplus(x if x.dtype == torch.float64 else x.float()).add_(KAPPA_FLOOR)


def exact_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """A Linear layer that autocast leaves alone: bfloat16 has steps of 2 at κ = 300 and would tie ranks."""
    with without_autocast(x.device):
        return layer(x.to(layer.weight.dtype))


def inverse_softplus(y: float) -> float:
    """The x with softplus(x) = y, for y > 0 of any size."""
    return y + math.log(-math.expm1(-y))


class Head(nn.Module):
    """Base of all heads."""

    spread: Spread = "kappa"
    """What the output means."""

    def reduce(self, normalised: Tensor, pooled: Tensor, raw: Tensor, stages: Tensor | None = None) -> Tensor:
        """What the head reads of the features, B×C."""
        raise NotImplementedError

    def from_reduced(self, reduced: Tensor) -> Tensor:
        """The head's output from what `reduce` gave."""
        raise NotImplementedError

    def forward(
        self, normalised: Tensor, pooled: Tensor, raw: Tensor, stages: Tensor | None = None
    ) -> Tensor:
        return self.from_reduced(self.reduce(normalised, pooled, raw, stages))


class KappaHead(Head):
    """Base of the heads that predict κ: knows its last layer."""

    last: nn.Linear
    trained = False
    """Whether its weights come from an earlier run, so that its κ must not be set anew."""

    def start_at(self, kappa: float) -> None:
        """Set the last bias so that κ starts near a plausible value instead of at softplus(0) = 0.7.

        At d = 512 a useful κ is some hundreds; gradient descent needs thousands of steps from 0.7.
        """
        if not kappa > 0:
            raise KappaPlaceError(f"κ must start above zero, got {kappa}.")
        with torch.no_grad():
            self.last.bias.fill_(inverse_softplus(kappa))


class MirroredKappaHead(KappaHead):
    """The paper's head: an aggregation of its own, Linear(d, 1), Softplus.

    ``tied`` shares GeM's exponent with the descriptor, so that pooling is done once for both.
    """

    def __init__(self, channels: int, dim: int, tied: bool = False) -> None:
        super().__init__()
        self.tied = tied
        self.aggregation: nn.Module = nn.Linear(channels, dim) if tied else Aggregation(channels, dim)
        self.last = nn.Linear(dim, 1)

    def reduce(self, normalised: Tensor, pooled: Tensor, raw: Tensor, stages: Tensor | None = None) -> Tensor:
        return pooled if self.tied else self.aggregation.gem(normalised)  # type: ignore[operator]

    @property
    def first(self) -> nn.Linear:
        """The projection before the last layer."""
        return self.aggregation if self.tied else self.aggregation.project  # type: ignore[return-value]

    def from_reduced(self, reduced: Tensor) -> Tensor:
        return positive(exact_linear(self.last, exact_linear(self.first, reduced)))

    def copy_aggregation(self, source: Aggregation) -> None:
        """Start from the descriptor's aggregation (trained or not) instead of from fresh weights."""
        self.first.load_state_dict(source.project.state_dict())
        if not self.tied:
            self.aggregation.gem.load_state_dict(source.gem.state_dict())  # type: ignore[union-attr]

    @torch.no_grad()
    def fold(self) -> FoldedKappaHead:
        """The exact inference form: the two Linear layers have nothing between them, so they are one."""
        first = self.first
        folded = FoldedKappaHead(first.in_features, self.tied)
        folded.to(device=first.weight.device, dtype=first.weight.dtype)
        # Products in float64: the folded head must not lose the last digits of the trained one.
        outer = self.last.weight.double()
        folded.last.weight.copy_(outer @ first.weight.double())
        folded.last.bias.copy_(outer @ first.bias.double() + self.last.bias.double())
        if not self.tied:
            folded.gem.load_state_dict(self.aggregation.gem.state_dict())  # type: ignore[union-attr]
        return folded


class FoldedKappaHead(KappaHead):
    """The mirrored head with its two Linear layers folded into one Linear(C, 1)."""

    def __init__(self, channels: int, tied: bool = False) -> None:
        super().__init__()
        self.gem: nn.Module = nn.Identity() if tied else GeM()
        self.tied = tied
        self.last = nn.Linear(channels, 1)

    def reduce(self, normalised: Tensor, pooled: Tensor, raw: Tensor, stages: Tensor | None = None) -> Tensor:
        return pooled if self.tied else self.gem(normalised)

    def from_reduced(self, reduced: Tensor) -> Tensor:
        last = self.last
        if reduced.dtype == torch.float32 == last.weight.dtype and not torch.is_autocast_enabled(
            reduced.device.type
        ):
            # The same in three calls: at batch 1 what Python does around them costs more than the head.
            return F.softplus(F.linear(reduced, last.weight, last.bias).squeeze(-1)).add_(KAPPA_FLOOR)
        return positive(exact_linear(last, reduced))


class LayersKappaHead(KappaHead):
    """κ from the pooled features and from mean and deviation of every channel of the earlier stages.

    Unit channels forget how bright or sharp an image is; the first stages know. ``hidden`` 0 is one linear
    layer.
    """

    def __init__(self, channels: int, statistics: int, hidden: int = 0) -> None:
        super().__init__()
        # Channels differ in scale by orders of magnitude; after training this is a fixed scaling.
        self.scale = nn.BatchNorm1d(channels + statistics, affine=False, momentum=0.01)
        self.hidden = nn.Linear(channels + statistics, hidden) if hidden else None
        self.last = nn.Linear(hidden or channels + statistics, 1)

    def reduce(self, normalised: Tensor, pooled: Tensor, raw: Tensor, stages: Tensor | None = None) -> Tensor:
        if stages is None:
            raise KappaPlaceError(
                "This head reads the backbone's stages, and this encoder does not show them."
            )
        return torch.cat([pooled.float(), stages.float()], dim=1)

    def from_reduced(self, reduced: Tensor) -> Tensor:
        with without_autocast(reduced.device):
            x = self.scale(reduced.to(self.last.weight.dtype))
        if self.hidden is not None:
            x = F.silu(exact_linear(self.hidden, x))
        return positive(exact_linear(self.last, x))


def stage_statistics(maps: Sequence[Tensor]) -> Tensor:
    """Mean and deviation over the image of every channel of some maps: B×(2·ΣC), in float32."""
    with without_autocast(maps[0].device):
        parts = [torch.var_mean(x.float(), dim=(-2, -1), correction=0) for x in maps]
        return torch.cat([part for var, mean in parts for part in (mean, (var + 1e-6).sqrt())], dim=1)


class LinearKappaHead(KappaHead):
    """Ablation: κ from the descriptor alone, before its normalisation."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.last = nn.Linear(dim, 1)

    def reduce(self, normalised: Tensor, pooled: Tensor, raw: Tensor, stages: Tensor | None = None) -> Tensor:
        return raw

    def from_reduced(self, reduced: Tensor) -> Tensor:
        return positive(exact_linear(self.last, reduced))


class VarianceHead(MirroredKappaHead):
    """The mirrored form with a Gaussian's variance as its output (GNLL ablation, Bayesian triplet loss)."""

    spread: Spread = "variance"


class StunHead(Head):
    """STUN's student: a sigmoid output s per dimension; the variance is exp(s)."""

    spread: Spread = "log-variance"

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.last = nn.Linear(dim, dim)

    def reduce(self, normalised: Tensor, pooled: Tensor, raw: Tensor, stages: Tensor | None = None) -> Tensor:
        return raw

    def from_reduced(self, reduced: Tensor) -> Tensor:
        return torch.sigmoid(self.last(reduced))


class DropoutHead(nn.Module):
    """MC-dropout: how far descriptors spread when parts of the pooled features are left out.

    Training drops at random. Inference uses ``samples`` masks that are drawn once and kept with the weights,
    so that an image's variance depends on nothing but the image.
    """

    masks: Tensor

    def __init__(self, channels: int, p: float = 0.2, samples: int = 16) -> None:
        super().__init__()
        self.p = p
        generator = torch.Generator().manual_seed(0)
        kept = torch.rand(samples, channels, generator=generator) >= p
        self.register_buffer("masks", kept.float() / (1 - p))

    def drop(self, pooled: Tensor) -> Tensor:
        """Training's dropout of pooled features."""
        return F.dropout(pooled, self.p, self.training)

    def spread_of(self, pooled: Tensor, aggregation: Aggregation) -> tuple[Tensor, Tensor]:
        """Mean descriptor B×d at unit length, and the mean variance of its dimensions, B."""
        samples = aggregation.from_pooled(pooled[:, None] * self.masks).float()
        samples = F.normalize(samples, dim=-1)
        return F.normalize(samples.mean(1), dim=-1), samples.var(1, correction=0).mean(-1)


Model = TypeVar("Model", bound=nn.Module)


def with_folded_head(model: Model) -> Model:
    """A copy of a model that shares everything but its ``head``, which is folded."""
    head = model.head
    if not isinstance(head, MirroredKappaHead) or head.spread != "kappa":
        kind = type(head).__name__ if head is not None else "none"
        raise KappaPlaceError(f"Only a mirrored kappa head can be folded; this model's head is {kind}.")
    folded = copy.copy(model)
    folded._modules = dict(model._modules)
    folded.head = head.fold()
    return folded


def build_head(name: HeadName, channels: int, dim: int, statistics: int = 0) -> nn.Module | None:
    """A head by name; ``none`` gives a plain retrieval model.

    ``statistics`` is how many numbers a backbone gives of its stages, 0 where it does not show them.
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
        "stun": lambda: StunHead(dim),
        "dropout": lambda: DropoutHead(channels),
        "none": lambda: None,
    }
    if name not in builders:
        raise KappaPlaceError(f"Unknown head '{name}'; choose one of: {', '.join(builders)}.")
    return builders[name]()
