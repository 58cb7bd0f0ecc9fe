"""Order of the training images, which depends only on the epoch, the step and the seed.

All random numbers are counter-based, so a run resumes from two integers. Processes that share a batch do not
have to communicate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.checks import within
from kappaplace.data.randomness import item_key, item_uniforms
from kappaplace.errors import KappaPlaceError
from kappaplace.training.places import PlaceGroup

Ints = NDArray[np.int64]

# Separate streams of one seed, so that orders and image choices are independent.
_ORDER, _IMAGES = 0, 1


def _rng(seed: int, stream: int, index: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed % 2**64, index], counter=[0, 0, 0, stream]))


class _Endless:
    """Base class of samplers: an endless order of the classes of a group, of which each process takes a
    part."""

    def __init__(self, group: PlaceGroup, seed: int, rank: int, world_size: int) -> None:
        within(rank, "rank", 0, world_size - 1)
        if not len(group):
            raise KappaPlaceError(
                "There is no class to sample from. Choose another group or lower min_images."
            )
        self.group = group
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.position = 0
        """Position in the common order of all processes. Between samples, it is a multiple of their
        number."""
        # (seed, pass, classes) of the last draw, which most draws reuse
        self._order = (-1, -1, np.empty(0, np.int64))

    def state_dict(self) -> dict[str, int]:
        """Return the state to resume from; the number of processes may change."""
        return {"seed": self.seed, "position": self.position, "classes": len(self.group)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore the state that `state_dict` returned, in constant time."""
        if state["classes"] != len(self.group):
            raise KappaPlaceError(
                f"The saved sampler has {state['classes']} classes, but this one has {len(self.group)}. "
                "Resume with the same images and class settings."
            )
        self.seed, self.position = int(state["seed"]), int(state["position"])

    def _order_of_pass(self, number: int) -> Ints:
        if self._order[:2] != (self.seed, number):
            self._order = (self.seed, number, _rng(self.seed, _ORDER, number).permutation(len(self.group)))
        return self._order[2]


class ClassSampler(_Endless):
    """Yields image rows: a random image of every class once per pass, in a new order each pass.

    Process `rank` of `world_size` takes every world_size-th item, so that all processes together have the
    order of a single one. A loader that reads ahead moves the position, too. To resume at a training step,
    load the state from before the pending batches, or set `position` to items per step × steps.

    Args:
        group: The classes.
        seed: Random seed.
        rank: Number of this process, from 0.
        world_size: Number of processes.
    """

    def __init__(self, group: PlaceGroup, seed: int = 0, *, rank: int = 0, world_size: int = 1) -> None:
        super().__init__(group, seed, rank, world_size)
        self._rows = (-1, -1, np.empty(0, np.int64))  # (seed, pass, rows) of the last draw

    def __iter__(self) -> Iterator[int]:
        while True:
            yield int(self.take(1)[0])

    def take(self, count: int) -> Ints:
        """Return the next `count` image rows of this process."""
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
    """Yields batches of `places` × `images` rows, place after place, for contrastive losses.

    A pass visits the places in a new order, each at most once. Places that do not fill a batch are skipped in
    this pass. Images of a place are distinct unless it has too few. Process `rank` takes every world_size-th
    batch.

    Args:
        group: The classes.
        places: Places per batch.
        images: Images per place.
        seed: Random seed.
        rank: Number of this process, from 0.
        world_size: Number of processes.

    Raises:
        KappaPlaceError: If a number is less than 1, or there are fewer classes than places per batch.
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
            raise KappaPlaceError(
                f"Cannot fill batches of {places} places × {images} images from {len(group)} classes. Use "
                "fewer places."
            )
        self.places = places
        self.images = images

    def __iter__(self) -> Iterator[Ints]:
        while True:
            batch = self.batch(self.position + self.rank)
            self.position += self.world_size
            yield batch

    def batch(self, number: int) -> Ints:
        """Return the places × images rows of the batch at one position of the order."""
        visit, slot = divmod(number, len(self.group) // self.places)
        classes = self._order_of_pass(visit)[slot * self.places : (slot + 1) * self.places]
        rng = _rng(self.seed, _IMAGES, number)
        starts, counts = self.group.offsets[classes], self.group.counts[classes]
        picks = [
            start + rng.choice(count, self.images, replace=count < self.images)
            for start, count in zip(starts, counts, strict=True)
        ]
        return self.group.images[np.concatenate(picks)]


_VIEW = 7  # stream of random numbers that chooses views


class Items(NamedTuple):
    """Views of images that a loss is computed on."""

    rows: Ints
    """Image rows."""
    labels: Ints
    """Place of each image within its group."""
    views: Ints
    """Number of each view. −1 for a new view at every visit."""
    keys: NDArray[np.uint64]
    """Random key of each view."""

    def part(self, rows: slice) -> Items:
        """Return some of the items."""
        return Items(*(column[rows] for column in self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class BatchPlan:
    """The batches of a whole run."""

    groups: tuple[PlaceGroup, ...]
    """Groups of places, which take turns, one per epoch."""
    batch_size: int
    """Images per batch."""
    iterations: int
    """Batches per epoch."""
    seed: int = 0
    """Random seed."""
    images_per_place: int = 0
    """Images of the same place in a batch. 0 for one image per place."""
    views: int = 0
    """Number of views per image. 0 for a new view at every visit."""
    _samplers: dict[int, ClassSampler] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.groups:
            raise KappaPlaceError(
                "There is no place to train on. Use more images or lower classes.min_images."
            )
        for number, group in enumerate(self.groups):
            if len(group.images) < self.batch_size:
                raise KappaPlaceError(
                    f"Group {number} has {len(group.images)} images, fewer than a batch of "
                    f"{self.batch_size}. Set classes.by=place if the table has places, lower "
                    "optimizer.batch_size, or use more images."
                )
        if self.images_per_place and self.batch_size % self.images_per_place:
            raise KappaPlaceError(
                f"optimizer.batch_size must be a multiple of optimizer.images_per_place="
                f"{self.images_per_place}, got {self.batch_size}."
            )

    def group_of(self, epoch: int) -> int:
        """Return the number of the group that an epoch uses."""
        return epoch % len(self.groups)

    def items(self, epoch: int, start: int, stop: int) -> Items:
        """Return the items of some steps of an epoch, batch after batch.

        Args:
            epoch: Number of the epoch, from 0.
            start: First step.
            stop: Step after the last one.

        Returns:
            The items, with one row per image.
        """
        group = self.groups[self.group_of(epoch)]
        first = (epoch // len(self.groups)) * self.iterations  # steps of this group in earlier epochs
        if self.images_per_place:
            places = PlaceBatchSampler(
                group, self.batch_size // self.images_per_place, self.images_per_place, self.seed
            )
            rows = np.concatenate([places.batch(first + step) for step in range(start, stop)])
        else:
            # Stored, because sampling the order of millions of images takes a while.
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
    """Return the keys of numbered views of images, the same with and without the cache.

    Args:
        seed: Random seed of the run.
        rows: Image rows.
        views: Number of the view of each image.

    Returns:
        One key per view.
    """
    return item_key(seed, rows, views, 1)
