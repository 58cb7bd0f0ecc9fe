"""Patch matching: order of the matches, scores, and calibration with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kappaplace.calibration import examples
from kappaplace.calibration.examples import Examples
from kappaplace.calibration.options import CalibrateOptions
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import BuildOptions, LocalizeOptions, PlaceMap
from kappaplace.maps.localize import OUTDATED_MAP, OUTDATED_PLAIN, PLAIN, rerank_of
from kappaplace.maps.tune.calibrate import calibrate_map, reranking_note
from kappaplace.maps.tune.label import calibrate_map_on_labels, open_sheet
from kappaplace.maps.tune.label_sheet import NO, YES, Sample, Sheet, read_labels, write_labels
from kappaplace.maps.tune.self_calibrate import self_calibrate_map
from kappaplace.models.place_model import PlaceModel
from kappaplace.retrieval.patches import patch_agreement


@pytest.fixture
def shown(town: PlaceImages, model: PlaceModel, tmp_path) -> PlaceMap:
    return PlaceMap.build(town, tmp_path / "shown.map", model)


@torch.no_grad()
def maps_of(model: PlaceModel, path: str) -> torch.Tensor:
    return model.patch_maps(model.preprocessing(path)[None]).half()


@pytest.mark.parametrize("patches", ["none", "full"])
def test_the_first_matches_are_ordered_by_agreement(town, model, queries, tmp_path, patches):
    shown = PlaceMap.build(town, tmp_path / "exact.map", model, BuildOptions(patches=patches))
    plain = shown.localize(queries[:4], k=8, rerank=0)
    found = shown.localize(queries[:4], k=8, rerank=5)
    for query, before, after in zip(queries[:4], plain, found, strict=True):
        asked = maps_of(model, query)
        agreement = [
            float(patch_agreement(asked, maps_of(model, match.image))) for match in before.matches[:5]
        ]
        order = np.argsort([-value for value in agreement], kind="stable")
        names = [before.matches[i].name for i in order] + [match.name for match in before.matches[5:]]
        assert [match.name for match in after.matches] == names
        # Weights are similarities of float16 maps, whose last bits depend on the batch size.
        assert after.signals["patches"] == pytest.approx(1 - max(agreement), abs=1e-4)
        assert "patches" not in before.signals
        assert any("ordered by how well their patches" in note for note in after.notes)


def test_fewer_matches_shown_than_compared(shown, queries):
    few, many = (shown.localize(queries[0], k=k, rerank=6) for k in (2, 6))
    assert [match.name for match in few.matches] == [match.name for match in many.matches[:2]]
    assert few.signals == pytest.approx(many.signals)


def test_signals_are_of_the_matches_compared_however_many_are_shown(shown, queries):
    few, many = (shown.localize(queries[:6], k=k, rerank=3) for k in (1, 20))
    for one, other in zip(few, many, strict=True):
        assert one.signals == pytest.approx(other.signals)


LAX = CalibrateOptions(max_risk=0.5, confidence=0.6, thin=False, keep_twins=True)


def test_a_map_is_asked_as_it_was_calibrated(again, shown, queries):
    made = calibrate_map(shown, again, replace(LAX, rerank=4))
    assert made.scores[-2:] == ("patches", "patch-margin")
    assert made.pair_scores[-1] == "patches"
    opened = PlaceMap.open(shown.folder)
    answer = opened.localize(queries[0], k=3)
    assert answer.signals.keys() >= {"patches", "patch-margin"}
    assert answer.probability is not None
    assert not any("this query ran" in note for note in answer.notes)
    assert reranking_note(made, replace(made, rerank=0)).endswith("--rerank 4 to keep it.")
    assert reranking_note(None, made) == reranking_note(made, made) == ""


@pytest.mark.parametrize("fitted", [0, 4])
def test_asked_otherwise_than_calibrated_there_is_no_probability(again, shown, queries, fitted):
    made = calibrate_map(shown, again, replace(LAX, rerank=fitted))
    assert rerank_of(made) == fitted
    words = {0: "without patch matching", 4: "patch matching of 4 matches", 7: "patch matching of 7 matches"}
    if fitted:  # a second calibration was fitted without patches
        answer = shown.localize(queries[0], k=3, rerank=0)
        assert PLAIN in answer.notes
        assert answer.calibration == made.plain.fingerprint != made.fingerprint
    for rerank in sorted(set(words) - {fitted, 0 if fitted else -1}):
        answer = shown.localize(queries[0], k=3, rerank=rerank)
        assert (answer.probability, answer.inside, answer.decision, answer.calibration) == (None,) * 3 + ("",)
        assert all(match.probability is None and match.decision is None for match in answer.matches)
        (note,) = (note for note in answer.notes if "this query ran" in note)
        before, after = note.split("this query ran")
        assert words[fitted] in before
        assert words[rerank] in after
        assert not any("is not calibrated" in note for note in answer.notes)
        with pytest.raises(KappaPlaceError, match="this query ran"):
            shown.localize(queries[0], rerank=rerank, order="probability")
    (blind,) = shown.localize_embeddings(shown.embed(queries[:1]), ["q"])  # nothing to compare with
    assert blind.calibration == (made.plain.fingerprint if fitted else made.fingerprint)
    assert shown.localize(queries[0], order="probability").calibration == made.fingerprint


def test_a_calibration_of_earlier_patch_matching_is_not_applied(again, shown, queries):
    made = calibrate_map(shown, again, replace(LAX, rerank=4))
    older = replace(made, agreement=1)  # as in files that do not name the version
    shown.calibrate_with(older, "a test", guarantee=True)
    opened = PlaceMap.open(shown.folder)
    answer = opened.localize(queries[0])
    assert answer.calibration == made.plain.fingerprint
    assert OUTDATED_PLAIN in answer.notes
    assert "patches" not in answer.signals
    for calibration, rerank in ((older, 4), (replace(older, plain=None), None)):
        opened.calibrate_with(calibration, "a test", guarantee=True)
        answer = opened.localize(queries[0], rerank=rerank)
        assert (answer.probability, answer.decision, answer.calibration) == (None, None, "")
        assert OUTDATED_MAP in answer.notes
        assert "patches" in answer.signals


def labeled(sheet: Sheet) -> Sheet:
    for i, row in enumerate(sheet.rows):
        sheet = sheet.with_label(i, YES if row.query == row.match else NO)
    return sheet


def test_labels_are_about_matches_as_they_were_found(again, shown, queries, tmp_path):
    sample = Sample(tuple(again.paths.tolist()), str(again.root), 0, len(again), len(again), "25 m")
    plain, file = (open_sheet(shown, sample, tmp_path / name, rerank=v) for name, v in (("p", 0), ("f", 5)))
    assert (plain.sampling.verify, file.sampling.verify) == (0, 5)
    assert [row.match for row in plain.rows] != [row.match for row in file.rows]
    assert open_sheet(shown, sample, tmp_path / "f") == file  # resumed
    with pytest.raises(KappaPlaceError, match=r"with patch matching of 5 matches.*--rerank"):
        open_sheet(shown, sample, tmp_path / "f", rerank=2)
    write_labels(labeled(file), tmp_path / "f")
    for other in (0, 2):
        with pytest.raises(
            KappaPlaceError, match=rf"with patch matching of 5 matches.*map label --rerank {other}`"
        ):
            calibrate_map_on_labels(shown, tmp_path / "f", replace(LAX, rerank=other))
    made = calibrate_map_on_labels(shown, tmp_path / "f", LAX)
    assert (made.rerank, made.facts["stale"]) == (5, 0)
    assert made.scores[-2:] == ("patches", "patch-margin")
    assert shown.localize(queries[0]).signals.keys() >= {"patches"}
    assert (
        open_sheet(shown, sample, tmp_path / "third").sampling.verify == 5
    )  # the current default of the map


def test_labels_of_the_first_format_knew_no_comparing(again, shown, tmp_path):
    sample = Sample(tuple(again.paths.tolist()), str(again.root), 0, len(again), len(again), "25 m")
    sheet, file = open_sheet(shown, sample, tmp_path / "labels.csv", rerank=0), tmp_path / "labels.csv"
    text = file.read_text().replace("kappaplace-labels: 2", "kappaplace-labels: 1")
    file.write_text(text.replace("# verify: 0\n", ""))
    assert "verify" not in file.read_text()
    assert read_labels(file) == sheet


def test_a_map_compares_cells_of_its_own_damaged_images(shown, queries, monkeypatch):
    seen: list[tuple[Any, ...]] = []

    def examples_of(*given: Any, **named: Any) -> Examples:
        seen.append(given)
        return examples.examples_of(*given, **named)

    monkeypatch.setattr("kappaplace.maps.tune.self_calibrate.examples_of", examples_of)
    made = self_calibrate_map(shown, CalibrateOptions(rerank=6))
    assert made.rerank == 6
    assert made.scores[-2:] == ("patches", "patch-margin")
    assert made.pair_scores[-1] == "patches"
    store = shown.store
    for evidence, right, outside, asked in seen:
        agreement = evidence.agreement[:, :6]
        assert (np.diff(agreement, axis=1) <= 0).all()
        assert (np.diff(evidence.matches.similarities[:, :6], axis=1) > 0).any()  # no longer by similarity
        found = store.positions[evidence.matches.indices]
        near = np.hypot(*(found - store.positions[asked][:, None]).transpose(2, 0, 1)) <= 25
        np.testing.assert_array_equal(right, near & ~outside[:, None])
    answer = shown.localize(queries[0])
    assert answer.signals.keys() >= {"patches", "patch-margin"}
    assert answer.probability is not None
    with pytest.raises(KappaPlaceError, match=r"rerank=15 needs 60 references, got 56.*at most 14"):
        self_calibrate_map(shown, CalibrateOptions(rerank=15))
    with pytest.raises(KappaPlaceError, match="rerank must be 0 or more, got -1"):
        CalibrateOptions(rerank=-1)


def test_what_is_missing_is_told(queries, town, model, tmp_path, monkeypatch):
    shown = PlaceMap.build(town, tmp_path / "shown.map", model, BuildOptions(patches="none"))
    made = shown.embed(queries[:1])
    with pytest.raises(KappaPlaceError, match="Pass images instead of embeddings"):
        shown.localize_embeddings(made, ["q"], LocalizeOptions(rerank=3))
    with pytest.raises(KappaPlaceError, match="rerank must be 0 or more, got -1"):
        shown.localize(queries[0], rerank=-1)
    monkeypatch.setattr(type(shown.store), "image_path", lambda self, reference: "/nowhere/a.png")
    with pytest.raises(KappaPlaceError, match="nowhere"):
        shown.localize(queries[0], rerank=3)
    assert shown.localize(queries[0]).matches  # the default does not compare patches
