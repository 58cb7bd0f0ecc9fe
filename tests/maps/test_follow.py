"""Answers of a sequence: a street with made-up answers, and the whole way from images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kappaplace.calibration.calibration import Calibration
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import BuildOptions, Follower, LocalizeOptions, PlaceMap, SequenceOptions
from kappaplace.maps.answer import Localization, Match
from kappaplace.maps.tune.self_calibrate import self_calibrate_map
from tests.maps.fakes import SOME_CALIBRATION, Counting

COUNT, SPACING = 80, 5.0
CALIBRATION = Calibration.from_dict(SOME_CALIBRATION["calibration"])


def street_map(folder: Path, tiny, *, frames: bool = False) -> PlaceMap:
    """A street of one reference every five metres, embedded without a model."""
    (folder / "street").mkdir(parents=True)
    names = [f"{row:03d}.png" for row in range(COUNT)]
    for name in names:
        (folder / "street" / name).write_bytes(name.encode())
    where = np.column_stack([SPACING * np.arange(COUNT), np.zeros(COUNT)])
    numbers = {"frame_number": np.arange(COUNT)} if frames else {}
    where = np.full_like(where, np.nan) if frames else where
    table = PlaceImages.create(names, where, root=folder / "street", radius=12.0, **numbers)
    rule = "frames:2" if frames else ""
    options = BuildOptions(radius=12.0, embedder=Counting(folder / "log"), neighborhood=rule)
    return PlaceMap.build(table, folder / "street.map", tiny, options)


@pytest.fixture
def street(tmp_path: Path, tiny) -> PlaceMap:
    return street_map(tmp_path, tiny)


def answer(place_map: PlaceMap, row: int, probability: float | None) -> Localization:
    """An answer with three matches: a place, its neighbor, and one 40 references away."""
    rows = [row, min(row + 1, COUNT - 1), (row + 40) % COUNT]
    store = place_map.store
    matches = tuple(
        Match(rank, store.name(each), *store.gather("poses", np.array([each]))[0].tolist(),
              similarity=0.9 - rank / 10, kappa=50.0, uncertainty=0.1, decision="doubtful", reference=each,
              probability=None if probability is None else probability * share, image="")
        for rank, (each, share) in enumerate(zip(rows, (1.0, 0.8, 0.2), strict=True), 1)
    )  # fmt: skip
    return Localization("q", 50.0, 0.1, probability, 0.9, "doubtful", True, None, matches, {}, frame="local")


def place_of(place_map: PlaceMap, fused: Localization) -> int:
    return fused.matches[0].reference


def drive(place_map: PlaceMap, rows: list[int], probability: list[float | None]) -> list[Localization]:
    """Fuse answers; descriptors are those of the rows."""
    answers = [answer(place_map, *each) for each in zip(rows, probability, strict=True)]
    descriptors = place_map.store.descriptors[np.arange(len(rows)) + 20]
    return Follower(place_map.store, CALIBRATION).fuse(answers, descriptors)


TRUTH = list(range(20, 40))


def test_a_wrong_image_among_right_ones_is_corrected(street: PlaceMap) -> None:
    rows, sure = TRUTH.copy(), [0.9] * 20
    rows[10] = 60
    fused = drive(street, rows, sure)
    assert max(abs(place_of(street, each) - row) for each, row in zip(fused, TRUTH, strict=True)) <= 2
    assert place_of(street, fused[10]) == 30  # the one of this place whose descriptor is most similar
    assert fused[10].matches[0].similarity == pytest.approx(1.0, abs=1e-3)
    assert fused[10].matches[0].probability == fused[10].probability
    assert [match.rank for match in fused[10].matches] == [1, 2, 3, 4]
    assert fused[10].pose is not None
    assert abs(fused[10].pose.x - 150.0) <= 12.0
    assert not any(each.guaranteed for each in fused)
    assert all("no risk is guaranteed" in each.notes[-1] for each in fused)


def test_neighbors_make_a_doubtful_answer_probable(street: PlaceMap) -> None:
    sure: list[float | None] = [0.95] * 20
    sure[10] = 0.3
    alone, fused = answer(street, 30, 0.3), drive(street, TRUTH, sure)[10]
    assert alone.probability is not None
    assert fused.probability is not None
    assert fused.probability > 0.8 > 0.3 == alone.probability
    assert fused.inside is not None
    assert fused.inside > 0.95


def test_a_camera_beside_the_map_is_noticed(street: PlaceMap) -> None:
    """The images match one place over and over, as they do beside the map."""
    rows = [*TRUTH[:8], *[50] * 12]
    fused = drive(street, rows, [0.95] * 8 + [0.15] * 12)
    assert all(each.in_map for each in fused[:6])
    assert not any(each.in_map for each in fused[11:])
    assert all((each.probability or 0) < 0.3 for each in fused[11:])
    assert {each.decision for each in fused[11:]} <= {"doubtful", "reject"}


def test_unlike_images_change_nothing_but_the_confidence(street: PlaceMap) -> None:
    sure: list[float | None] = [0.95] * 20
    sure[9] = None  # unlike those of the calibration
    fused = drive(street, TRUTH, sure)
    assert abs(place_of(street, fused[9]) - 29) <= 2
    assert 0.5 < (fused[9].probability or 0) < (fused[8].probability or 0)


def test_a_stream_uses_earlier_images_only(street: PlaceMap) -> None:
    answers = [answer(street, row, 0.9) for row in TRUTH]
    descriptors = street.store.descriptors[np.array(TRUTH)]
    one, other = Follower(street.store, CALIBRATION), Follower(street.store, CALIBRATION)
    whole = [one.add(*each) for each in zip(answers, descriptors, strict=True)]
    part = [other.add(*each) for each in zip(answers[:7], descriptors[:7], strict=True)]
    assert [replace(each, seconds={}) for each in part] == [replace(each, seconds={}) for each in whole[:7]]
    assert (whole[-1].probability or 0) > (whole[0].probability or 0)


def test_a_map_without_positions_is_followed_by_its_frames(tmp_path: Path, tiny) -> None:
    fused = drive(street_map(tmp_path, tiny, frames=True), TRUTH, [0.8] * 20)
    assert [each.matches[0].reference for each in fused] == pytest.approx(TRUTH, abs=2)
    assert all(each.pose is None for each in fused)


def test_a_step_can_be_given(street: PlaceMap) -> None:
    """Every tenth reference: too far for a small step, usual for a large one."""
    rows = list(range(10, 80, 10))
    answers = [answer(street, row, 0.85) for row in rows]
    descriptors = street.store.descriptors[np.array(rows)]
    small, large = (
        Follower(street.store, CALIBRATION, step).fuse(answers, descriptors)[3].inside for step in (1.0, 50.0)
    )
    assert small is not None
    assert large is not None
    assert large > small + 0.1


def test_what_a_sequence_needs(street: PlaceMap, tmp_path: Path) -> None:
    with pytest.raises(KappaPlaceError, match="needs probabilities"):
        street.localize_sequence([])
    with pytest.raises(KappaPlaceError, match="step"):
        SequenceOptions(step=0.0)
    for options in (LocalizeOptions(coverage=0.9), LocalizeOptions(group="night")):
        with pytest.raises(KappaPlaceError, match="neither candidate sets nor groups"):
            street.localize_sequence([], options)
    street.calibrate_with(CALIBRATION, "made up")
    with pytest.raises(KappaPlaceError, match="empty"):
        street.localize_sequence([])


def test_images_are_localized_together(town_map: PlaceMap, queries: list[str]) -> None:
    self_calibrate_map(town_map)
    options = LocalizeOptions(k=5, rerank=0)
    fused = town_map.localize_sequence(iter(queries), options, batch_size=5)
    assert [each.query for each in fused] == queries
    assert all(each.probability is not None and 0 <= each.probability <= 1 for each in fused)
    causal = town_map.localize_sequence(queries, options, SequenceOptions(causal=True))
    camera = town_map.follow()
    again = [town_map.localize_sequence([query], options, follower=camera)[0] for query in queries]
    assert [each.matches[0].name for each in again] == [each.matches[0].name for each in causal]
    assert [each.probability for each in again] == pytest.approx(
        [each.probability for each in causal], abs=1e-3
    )
