"""From a table of images to the groups of places that a run learns from.

Places as classes: cells of ground and heading, in groups whose classes are never neighbours (CosPlace).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kappaplace.data.randomness import item_key, item_uniforms
from kappaplace.errors import KappaPlaceError
from kappaplace.training.settings import ClassSettings

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PlaceGroup:
    """The classes of one group: what one classifier learns. Labels count from 0 within the group."""

    classes: Ints
    """Class of each label, ascending."""
    offsets: Ints
    """`images[offsets[k]:offsets[k + 1]]` are the image rows of label k."""
    images: Ints
    class_of_image: Ints

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def counts(self) -> Ints:
        """Images per label."""
        return np.diff(self.offsets)

    def labels(self, rows: ArrayLike) -> Ints:
        """The label of each image row; rows outside the group are an error."""
        wanted = self.class_of_image[np.asarray(rows, np.int64)]
        found = np.searchsorted(self.classes, wanted)
        if not (len(self) and np.array_equal(self.classes[np.minimum(found, len(self) - 1)], wanted)):
            raise KappaPlaceError("Some images are not in this group; ask for labels of its own images only.")
        return found


@dataclass(frozen=True, eq=False)
class PlaceClasses:
    """Which images show which place, and which places may be learnt together."""

    class_of_image: Ints
    """Class of each image, N; −1 where the pose is unknown or the class too small."""
    cells: Ints
    """(east, north, heading) cell index of each class, C×3, in lexicographic order."""
    group_of_class: Ints
    """Group of each class, C, in [0, n_groups)."""
    n_groups: int
    offsets: Ints
    """`images[offsets[c]:offsets[c + 1]]` are the image rows of class c, ascending."""
    images: Ints

    def __len__(self) -> int:
        return len(self.cells)

    @property
    def counts(self) -> Ints:
        """Images per class."""
        return np.diff(self.offsets)

    @property
    def group_sizes(self) -> Ints:
        """Classes per group: small regions leave some groups empty."""
        return np.bincount(self.group_of_class, minlength=self.n_groups)

    def images_of(self, place_class: int) -> Ints:
        """Image rows of one class."""
        return self.images[self.offsets[place_class] : self.offsets[place_class + 1]]

    def group(self, i: int) -> PlaceGroup:
        """The classes of group i with local labels for its classifier."""
        if not 0 <= i < self.n_groups:
            raise KappaPlaceError(f"There is no group {i}; groups count from 0 to {self.n_groups - 1}.")
        return self.select(np.flatnonzero(self.group_of_class == i))

    def all(self) -> PlaceGroup:
        """Every class as one group, for losses that need no separation."""
        return self.select(np.arange(len(self)))

    def select(self, classes: Ints) -> PlaceGroup:
        """Some classes, ascending, as one group."""
        counts = self.counts[classes]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        # Positions in `images`: within each class a run that starts at its own offset.
        shift = np.repeat(self.offsets[classes] - offsets[:-1], counts)
        return PlaceGroup(classes, offsets, self.images[np.arange(offsets[-1]) + shift], self.class_of_image)


def assign_classes(
    positions: ArrayLike,
    heading: ArrayLike | None = None,
    cell: float = 10.0,
    angle: float = 30.0,
    groups_per_axis: int = 5,
    groups_per_heading: int = 2,
    min_images: int = 10,
) -> PlaceClasses:
    """Classes of `cell` metres and `angle` degrees; groups by cell index modulo N per axis and L in heading.

    `positions` is N×2 (east, north) in metres, `heading` N in degrees, any turn. Without headings a cell is
    one class. An image whose position or heading is not finite, and a class of fewer than `min_images`
    images, take no part.

    Two classes of one group are then N cells or L headings apart, or more. Where `angle` does not divide 360,
    the last sector is the narrower rest. Where L does not divide the number of sectors, the last sectors
    (the remainder) get heading groups of their own, for a plain modulo would let them meet sector 0 again
    across north.
    """
    _check(cell, angle, groups_per_axis, groups_per_heading)
    place = np.asarray(positions, np.float64)
    if place.ndim != 2 or place.shape[1] != 2:
        raise KappaPlaceError(f"Positions must be N×2 (east, north) in metres; got shape {place.shape}.")
    sectors = 1 if heading is None else math.ceil(360 / angle - 1e-9)
    degrees = np.zeros(len(place)) if heading is None else np.asarray(heading, np.float64)
    if degrees.shape != (len(place),):
        raise KappaPlaceError(f"Headings must be one per position ({len(place)}); got shape {degrees.shape}.")
    known = np.flatnonzero(np.isfinite(place).all(axis=1) & np.isfinite(degrees))
    index = np.empty((len(known), 3), np.int64)
    index[:, :2] = np.floor(place[known] / cell)
    index[:, 2] = _sector(degrees[known], angle, sectors)
    key_of_image, cells = _unique_cells(index)
    return _build(
        len(place), known, key_of_image, cells, sectors, groups_per_axis, groups_per_heading, min_images
    )


def classes_of_places(place: ArrayLike, min_images: int = 10) -> PlaceClasses:
    """Classes from place labels (below 0: none), all in one group: labels alone do not say who is near whom.

    >>> classes_of_places([7, 7, 3, -1], min_images=1).class_of_image.tolist()
    [1, 1, 0, -1]
    """
    labels = np.asarray(place, np.int64)
    known = np.flatnonzero(labels >= 0)
    values, key_of_image = np.unique(labels[known], return_inverse=True)
    cells = np.zeros((len(values), 3), np.int64)
    cells[:, 0] = values
    return _build(len(labels), known, key_of_image, cells, 1, 1, 1, min_images)


def _check(cell: float, angle: float, per_axis: int, per_heading: int) -> None:
    if not (cell > 0 and math.isfinite(cell) and 0 < angle <= 360):
        raise KappaPlaceError(
            f"Cells need a positive size and an angle in (0, 360]; got {cell} m and {angle}°."
        )
    if per_axis < 1 or per_heading < 1:
        raise KappaPlaceError(
            f"Groups per axis and heading must be at least 1; got {per_axis} and {per_heading}."
        )


def _sector(degrees: NDArray[np.float64], angle: float, sectors: int) -> Ints:
    turned = np.mod(degrees, 360.0)
    turned[turned == 360.0] = 0.0  # the modulo of a tiny negative heading rounds up to 360
    return np.minimum(np.floor(turned / angle).astype(np.int64), sectors - 1)


def _unique_cells(index: Ints) -> tuple[Ints, Ints]:
    """(cell number of each row, cells in lexicographic order) by sorting single integers, not rows."""
    values, ranks = zip(*(np.unique(column, return_inverse=True) for column in index.T), strict=True)
    # Ranks instead of indices: their product fits 64 bits however far apart the places are.
    key = (ranks[0] * len(values[1]) + ranks[1]) * len(values[2]) + ranks[2]
    first, number = np.unique(key, return_index=True, return_inverse=True)[1:]
    return number, index[first]


def _build(
    n_images: int,
    known: Ints,
    key_of_image: Ints,
    cells: Ints,
    sectors: int,
    per_axis: int,
    per_heading: int,
    min_images: int,
) -> PlaceClasses:
    large = np.bincount(key_of_image, minlength=len(cells)) >= min_images
    number = np.where(large, np.cumsum(large) - 1, -1)
    class_of_image = np.full(n_images, -1, np.int64)
    class_of_image[known] = number[key_of_image]
    cells = cells[large]
    order = np.argsort(class_of_image, kind="stable")
    images = order[np.count_nonzero(class_of_image < 0) :]
    counts = np.bincount(class_of_image[images], minlength=len(cells))
    heading_group, n_heading_groups = heading_groups(cells[:, 2], sectors, per_heading)
    east, north = np.mod(cells[:, :2], per_axis).T  # never negative, also west and south of the origin
    return PlaceClasses(
        class_of_image=class_of_image,
        cells=cells,
        group_of_class=(east * per_axis + north) * n_heading_groups + heading_group,
        n_groups=per_axis * per_axis * n_heading_groups,
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        images=images,
    )


def heading_groups(sector: Any, sectors: int, per_heading: int) -> tuple[Ints, int]:
    """Heading group of each sector and their number: the sector modulo L, the remainder at the end apart.

    >>> heading_groups(np.arange(12), 12, 2)[0].tolist()
    [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]
    >>> heading_groups(np.arange(5), 5, 2)[0].tolist()
    [0, 1, 0, 1, 2]
    """
    rest = sectors % per_heading
    whole = sectors - rest
    base = per_heading if whole else 0
    sector = np.asarray(sector, np.int64)
    return np.where(sector < whole, sector % per_heading, base + sector - whole), base + rest


BLOCK = 5  # cells per side of what is held out together: images of neighbouring cells show the same things
_HOLD_OUT = 0x5EED  # not the run's seed: another run must find the same places held out


@dataclass(frozen=True, eq=False)
class Places:
    """Classes of images, and which of them this run may see."""

    classes: PlaceClasses
    chosen: NDArray[np.int64]
    """Classes in use, ascending."""
    by: Literal["pose", "place"] = "place"
    """What they were made of."""

    def groups(self, count: int) -> tuple[PlaceGroup, ...]:
        """The ``count`` largest groups of classes that are never neighbours (0: all), in their order."""
        group_of = self.classes.group_of_class[self.chosen]
        sizes = np.bincount(group_of, minlength=self.classes.n_groups)
        order = np.argsort(-sizes, kind="stable")[: count or None]
        used = np.sort(order[sizes[order] > 1])
        if not len(used):
            raise KappaPlaceError(
                "There are no two classes to tell apart; use more images, larger cells, or fewer groups "
                "(classes.groups_per_axis)."
            )
        return tuple(self.classes.select(self.chosen[group_of == group]) for group in used)

    def together(self) -> PlaceGroup:
        """All classes as one group, for objectives that do not compare places."""
        if not len(self.chosen):
            raise KappaPlaceError(
                "There is no place to learn from; use more images or lower classes.min_images."
            )
        return self.classes.select(self.chosen)


def find_places(
    positions: ArrayLike, heading: ArrayLike | None, place: ArrayLike | None, settings: ClassSettings
) -> Places:
    """Classes by pose or by label, as the settings say."""
    where = np.asarray(positions, np.float64)
    labels = np.full(len(where), -1) if place is None else np.asarray(place)
    by_pose = settings.by == "pose" or (settings.by == "auto" and bool(np.isfinite(where).any()))
    if by_pose:
        turn = None if heading is None or not np.isfinite(heading).any() else heading
        classes = assign_classes(
            where,
            turn,
            settings.cell,
            settings.angle,
            settings.groups_per_axis,
            settings.groups_per_heading,
            settings.min_images,
        )
    elif (labels >= 0).any():
        classes = classes_of_places(labels, settings.min_images)
    else:
        raise KappaPlaceError(
            "The images have neither positions nor place labels; only anchors.source=views or clean learns "
            "from them."
        )
    if not len(classes):
        raise KappaPlaceError(
            f"No place has {settings.min_images} images; lower classes.min_images or use larger cells."
        )
    return Places(classes, _chosen(classes, settings, by_pose), "pose" if by_pose else "place")


def single_images(count: int) -> Places:
    """Every image a place of its own: no labels are needed."""
    classes = classes_of_places(np.arange(count), min_images=1)
    return Places(classes, np.arange(count))


def _chosen(classes: PlaceClasses, settings: ClassSettings, by_pose: bool) -> NDArray[np.int64]:
    block = classes.cells[:, :2] // (BLOCK if by_pose else 1)
    draw = item_uniforms(item_key(_HOLD_OUT, block[:, 0], block[:, 1]), 1)[:, 0]
    held_out = draw < settings.hold_out
    if settings.use == "all":
        return np.arange(len(classes))
    chosen = np.flatnonzero(held_out if settings.use == "held-out" else ~held_out)
    if not len(chosen):
        raise KappaPlaceError(
            f"No place is left: classes.use is '{settings.use}' and classes.hold_out {settings.hold_out:g}."
        )
    return chosen
