"""From a table of images to the groups of places that a run learns from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kappaplace.data.classes import PlaceClasses, PlaceGroup, assign_classes, classes_of_places
from kappaplace.data.randomness import item_key, item_uniforms
from kappaplace.errors import KappaPlaceError
from kappaplace.training.settings import ClassSettings

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
