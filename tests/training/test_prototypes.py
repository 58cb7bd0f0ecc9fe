"""Prototypes on disk are matched to their places; centroids against NumPy loops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from kappaplace.errors import KappaPlaceError
from kappaplace.training.features import CLEAN, FeatureStore
from kappaplace.training.losses import FixedAnchors
from kappaplace.training.places import PlaceClasses, assign_classes, classes_of_places
from kappaplace.training.prototypes import (
    clean_anchors,
    place_anchors,
    prototype_anchors,
    save_prototypes,
    view_anchors,
)
from kappaplace.training.settings import ClassSettings

DIM = 6
GRID = ClassSettings()


def street(cells: list[int]) -> PlaceClasses:
    """One image in each of some cells, even and odd ones in two groups."""
    positions = np.stack([np.array(cells) * 10.0 + 5, np.full(len(cells), 5.0)], axis=1)
    return assign_classes(positions, groups_per_axis=2, min_images=1)


def groups_of(classes: PlaceClasses) -> list:
    return [classes.group(number) for number in np.flatnonzero(classes.group_sizes)]


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, dict[int, Tensor]]:
    """Prototypes of cells 0 to 5, and the expected one of each cell."""
    classes = street([0, 1, 2, 3, 4, 5])
    matrices = [torch.randn(3, DIM) * 4, torch.randn(3, DIM) * 4]
    file = tmp_path / "prototypes.safetensors"
    save_prototypes(file, matrices, groups_of(classes), classes, GRID)
    return file, {cell: matrices[cell % 2][cell // 2] for cell in range(6)}


def test_prototypes_find_their_cells_in_another_table(saved: tuple[Path, dict[int, Tensor]]) -> None:
    file, prototype = saved
    cells = [4, 1, 3, 1]  # another order, fewer places, one of them twice
    classes = street(cells)
    anchors = prototype_anchors(file, classes.all(), classes, GRID, DIM)
    directions = anchors(torch.arange(4), torch.zeros(4, DIM))
    for cell, anchor in zip(cells, directions, strict=True):
        np.testing.assert_allclose(anchor, prototype[cell] / prototype[cell].norm(), rtol=1e-6)


def test_prototypes_that_do_not_match_are_reported(
    saved: tuple[Path, dict[int, Tensor]], tmp_path: Path
) -> None:
    file, _ = saved
    classes = street([2, 3, 8, 9])
    with pytest.raises(
        KappaPlaceError, match="does not match these images: 2 of 4 classes have no prototype"
    ):
        prototype_anchors(file, classes.all(), classes, GRID, DIM)
    classes = street([2, 3])
    with pytest.raises(KappaPlaceError, match="have 6 dimensions, the model's descriptors 7"):
        prototype_anchors(file, classes.all(), classes, GRID, DIM + 1)
    with pytest.raises(
        KappaPlaceError, match=r"cells of 10 m and 30°, these are 20 m and 30°\. Set classes\.cell"
    ):
        prototype_anchors(file, classes.all(), classes, replace(GRID, cell=20.0), DIM)
    with pytest.raises(KappaPlaceError, match=r"no class prototypes at .*anchors\.source=places"):
        prototype_anchors(tmp_path / "nothing.safetensors", classes.all(), classes, GRID, DIM)
    junk = tmp_path / "junk.safetensors"
    junk.write_bytes(b"not a tensor in sight")
    with pytest.raises(KappaPlaceError, match="not a valid file of prototypes"):
        prototype_anchors(junk, classes.all(), classes, GRID, DIM)


def test_prototypes_of_labels_are_not_those_of_cells(tmp_path: Path) -> None:
    """Label 3 is not the fourth cell of a street, although both are stored as (3, 0, 0)."""
    labels, file = classes_of_places(np.arange(4), min_images=1), tmp_path / "prototypes.safetensors"
    by_label = replace(GRID, by="place")
    save_prototypes(file, [torch.randn(4, DIM)], [labels.all()], labels, by_label)
    prototype_anchors(file, labels.all(), labels, by_label, DIM)
    cells = street([0, 1, 2, 3])
    with pytest.raises(KappaPlaceError, match="label"):
        prototype_anchors(file, cells.all(), cells, replace(GRID, by="pose"), DIM)


def release(file: Path, sizes: list[int]) -> list[Tensor]:
    """A file as the authors' code writes it."""
    matrices = [torch.randn(size, DIM) for size in sizes]
    content = {"model_state_dict": {}, "classifiers_state_dict": [{"weight": matrix} for matrix in matrices]}
    torch.save(content, file)
    return matrices


