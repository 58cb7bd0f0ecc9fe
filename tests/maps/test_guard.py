"""A yes means yes: what no map can know is never accepted, however the map was calibrated."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from junk import junk_images
from kappaplace.calibration.options import CalibrateOptions
from kappaplace.calibration.risk import RiskRefused
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import BuildOptions, LabelOptions, LocalizeOptions, PlaceMap
from kappaplace.maps.answer import write_csv
from kappaplace.maps.tune.label_sheet import write_labels
from kappaplace.models.checkpoint import load_model
from kappaplace.types import Json
from kappaplace_city import SyntheticCity

OPTIONS = CalibrateOptions(max_risk=0.5, confidence=0.6, thin=False)


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> PlaceImages:
    """A quarter by day: nearly every query is answered correctly."""
    folder = tmp_path_factory.mktemp("street")
    city = SyntheticCity(0, (1, 1), aliased=0.0, featureless=0.0)
    views = city.views("test", spacing=30.0, queries=44, query_strength=0.1, seed=0)
    names = [f"{number:03d}.png" for number in range(len(views.positions))]
    for name, image in zip(names, views.render(160), strict=True):
        Image.fromarray(np.asarray(image)).save(folder / name)
    return PlaceImages.create(
        names, views.positions, is_query=views.is_query, root=folder, frame="EPSG:32610", name="street"
    )


@pytest.fixture(scope="module")
def junk() -> list[Image.Image]:
    return [image for images in junk_images(2, seed=1).values() for image in images]


@pytest.fixture(scope="module")
def fresh(street: PlaceImages, tmp_path_factory: pytest.TempPathFactory) -> PlaceMap:
    return PlaceMap.build(street, tmp_path_factory.mktemp("maps") / "fresh.map", load_model())


@pytest.fixture(scope="module")
def calibrated(street: PlaceImages, tmp_path_factory: pytest.TempPathFactory) -> PlaceMap:
    place_map = PlaceMap.build(street, tmp_path_factory.mktemp("maps") / "street.map", load_model())
    place_map.calibrate(street, OPTIONS)
    return place_map


def test_junk_is_not_accepted_without_a_calibration(fresh: PlaceMap, junk: list[Image.Image]) -> None:
    assert [answer.decision == "accept" for answer in fresh.localize(junk)] == [False] * len(junk)


def test_a_query_without_patches_is_not_told_that_the_map_is_not_calibrated(
    fresh: PlaceMap, calibrated: PlaceMap, street: PlaceImages
) -> None:
    query = street.image_path(int(street.query_rows[0]))
    for place_map in (fresh, calibrated):
        notes = place_map.localize(query, rerank=0).notes
        assert not any("not calibrated" in note for note in notes)
    assert any(
        "shipped calibration needs patch matching" in note for note in fresh.localize(query, rerank=0).notes
    )


def test_junk_is_not_accepted_after_a_calibration_on_easy_queries(
    calibrated: PlaceMap, street: PlaceImages, junk: list[Image.Image]
) -> None:
    calibration = calibrated.calibration
    assert calibration is not None
    assert calibration.rerank > 0  # patches are compared, though nobody asked for it
    assert calibration.facts["counterparts"]
    assert calibration.rule is not None
    assert np.isfinite(calibration.rule.accept_at)
    answers = calibrated.localize(junk)
    assert not [answer for answer in answers if answer.decision == "accept"]
    unlike = [answer for answer in answers if any("differs from" in note for note in answer.notes)]
    assert len(unlike) > len(junk) / 2
    for answer in unlike:
        assert (answer.probability, answer.guaranteed) == (None, False)
        assert all(match.probability is None for match in answer.matches)
    good = calibrated.localize(street.image_paths(street.query_rows))
    assert np.mean([answer.decision == "accept" for answer in good]) > 0.4
    # What the guard costs: at most one of the good queries counts as unlike the calibration.
    assert sum(any("differs from" in note for note in answer.notes) for answer in good) <= 1


def test_junk_is_not_accepted_after_a_self_calibration_for_a_high_risk(
    street: PlaceImages, junk: list[Image.Image], tmp_path: Path
) -> None:
    """A risk of 50% would allow to accept everything, because few images of the map are mistaken."""
    place_map = PlaceMap.build(street, tmp_path / "map", load_model())
    calibration = place_map.self_calibrate(OPTIONS)
    assert calibration.rule is not None
    assert not calibration.rule.guaranteed
    assert not [answer for answer in place_map.localize(junk) if answer.decision == "accept"]
    good = place_map.localize(street.image_paths(street.query_rows))
    assert any(answer.decision == "accept" for answer in good)


def test_there_is_one_probability_per_match_and_no_position_from_rejected_ones(
    calibrated: PlaceMap, street: PlaceImages, tmp_path: Path
) -> None:
    answers = calibrated.localize(street.image_paths(street.query_rows[:8]))
    write_csv(answers, tmp_path / "answers.csv")
    rows = csv.DictReader((tmp_path / "answers.csv").read_text(encoding="utf-8").splitlines())
    firsts = [row for row in rows if row["rank"] == "1"]
    for answer, row in zip(answers, firsts, strict=True):
        values: dict[str, Json] = answer.to_dict()
        assert answer.matches[0].probability == answer.probability == values["probability"]
        if answer.probability is not None:
            assert float(row["probability"]) == float(row["answer_probability"]) == answer.probability
            assert f"correct with probability {answer.probability:.2f}" in values["sentence"]
        best = answer.matches[0]
        for match in answer.matches[1:]:
            if np.hypot(match.x - best.x, match.y - best.y) > 2 * calibrated.manifest.radius:
                assert match.probability <= 1 - answer.probability + 1e-12
        if answer.decision == "reject":
            assert answer.pose is None
        elif answer.pose is not None:
            positions = [(m.x, m.y) for m in answer.matches if m.decision != "reject"]
            low, high = np.min(positions, axis=0), np.max(positions, axis=0)
            assert (low - 1e-6 <= (answer.pose.x, answer.pose.y)).all()
            assert ((answer.pose.x, answer.pose.y) <= high + 1e-6).all()


def test_a_map_without_images_and_patches_answers_without_them_and_says_so(
    street: PlaceImages, tmp_path: Path
) -> None:
    calibrated = PlaceMap.build(street, tmp_path / "map", load_model(), BuildOptions(patches="none"))
    calibrated.calibrate(street, OPTIONS)
    hidden = Path(street.root).rename(tmp_path / "elsewhere")
    try:
        answer = calibrated.localize(str(hidden / street.paths[street.query_rows[0]]))
    finally:
        hidden.rename(street.root)
    assert any("second calibration" in note for note in answer.notes)
    assert not any("not calibrated" in note for note in answer.notes)
    assert answer.calibration == calibrated.calibration.plain.fingerprint


def test_copies_of_map_images_are_left_out_and_would_overstate_the_map(
    street: PlaceImages, tmp_path: Path
) -> None:
    """Half of the queries are uploads of the map's own images: with them, the map seems better than it is."""
    references = street.reference_rows[: len(street.query_rows)]
    folder = tmp_path / "twins"
    folder.mkdir()
    names = []
    for number, row in enumerate(references.tolist()):
        name = f"twin{number:03d}.jpg"
        Image.open(street.image_path(row)).resize((120, 120)).save(folder / name, quality=60)
        names.append(name)
    for row in street.query_rows.tolist():
        Image.open(street.image_path(row)).save(folder / f"own{street.paths[row]}")
    own = [f"own{path}" for path in street.queries.paths.tolist()]
    positions = np.concatenate([street.positions[references], street.queries.positions])
    positions[0] += 500.0  # a copy with another position: its label must be incorrect
    table = PlaceImages.create([*names, *own], positions, root=folder, frame=street.frame, name="twins")
    place_map = PlaceMap.build(street, tmp_path / "map", load_model())
    plain = CalibrateOptions(max_risk=None, thin=False, rerank=0)
    right = place_map.calibrate(table, plain).facts
    assert right["twins"] == len(names)
    assert right["misplaced"] == [str(folder / names[0])]
    assert right["queries"] == len(own)
    wrong = place_map.calibrate(
        table, CalibrateOptions(max_risk=None, thin=False, rerank=0, keep_twins=True)
    ).facts
    assert wrong["queries"] == len(own) + len(names)
    assert wrong["right"] / wrong["queries"] > right["right"] / right["queries"]


