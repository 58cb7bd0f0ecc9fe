"""Prototypes on disk are matched to their places; centroids against NumPy loops."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from kappaplace.errors import KappaPlaceError
from kappaplace.training.features import CLEAN, FeatureStore
from kappaplace.training.images import TrainingSet
from kappaplace.training.losses import FixedAnchors
from kappaplace.training.places import PlaceClasses, assign_classes, classes_of_places
from kappaplace.training.prototypes import (
    clean_anchors,
    place_anchors,
    prototype_anchors,
    release_order,
    save_prototypes,
    view_anchors,
)
from kappaplace.training.recipes import ANCHORS, place_groups, settings_for
from kappaplace.training.run import train
from kappaplace.training.settings import ClassSettings
from tests.training.tiny import City, tiny_settings

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
    with pytest.raises(KappaPlaceError, match="have 6 dimensions, but descriptors of the model have 7"):
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


def release(file: Path, matrices: list[Tensor]) -> None:
    """A file as the authors' code writes it."""
    content = {"model_state_dict": {}, "classifiers_state_dict": [{"weight": matrix} for matrix in matrices]}
    torch.save(content, file)


def drive(count: int = 3000, seed: int = 0) -> TrainingSet:
    """Images of a few streets on disk; the rows are not in the order of their names."""
    rng = np.random.default_rng(seed)
    positions = np.column_stack([rng.uniform(5e5, 5e5 + 150, count), rng.uniform(4e6, 4e6 + 90, count)])
    heading = rng.uniform(0, 360, count)
    names = [
        f"part{rng.integers(3)}/@{e:.2f}@{n:.2f}@{h:.1f}@.jpg"
        for (e, n), h in zip(positions, heading, strict=True)
    ]
    return TrainingSet([Path("/train") / name for name in names], positions, heading)