def test_prototypes_of_the_authors_release_go_by_their_groups(tmp_path: Path) -> None:
    classes = assign_classes(
        np.stack([np.arange(6) * 10.0 + 5, np.full(6, 5.0)], axis=1), groups_per_axis=2, min_images=1
    )
    file = tmp_path / "release.pth"
    sizes = classes.group_sizes.tolist()
    matrices = release(file, sizes)
    expected = {}
    for number, matrix in enumerate(matrices):
        for label, cell in enumerate(classes.cells[classes.group(number).classes, 0].tolist()):
            expected[cell] = matrix[label] / matrix[label].norm()
    directions = prototype_anchors(file, classes.all(), classes, GRID, DIM)(
        torch.arange(6), torch.zeros(6, DIM)
    )
    for cell in range(6):
        np.testing.assert_allclose(directions[cell], expected[cell], rtol=1e-5)
    release(file, [size + 1 for size in sizes])
    with pytest.raises(KappaPlaceError, match="do not match the groups"):
        prototype_anchors(file, classes.all(), classes, GRID, DIM)


def store_of(rows: np.ndarray, views: tuple[int, ...], seed: int = 0) -> FeatureStore:
    rng = np.random.default_rng(seed)
    descriptors = rng.normal(size=(len(rows) * len(views), DIM))
    descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)
    return FeatureStore(
        np.zeros((len(descriptors), 1), np.float16), descriptors.astype(np.float16), rows, views
    )


def unit(values: np.ndarray) -> np.ndarray:
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


@pytest.mark.parametrize("views", [(0,), (0, 1, 2), (CLEAN, 0, 1)])
def test_centroids_of_places_leave_out_the_image_itself(views: tuple[int, ...]) -> None:
    """The mean over all views of the other images of the place of each image, by a plain loop."""
    place = np.array([3, 3, 9, -1, 9, 3, 9, 9])
    classes = classes_of_places(place, min_images=2)
    rows = np.flatnonzero(place >= 0)
    store = store_of(rows, views)
    anchors = place_anchors(store, classes.all(), len(place))
    used = [view for view in views if view != CLEAN]

    def descriptor(row: int, view: int) -> np.ndarray:
        position = views.index(view) * len(rows) + rows.tolist().index(row)
        return unit(store.descriptor[position].astype(np.float64))

    for row in rows:
        for view in used:
            others = [
                descriptor(other, number)
                for other in rows
                for number in used
                if place[other] == place[row] and other != row
            ]
            own = torch.from_numpy(descriptor(row, view)).float()[None]
            directions = anchors(torch.tensor([row]), own)[0]
            np.testing.assert_allclose(directions, unit(np.sum(others, axis=0)), atol=2e-5)


def test_centroids_of_single_images_are_those_of_their_other_views() -> None:
    store = store_of(np.arange(4), (0, 1))
    anchors = view_anchors(store, 4)
    first, second = (unit(store.descriptor[part].astype(np.float64)) for part in (slice(4), slice(4, 8)))
    directions = anchors(torch.arange(4), torch.from_numpy(first).float())
    np.testing.assert_allclose(directions, second, atol=1e-5)


def test_a_centroid_of_one_descriptor_is_reported() -> None:
    classes = classes_of_places(np.arange(4), min_images=1)
    for views in ((0,), (CLEAN, 0)):
        with pytest.raises(KappaPlaceError, match=r"Set anchors\.views to 2 or more"):
            view_anchors(store_of(np.arange(4), views), 4)
    with pytest.raises(KappaPlaceError, match="need two images of each place"):
        place_anchors(store_of(np.arange(4), (0, 1)), classes.all(), 4)


def test_clean_anchors_are_the_images_as_they_are() -> None:
    rows = np.array([1, 4, 5])
    store = store_of(rows, (CLEAN, 0))
    directions = clean_anchors(store, images=7)(torch.tensor([5, 1]), torch.zeros(2, DIM))
    expected = unit(store.descriptor[[2, 0]].astype(np.float64))
    np.testing.assert_allclose(directions, expected, atol=1e-6)


def test_fixed_anchors_pass_no_gradient_and_are_not_saved() -> None:
    descriptors = torch.nn.functional.normalize(torch.randn(3, DIM), dim=1).requires_grad_()
    for leave_one_out in (False, True):
        anchors = FixedAnchors(torch.randn(2, DIM) * 5, torch.tensor([0, 1, 0]), leave_one_out)
        directions = anchors(torch.arange(3), descriptors)
        assert not directions.requires_grad
        np.testing.assert_allclose(directions.norm(dim=1), 1, rtol=1e-5)
        assert not anchors.state_dict()
        assert not list(anchors.parameters())
