"""Places as classes: cells of ground and heading, in groups whose classes are never neighbors (CosPlace)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kappaplace.checks import within
from kappaplace.data.randomness import item_key, item_uniforms
from kappaplace.errors import KappaPlaceError
from kappaplace.training.settings import ClassSettings

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PlaceGroup:
    """The classes of one group, for one classifier. Labels are counted from 0 within the group."""

    classes: Ints
    """Class of each label, ascending."""
    offsets: Ints
    """Start of each label: `images[offsets[k]:offsets[k + 1]]` are the image rows of label k."""
    images: Ints
    """Image rows, label after label."""
    class_of_image: Ints
    """Class of each image of the dataset; −1 for images without a class."""

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def counts(self) -> Ints:
        """Images per label."""
        return np.diff(self.offsets)

    def labels(self, rows: ArrayLike) -> Ints:
        """Return the label of each image row; raise an error for rows outside the group."""
        classes = self.class_of_image[np.asarray(rows, np.int64)]
        labels = np.searchsorted(self.classes, classes)
        if not (len(self) and np.array_equal(self.classes[np.minimum(labels, len(self) - 1)], classes)):
            raise KappaPlaceError("Some images are not in this group. Pass only rows of images of the group.")
        return labels


@dataclass(frozen=True, eq=False)
class PlaceClasses:
    """Classes of images that show the same place, in groups that one classifier can distinguish."""

    class_of_image: Ints
    """Class of each image (N); −1 if the pose is unknown or the class too small."""
    cells: Ints
    """Cell of each class: index of east, north and heading, C×3, in lexicographic order."""
    group_of_class: Ints
    """Group of each class, C, in [0, n_groups)."""
    n_groups: int
    """Number of groups; some can be empty."""
    offsets: Ints
    """Start of each class: `images[offsets[c]:offsets[c + 1]]` are the image rows of class c, ascending."""
    images: Ints
    """Image rows, class after class."""

    def __len__(self) -> int:
        return len(self.cells)

    @property
    def counts(self) -> Ints:
        """Images per class."""
        return np.diff(self.offsets)

    @property
    def group_sizes(self) -> Ints:
        """Number of classes per group, 0 for an empty group."""
        return np.bincount(self.group_of_class, minlength=self.n_groups)

    def images_of(self, place_class: int) -> Ints:
        """Return the image rows of one class."""
        return self.images[self.offsets[place_class] : self.offsets[place_class + 1]]

    def group(self, i: int) -> PlaceGroup:
        """Return the classes of group i, with labels for its classifier."""
        within(i, "group", 0, self.n_groups - 1)
        return self.select(np.flatnonzero(self.group_of_class == i))

    def all(self) -> PlaceGroup:
        """Return all classes as one group, for losses that do not compare places."""
        return self.select(np.arange(len(self)))

    def select(self, classes: Ints) -> PlaceGroup:
        """Return some classes as one group.

        Args:
            classes: The classes, ascending.

        Returns:
            The classes with labels for one classifier.
        """
        counts = self.counts[classes]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        # Positions in `images`: one run per class, which starts at the offset of the class.
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
    """Assign images to classes by ground cell and heading, and classes to groups.

    The group is the cell index modulo N per axis, and modulo L in heading. Two classes of a group are
    therefore at least N cells or L headings apart. If `angle` does not divide 360, the last sector is
    narrower. If L does not divide the number of sectors, the remaining sectors have separate heading groups,
    because they are next to sector 0.

    Args:
        positions: East and north in metres, N×2.
        heading: Heading in degrees (N); any multiple of 360 may be added. Default: headings are ignored.
        cell: Side of a cell in metres.
        angle: Width of a heading sector in degrees.
        groups_per_axis: Number of groups N along each axis.
        groups_per_heading: Number of groups L along the heading.
        min_images: Minimum number of images per class. Smaller classes are ignored, as are images whose
            position or heading is not finite.

    Returns:
        Classes and groups.

    Raises:
        KappaPlaceError: If a shape or an option is invalid.
    """
    _check(cell, angle, groups_per_axis, groups_per_heading)
    place = np.asarray(positions, np.float64)
    if place.ndim != 2 or place.shape[1] != 2:
        raise KappaPlaceError(f"positions must be N×2 (east, north) in metres, got shape {place.shape}.")
    sectors = 1 if heading is None else math.ceil(360 / angle - 1e-9)
    degrees = np.zeros(len(place)) if heading is None else np.asarray(heading, np.float64)
    if degrees.shape != (len(place),):
        raise KappaPlaceError(
            f"heading must have one value per position ({len(place)}), got shape {degrees.shape}."
        )
    posed = np.flatnonzero(np.isfinite(place).all(axis=1) & np.isfinite(degrees))
    index = np.empty((len(posed), 3), np.int64)
    index[:, :2] = np.floor(place[posed] / cell)
    index[:, 2] = _sector(degrees[posed], angle, sectors)
    number, cells = _unique_cells(index)
    number_of_image = np.full(len(place), -1, np.int64)
    number_of_image[posed] = number
    return _build(number_of_image, cells, min_images, sectors, groups_per_axis, groups_per_heading)


def classes_of_places(place: ArrayLike, min_images: int = 10) -> PlaceClasses:
    """Return classes from place labels, all in one group, because labels do not contain distances.

    Args:
        place: Label of each image (N); below 0 if it has none.
        min_images: Minimum number of images per class.

    Returns:
        The classes, all in one group.

    >>> classes_of_places([7, 7, 3, -1], min_images=1).class_of_image.tolist()
    [1, 1, 0, -1]
    """
    labels = np.asarray(place, np.int64)
    values, number = np.unique(labels[labels >= 0], return_inverse=True)
    cells = np.zeros((len(values), 3), np.int64)
    cells[:, 0] = values
    number_of_image = np.full(len(labels), -1, np.int64)
    number_of_image[labels >= 0] = number
    return _build(number_of_image, cells, min_images)


def _check(cell: float, angle: float, per_axis: int, per_heading: int) -> None:
    if not (cell > 0 and math.isfinite(cell) and 0 < angle <= 360):
        raise KappaPlaceError(
            f"cell must be above 0 and angle must be in (0, 360], got {cell} m and {angle}°."
        )
    within(per_axis, "groups_per_axis", 1)
    within(per_heading, "groups_per_heading", 1)


def _sector(degrees: NDArray[np.float64], angle: float, sectors: int) -> Ints:
    turned = np.mod(degrees, 360.0)
    turned[turned == 360.0] = 0.0  # the remainder of a tiny negative heading rounds up to 360
    return np.minimum(np.floor(turned / angle).astype(np.int64), sectors - 1)


def _unique_cells(index: Ints) -> tuple[Ints, Ints]:
    """Return the cell number of each row, and the cells in lexicographic order, by sorting integers."""
    values, ranks = zip(*(np.unique(column, return_inverse=True) for column in index.T), strict=True)
    # Ranks instead of indices, because their product fits into 64 bits for any distance between places.
    key = (ranks[0] * len(values[1]) + ranks[1]) * len(values[2]) + ranks[2]
    first, number = np.unique(key, return_index=True, return_inverse=True)[1:]
    return number, index[first]


def _build(
    number_of_image: Ints,
    cells: Ints,
    min_images: int,
    sectors: int = 1,
    per_axis: int = 1,
    per_heading: int = 1,
) -> PlaceClasses:
    """Return classes and groups, from the cell number of each image (−1 for none)."""
    used = number_of_image >= 0
    large = np.bincount(number_of_image[used], minlength=len(cells)) >= min_images
    class_of_cell = np.where(large, np.cumsum(large) - 1, -1)
    class_of_image = np.full(len(number_of_image), -1, np.int64)
    class_of_image[used] = class_of_cell[number_of_image[used]]
    cells = cells[large]
    order = np.argsort(class_of_image, kind="stable")
    images = order[np.count_nonzero(class_of_image < 0) :]
    counts = np.bincount(class_of_image[images], minlength=len(cells))
    heading_group, n_heading_groups = heading_groups(cells[:, 2], sectors, per_heading)
    east, north = np.mod(cells[:, :2], per_axis).T  # not negative, even west and south of the origin
    return PlaceClasses(
        class_of_image=class_of_image,
        cells=cells,
        group_of_class=(east * per_axis + north) * n_heading_groups + heading_group,
        n_groups=per_axis * per_axis * n_heading_groups,
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        images=images,
    )


def heading_groups(sector: ArrayLike, sectors: int, per_heading: int) -> tuple[Ints, int]:
    """Return the heading group of each sector, and the number of heading groups.

    The group is the sector modulo L. The remaining sectors at the end have separate groups.

    Args:
        sector: The sectors.
        sectors: Number of sectors of a full turn.
        per_heading: Number of groups L.

    Returns:
        Heading group of each sector, and the number of groups.

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


