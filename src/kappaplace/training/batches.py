"""Which images are seen when: a function of the epoch, the step and the seed alone.

So a run resumes from two integers, and processes that share a batch need not talk to each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.classes import PlaceGroup
from kappaplace.data.randomness import item_key, item_uniforms
from kappaplace.data.sampler import ClassSampler, PlaceBatchSampler
from kappaplace.errors import KappaPlaceError

Ints = NDArray[np.int64]
_VIEW = 7  # stream of the choice of views


class Items(NamedTuple):
    """What to compute a loss on."""

    rows: Ints
    """Image rows."""
    labels: Ints
    """Place of each image within its group."""
    views: Ints
    """Number of the view; −1: a new one at every visit."""
    keys: NDArray[np.uint64]
    """Source of all randomness of each view."""

    def part(self, chosen: slice) -> Items:
        """Some of them."""
        return Items(*(column[chosen] for column in self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class BatchPlan:
    """The batches of a whole run."""

    groups: tuple[PlaceGroup, ...]
    """They take turns, one an epoch."""
    batch_size: int
    iterations: int
    seed: int = 0
    images_per_place: int = 0
    """0: one place, one image; else P places × this many images (contrastive)."""
    views: int = 0
    """How many views an image has; 0: without end."""
    _samplers: dict[int, ClassSampler] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.groups:
            raise KappaPlaceError("There is no place to learn; use more images or lower classes.min_images.")
        for number, group in enumerate(self.groups):
            if len(group.images) < self.batch_size:
                raise KappaPlaceError(
                    f"Group {number} has {len(group.images)} images, fewer than a batch of "
                    f"{self.batch_size}; lower optimiser.batch_size or use more images."
                )
        if self.images_per_place and self.batch_size % self.images_per_place:
            raise KappaPlaceError(
                f"A batch of {self.batch_size} cannot be made of places with {self.images_per_place} images "
                "each; choose a multiple."
            )

    def group_of(self, epoch: int) -> int:
        """Whose turn it is."""
        return epoch % len(self.groups)

    def items(self, epoch: int, start: int, stop: int) -> Items:
        """The items of steps ``start`` to ``stop`` of an epoch, batch after batch."""
        group = self.groups[self.group_of(epoch)]
        first = (epoch // len(self.groups)) * self.iterations  # steps this group has had before
        if self.images_per_place:
            places = PlaceBatchSampler(
                group, self.batch_size // self.images_per_place, self.images_per_place, self.seed
            )
            rows = np.concatenate([places.batch(first + step) for step in range(start, stop)])
        else:
            # Kept: a sampler remembers the order of its pass, which takes a while to draw for millions.
            sampler = self._samplers.setdefault(self.group_of(epoch), ClassSampler(group, self.seed))
            sampler.position = (first + start) * self.batch_size
            rows = sampler.take((stop - start) * self.batch_size)
        position = (epoch * self.iterations + start) * self.batch_size + np.arange(len(rows))
        visit = item_key(self.seed, position)
        if not self.views:
            return Items(rows, group.labels(rows), np.full(len(rows), -1), visit)
        views = (item_uniforms(visit, 1, _VIEW)[:, 0] * self.views).astype(np.int64)
        return Items(rows, group.labels(rows), views, view_key(self.seed, rows, views))


def view_key(seed: int, rows: Ints, views: Ints) -> NDArray[np.uint64]:
    """The key of a numbered view of an image: the same in the cache and in the direct loop."""
    return item_key(seed, rows, views, 1)
