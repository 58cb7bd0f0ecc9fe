"""Class prototypes on disk, and fixed anchors from prototypes or stored features."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from kappaplace.errors import KappaPlaceError
from kappaplace.files import replace_file, telling
from kappaplace.models.published import read_prototypes, read_tensors
from kappaplace.training.features import CLEAN, FLUSH_EVERY, FeatureStore
from kappaplace.training.images import TrainingSet
from kappaplace.training.losses import FixedAnchors
from kappaplace.training.places import PlaceClasses, PlaceGroup, cells_of_classes, cosplace_order
from kappaplace.training.settings import ClassSettings, Settings

FILE = "prototypes.safetensors"


def save_prototypes(
    file: Path,
    prototypes: Sequence[Tensor],
    groups: Sequence[PlaceGroup],
    classes: PlaceClasses,
    grid: ClassSettings,
) -> None:
    """Write one prototype per class with its cell, so that it can be used with other images of these places.

    Args:
        file: File to write.
        prototypes: Prototypes of each group, C×d.
        groups: The groups.
        classes: The classes.
        grid: Size of the cells.
    """
    numbers = np.concatenate([group.classes for group in groups])
    tensors = {
        "prototypes": torch.cat([matrix.detach().float().cpu() for matrix in prototypes]).contiguous(),
        "cells": torch.from_numpy(np.ascontiguousarray(classes.cells[numbers])),
    }
    metadata = {"grid": json.dumps(_grid(grid))}
    replace_file(file, lambda part: save_file(tensors, part, metadata))


def _grid(settings: ClassSettings) -> dict[str, float]:
    """Return the size of the cells; nothing for place labels."""
    return {} if settings.by == "place" else {"cell": settings.cell, "angle": settings.angle}


def prototype_anchors(
    file: Path,
    group: PlaceGroup,
    classes: PlaceClasses,
    grid: ClassSettings,
    dim: int,
    order: Sequence[NDArray[np.int64]] = (),
) -> FixedAnchors:
    """Return the prototype of its class as the anchor of each image.

    Args:
        file: File of prototypes, or the authors' release.
        group: Classes that have anchors.
        classes: All classes.
        grid: Size of the cells.
        dim: Dimension of the descriptors.
        order: Cells of the classes of each group, in the order of the authors' release. Not used for other
            files.

    Returns:
        One anchor per image that has a class in the group.

    Raises:
        KappaPlaceError: If the file does not exist, is damaged, or does not match the classes or the model.
    """
    if not file.is_file():
        raise KappaPlaceError(
            f"There are no class prototypes at {file}. Start from a model of the recipe retrieval, set "
            "anchors.prototypes, or use anchors.source=places, which needs none."
        )
    if file.suffix == ".safetensors":
        matrix, cells = _read(file, grid)
    else:
        matrix, cells = _from_release(file, order)
    if matrix.shape[1] != dim:
        raise KappaPlaceError(
            f"The prototypes in {file} have {matrix.shape[1]} dimensions, but descriptors of the model have "
            f"{dim}. Use the prototypes of this model."
        )
    rows = {tuple(cell): row for row, cell in enumerate(cells.tolist())}
    anchors = np.array(
        [rows.get(tuple(cell), -1) for cell in classes.cells[group.classes].tolist()], np.int64
    )
    if (anchors < 0).any():
        raise KappaPlaceError(
            f"The classifier in {file} does not match these images: {int((anchors < 0).sum())} of "
            f"{len(anchors)} classes have no prototype there. Use the images and class settings it was "
            "trained with, or anchors.source=places."
        )
    return FixedAnchors(matrix, _index(group, anchors, classes))


@torch.no_grad()
def restore_prototypes(
    file: Path,
    prototypes: Sequence[Tensor],
    groups: Sequence[PlaceGroup],
    classes: PlaceClasses,
    grid: ClassSettings,
) -> int:
    """Replace new prototypes with stored ones, for classes with a stored prototype.

    Args:
        file: File of prototypes.
        prototypes: New prototypes of each group, C×d, which are changed.
        groups: The groups.
        classes: The classes.
        grid: Size of the cells.

    Returns:
        Number of classes with a stored prototype.
    """
    matrix, cells = _read(file, grid)
    rows = {tuple(cell): row for row, cell in enumerate(cells.tolist())}
    count = 0
    for target, group in zip(prototypes, groups, strict=True):
        if target.shape[1] != matrix.shape[1]:
            return 0
        for label, cell in enumerate(classes.cells[group.classes].tolist()):
            if tuple(cell) in rows:
                target[label] = matrix[rows[tuple(cell)]]
                count += 1
    return count


def _index(group: PlaceGroup, anchor_of_label: NDArray[np.int64], classes: PlaceClasses) -> Tensor:
    index = np.full(len(classes.class_of_image), -1, np.int64)
    index[group.images] = anchor_of_label[group.labels(group.images)]
    return torch.from_numpy(index)


def _read(file: Path, grid: ClassSettings) -> tuple[Tensor, Tensor]:
    try:
        with safe_open(file, "pt") as content:
            stored = json.loads((content.metadata() or {})["grid"])
            matrix, cells = content.get_tensor("prototypes"), content.get_tensor("cells")
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise KappaPlaceError(
            f"{file} is not a valid file of prototypes ({error}). Save it again, or set anchors.prototypes."
        ) from None
    if bool(stored) != bool(_grid(grid)):
        raise KappaPlaceError(
            f"The classifier in {file} was trained with places by {'pose' if stored else 'label'}, these are "
            f"by {'label' if stored else 'pose'}. Set classes.by to match."
        )
    if stored != _grid(grid):
        raise KappaPlaceError(
            f"The classifier in {file} was trained with cells of {stored['cell']:g} m and "
            f"{stored['angle']:g}°, these are {grid.cell:g} m and {grid.angle:g}°. Set classes.cell "
            "and classes.angle to match."
        )
    return matrix, cells


def is_release(file: Path) -> bool:
    """Return whether a file of prototypes is a training checkpoint of CosPlace or the authors' release."""
    return file.is_file() and file.suffix != ".safetensors"


