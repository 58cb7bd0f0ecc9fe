"""Probabilities and decisions of a map, with labels and without."""

from __future__ import annotations

from dataclasses import replace
from shutil import copytree

import numpy as np
import pytest

from kappaplace.calibration.options import CalibrateOptions
from kappaplace.data.positives import Positives
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import LocalizeOptions, PlaceMap
from kappaplace.maps.tune import self_calibrate
from kappaplace.maps.tune.calibrate import calibrate_map
from kappaplace.maps.tune.self_calibrate import distinct_rate, self_calibrate_map, sparse_note
from tests.maps.conftest import town_table


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> PlaceImages:
    """Enough queries for a calibration; every third one is a reference, so that some are correct."""
    return town_table(tmp_path_factory.mktemp("many"), "test", queries=90)


@pytest.fixture
def ready(many: PlaceImages, tiny, tmp_path) -> PlaceMap:
    return PlaceMap.build(many, tmp_path / "m", tiny)


def test_labeled_queries(many, ready, tmp_path):
    with pytest.raises(KappaPlaceError, match=r"got \d+ places.*--no-thin"):
        calibrate_map(ready, many)
    references = many.references
    known = {
        "paths": np.concatenate([many.queries.paths, references.paths]),
        "positions": np.concatenate([many.queries.positions, references.positions]),
        "frame": many.frame,
    }  # no query is marked: all of them are
    options = CalibrateOptions(max_risk=0.4, confidence=0.8, thin=False, rerank=0, keep_twins=True)
    with pytest.raises(KappaPlaceError, match=r"images of the map itself .*not in the map"):
        calibrate_map(ready, PlaceImages.create(**known, root=many.root), options)
    labeled = PlaceImages.create(**known, root=copytree(many.root, tmp_path / "again"), name="labelled")
    made = calibrate_map(ready, labeled, options)
    assert any("not thinned" in sentence for sentence in made.rule.promise())
    assert made.scores == ("cosine", "margin", "aliasing", "z-score", "inverse-kappa")
    again = PlaceMap.open(ready.folder)
    assert again.info()["calibration"] == f"{len(labeled)} labelled queries of labelled"
    counts = again.manifest.calibration["reliability"][2]
    # Measured where nothing was fitted, on one of the two that each query makes.
    assert sum(counts) == made.facts["thresholds_on"] / 2
    assert (made.radius.source, made.radius.level) == ("labels", 0.95)
    assert made.radius.limit == 4 * again.manifest.radius
    answers = again.localize(many.image_paths(many.reference_rows[:8]), k=5)
    assert any(answer.probability is not None for answer in answers)
    for answer in answers:
        assert (answer.probability is None) == any("is unlike those" in note for note in answer.notes)
        if answer.probability is None:
            assert answer.decision != "accept"
            continue
        assert 0 <= answer.probability <= 1
        assert answer.decision in ("accept", "doubtful", "reject")
        assert answer.matches[0].decision == answer.decision
        assert all(0 <= match.probability <= 1 for match in answer.matches)
        assert (
            sum("no risk is guaranteed" in note for note in answer.notes) == 1
        )  # few were answered correctly
        assert not answer.guaranteed
    asked = again.localize(many.image_paths(many.query_rows[:8]), k=5)
    mean = [np.mean([a.probability for a in part if a.probability is not None]) for part in (answers, asked)]
    assert mean[0] > mean[1]  # references find themselves
    ranked = again.localize(many.image_paths(many.query_rows[:3]), k=5, order="probability")
    for answer in ranked:
        found = [match.probability or 0.0 for match in answer.matches]
        assert found[1:] == sorted(found[1:], reverse=True)
        assert answer.matches[0].probability == answer.probability
    near = again.localize(many.image_path(0), area=(tuple(many.positions[0]), 40.0))
    assert any("Only part of the map" in n and "no risk is guaranteed" in n for n in near.notes)
    outside = again.localize(many.image_path(0), outside_rate=0.9)
    assert any("not 90" in note for note in outside.notes)
    assert not any("out-of-map" in n for n in again.localize(many.image_path(0)).notes)
    again.remove(list(again.store.names())[:20])
    assert any("Calibrate it again" in note for note in again.localize(many.image_path(0)).notes)


def test_a_claim_that_the_sample_cannot_support_is_refused(many, ready):
    with pytest.raises(KappaPlaceError, match="labelled queries"):
        calibrate_map(ready, many, CalibrateOptions(max_risk=0.01, thin=False))
    assert PlaceMap.open(ready.folder).calibration is None


def test_given_positives_are_found_by_name(many, ready):
    q, r = len(many.query_rows), len(many.reference_rows)
    lists = [[i % r, (i + 1) % r] if i % 4 else [] for i in range(q)]
    table = PlaceImages.create(
        many.paths, is_query=many.is_query, root=many.root, given_positives=Positives.from_lists(lists, r)
    )
    # Labels at random: nothing can be promised, but they are read.
    with pytest.raises(KappaPlaceError, match=r"needs at least 598 labelled queries, got 90"):
        calibrate_map(ready, table, CalibrateOptions(max_risk=0.01))
    posed = replace(table, positions=many.positions)
    with pytest.raises(
        KappaPlaceError, match=r"got \d+ places.*--no-thin"
    ):  # neighbouring frames fail together
        calibrate_map(ready, posed)


