from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.models.checkpoint import load_model
from kappaplace.models.embedding import patch_maps_of
from kappaplace.models.place_model import PlaceModel
from kappaplace.retrieval.patches import CellCheck, patch_agreement
from kappaplace.slam import ClosingSettings, Frame, LoopCloser
from kappaplace.slam.calibrate import calibration_for, collect, fit_closures, scores_for
from tests.slam.synthetic import calibration, world

LOOKS = torch.randn(40, 8, 6, 6, generator=torch.Generator().manual_seed(0))


class Maps:
    """Stands for a model: an image is the number of a look."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, images: object) -> torch.Tensor:
        numbers = [int(number) for number in images]  # type: ignore[attr-defined]
        self.asked += numbers
        return LOOKS[numbers]


@given(st.lists(st.integers(0, 38), min_size=1, max_size=6, unique=True))
@settings(max_examples=20, deadline=None)
def test_agreement_is_that_of_the_maps_and_is_asked_once(matches: list[int]) -> None:
    maps = Maps()
    check = CellCheck(maps)
    check.images = list(range(40))
    found = check.agreement(39, matches)
    wanted = [float(patch_agreement(LOOKS[39:], LOOKS[m : m + 1])) for m in matches]
    assert found == pytest.approx(wanted)
    asked = len(maps.asked)
    assert check.agreement(39, matches[::-1]) == pytest.approx(wanted[::-1])
    assert len(maps.asked) == asked
    # What is known needs neither images nor a model.
    assert CellCheck(maps, check.agreements).agreement(39, matches) == pytest.approx(wanted)
    assert len(maps.asked) == asked


def frames(count: int = 60) -> list[Frame]:
    """Twice along 30 looks; descriptors say nothing, so that only cells can tell."""
    rng = np.random.default_rng(0)
    common = np.eye(16)[0]
    out = []
    for row in range(count):
        vector = common + 0.01 * rng.normal(size=16)
        pose = np.array([4.0 * row, 0.0, 0.0])
        out.append(Frame(vector / np.linalg.norm(vector), 100.0, row % 30, pose))  # type: ignore[arg-type]
    return out


SETTINGS = ClosingSettings(verify=30, recent=90.0, fewest=3, radius=3.0)


def test_the_match_whose_cells_agree_is_proposed() -> None:
    closer = LoopCloser(None, SETTINGS, patch_maps=Maps(), scores=("cosine", "patches", "patch-margin"))
    for frame in frames():
        closer.add(frame)
    again = [c for c in closer.closures if c.query >= 30]
    assert all(c.query - c.match == 30 and c.agreement == pytest.approx(1.0) for c in again)
    columns = np.stack(closer.features)[-30:]
    assert columns[:, 1] == pytest.approx(0.0, abs=1e-6)  # all cells agree
    assert (columns[:, 2] < -0.5).all()  # and with no other place


def test_what_was_learned_with_cells_is_used_with_cells() -> None:
    same = np.equal.outer(np.arange(60) % 30, np.arange(60) % 30)
    scores = scores_for(True, 30)
    examples = collect(frames(), same, SETTINGS, scores=scores, patch_maps=Maps())
    fitted = fit_closures([examples], least_support=0, thin=4.0)
    assert fitted.rerank == 30
    settings = replace(SETTINGS, verify=None, drift=None, max_risk=0.5, least_support=0)
    closer = LoopCloser(fitted, settings, patch_maps=Maps())
    for frame in frames():
        closer.add(frame)
    assert closer.rerank == 30
    assert [c.query for c in closer.accepted] == list(range(30, 60))
    with pytest.raises(KappaPlaceError, match="patch_maps="):
        LoopCloser(fitted)
    with pytest.raises(KappaPlaceError, match="verify must be 30"):
        LoopCloser(fitted, replace(settings, verify=0), patch_maps=Maps())


def test_cells_can_be_a_check_of_their_own() -> None:
    """Of a drive that a calibration without cells accepts much of, only what agrees is left."""
    seen = [replace(frame, image=row) for row, frame in enumerate(world(7)[1])]  # type: ignore[arg-type]
    plain = LoopCloser(calibration())
    for frame in seen:
        plain.add(frame)
    first = plain.accepted[0]

    def maps(images: object) -> torch.Tensor:
        """The first accepted pair alone looks alike."""
        looks = [first.match if number == first.query else number for number in images]  # type: ignore[attr-defined]
        return torch.stack([torch.randn(8, 6, 6, generator=torch.Generator().manual_seed(n)) for n in looks])

    closer = LoopCloser(calibration(), ClosingSettings(least_agreement=0.5), patch_maps=maps)
    for frame in seen:
        closer.add(frame)
    assert [(c.query, c.match) for c in closer.accepted] == [(first.query, first.match)]
    assert any(c.reason == "cells" and c.agreement is not None and c.agreement < 0.5 for c in closer.closures)


def test_models_show_their_stages_or_not(tiny: PlaceModel) -> None:
    maps = patch_maps_of(tiny)
    assert maps is not None
    image = np.zeros((32, 32, 3), np.uint8)
    assert maps([image, image]).shape[0] == 2


def test_bad_input_is_one_sentence() -> None:
    with pytest.raises(KappaPlaceError, match="verify must be 0 or more"):
        ClosingSettings(verify=-1)
    with pytest.raises(KappaPlaceError, match="least_agreement"):
        ClosingSettings(least_agreement=2.0)
    with pytest.raises(KappaPlaceError, match="verify=10"):
        LoopCloser(scores=("patches",))
    closer = LoopCloser(None, SETTINGS, patch_maps=Maps())
    unseen = [replace(frame, image=None) for frame in frames()]
    with pytest.raises(KappaPlaceError, match="image of every frame"):
        _ = [closer.add(frame) for frame in unseen]


def test_the_model_that_comes_with_the_package_closes_loops_as_it_is() -> None:
    """Its own calibration was fitted with cells compared: model and probabilities without any other file."""
    model = load_model()
    found = calibration_for(model)
    assert found.rerank > 0
    rng = np.random.default_rng(0)
    looks = [np.kron(rng.integers(0, 256, (8, 8, 3)), np.ones((8, 8, 1))).astype(np.uint8) for _ in range(6)]
    settings = ClosingSettings(max_risk=0.5, recent=5.5, fewest=2, least_support=0, drift=None, radius=0.5)
    closer = LoopCloser(
        found,
        settings,
        embed=lambda images: model.embed(images, progress=False),
        patch_maps=patch_maps_of(model),
    )
    for row in range(12):
        closer.add(Frame(image=looks[row % 6], odometry=np.array([float(row), 0.0, 0.0])))
    again = [c for c in closer.closures if c.query - c.match == 6]
    assert len(again) >= 4
    assert all(c.probability is not None and c.agreement == pytest.approx(1.0) for c in again)
    with pytest.raises(KappaPlaceError, match="earlier version of patch matching"):
        LoopCloser(replace(found, agreement=1), settings, patch_maps=patch_maps_of(model))
