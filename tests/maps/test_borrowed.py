"""Shipped calibrations: used for maps of the same model, without a guarantee."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.examples import Examples
from kappaplace.calibration.fit import fit_calibration
from kappaplace.calibration.options import RERANK, CalibrateOptions
from kappaplace.calibration.sources import ACCEPT_RISK, MODEL, REJECT_RISK, read_shipped
from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import BuildOptions, PlaceMap
from kappaplace.maps.answer import decide_answer
from kappaplace.maps.localize import NOT_CALIBRATED, PRIOR
from kappaplace.maps.tune.label import open_sheet
from kappaplace.maps.tune.label_sheet import Sample
from kappaplace.models import shipped
from kappaplace.models.checkpoint import load_model, save_model
from kappaplace.models.shipped import CALIBRATION, DEFAULT

SCORES = ("cosine", "margin", "z-score", "inverse-kappa")


def made_up(scores=SCORES, *, pairs: bool = True, rerank: int = 0, **options) -> Calibration:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(400, len(scores)))
    right = rng.random(400) < 1 / (1 + np.exp(features.sum(axis=1)))
    cosines = np.sort(rng.random((400, 3)), axis=1)
    hits = rng.random((400, 3)) > cosines
    extra = {"pairs": cosines, "pair_right": hits, "pair_scores": ["cosine"]} if pairs else {}
    examples = Examples(features, right, scores, **extra, rerank=rerank)
    return fit_calibration(examples, CalibrateOptions(**{"max_risk": None, **options}))


def ship(folder: Path, model, calibration: Calibration | None) -> str:
    """Replace the shipped model, and return the fingerprint."""
    save_model(model, folder / DEFAULT, half=True)
    fingerprint = load_model(folder / DEFAULT).fingerprint
    if calibration is not None:
        values = calibration.to_dict()
        values["facts"] |= {MODEL: fingerprint, "origin": "two made-up towns"}
        (folder / DEFAULT / CALIBRATION).write_text(json.dumps(values))
    return fingerprint


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "shipped")
    return tmp_path / "shipped"


def test_labels_follow_what_a_borrowed_calibration_compares(home, tiny, town, queries, tmp_path):
    made = made_up(("cosine", "margin", "patches"), rerank=3)
    ship(home, tiny, made)
    town_map = PlaceMap.build(town, tmp_path / "m", options=BuildOptions(patches="none"))
    sample = Sample(tuple(town.paths[town.query_rows].tolist()), str(town.root), 0, 12, 12, "25 m")
    sheet = open_sheet(town_map, sample, tmp_path / "labels.csv")
    assert sheet.sampling.verify == RERANK  # as many as a calibration will compare
    answers = town_map.localize(queries, k=1, rerank=RERANK)
    assert [row.match for row in sheet.rows] == [answer.matches[0].name for answer in answers]
    assert (
        town_map.localize(queries[0], rerank=2).probability is None
    )  # the shipped calibration needs another rerank
    shutil.move(town.root, tmp_path / "away")
    try:
        kept = [str(tmp_path / "away" / Path(query).name) for query in queries]
        sample = replace(sample, names=tuple(Path(query).name for query in kept), root=str(tmp_path / "away"))
        assert open_sheet(town_map, sample, tmp_path / "others.csv").sampling.verify == 0
    finally:
        shutil.move(tmp_path / "away", town.root)


def test_a_map_of_our_model_answers_with_probabilities_at_once(home, tiny, town, queries, tmp_path):
    made = made_up()
    ship(home, tiny, made)
    town_map = PlaceMap.build(town, tmp_path / "m")
    assert town_map.manifest.model.source == DEFAULT
    assert town_map.calibration is None
    assert town_map.info()["calibration"] is None
    assert town_map.info()["borrowed"]
    for answer in town_map.localize(queries, k=5):
        features = np.array([[answer.signals[name] for name in SCORES]])
        assert answer.probability == pytest.approx(made.probability(features)[0], abs=1e-6)
        p = answer.probability
        expected = "accept" if p >= 1 - ACCEPT_RISK else "reject" if p <= REJECT_RISK else "doubtful"
        assert answer.decision == expected
        assert all(match.probability is not None for match in answer.matches)
        assert NOT_CALIBRATED not in answer.notes
        (note,) = [each for each in answer.notes if "other places" in each]
        for part in (
            "two made-up towns",
            "0.90",
            "0.20",
            "no risk is guaranteed",
            "kappaplace map calibrate",
        ):
            assert part in note


def test_no_row_contradicts_the_answer(home, tiny, town, queries, tmp_path):
    """A later match may have a higher probability than the best one, but never a better decision."""
    ship(home, tiny, made_up())
    town_map = PlaceMap.build(town, tmp_path / "m")
    order, higher, beyond = ["accept", "doubtful", "reject"], 0, 0
    radius = town_map.manifest.radius
    for answer in town_map.localize(queries, k=10):
        for each in (
            answer,
            *(decide_answer(answer, town_map.borrowed, radius, r).answer for r in (0.05, 0.4, 0.9)),
        ):
            best, *others = each.matches
            assert (best.probability, best.decision) == (each.probability, each.decision)
            assert answer.to_dict()["matches"][0]["probability"] == answer.probability
            for match in others:
                assert order.index(match.decision) >= order.index(each.decision)
                if np.hypot(match.x - best.x, match.y - best.y) > 2 * radius:
                    assert match.probability <= 1 - best.probability + 1e-9
                    beyond += 1
                higher += match.probability > best.probability
    assert higher
    assert beyond


def test_a_calibration_of_the_map_itself_comes_first(home, tiny, town, queries, tmp_path):
    ship(home, tiny, made_up())
    town_map = PlaceMap.build(town, tmp_path / "m")
    own = made_up(("cosine",), pairs=False, max_risk=0.5)
    town_map.calibrate_with(own, "this town", guarantee=True)
    assert town_map.borrowed is None
    answer = town_map.localize(queries[0])
    assert answer.calibration == own.fingerprint
    assert not any("other places" in note for note in answer.notes)


def test_a_promise_does_not_travel(home, tiny, town, tmp_path):
    """Even a file that was fitted with a guarantee gives none."""
    promised = made_up(max_risk=0.5)
    assert promised.rule is not None
    assert promised.rule.guaranteed
    ship(home, tiny, promised)
    lent = PlaceMap.build(town, tmp_path / "m").borrowed
    assert lent is not None
    assert lent.rule is not None
    assert not lent.rule.guaranteed
    assert lent.rule.on == "probability"


@pytest.mark.parametrize("case", ["other model", "other preprocessing", "coarse", "no file", "not installed"])
def test_what_does_not_fit_is_not_lent(case, home, tiny, town, queries, tmp_path):
    if case != "not installed":
        ship(home, tiny, None if case == "no file" else made_up())
    model, options = tiny, {}
    if case not in ("not installed", "other model"):
        model = None
    if case == "other preprocessing":
        options["preprocessing"] = Preprocessing(32, "exact")
    if case == "coarse":
        options["storage"] = "int8"
    if case == "other model":
        tiny.head.start_at(50.0)
    town_map = PlaceMap.build(town, tmp_path / "m", model, BuildOptions(**options))
    assert town_map.borrowed is None
    answer = town_map.localize(queries[0])
    assert answer.probability is None
    assert NOT_CALIBRATED in answer.notes


def test_scores_that_are_not_at_hand_leave_the_map_uncalibrated(home, tiny, town, queries, tmp_path):
    """With one match the margin is missing, which must not prevent an answer."""
    ship(home, tiny, made_up(("cosine", "pa"), pairs=False))
    town_map = PlaceMap.build(town, tmp_path / "m")
    assert town_map.localize(queries[0], k=1).probability is None
    assert NOT_CALIBRATED in town_map.localize(queries[0], k=1).notes
    assert town_map.localize(queries[0], k=2).probability is not None


def test_a_map_of_one_image_is_answered(home, tiny, town, queries, tmp_path):
    ship(home, tiny, made_up())
    only = PlaceMap.build([town.image_paths(town.reference_rows)[0]], tmp_path / "m")
    answer = only.localize(queries[0])
    assert 0 <= answer.probability <= 1


def test_ranking_and_areas_work_as_with_a_calibration(home, tiny, town, queries, tmp_path):
    ship(home, tiny, made_up())
    town_map = PlaceMap.build(town, tmp_path / "m")
    matches = town_map.localize(queries[0], order="probability").matches
    assert [m.probability for m in matches[1:]] == sorted((m.probability for m in matches[1:]), reverse=True)
    x, y = town.positions[town.reference_rows[0]]
    assert PRIOR in town_map.localize(queries[0], area=(x, y, 500.0)).notes


def test_ranking_without_probabilities_of_pairs_is_refused(home, tiny, town, queries, tmp_path):
    ship(home, tiny, made_up(pairs=False))
    town_map = PlaceMap.build(town, tmp_path / "m")
    with pytest.raises(KappaPlaceError, match="covers only the best match"):
        town_map.localize(queries[0], order="probability")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 9}'])
def test_a_damaged_file_is_one_sentence(text, home, tiny, town, queries, tmp_path):
    ship(home, tiny, made_up())
    (home / DEFAULT / CALIBRATION).write_text(text)
    with pytest.raises(KappaPlaceError, match="Install kappaplace again"):
        PlaceMap.build(town, tmp_path / "m").localize(queries[0])


def test_it_is_read_once(home, tiny):
    ship(home, tiny, made_up())
    assert read_shipped(home / DEFAULT)[0] is read_shipped(home / DEFAULT)[0]


def test_a_fitted_map_is_another_model(home, tiny, town, tmp_path):
    """`map fit` changes κ, so the shipped calibration no longer applies."""
    ship(home, tiny, made_up())
    town_map = PlaceMap.build(town, tmp_path / "m")
    record = replace(town_map.manifest.model, fingerprint="0" * 64, base=town_map.manifest.model.fingerprint)
    changed = PlaceMap(town_map.folder, replace(town_map.manifest, model=record))
    assert changed.borrowed is None
