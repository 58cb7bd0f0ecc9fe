"""Matches compared cell by cell: their order, their signals, and calibration with them."""

from __future__ import annotations

from shutil import copytree

import numpy as np
import pytest
import torch

from kappaplace.data.images import Preprocessing
from kappaplace.data.place_images import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import PlaceMap
from kappaplace.maps.calibrate import Terms, calibrate_map
from kappaplace.models.place_model import PlaceModel
from kappaplace.uncertainty.patch_matching import patch_agreement


@pytest.fixture(scope="module")
def model() -> PlaceModel:
    """Maps of 6×6 cells: those of 2×2 would mostly tie."""
    torch.manual_seed(3)
    return PlaceModel.create("resnet_tiny", 32, preprocessing=Preprocessing(96, "exact")).eval()


@pytest.fixture
def shown(town: PlaceImages, model: PlaceModel, tmp_path) -> PlaceMap:
    return PlaceMap.build(town, tmp_path / "shown.map", model)


@torch.no_grad()
def maps_of(model: PlaceModel, path: str) -> torch.Tensor:
    return model.patch_maps(model.preprocessing(path)[None]).half()


def test_the_first_matches_are_ordered_by_agreement(shown, model, queries):
    plain = shown.localize(queries[:4], k=8, verify=0)
    found = shown.localize(queries[:4], k=8, verify=5)
    for query, before, after in zip(queries[:4], plain, found, strict=True):
        asked = maps_of(model, query)
        agreement = [
            float(patch_agreement(asked, maps_of(model, match.image))) for match in before.matches[:5]
        ]
        order = np.argsort([-value for value in agreement], kind="stable")
        names = [before.matches[i].name for i in order] + [match.name for match in before.matches[5:]]
        assert [match.name for match in after.matches] == names
        assert after.signals["patches"] == pytest.approx(1 - max(agreement), abs=1e-6)
        assert "patches" not in before.signals
        assert any("ordered by how many of their cells" in note for note in after.notes)


def test_fewer_matches_shown_than_compared(shown, queries):
    few, many = (shown.localize(queries[0], k=k, verify=6) for k in (2, 6))
    assert [match.name for match in few.matches] == [match.name for match in many.matches[:2]]
    assert few.signals == pytest.approx(many.signals)


def test_a_map_is_asked_as_it_was_calibrated(town, shown, queries, tmp_path):
    elsewhere = copytree(town.root, tmp_path / "elsewhere")  # images of the map itself are refused
    labelled = PlaceImages.create(
        town.paths, town.positions, root=elsewhere, frame=town.frame, name="labelled"
    )
    terms = Terms(max_risk=0.5, confidence=0.6, thin=False, verify=4)
    made = calibrate_map(shown, labelled, terms)
    assert made.scores[-2:] == ("patches", "patch-margin")
    assert made.pair_scores[-1] == "patches"
    again = PlaceMap.open(shown.folder)
    answer = again.localize(queries[0], k=3)
    assert answer.signals.keys() >= {"patches", "patch-margin"}
    assert not any("do not fit" in note for note in answer.notes)
    other = again.localize(queries[0], k=3, verify=0)
    assert any("calibrated with 4 matches" in note and "without comparing" in note for note in other.notes)


def test_what_is_missing_is_told(shown, queries, town, monkeypatch):
    made = shown.embed(queries[:1])
    with pytest.raises(KappaPlaceError, match="give images, not embeddings"):
        shown.localize_embeddings(made, ["q"], verify=3)
    with pytest.raises(KappaPlaceError, match="0 or more, not -1"):
        shown.localize(queries[0], verify=-1)
    monkeypatch.setattr(type(shown.store), "image_path", lambda self, reference: "/nowhere/a.png")
    with pytest.raises(KappaPlaceError, match="nowhere"):
        shown.localize(queries[0], verify=3)
    assert shown.localize(queries[0]).matches  # unasked, nothing is compared
