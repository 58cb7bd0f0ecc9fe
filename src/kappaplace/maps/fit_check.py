"""What κ has learnt: what it says of images it never saw, damaged in every way and to every level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kappaplace.data.degrade import KINDS, degrade
from kappaplace.models.heads import Head
from kappaplace.models.loading import TrainableModel
from kappaplace.models.place_model import unit
from kappaplace.progress import track

LEVELS = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Learnt:
    """κ of undamaged and of damaged images, and how it goes with the level of damage."""

    images: int
    clean: list[float]
    """Lower quartile, median and upper quartile of κ of the undamaged images."""
    kinds: dict[str, list[list[float]]]
    """Of each kind of damage: the same three at each of `LEVELS`."""
    closeness: dict[str, list[float]]
    """Mean cosine of the damaged image's descriptor to that of the undamaged, at each level."""
    with_level: float
    """Rank correlation of κ with the level of damage over all damaged images; −1 is best."""
    with_cosine: float
    """Rank correlation of κ with that cosine, which is what κ is learnt from; 1 is best."""
    by_kind: dict[str, float] = field(default_factory=dict)
    """`with_level` of each kind alone, the undamaged image as level 0."""
    before: float | None = None
    """`with_level` of the κ that the model had before; None where it had none."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> Learnt:
        return cls(**values)


@torch.inference_mode()
def look(model: TrainableModel, old: Head | None, paths: Sequence[str], seed: int) -> Learnt:
    """Damage each image in each way to each level and read κ; ``old`` is the head that was there before."""
    model.eval()
    if old is not None:
        old = old.eval()
    parts = []
    with track("Judging κ", len(paths)) as bar:
        for number, path in enumerate(paths):
            pixels = model.preprocessing.to_uint8(path).unsqueeze(0).float() / 255
            parts.append(_read(model, old, pixels, seed + number))
            bar.advance()
    kappa, cosine, before = (np.stack(column) for column in zip(*parts, strict=True))
    return _summary(kappa, cosine, before if old is not None else None)


def passes(images: int) -> int:
    """How many images go through the encoder for this."""
    return images * (1 + len(KINDS) * len(LEVELS))


def _read(
    model: TrainableModel, old: Head | None, pixels: Tensor, seed: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """κ, cosine to the undamaged and the old κ of one image: the undamaged first, then kinds × levels."""
    names = [name for name in KINDS for _ in LEVELS]
    copies = pixels.expand(len(names), *pixels.shape[1:])
    damaged = degrade(copies, names, list(LEVELS) * len(KINDS), torch.Generator().manual_seed(seed))
    weight = next(model.parameters())
    batch = model.preprocessing.normalise(torch.cat([pixels, damaged]).to(weight.device)).to(weight.dtype)
    features = model.features(batch)
    descriptor = unit(features.raw).float()
    kappa = model.head(*features)  # type: ignore[misc]  # fitted a moment ago
    then = kappa if old is None else old.to(weight.device)(*features)
    cosine = descriptor @ descriptor[0]
    return kappa.float().cpu().numpy(), cosine.cpu().numpy(), then.float().cpu().numpy()


def _summary(
    kappa: NDArray[np.float32], cosine: NDArray[np.float32], before: NDArray[np.float32] | None
) -> Learnt:
    """From N × (1 + kinds × levels) arrays."""
    shape = (len(kappa), len(KINDS), len(LEVELS))
    damaged, close = kappa[:, 1:].reshape(shape), cosine[:, 1:].reshape(shape)
    levels = np.broadcast_to(LEVELS, shape)
    by_kind = {}
    for number, kind in enumerate(KINDS):
        values = np.concatenate([kappa[:, :1], damaged[:, number]], axis=1)
        by_kind[kind] = _ranks(np.broadcast_to((0.0, *LEVELS), values.shape), values)
    return Learnt(
        images=len(kappa),
        clean=_quartiles(kappa[:, 0]),
        kinds={
            kind: [_quartiles(damaged[:, number, level]) for level in range(len(LEVELS))]
            for number, kind in enumerate(KINDS)
        },
        closeness={kind: close[:, number].mean(axis=0).tolist() for number, kind in enumerate(KINDS)},
        with_level=_ranks(levels, damaged),
        with_cosine=_ranks(cosine[:, 1:], kappa[:, 1:]),
        by_kind=by_kind,
        before=None if before is None else _ranks(levels, before[:, 1:].reshape(shape)),
    )


def _quartiles(values: NDArray[np.float32]) -> list[float]:
    return [float(value) for value in np.percentile(values, (25, 50, 75))]


def _ranks(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Spearman's rank correlation; 0 where one of them does not vary."""
    from scipy.stats import spearmanr

    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float(spearmanr(one.ravel(), other.ravel()).statistic)