def authors_classes(data: TrainingSet, least: int, apart: int = 5) -> list[list[tuple[int, int, int]]]:
    """Classes of each group as the authors' code numbers them, image by image in the order of the names."""
    assert data.heading is not None
    in_memory = isinstance(data.images, Tensor)
    paths = [f"{row:06}" if in_memory else str(image) for row, image in enumerate(data.images)]
    members: dict[tuple[int, int, int], list[str]] = defaultdict(list)
    names = []
    for row in sorted(range(len(paths)), key=paths.__getitem__):
        (east, north), turn = data.positions[row], data.heading[row]
        names.append((int(east // 10 * 10), int(north // 10 * 10), int(turn // 30 * 30)))
        members[names[-1]].append(paths[row])
    groups: dict[tuple[int, int, int], set[tuple[int, int, int]]] = {}
    for name in names:
        if len(members[name]) >= least:
            group = (name[0] % (10 * apart) // 10, name[1] % (10 * apart) // 10, name[2] % 60 // 30)
            groups.setdefault(group, set()).add(name)
    return [list(group) for group in groups.values()]


@pytest.mark.parametrize("from_cache", [False, True])
def test_prototypes_of_the_authors_release_go_to_their_classes(tmp_path: Path, from_cache: bool) -> None:
    """Groups by the first of their images, and classes in the order of a Python set."""
    data, file = drive(), tmp_path / "release.pth"
    groups = authors_classes(data, 2)
    assert len(groups) > 20
    assert any(group != sorted(group) for group in groups)
    matrices = [torch.randn(len(group), DIM) for group in groups[:8]]
    release(file, matrices)
    settings = settings_for("kappa-pt", options=["classes.min_images=2", f"anchors.prototypes={file}"])
    if from_cache:  # groups in another order, as in a file of image names that is not sorted
        groups = groups[::-1]
        release(file, matrices := [torch.randn(len(group), DIM) for group in groups[:8]])
        torch.save((groups, {groups[0][0]: ["a.jpg"]}), tmp_path / "cache.torch")
        settings = settings.changed({"anchors.classes": str(tmp_path / "cache.torch")})
    expected = {
        name: row / row.norm()
        for group, matrix in zip(groups, matrices, strict=False)
        for name, row in zip(group, matrix, strict=True)
    }
    order = release_order(data, settings)
    places, (group,) = ANCHORS["classifier"].places(settings, data)
    assert len(group) == len(expected)  # the first eight groups only
    anchors = prototype_anchors(file, group, places.classes, GRID, DIM, order)
    directions = anchors(torch.from_numpy(group.images), torch.zeros(len(group.images), DIM))
    for row, direction in zip(group.images, directions, strict=True):
        (east, north), turn = data.positions[row], data.heading[row]
        name = (int(east // 10 * 10), int(north // 10 * 10), int(turn // 30 * 30))
        torch.testing.assert_close(direction, expected[name])
    release(file, [torch.randn(len(matrix) + 1, DIM) for matrix in matrices])
    with pytest.raises(KappaPlaceError, match="do not match the groups"):
        prototype_anchors(file, group, places.classes, GRID, DIM, order)


def test_a_file_of_classes_of_another_kind_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cache.torch"
    settings = settings_for("kappa-pt", options=[f"anchors.classes={file}"])
    for content in ({"a": 1}, [[["x"]]], 3):
        torch.save(content, file)
        with pytest.raises(KappaPlaceError, match="is not a file of classes of CosPlace's code"):
            release_order(drive(50), settings)
    plain = TrainingSet(["a.jpg"], np.zeros((1, 2)))
    with pytest.raises(KappaPlaceError, match="need the headings of the images"):
        release_order(plain, settings_for("kappa-pt"))


def test_the_first_groups_are_those_of_cosplace() -> None:
    """In the order in which they are met; by default, the largest ones in the order of their numbers."""
    data = drive()
    first = settings_for("retrieval", options=["classes.min_images=2", "classes.group_order=first"])
    places, groups = place_groups(first, data)
    assert [
        {tuple((cell * [10, 10, 30]).tolist()) for cell in places.classes.cells[group.classes]}
        for group in groups
    ] == [set(names) for names in authors_classes(data, 2)[:8]]
    largest = place_groups(settings_for("retrieval", options=["classes.min_images=2"]), data)[1]
    sizes = sorted((len(names) for names in authors_classes(data, 2)), reverse=True)
    assert sorted((len(group) for group in largest), reverse=True) == sizes[:8]


def test_prototypes_of_other_classes_are_refused(tmp_path: Path, city: City) -> None:
    """The release with its classes, then with the classes of each group in another order."""
    start = tmp_path / "base"
    gentle = [f"augment.{name}=0.1" for name in ("brightness", "contrast", "saturation", "hue")]
    steps = ["optimizer.epochs=10", "optimizer.iterations=15", "optimizer.lr=3e-3", "augment.scale=0.9"]
    options = [*steps, *gentle, "optimizer.prototype_lr=0.03"]
    trained = train(tiny_settings("retrieval", *options), city.data, start, device="cpu")
    classes = authors_classes(city.data, 4, apart=1)
    with safe_open(start / "model" / "prototypes.safetensors", "pt") as content:
        rows = {
            tuple(cell): row
            for cell, row in zip(
                content.get_tensor("cells").tolist(), content.get_tensor("prototypes"), strict=True
            )
        }
    groups = [[rows[east // 10, north // 10, turn // 30] for east, north, turn in group] for group in classes]
    lines: list[str] = []

    def post_train(groups: list[list[Tensor]], name: str) -> None:
        release(tmp_path / "release.pth", [torch.stack(group) for group in groups])
        settings = tiny_settings("kappa-pt", f"anchors.prototypes={tmp_path / 'release.pth'}")
        train(settings, city.data, tmp_path / name, model=trained.model, device="cpu", say=lines.append)

    post_train(groups, "right")
    assert any("their prototype in" in line for line in lines)
    with pytest.raises(
        KappaPlaceError, match=r"In group 0, only .* images are most similar to their prototype"
    ):
        post_train([group[1:] + group[:1] for group in groups], "shifted")
    with pytest.raises(KappaPlaceError, match=r"In group 1, .*set anchors\.classes"):
        post_train([groups[0], groups[1][::-1]], "reversed")
    assert not list((tmp_path / "reversed").glob("features/*"))  # refused before the long part


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