def cosplace_order(positions: ArrayLike, heading: ArrayLike, settings: ClassSettings) -> list[Ints]:
    """Return the cells of each group in the order in which CosPlace's code numbers its classes.

    That code appends a group at its first image. It numbers the classes of a group in the order of a Python
    set of (east, north, heading) in metres and degrees. The order of a set of whole numbers depends only on
    these numbers and their insertion, so all processes have the same order.

    Args:
        positions: East and north in metres, N×2, in the order of the image names.
        heading: Headings in degrees (N).
        settings: Options of the classes.

    Returns:
        For each group, (east, north, heading) cell indices of its classes, C×3.
    """
    pose = np.column_stack([np.asarray(positions, np.float64), np.asarray(heading, np.float64)])
    side = np.array([settings.cell, settings.cell, settings.angle])
    index = np.floor(pose[np.isfinite(pose).all(axis=1)] / side).astype(np.int64)
    number, cells = _unique_cells(index) if len(index) else (np.empty(0, np.int64), index)
    first = np.unique(number, return_index=True)[1]
    large = np.bincount(number, minlength=len(cells)) >= settings.min_images
    modulus = np.array([settings.groups_per_axis] * 2 + [settings.groups_per_heading])
    groups: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for one in sorted(np.flatnonzero(large), key=first.__getitem__):
        group = groups.setdefault(tuple((cells[one] % modulus).tolist()), set())
        group.add(tuple(int(value) for value in cells[one] * side))
    return [cells_of_classes(group, settings) for group in groups.values()]