def release_order(data: TrainingSet, settings: Settings) -> list[NDArray[np.int64]]:
    """Return the cells of the classes of each group, in the order that CosPlace's code and the authors'
    release use.

    Args:
        data: All training images.
        settings: Options of the run. ``anchors.classes`` can be the file in which CosPlace's code stores the
            order.

    Returns:
        Cell indices of the classes of each group, C×3.

    Raises:
        KappaPlaceError: If the file is not valid, or the images have no headings.
    """
    if settings.anchors.classes:
        content = read_tensors(settings.anchors.classes)
        with telling(f"{settings.anchors.classes} is not a file of classes of CosPlace's code"):
            return [cells_of_classes(group, settings.classes) for group in content[0]]
    if data.heading is None:
        raise KappaPlaceError(
            "The prototypes of the authors' release need the headings of the images. Import the images with "
            "headings, or set anchors.classes or anchors.source=places."
        )
    rows = data.by_name
    return cosplace_order(data.positions[rows], data.heading[rows], settings.classes)


def _from_release(file: Path, order: Sequence[NDArray[np.int64]]) -> tuple[Tensor, Tensor]:
    matrices = read_prototypes(file)
    sizes = [len(matrix) for matrix in matrices]
    expected = [len(cells) for cells in order[: len(sizes)]]
    if sizes != expected:
        raise KappaPlaceError(
            f"The classifiers in {file} do not match the groups: they have {sizes} classes, these images "
            f"have {expected}. Use the images and class settings they were trained with."
        )
    return torch.cat(matrices), torch.from_numpy(np.concatenate(order[: len(sizes)]))


SAMPLE = 64
FAR_ABOVE_CHANCE = 0.25
"""Minimum hit rate of valid prototypes, on a scale from 0 (chance) to 1 (always)."""


