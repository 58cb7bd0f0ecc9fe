"""Maps that repeat themselves are found without labels, and shipped probabilities are withheld there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kappaplace.calibration.options import CalibrateOptions
from kappaplace.data.table import PlaceImages
from kappaplace.maps import BuildOptions, PlaceMap
from kappaplace.maps.self_similarity import SelfSimilarity, self_similarity
from kappaplace.models.checkpoint import load_model
from kappaplace_city import SyntheticCity


def floors(folder: Path, count: int, *, posed: bool = True) -> PlaceImages:
    """Return floors of a building: each shows the same corridor, with other noise, light and cropping."""
    folder.mkdir()
    city = SyntheticCity(0, (2, 2), aliased=0.0, featureless=0.0)
    corridor = [
        np.asarray(image) for image in city.views("test", spacing=12.0, queries=2, seed=0).render(176)[:14]
    ]
    rng = np.random.default_rng(0)
    names, positions = [], []
    for floor in range(count):
        for number, image in enumerate(corridor):
            x, y = rng.integers(0, 13, 2)
            pixels = image[y : y + 160, x : x + 160] * rng.uniform(0.9, 1.1) + rng.normal(0, 6, (160, 160, 1))
            names.append(f"{floor}_{number:02d}.png")
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / names[-1])
            positions.append((30.0 * number, 500.0 * floor))
    return PlaceImages.create(names, np.array(positions) if posed else None, root=folder, name="floors")


@pytest.fixture(scope="module")
def building(tmp_path_factory: pytest.TempPathFactory) -> PlaceMap:
    folder = tmp_path_factory.mktemp("building")
    return PlaceMap.build(floors(folder / "images", 3), folder / "building.map", load_model())


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> PlaceMap:
    """Every place is shown once: the first floor only."""
    folder = tmp_path_factory.mktemp("street")
    views = SyntheticCity(3, (2, 2), aliased=0.0, featureless=0.0).views(
        "test", spacing=30.0, queries=2, seed=0
    )
    names = [f"{number:03d}.png" for number in range(len(views.positions))]
    (folder / "images").mkdir()
    for name, image in zip(names, views.render(160), strict=True):
        Image.fromarray(np.asarray(image)).save(folder / "images" / name)
    table = PlaceImages.create(
        names, views.positions, root=folder / "images", frame="EPSG:32610", name="street"
    )
    return PlaceMap.build(table, folder / "street.map", load_model())


def test_floors_that_look_alike_withhold_the_shipped_probabilities(building: PlaceMap) -> None:
    found = building.self_similarity
    assert found is not None
    assert found.repeats
    assert found.rate > 0.5
    assert building.info()["repeats"] is True
    assert "sampled places look like another place (such as " in str(building.info()["look_alikes"])
    answer = building.localize(building.store.image_path(3))
    assert (answer.probability, answer.decision, answer.guaranteed) == (None, None, False)
    assert any(note.startswith("This map repeats itself; calibrate it.") for note in answer.notes)
    assert all(match.probability is None for match in answer.matches)


def test_a_street_without_repetition_keeps_them(street: PlaceMap) -> None:
    found = street.self_similarity
    assert found is not None
    assert not found.repeats
    assert found.note == ""
    answer = street.localize(street.store.image_path(3))
    assert answer.probability is not None
    assert not any("repeats itself" in note for note in answer.notes)


def test_maps_without_positions_count_too(tmp_path: Path) -> None:
    table = floors(tmp_path / "images", 2, posed=False)
    options = BuildOptions(neighborhood="self")
    place_map = PlaceMap.build(table, tmp_path / "unposed.map", load_model(), options)
    assert place_map.self_similarity is not None
    assert place_map.self_similarity.repeats


def test_a_calibrated_map_is_not_tested(building: PlaceMap, tmp_path: Path) -> None:
    again = PlaceMap.build(floors(tmp_path / "images", 2), tmp_path / "calibrated.map", load_model())
    again.self_calibrate(CalibrateOptions(max_risk=0.5))
    assert again.self_similarity is None
    assert "self_similarity" not in again.info()
    assert not any("repeats itself" in note for note in again.localize(again.store.image_path(0)).notes)


def test_too_small_a_map_is_not_judged(building: PlaceMap, tmp_path: Path) -> None:
    few = SelfSimilarity(10, ("a",) * 10)
    assert not few.repeats
    assert SelfSimilarity(40, ("a",) * 10).repeats is False
    assert SelfSimilarity(40, ("a",) * 11).repeats is True
    bare = PlaceMap.build(
        floors(tmp_path / "images", 2), tmp_path / "bare.map", load_model(), BuildOptions(patches="none")
    )
    assert building.borrowed is not None
    assert self_similarity(bare.references, building.borrowed) is None  # without patches it cannot be tested
