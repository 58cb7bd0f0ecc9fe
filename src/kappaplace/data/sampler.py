"""Endless, seeded order of training images: a place, then a random image of it.

Every draw is a function of (seed, position) alone, from counter-based random numbers. So a sampler resumes
from one integer, and processes that share the work need not talk to each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.classes import PlaceGroup
from kappaplace.errors import KappaPlaceError

Ints = NDArray[np.int64]

# Separate streams of one seed, so that orders and image choices are independent.
_ORDER, _IMAGES = 0, 1


def _rng(seed: int, stream: int, index: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed % 2**64, index], counter=[0, 0, 0, stream]))


class _Endless:
    """What both samplers share: the position in the common order and each process's part of it."""

    def __init__(self, group: PlaceGroup, seed: int, rank: int, world_size: int) -> None:
        if not 0 <= rank < world_size:
            raise KappaPlaceError(f"Rank {rank} is not among {world_size} processes, counted from 0.")
        if not len(group):
            raise KappaPlaceError("No class to sample from; choose another group or lower min_images.")
        self.group = group
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.position = 0
        """Place in the common order; a multiple of the number of processes between draws."""
        self._order = (-1, -1, np.empty(0, np.int64))  # (seed, pass, classes) last drawn; most draws reuse it

    def state_dict(self) -> dict[str, int]:
        """All it takes to resume, also with another number of processes."""
        return {"seed": self.seed, "position": self.position, "classes": len(self.group)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at once, however far the position is."""
        if state["classes"] != len(self.group):
            raise KappaPlaceError(
                f"The saved sampler had {state['classes']} classes, this one has {len(self.group)}; "
                "resume with the same images and class settings."
            )
        self.seed, self.position = int(state["seed"]), int(state["position"])

    def _order_of_pass(self, number: int) -> Ints:
        if self._order[:2] != (self.seed, number):
            self._order = (self.seed, number, _rng(self.seed, _ORDER, number).permutation(len(self.group)))
        return self._order[2]


class ClassSampler(_Endless):
    """Yields image rows: every class once per pass, in a new order each pass, with a random image of it.

    Process `rank` of `world_size` takes every world_size-th item, so that all processes together see what a
    single one would. Reading ahead (a loader) moves the position too: to resume at a training step, load the
    state that was saved before the batches in flight, or set `position` to items per step × steps.
    """

    def __init__(self, group: PlaceGroup, seed: int = 0, *, rank: int = 0, world_size: int = 1) -> None:
        super().__init__(group, seed, rank, world_size)
        self._rows = (-1, -1, np.empty(0, np.int64))  # (seed, pass, rows) last drawn

    def __iter__(self) -> Iterator[int]:
        while True:
            yield int(self.take(1)[0])

    def take(self, count: int) -> Ints:
        """The next `count` image rows of this process."""
        items = self.position + self.rank + self.world_size * np.arange(count)
        self.position += self.world_size * count
        passes, slots = np.divmod(items, len(self.group))
        rows = np.empty(count, np.int64)
        for number in np.unique(passes):
            inside = passes == number
            rows[inside] = self._rows_of_pass(int(number))[slots[inside]]
        return rows

    def _rows_of_pass(self, number: int) -> Ints:
        if self._rows[:2] != (self.seed, number):
            order = self._order_of_pass(number)
            choice = _rng(self.seed, _IMAGES, number).integers(self.group.counts[order])
            self._rows = (self.seed, number, self.group.images[self.group.offsets[order] + choice])
        return self._rows[2]


class PlaceBatchSampler(_Endless):
    """Yields batches of `places` × `images` rows, place after place: what contrastive losses need.

    A pass visits the places in a new order, each at most once; the rest that fills no batch is left for the
    next pass. Images of a place are distinct unless it has too few. Process `rank` takes every
    world_size-th batch.
    """

    def __init__(
        self,
        group: PlaceGroup,
        places: int,
        images: int,
        seed: int = 0,
        *,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(group, seed, rank, world_size)
        if places < 1 or images < 1 or places > len(group):
            wanted = f"batches of {places} places × {images} images"
            raise KappaPlaceError(f"Cannot fill {wanted} from {len(group)} classes; ask for fewer places.")
        self.places = places
        self.images = images

    def __iter__(self) -> Iterator[Ints]:
        while True:
            batch = self.batch(self.position + self.rank)
            self.position += self.world_size
            yield batch

    def batch(self, number: int) -> Ints:
        """Rows of the batch at one position of the common order, places × images of them."""
        visit, slot = divmod(number, len(self.group) // self.places)
        chosen = self._order_of_pass(visit)[slot * self.places : (slot + 1) * self.places]
        rng = _rng(self.seed, _IMAGES, number)
        starts, counts = self.group.offsets[chosen], self.group.counts[chosen]
        picks = [
            start + rng.choice(count, self.images, replace=count < self.images)
            for start, count in zip(starts, counts, strict=True)
        ]
        return self.group.images[np.concatenate(picks)]