def check_prototypes(
    anchors: FixedAnchors, sizes: Sequence[int], describe: Callable[[NDArray[np.int64]], Tensor], file: Path
) -> float:
    """Check that the prototype of its class is the most similar one for sampled images of each group.

    Args:
        anchors: The anchors, group after group.
        sizes: Number of prototypes of each group.
        describe: Function that returns the descriptors of image rows.
        file: File of the prototypes.

    Returns:
        Fraction of the sampled images for which the prototype of their class is the most similar one.

    Raises:
        KappaPlaceError: If this is not far more frequent than by chance in every group.
    """
    index, won, start = anchors.index.numpy(), [], 0
    generator = np.random.default_rng(0)
    for number, size in enumerate(sizes):
        rows = np.flatnonzero((index >= start) & (index < start + size))
        rows = np.sort(generator.permutation(rows)[:SAMPLE])
        if len(rows):
            cosines = describe(rows).cpu() @ anchors.matrix[start : start + size].T
            wins = (cosines.argmax(1).numpy() == index[rows] - start).tolist()
            rate, chance = sum(wins) / len(wins), 1 / size
            if rate < chance + FAR_ABOVE_CHANCE * (1 - chance):
                raise KappaPlaceError(
                    f"The prototypes in {file} do not belong to these places. In group {number}, only "
                    f"{sum(wins)} of {len(wins)} images are most similar to their prototype (chance "
                    f"{chance:.2g}); use all its training images and its model, or set anchors.classes."
                )
            won += wins
        start += size
    return sum(won) / max(1, len(won))


def place_anchors(store: FeatureStore, group: PlaceGroup, images: int) -> FixedAnchors:
    """Return the centroid of the other images of its place, in all views, as the anchor of each image.

    Args:
        store: Features of the images.
        group: The places.
        images: Number of images of the dataset.

    Returns:
        One anchor per image; images outside the group have none.

    Raises:
        KappaPlaceError: If a place has a single image.
    """
    if (group.counts < 2).any():
        raise KappaPlaceError(
            "Anchors from places need two images of each place. Raise classes.min_images, or use "
            "anchors.source=views."
        )
    own = _sums(store)
    labels = torch.from_numpy(group.labels(store.rows))
    whole = torch.zeros(len(group), own.shape[1]).index_add_(0, labels, own)
    # In place: a second matrix of millions of images does not fit into memory.
    for part, of in zip(own.split(FLUSH_EVERY), labels.split(FLUSH_EVERY), strict=True):
        part.neg_().add_(whole[of])
    return FixedAnchors(own, _position(store, images))


def view_anchors(store: FeatureStore, images: int) -> FixedAnchors:
    """Return the centroid of the other views as the anchor of each view of an image, which needs no
    labels."""
    if len(_augmented(store)) < 2:
        raise KappaPlaceError("Anchors from views need at least two views. Set anchors.views to 2 or more.")
    return FixedAnchors(_sums(store), _position(store, images), leave_one_out=True)


def clean_anchors(store: FeatureStore, images: int) -> FixedAnchors:
    """Return the descriptor of the unchanged image as the anchor of each view."""
    matrix = torch.cat([block for _, block in store.descriptors_of(CLEAN)])
    return FixedAnchors(matrix, _position(store, images))


def _augmented(store: FeatureStore) -> list[int]:
    return [view for view in store.views if view != CLEAN]


def _sums(store: FeatureStore) -> Tensor:
    """Return the sum of the descriptors of the views of each image."""
    sums = torch.zeros(len(store.rows), store.descriptor.shape[1])
    for view in _augmented(store):
        for part, block in store.descriptors_of(view):
            sums[part] += block
    return sums


def _position(store: FeatureStore, images: int) -> Tensor:
    """Return the row of the anchor of each image; −1 for images without an anchor."""
    index = torch.full((images,), -1, dtype=torch.int64)
    index[torch.from_numpy(store.rows)] = torch.arange(len(store.rows))
    return index