def test_without_labels_nothing_is_guaranteed(many, ready):
    made = self_calibrate_map(ready)
    assert made.radius is None or made.radius.source == "map"
    assert made.rule is not None
    assert not made.rule.guaranteed
    assert "The map is sparse" in sparse_note(made)
    assert made.facts["outside"] >= made.facts["queries"] / 2  # every second query is without its place
    answers = ready.localize(many.image_paths(many.reference_rows))
    sure = [answer for answer in answers if answer.probability is not None]
    assert np.mean([answer.probability for answer in sure]) > 0.5  # images of the map are found in it
    answer = PlaceMap.open(ready.folder).localize(sure[0].query)
    assert any(
        "degraded images of the map itself" in n and "no risk is guaranteed" in n for n in answer.notes
    )
    assert answer.inside is not None
    assert answer.in_map == (answer.inside >= 0.5)
    assert self_calibrate_map(ready).to_dict() == made.to_dict()  # the degradation is deterministic


def test_what_cannot_be_self_calibrated(many, ready, tiny, tmp_path):
    unposed = PlaceImages.create(many.references.paths, root=many.root)
    blind = PlaceMap.build(unposed, tmp_path / "blind", tiny)
    with pytest.raises(KappaPlaceError, match="needs positions or frame numbers"):
        self_calibrate_map(blind)
    with pytest.raises(KappaPlaceError, match="queries need positions"):
        calibrate_map(blind, many)
    from kappaplace.maps.exchange import export_map, import_map

    moved = tmp_path / "moved.npz"
    export_map(ready.store, moved)
    with np.load(moved) as stored:
        arrays = {key: stored[key] for key in stored.files}
    np.savez(moved, **arrays)
    import_map(moved, tmp_path / "gone", tiny, "/nowhere")
    with pytest.raises(KappaPlaceError, match=r"no longer exist .*/nowhere"):
        self_calibrate_map(PlaceMap.open(tmp_path / "gone"))


def test_a_sparse_map_is_asked_with_its_images_present(ready, monkeypatch):
    with monkeypatch.context() as without:
        without.setattr(self_calibrate, "PRESENT", 0.0)
        alone = self_calibrate_map(ready).facts
    facts = self_calibrate_map(ready).facts
    assert 0 <= facts["found_alone"] == alone["found_alone"] < 0.5
    assert facts["right"] > alone["right"]  # images that stay in the map are found more often
    stated, observed, counts = ready.manifest.calibration["reliability"]
    assert len(stated) == len(observed) == len(counts) > 1
    # Every second query is out-of-map, and one in ten is expected, so the held-out queries are subsampled.
    assert sum(counts) < facts["thresholds_on"]
    assert all(0 <= value <= 1 for value in (*stated, *observed))


def test_how_dense_a_map_is(ready):
    """Compare with a loop over the references."""
    store, near = ready.store, ready.manifest.radius
    z, where = store.descriptors[:], store.positions
    hits = []
    for row in range(len(ready)):
        others = np.delete(np.arange(len(ready)), row)
        best = others[np.argmax(z[others] @ z[row])]
        hits.append(np.linalg.norm(where[best] - where[row]) <= near)
    assert distinct_rate(ready, np.arange(len(ready))) == pytest.approx(np.mean(hits))


def test_guarantees_by_a_column_of_the_labels(many, ready):
    options = CalibrateOptions(max_risk=0.4, confidence=0.8, thin=False, rerank=0, keep_twins=True)
    with pytest.raises(KappaPlaceError, match=r"Unknown groups 'height'\. Choose from: kappa, condition"):
        calibrate_map(ready, many, replace(options, groups="height"))
    with pytest.raises(KappaPlaceError, match=r"no values in the column 'condition'"):
        calibrate_map(ready, many, replace(options, groups="condition"))
    self_calibrate_map(ready)
    with pytest.raises(KappaPlaceError, match="has no groups"):
        ready.localize(many.image_path(0), LocalizeOptions(group="night"))
    with pytest.raises(KappaPlaceError, match="Options were passed twice"):
        ready.localize(many.image_path(0), LocalizeOptions(k=3), rerank=0)
    assert len(ready.localize(many.image_path(0), LocalizeOptions(k=3)).matches) == 3


def test_the_group_of_each_query_is_its_condition(many, ready, tmp_path):
    copy = copytree(many.root, tmp_path / "again")
    paths, positions = np.tile(many.references.paths, 2), np.tile(many.references.positions, (2, 1))
    condition = np.repeat(["day", "night"], len(many.references))
    table = PlaceImages.create(paths, positions, condition=condition, frame=many.frame, root=copy)
    options = CalibrateOptions(
        max_risk=0.5, confidence=0.6, thin=False, rerank=0, keep_twins=True, groups="condition"
    )
    calibration = calibrate_map(ready, table, options)
    assert calibration.groups is not None
    assert calibration.groups.names == ("day", "night")
    assert ready.info()["groups"] == calibration.groups.sentence
    assert len(ready.info()["difficulty"]) == 4
    answer = ready.localize(many.image_path(0), LocalizeOptions(group="night"))
    assert answer.decision is not None
    note = ready.localize(many.image_path(0)).notes
    assert any("No group was selected" in line or "of the group" in line for line in note)
