"""Which images are seen when: a function of the epoch, the step and the seed alone.

So a run resumes from two integers, and processes that share a batch need not talk to each other.

Endless, seeded order of training images: a place, then a random image of it.

Every draw is a function of (seed, position) alone, from counter-based random numbers. So a sampler resumes
from one integer, and processes that share the work need not talk to each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.randomness import item_key, item_uniforms
from kappaplace.errors import KappaPlaceError
from kappaplace.training.places import PlaceGroup

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