def test_labels_of_copies_are_left_out_and_too_few_labels_fail_before_any_image_is_read(
    street: PlaceImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the labelled queries are uploads of the map's own images."""
    place_map = PlaceMap.build(street, tmp_path / "map", load_model())
    references = street.reference_rows[: len(street.query_rows)]
    for row in references.tolist():
        Image.open(street.image_path(row)).save(tmp_path / f"{row:03d}.jpg", quality=80)
    copied = [str(tmp_path / f"{row:03d}.jpg") for row in references.tolist()]
    queries = [*street.image_paths(street.query_rows), *copied]
    positions = np.concatenate([street.queries.positions, street.positions[references]])
    table = PlaceImages.create(queries, positions, root=tmp_path, frame=street.frame)
    file = tmp_path / "labels.csv"
    sheet = place_map.label(table, file, LabelOptions(size=len(queries), thin=False))
    own = dict(zip(queries, positions, strict=True))
    where = dict(zip(street.references.paths.tolist(), street.references.positions, strict=True))
    for number, row in enumerate(sheet.rows):
        near = np.hypot(*(own[row.query] - where[row.match])) <= street.radius
        sheet = sheet.with_label(number, "yes" if near else "no")
    write_labels(sheet, file)
    plain = CalibrateOptions(max_risk=None, thin=False)
    facts = place_map.calibrate_on_labels(file, plain).facts
    assert facts["twins"] == len(copied)
    kept = place_map.calibrate_on_labels(file, replace(plain, keep_twins=True)).facts
    assert (kept["twins"], kept["queries"]) == (0, len(queries))
    assert kept["right"] / kept["queries"] > facts["right"] / facts["queries"]
    monkeypatch.setattr(PlaceMap, "embed", None)
    with pytest.raises(RiskRefused, match=rf"at least 598 labelled queries, got {len(queries)}"):
        place_map.calibrate_on_labels(file, CalibrateOptions(max_risk=0.01))
    with pytest.raises(RiskRefused, match="at least 598 labelled queries, got 44"):
        place_map.calibrate(street, CalibrateOptions(max_risk=0.01, thin=False))


def test_candidate_sets_contain_the_correct_place(
    calibrated: PlaceMap, fresh: PlaceMap, street: PlaceImages
) -> None:
    queries = street.image_paths(street.query_rows)
    options = LocalizeOptions(coverage=0.9)
    answers = calibrated.localize(queries, options)
    hits = []
    for row, answer in zip(street.query_rows, answers, strict=True):
        assert answer.candidates is not None
        gaps = [np.hypot(*(street.positions[row] - (place.x, place.y))) for place in answer.candidates.places]
        hits.append(min(gaps, default=np.inf) <= 2 * calibrated.manifest.radius)
        for place, match in zip(answer.candidates.places[:1], answer.matches, strict=False):
            assert (place.name, place.reference) == (match.name, match.reference)
        values: dict[str, Json] = answer.to_dict()
        assert values["candidates"]["coverage"] == 0.9
    assert np.mean(hits) >= 0.85
    assert max(len(answer.candidates.places) for answer in answers if answer.candidates) > 1
    assert all("candidates" not in answer.to_dict() for answer in calibrated.localize(queries[:2]))
    x, y = street.positions[street.query_rows[0]].tolist()
    near = calibrated.localize(queries[0], replace(options, area=(x, y, 90.0)))
    assert near.candidates is not None
    assert not near.candidates.guaranteed
    assert "(not guaranteed)" in near.candidates.sentence
    with pytest.raises(KappaPlaceError, match="Candidate sets need a calibration on queries"):
        fresh.localize(queries[0], options)
    with pytest.raises(KappaPlaceError, match="coverage must be between 0 and 1"):
        LocalizeOptions(coverage=1.5)
