"""Prototypes on disk with the cells they stand for, and fixed anchors from prototypes or stored features."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from kappaplace.errors import KappaPlaceError
from kappaplace.files import replace_file
from kappaplace.models.published import read_prototypes
from kappaplace.training.features import CLEAN, FLUSH_EVERY, FeatureStore
from kappaplace.training.losses import FixedAnchors
from kappaplace.training.places import PlaceClasses, PlaceGroup
from kappaplace.training.settings import ClassSettings

FILE = "prototypes.safetensors"


def save_prototypes(
    file: Path,
    prototypes: Sequence[Tensor],
    groups: Sequence[PlaceGroup],
    classes: PlaceClasses,
    grid: ClassSettings,
) -> None:
    """Write one prototype a class with its cell, so that another table of these places finds it again."""
    chosen = np.concatenate([group.classes for group in groups])
    tensors = {
        "prototypes": torch.cat([matrix.detach().float().cpu() for matrix in prototypes]).contiguous(),
        "cells": torch.from_numpy(np.ascontiguousarray(classes.cells[chosen])),
    }
    metadata = {"grid": json.dumps(_grid(grid))}
    replace_file(file, lambda part: save_file(tensors, part, metadata))


def _grid(settings: ClassSettings) -> dict[str, float]:
    """What a cell means; nothing for the labels of a table."""
    return {} if settings.by == "place" else {"cell": settings.cell, "angle": settings.angle}


def prototype_anchors(
    file: Path, group: PlaceGroup, classes: PlaceClasses, grid: ClassSettings, dim: int
) -> FixedAnchors:
    """Each image's anchor is the prototype of its class."""
    if not file.is_file():
        raise KappaPlaceError(
            f"There are no class prototypes at {file}: start from a model of the recipe retrieval, name a "
            "file with anchors.prototypes, or use anchors.source=places, which needs none."
        )
    if file.suffix == ".safetensors":
        matrix, cells = _read(file, grid)
    else:  # the authors' release: one matrix a group, in the order of the groups
        matrix, cells = _from_release(file, classes)
    if matrix.shape[1] != dim:
        raise KappaPlaceError(
            f"The prototypes in {file} have {matrix.shape[1]} dimensions, the model's descriptors {dim}: "
            "they belong to another model."
        )
    where = {tuple(cell): number for number, cell in enumerate(cells.tolist())}
    found = np.array([where.get(tuple(cell), -1) for cell in classes.cells[group.classes].tolist()], np.int64)
    if (found < 0).any():
        raise KappaPlaceError(
            f"The classifier in {file} does not match these images: {int((found < 0).sum())} of "
            f"{len(found)} classes have no prototype there. Use the images and class settings it was "
            "trained with, or anchors.source=places."
        )
    return FixedAnchors(matrix, _index(group, found, classes))


@torch.no_grad()
def restore_prototypes(
    file: Path,
    prototypes: Sequence[Tensor],
    groups: Sequence[PlaceGroup],
    classes: PlaceClasses,
    grid: ClassSettings,
) -> int:
    """Put stored prototypes in the place of fresh ones, for classes that have one; how many there were."""
    matrix, cells = _read(file, grid)
    where = {tuple(cell): number for number, cell in enumerate(cells.tolist())}
    found = 0
    for target, group in zip(prototypes, groups, strict=True):
        if target.shape[1] != matrix.shape[1]:
            return 0
        for label, cell in enumerate(classes.cells[group.classes].tolist()):
            if tuple(cell) in where:
                target[label] = matrix[where[tuple(cell)]]
                found += 1
    return found


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
        raise KappaPlaceError(f"{file} is not a file of prototypes, or is damaged: {error}.") from None
    if bool(stored) != bool(_grid(grid)):
        raise KappaPlaceError(
            f"The classifier in {file} was trained with places by {'pose' if stored else 'label'}, these are "
            f"by {'label' if stored else 'pose'}; set classes.by to match."
        )
    if stored != _grid(grid):
        raise KappaPlaceError(
            f"The classifier in {file} was trained with cells of {stored['cell']:g} m and "
            f"{stored['angle']:g}°, these are {grid.cell:g} m and {grid.angle:g}°; set classes.cell "
            "and classes.angle to match."
        )
    return matrix, cells


def _from_release(file: Path, classes: PlaceClasses) -> tuple[Tensor, Tensor]:
    matrices = read_prototypes(file)
    sizes = [len(matrix) for matrix in matrices]
    wanted = classes.group_sizes[: len(sizes)].tolist()
    if sizes != wanted:
        raise KappaPlaceError(
            f"The classifiers in {file} do not match the groups: they have {sizes} classes, these images "
            f"make {wanted}; use the images and class settings they were trained with."
        )
    chosen = np.concatenate([classes.group(number).classes for number in range(len(sizes))])
    return torch.cat(matrices), torch.from_numpy(classes.cells[chosen])


def place_anchors(store: FeatureStore, group: PlaceGroup, images: int) -> FixedAnchors:
    """For each image the centroid of its place, over all views of the other images."""
    if (group.counts < 2).any():
        raise KappaPlaceError(
            "Anchors from places need two images of each place: raise classes.min_images, or use "
            "anchors.source=views."
        )
    own = _sums(store)
    labels = torch.from_numpy(group.labels(store.rows))
    whole = torch.zeros(len(group), own.shape[1]).index_add_(0, labels, own)
    for part, of in zip(own.split(FLUSH_EVERY), labels.split(FLUSH_EVERY), strict=True):
        part.neg_().add_(whole[of])  # in place: with millions of images there is no room for a second matrix
    return FixedAnchors(own, _position(store, images))


def view_anchors(store: FeatureStore, images: int) -> FixedAnchors:
    """For each view of an image the centroid of its other views: no labels needed."""
    if len(_augmented(store)) < 2:
        raise KappaPlaceError("Anchors from views need several of them: set anchors.views to 2 or more.")
    return FixedAnchors(_sums(store), _position(store, images), leave_one_out=True)


def clean_anchors(store: FeatureStore, images: int) -> FixedAnchors:
    """The descriptor of the image as it is, for views that differ from it."""
    matrix = torch.cat([block for _, block in store.descriptors_of(CLEAN)])
    return FixedAnchors(matrix, _position(store, images))


def _augmented(store: FeatureStore) -> list[int]:
    return [view for view in store.views if view != CLEAN]


def _sums(store: FeatureStore) -> Tensor:
    """Sum of the descriptors of each image's views."""
    sums = torch.zeros(len(store.rows), store.descriptor.shape[1])
    for view in _augmented(store):
        for part, block in store.descriptors_of(view):
            sums[part] += block
    return sums


def _position(store: FeatureStore, images: int) -> Tensor:
    """Where the anchor of each image row stands; −1 for rows that take no part."""
    index = torch.full((images,), -1, dtype=torch.int64)
    index[torch.from_numpy(store.rows)] = torch.arange(len(store.rows))
    return index
