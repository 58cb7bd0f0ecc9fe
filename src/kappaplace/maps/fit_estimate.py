"""How long a fit will take, from a few images of this map on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kappaplace.models.loading import TrainableModel

PROBE = 8
"""Images that are timed."""
MARGIN = 1.15
"""What the encoder does not take: reading features again, learning, comparing places."""


@dataclass(frozen=True)
class Estimate:
    """How many images go through the encoder, and how long one takes."""

    passes: int
    seconds_each: float

    @property
    def seconds(self) -> float:
        return MARGIN * self.passes * self.seconds_each

    @property
    def sentence(self) -> str:
        """In words."""
        return (
            f"About {_duration(self.seconds)}: {self.passes:,} images and views of them through the encoder, "
            f"{1000 * self.seconds_each:.3g} ms each (measured on {PROBE} images of this map)."
        )


def timed(model: TrainableModel, views: Callable[[list[str]], torch.Tensor], paths: list[str]) -> float:
    """Seconds that an image takes to be read, damaged and encoded; the first round warms up."""
    seconds = 0.0
    for _ in range(2):
        start = time.perf_counter()
        with torch.inference_mode():
            model.features(views(paths)).raw.sum().item()
        seconds = time.perf_counter() - start
    return seconds / len(paths)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
