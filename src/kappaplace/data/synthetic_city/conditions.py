"""What makes an image hard, as known levels: 0 is no effect, 1 the worst."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np

from kappaplace.errors import KappaPlaceError

# How much of the place each condition can take away at level 1; used by `Conditions.damage`.
WEIGHTS = {
    "night": 0.8,
    "fog": 0.9,
    "rain": 0.6,
    "blur": 0.8,
    "exposure": 0.8,
    "occlusion": 0.8,
    "season": 0.4,
}
CONDITION_NAMES = tuple(WEIGHTS)


@dataclass(frozen=True, eq=False)
class Conditions:
    """One level in [0, 1] per image and condition, each a float32 array of length N."""

    night: np.ndarray
    fog: np.ndarray
    rain: np.ndarray
    blur: np.ndarray
    exposure: np.ndarray  # over- or under-exposed, as the image seed has it
    occlusion: np.ndarray  # by vehicles in front of the camera
    season: np.ndarray  # summer, autumn at one half, winter with snow at one

    def __post_init__(self) -> None:
        lengths = set()
        for item in fields(self):
            levels = np.asarray(getattr(self, item.name), np.float32)
            if levels.ndim != 1 or not np.all((levels >= 0) & (levels <= 1)):
                raise KappaPlaceError(
                    f"Condition '{item.name}' must be a 1-D array of levels between 0 and 1."
                )
            lengths.add(len(levels))
            object.__setattr__(self, item.name, levels)
        if len(lengths) > 1:
            raise KappaPlaceError(
                f"All conditions must have one level per image, but lengths {sorted(lengths)} differ."
            )

    def __len__(self) -> int:
        return len(self.night)

    @property
    def damage(self) -> np.ndarray:
        """One number in [0, 1] per image: 1 - Π (1 - weight · level), with the `WEIGHTS` of this module.

        Each condition takes its share of what the others have left of the place; it grows with every level.
        """
        left = np.ones(len(self), np.float32)
        for name, weight in WEIGHTS.items():
            left *= 1 - np.float32(weight) * getattr(self, name)
        return np.asarray(1 - left)

    def levels(self) -> np.ndarray:
        """N × 7 float32, in the order of `CONDITION_NAMES`."""
        return np.stack([getattr(self, name) for name in CONDITION_NAMES], axis=1)

    def take(self, rows: np.ndarray | slice) -> Conditions:
        return Conditions(**{name: getattr(self, name)[rows] for name in CONDITION_NAMES})

    @classmethod
    def clear(cls, count: int, **levels: float) -> Conditions:
        """`count` images without any condition, except the named ones: `Conditions.clear(5, fog=0.4)`."""
        unknown = set(levels) - set(CONDITION_NAMES)
        if unknown:
            raise KappaPlaceError(
                f"Unknown condition {sorted(unknown)}; choose from {', '.join(CONDITION_NAMES)}."
            )
        return cls(**{name: np.full(count, levels.get(name, 0.0), np.float32) for name in CONDITION_NAMES})

    @classmethod
    def from_levels(cls, levels: np.ndarray) -> Conditions:
        """From N × 7 levels in the order of `CONDITION_NAMES`."""
        return cls(**{name: levels[:, number] for number, name in enumerate(CONDITION_NAMES)})

    @classmethod
    def concatenate(cls, parts: Iterable[Conditions]) -> Conditions:
        return cls.from_levels(np.concatenate([part.levels() for part in parts]))


def mild(count: int, rng: np.random.Generator, strength: float = 0.5) -> Conditions:
    """An ordinary survey: each condition in three of ten images, mostly near 0, never above `strength`."""
    levels = strength * rng.random((count, len(CONDITION_NAMES)), np.float32) ** 2
    return Conditions.from_levels(levels * (rng.random(levels.shape) < 0.3))


def harsh(count: int, rng: np.random.Generator, strength: float = 1.0) -> Conditions:
    """Three in ten clear, the others under one to three conditions of any level up to `strength`."""
    kinds = len(CONDITION_NAMES)
    number = rng.choice([0, 1, 2, 3], size=count, p=[0.3, 0.45, 0.2, 0.05])
    rank = rng.random((count, kinds)).argsort(axis=1)
    levels = strength * rng.random((count, kinds), np.float32) ** 1.3
    return Conditions.from_levels(np.where(rank < number[:, None], levels, 0))