def cells_of_classes(classes: Iterable[tuple[int, ...]], settings: ClassSettings) -> Ints:
    """Return the cell indices of classes, which CosPlace's code stores as the corners of their cells."""
    side = np.array([settings.cell, settings.cell, settings.angle])
    return np.rint(np.array(list(classes), np.float64).reshape(-1, 3) / side).astype(np.int64)


BLOCK = (
    5  # cells per side of a block that is held out, because images of neighboring cells show the same objects
)
_HOLD_OUT = 0x5EED  # not the seed of the run, because every run must hold out the same places


@dataclass(frozen=True, eq=False)
class Places:
    """Classes of images, and the selection of classes that the run uses."""

    classes: PlaceClasses
    """Classes with images, including those that the run does not use."""
    selection: NDArray[np.int64]
    """Classes that the run uses, ascending."""
    by: Literal["pose", "place"] = "place"
    """Whether classes are cells of poses or labels of places."""

    def groups(self, count: int, images: Ints | None = None) -> tuple[PlaceGroup, ...]:
        """Return groups of classes that are never neighbors.

        Args:
            count: Number of groups. 0 for all.
            images: Images in an order: groups are used in the order of their first images. Default: the
                largest groups.

        Returns:
            The groups, which take turns.
        """
        group_of = self.classes.group_of_class[self.selection]
        sizes = np.bincount(group_of, minlength=self.classes.n_groups)
        if images is None:
            order = np.argsort(-sizes, kind="stable")[: count or None]
            used = np.sort(order[sizes[order] > 1])
        else:
            own = self.classes.class_of_image[images]
            met = self.classes.group_of_class[own[np.isin(own, self.selection)]]
            order = met[np.sort(np.unique(met, return_index=True)[1])][: count or None]
            used = order[sizes[order] > 1]
        if not len(used):
            raise KappaPlaceError(
                "Training needs at least two place classes. Use more images, larger cells or fewer groups "
                "(classes.groups_per_axis)."
            )
        return tuple(self.classes.select(self.selection[group_of == group]) for group in used)

    def together(self) -> PlaceGroup:
        """Return all classes as one group, for objectives that do not compare places."""
        if not len(self.selection):
            raise KappaPlaceError(
                "There is no place to train on. Use more images or lower classes.min_images."
            )
        return self.classes.select(self.selection)


def find_places(
    positions: ArrayLike, heading: ArrayLike | None, place: ArrayLike | None, settings: ClassSettings
) -> Places:
    """Return the classes of images, by pose or by label.

    Args:
        positions: East and north in metres, N×2. NaN if unknown.
        heading: Headings in degrees (N); None if unknown.
        place: Place labels, N, below 0 if unknown; None if there are none.
        settings: Options of the classes.

    Returns:
        The classes, and those that the run uses.

    Raises:
        KappaPlaceError: If the images have neither positions nor labels, or no class is large enough.
    """
    points = np.asarray(positions, np.float64)
    labels = np.full(len(points), -1) if place is None else np.asarray(place)
    by_pose = settings.by == "pose" or (settings.by == "auto" and bool(np.isfinite(points).any()))
    if by_pose:
        turn = None if heading is None or not np.isfinite(heading).any() else heading
        classes = assign_classes(
            points,
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
            "The images have neither positions nor place labels. Set anchors.source to views or clean, which "
            "need neither."
        )
    if not len(classes):
        raise KappaPlaceError(
            f"No place has {settings.min_images} images. Lower classes.min_images or use larger cells."
        )
    return Places(classes, _selection(classes, settings, by_pose), "pose" if by_pose else "place")


def single_images(count: int) -> Places:
    """Return every image as a separate place, which needs no labels."""
    classes = classes_of_places(np.arange(count), min_images=1)
    return Places(classes, np.arange(count))


def _selection(classes: PlaceClasses, settings: ClassSettings, by_pose: bool) -> NDArray[np.int64]:
    block = classes.cells[:, :2] // (BLOCK if by_pose else 1)
    draw = item_uniforms(item_key(_HOLD_OUT, block[:, 0], block[:, 1]), 1)[:, 0]
    held_out = draw < settings.hold_out
    if settings.use == "all":
        return np.arange(len(classes))
    selection = np.flatnonzero(held_out if settings.use == "held-out" else ~held_out)
    if not len(selection):
        raise KappaPlaceError(
            f"No place is left with classes.use='{settings.use}' and classes.hold_out={settings.hold_out:g}. "
            "Change one of them."
        )
    return selection
