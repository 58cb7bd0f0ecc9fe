"""Localization, and the numbers that it is based on."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module

import numpy as np
import pyproj
import pytest
from PIL import Image

from kappaplace.calibration.calibration import QUERY_SIGNALS, Calibration, query_features
from kappaplace.calibration.calibrators import Logistic
from kappaplace.calibration.combination import Signal, features_of
from kappaplace.calibration.decision import rule_by_probability
from kappaplace.calibration.examples import Examples
from kappaplace.calibration.fit import fit_calibration
from kappaplace.calibration.options import CalibrateOptions
from kappaplace.calibration.outside import OutsideAware
from kappaplace.calibration.radius import RadiusModel
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import LocalizeOptions, PlaceMap
from kappaplace.maps.answer import Match, best_pose, decide_answer
from kappaplace.maps.localize import _reranked
from kappaplace.maps.tune.self_calibrate import self_calibrate_map
from kappaplace.retrieval import EngineOptions, faiss
from kappaplace.retrieval import open as engines
from kappaplace.retrieval.evidence import Evidence, retrieve
from kappaplace.retrieval.exact import search
from kappaplace.retrieval.references import ArrayReferences, Queries
from kappaplace.types import Embeddings
from kappaplace.uncertainty import SCORES


@pytest.mark.parametrize("removed", [0, 7])
def test_signals_are_those_of_the_whole_map(town, town_map, queries, removed):
    """Every score is the same for a map and for plain arrays."""
    if removed:
        town_map.remove(list(town_map.store.names())[5 : 5 + removed])
        town_map.compact()  # distinctiveness refers to the remaining references
    made, store = town_map.embed(queries), town_map.store
    z, kappa, at = store.descriptors[:], store.whole("kappa"), store.positions
    plain = Evidence(
        Queries(made),
        ArrayReferences(Embeddings(z, np.asarray(kappa)), at),
        search(made.descriptor, z, 5),
    )
    ours = retrieve(town_map.queries(made), town_map.references, 5)
    np.testing.assert_array_equal(ours.matches.indices, plain.matches.indices)
    expected = features_of(plain, [SCORES[name] for name in QUERY_SIGNALS])
    np.testing.assert_allclose(query_features(ours, QUERY_SIGNALS), expected, atol=1e-5)
    np.testing.assert_allclose(SCORES["kappaplace"].match(ours), SCORES["kappaplace"].match(plain))


def test_margin_looks_beyond_the_list(town_map, queries, monkeypatch):
    made = town_map.queries(town_map.embed(queries))
    wide = retrieve(made, town_map.references, 1)
    monkeypatch.setattr(import_module("kappaplace.retrieval.evidence"), "DEEP", 1)
    narrow = retrieve(made, town_map.references, 1)
    assert narrow.pool.indices.shape[1] == 1 < wide.pool.indices.shape[1]
    np.testing.assert_allclose(narrow.best_outside, wide.best_outside, atol=1e-6)


def test_unfinished_maps_find_distinctiveness_on_the_way(town, tiny, tmp_path, queries, monkeypatch):
    from kappaplace.maps import build as extend

    with monkeypatch.context() as patch:
        patch.setattr(extend, "finish", lambda writer: None)
        made = PlaceMap.build(town, tmp_path / "m", tiny)
    assert np.isnan(made.store.distinctiveness).all()
    before = made.localize(queries)
    done = PlaceMap.build(town, tmp_path / "m", tiny)
    assert not np.isnan(done.store.distinctiveness).any()
    for one, other in zip(before, done.localize(queries), strict=True):
        assert one.signals["aliasing"] == pytest.approx(other.signals["aliasing"], abs=1e-6)


def test_an_answer_holds_what_is_needed(town, town_map, queries):
    answer = town_map.localize(queries[0], k=7)
    assert [match.rank for match in answer.matches] == [1, 2, 3, 4, 5, 6, 7]
    best = answer.matches[0]
    row = town.paths.tolist().index(best.name)
    assert (best.x, best.y) == tuple(town.positions[row])
    assert best.heading == town.heading[row]
    assert best.image == str(town.image_path(row))
    similarities = [match.similarity for match in answer.matches]
    assert similarities == sorted(similarities, reverse=True)
    assert answer.probability is None
    assert answer.decision is None
    assert answer.in_map is None
    assert any("not calibrated" in note for note in answer.notes)
    assert set(answer.seconds) == {"embed", "search", "signals", "decide", "answer"}
    assert answer.uncertainty == pytest.approx(answer.signals["kappaplace"])
    assert best.uncertainty == pytest.approx(answer.uncertainty)
    assert best.name in answer.sentence
    json.loads(json.dumps(answer.to_dict(), allow_nan=False))


def test_every_match_has_a_decision(town_map, queries):
    rng = np.random.default_rng(0)
    pairs = rng.random((600, 3)) * 0.1
    hits = rng.random((600, 3)) > (10 * pairs) ** 2
    made = fit_calibration(
        Examples(
            *(pairs[:, 0], hits[:, 0], ["cosine"], pairs, hits, ["cosine"]),
            domain={"cosine": rng.normal(0, 5, 600)},  # every query is like those of the calibration
        ),
        CalibrateOptions(0.2),
    )
    town_map.calibrate_with(made, "made up", guarantee=True)
    seen = set()
    for answer in town_map.localize(queries, k=8):
        best = answer.matches[0]
        assert best.decision == answer.decision
        assert answer.calibration == made.fingerprint
        for match in answer.matches[1:]:
            far = np.hypot(match.x - best.x, match.y - best.y) > 2 * town_map.manifest.radius
            p = min(match.probability, 1 - answer.probability) if far else match.probability
            own = "accept" if p >= 0.8 else "reject" if p <= 0.2 else "doubtful"
            order = ["accept", "doubtful", "reject"]
            assert match.decision == max(own, answer.decision, key=order.index)
            seen.add((bool(far), match.decision))
    assert {(False, "accept"), (True, "reject")} <= seen


def test_one_or_many(town_map, queries):
    single = town_map.localize(queries[0])
    listed = town_map.localize([queries[0]])
    assert isinstance(listed, list)
    assert [m.name for m in single.matches] == [m.name for m in listed[0].matches]
    picture = Image.open(queries[0])
    assert town_map.localize(picture).query == "query 0"
    pixels = np.asarray(picture.convert("RGB"))
    assert town_map.localize(pixels).matches[0].name == single.matches[0].name
    assert len(town_map.localize(np.stack([pixels, pixels]))) == 2


def test_a_reference_finds_itself(town, town_map):
    rows = town.reference_rows[[3, 30]]
    for row, answer in zip(rows, town_map.localize(town.image_paths(rows)), strict=True):
        assert answer.matches[0].name == town.paths[row]
        assert answer.matches[0].similarity == pytest.approx(1, abs=1e-4)
        assert np.hypot(*(town.positions[row] - [answer.pose.x, answer.pose.y])) <= 25


@pytest.mark.parametrize("radius", [0.0, 12.0, 30.0, 1e4])
@pytest.mark.parametrize("gone", [0, 9])
def test_the_spatial_prior_is_brute_force_within_the_circle(town, town_map, queries, radius, gone):
    if gone:
        town_map.remove(list(town_map.store.names())[:gone])
    store, made = town_map.store, town_map.embed(queries)
    center = town.positions[town.reference_rows[20]]
    inside = np.flatnonzero(np.hypot(*(store.positions - center).T) <= radius)
    order = np.argsort(-(made.descriptor @ store.descriptors[:][inside].T), axis=1, kind="stable")
    answers = town_map.localize(queries, k=6, area=(tuple(center), radius))
    for row, answer in enumerate(answers):
        assert [m.reference for m in answer.matches] == inside[order[row, :6]].tolist()


@pytest.mark.parametrize("posed", [True, False])
def test_a_map_of_one_reference(town, tiny, queries, tmp_path, posed):
    """Fewer references than requested, none in the area, then none at all."""
    one = town.select(town.reference_rows[:1])
    if not posed:
        one = replace(one, positions=np.full((1, 2), np.nan))
    made = PlaceMap.build(one, tmp_path / "one", tiny)
    for verify in (0, 10):
        answer = made.localize(queries[0], k=20, rerank=verify)
        assert [match.name for match in answer.matches] == ["000.png"]
        assert (answer.pose is not None) == posed
        assert answer.sentence.startswith("Best match 000.png")
    assert made.localize(queries[0], rerank=10, area=(0.0, 0.0, 1.0)).matches == ()
    with pytest.raises(KappaPlaceError, match=r"at least 3 references|has neither"):
        self_calibrate_map(made)
    made.remove(["000.png"])
    with pytest.raises(KappaPlaceError, match="is empty"):
        made.localize(queries[0])


def test_an_iterator_is_a_list_of_images(town_map, queries):
    assert [answer.query for answer in town_map.localize(iter(queries[:1]))] == queries[:1]


def test_nothing_near(town_map, queries):
    answer = town_map.localize(queries[0], area=(0, 0, 5))
    assert answer.matches == ()
    assert "area has no references" in answer.sentence
    assert answer.to_dict()["pose"] is None


def test_bad_questions_are_told(town_map, queries):
    for wrong in ((1, 2), "here", (1, 2, "far"), ((1, 2, 3), 4)):
        with pytest.raises(KappaPlaceError, match="x, y and radius in metres"):
            town_map.localize(queries[0], area=wrong)
    with pytest.raises(KappaPlaceError, match="radius of at least 0"):
        town_map.localize(queries[0], area=(1, 2, -1))
    with pytest.raises(KappaPlaceError, match="k must be 1 or more"):
        town_map.localize(queries[0], k=0)
    with pytest.raises(KappaPlaceError, match="list of images to localize is empty"):
        town_map.localize([])
    with pytest.raises(KappaPlaceError, match="covers only the best match"):
        town_map.localize(queries[0], order="probability")
    with pytest.raises(KappaPlaceError, match=r"shape \(1, 32\), got \(1, 8\)"):
        town_map.localize_embeddings(Embeddings(np.ones((1, 8), np.float32)), ["q"])
    assert len(town_map.localize(queries[0], k=10**6).matches) == 56


def match(x: float, heading: float, probability: float | None, decision: str = "accept") -> Match:
    return Match(1, "m", x, 0 * x, heading, np.nan, 0.5, np.nan, 0.1, probability, decision, 0, "")


def test_the_pose_is_that_of_the_best_match():
    nan = np.nan
    matches = [match(0, 350, 0.9), match(10, 10, 0.3), match(500, 90, 0.9), match(nan, 0, 0.9)]
    pose = best_pose(matches, 25.0)
    assert (pose.x, pose.y, pose.heading, pose.matches) == (0, 0, 350, 2)
    assert pose.spread == pytest.approx(np.sqrt((0**2 + 10**2) / 2))
    assert best_pose(matches[:1], 25.0).spread == 0
    assert best_pose(matches[3:], 25.0) is None
    assert best_pose([], 25.0) is None
    assert best_pose([match(0, 0, 0.1, "reject"), match(10, 0, 0.9)], 25.0) is None
    assert np.isnan(best_pose([match(0, nan, 0.9)], 25.0).heading)


@pytest.fixture
def measured(town_map: PlaceMap) -> PlaceMap:
    """A map whose calibration has three groups of positions: 8 m, 20 m and unknown."""
    calibration = self_calibrate_map(town_map, CalibrateOptions(max_risk=0.5))
    model = RadiusModel(
        0.9, 100.0, "labels", Logistic(0.5, 0.1, 1.0, 2.0), (0.7, 0.75), (8.0, 20.0), ((9, 4, 0.1),) * 3
    )
    town_map.calibrate_with(replace(calibration, radius=model), "labels")
    return town_map


def test_the_position_and_its_radius_do_not_depend_on_the_number_of_matches(measured, queries):
    asked = [measured.localize(queries, k=k) for k in (1, 2, 10)]
    radii = set()
    for answers in zip(*asked, strict=True):
        assert len({(a.latitude, a.longitude, a.radius, a.far, a.covariance) for a in answers}) == 1
        assert len({None if a.pose is None else (a.pose.x, a.pose.y, a.pose.heading) for a in answers}) == 1
        for answer in answers:
            radii.add(answer.radius)
            if answer.pose is None or answer.far is None:
                assert answer.radius is answer.covariance is None
                continue
            assert (answer.pose.x, answer.pose.y) == (answer.matches[0].x, answer.matches[0].y)
            u = answer.uncertainty
            assert answer.radius == (8.0 if u <= 0.7 else 20.0 if u <= 0.75 else None)
            assert (answer.radius_level, answer.radius_source) == (0.9, "labels")
            assert np.shape(answer.covariance) == (3, 3)
            words = "radius unknown" if answer.radius is None else f"within {answer.radius:g} m: 90%"
            assert f"({words})" in answer.sentence
    assert len(radii) > 1
    assert json.loads(json.dumps(asked[0][0].to_dict()))["far"] == asked[0][0].far


def test_a_radius_of_other_conditions_is_not_given(measured, queries):
    first = measured.localize(queries)
    assert any(answer.radius for answer in first)
    assert not any(answer.radius for answer in measured.localize(queries, outside_rate=0.5))
    assert not any(answer.radius for answer in measured.localize(queries, order="probability"))
    assert any(answer.radius for answer in measured.localize(queries, outside_rate=0.01))


def test_a_rejected_match_never_moves_the_pose_whatever_the_risk(town_map, queries):
    """`decided` decides for another risk: the position follows the decisions."""
    calibration = Calibration(
        Signal(("cosine",)),
        OutsideAware(Logistic(0.0, 1.0, 0.0, 1.0), None, 0.0, 0.5),
        rule=rule_by_probability(0.1, 0.2),
    )
    matches = (match(0, 0, 0.95), match(20, 0, 0.6, "doubtful"), match(10, 0, 0.1, "reject"))
    before = replace(town_map.localize(queries[0]), probability=0.95, decision="accept", matches=matches)
    before = replace(before, pose=best_pose(matches, 25.0))
    assert before.pose.matches == 2
    after = decide_answer(before, calibration, 25.0, max_risk=0.05).answer
    assert [each.decision for each in after.matches] == ["accept", "doubtful", "reject"]
    assert after.pose == before.pose
    lax = replace(before, matches=(*matches[:1], match(20, 0, 0.15, "doubtful")))
    after = decide_answer(lax, calibration, 25.0, max_risk=0.05).answer
    assert after.matches[1].decision == "reject"
    assert (after.pose.x, after.pose.matches) == (0.0, 1)


def test_the_spread_of_the_matches_is_never_shown_as_an_error(town_map, queries):
    for answer in (town_map.localize(queries[0], k=k) for k in (1, 56)):
        assert (answer.radius, answer.radius_level, answer.radius_source) == (None, None, None)
        assert "±" not in answer.sentence
        assert f"{answer.latitude:.5f}, {answer.longitude:.5f} (radius unknown)" in answer.sentence


def test_positions_are_also_given_in_degrees(town_map, queries):
    answer = town_map.localize(queries[0])
    to_degrees = pyproj.Transformer.from_crs(town_map.manifest.frame, "EPSG:4326", always_xy=True)
    assert answer.frame == town_map.manifest.frame
    for each in (answer.pose, *answer.matches):
        longitude, latitude = to_degrees.transform(each.x, each.y)
        place = answer if each is answer.pose else each
        assert (place.latitude, place.longitude) == pytest.approx((latitude, longitude), abs=1e-9)


def test_ranked_anew_the_margin_is_to_places_other_than_the_new_best(town_map, queries):
    made, references, store = town_map.embed(queries), town_map.references, town_map.store
    before = retrieve(town_map.queries(made), references, 5)
    backwards = np.tile(np.arange(5.0), (len(queries), 1))  # the last of the five is the most probable
    after = _reranked(before, backwards)
    top = after.top
    np.testing.assert_array_equal(top, before.matches.indices[:, 4])
    far = ~np.asarray(references.near(top[:, None], np.arange(len(store))[None, :]))
    expected = np.where(far, made.descriptor @ store.descriptors[:].T, -np.inf).max(axis=1)
    np.testing.assert_allclose(after.best_outside, expected, atol=1e-6)
    assert (after.best_outside != before.best_outside).any()


@pytest.mark.parametrize("order", ["similarity", "probability"])
def test_a_combination_is_evaluated_once_per_query(town_map, queries, monkeypatch, order):
    self_calibrate_map(town_map, CalibrateOptions(max_risk=0.5, confidence=0.5))
    rows: list[int] = []
    evaluate = Signal.uncertainty

    def counted(self, features, dimensions):
        rows.extend([len(features)] * (dimensions == 1))
        return evaluate(self, features, dimensions)

    monkeypatch.setattr(Signal, "uncertainty", counted)
    answers = town_map.localize(queries, order=order)
    assert all(answer.probability is not None or answer.notes for answer in answers)
    assert rows == [len(queries)]


def test_an_address_without_a_database_is_told(town_map, queries):
    for engine in ("auto", "exact", "ivf-pq"):
        with pytest.raises(KappaPlaceError, match="are options of a database"):
            PlaceMap.open(
                town_map.folder, engine=engine, engine_options=EngineOptions(uri="town.db")
            ).localize(queries[0])


def test_a_read_only_map_is_searched_without_an_index_on_disk(town_map, queries, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    monkeypatch.setattr(faiss, "save", None)  # would be called to keep the index
    monkeypatch.setattr(faiss, "FEWEST", 50)  # so that some dozens of references will do
    here = PlaceMap.open(town_map.folder, engine="ivf-pq")
    assert here.localize(queries[0], 3).matches[0].name == town_map.localize(queries[0], 3).matches[0].name
    assert not (town_map.folder / "index").exists()
    monkeypatch.setattr(engines, "EXACT_UP_TO", 10)
    assert "no folder for an index" in PlaceMap.open(town_map.folder).references.engine.why


def test_engines_give_the_same_answer(town_map, queries, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(faiss, "FEWEST", 50)  # so that a few dozen references are enough
    town_map.remove(list(town_map.store.names())[:3])
    made = town_map.embed(queries)
    exact = town_map.localize_embeddings(made, queries, LocalizeOptions(k=5))
    other = PlaceMap.open(town_map.folder, engine="ivf-pq").localize_embeddings(
        made, queries, LocalizeOptions(k=5)
    )
    assert [[m.name for m in a.matches] for a in exact] == [[m.name for m in a.matches] for a in other]


def test_old_names_work_and_warn(town_map, queries, town):
    x, y = town.positions[0]
    with pytest.warns(DeprecationWarning, match="near= is now area="):
        old = town_map.localize(queries[0], near=((x, y), 40.0))
    new = town_map.localize(queries[0], area=(x, y, 40.0))
    assert old.to_dict()["matches"] == new.to_dict()["matches"]
    with pytest.warns(DeprecationWarning, match="verify= is now rerank="):
        town_map.localize(queries[0], verify=0)
    with pytest.raises(KappaPlaceError, match='order="probability"'):
        town_map.localize(queries[0], rerank=True)


def test_a_map_has_every_verb_of_the_command_line():
    """Except those of later layers: `kappaplace.sharing` and `kappaplace.reports`."""
    from kappaplace.cli.main import app

    (group,) = (each.typer_instance for each in app.registered_groups if each.name == "map")
    names = {each.name or each.callback.__name__ for each in group.registered_commands}
    verbs = {"import_" if name == "import" else name for name in names - {"push", "pull", "show"}}
    assert all(callable(getattr(PlaceMap, verb)) for verb in verbs)
    assert len(verbs) > 12
