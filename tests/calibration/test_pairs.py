"""The probability of a pair: signals, fit, prior and files, against formulas written again here."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from kappaplace.calibration import Combination, PairCalibration, fit_pairs, load_pairs, save_pairs
from kappaplace.calibration.pairs import (
    COMPETING,
    COPY,
    LEAST,
    background_signals,
    pair_signals,
    shipped_pairs,
)
from kappaplace.errors import KappaPlaceError
from kappaplace.models import load_model
from kappaplace.retrieval import ArrayReferences
from kappaplace.retrieval.patches import patch_agreement
from kappaplace.types import Embeddings

LINE = Combination(("cosine",), (0.5,), (0.1,), (2.0,), 0.3)
BACK = Combination(("patch-margin",), (0.0,), (1.0,), (3.0,), 0.0)


def embeddings(count: int, seed: int, patches: bool = True) -> Embeddings:
    rng = np.random.default_rng(seed)
    descriptors = rng.normal(size=(count, 8))
    descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)
    maps = rng.normal(size=(count, 6, 5, 5)).astype(np.float16) if patches else None
    return Embeddings(descriptors.astype(np.float32), rng.uniform(5, 500, count), None, maps)


def labeled(count: int = 400) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    same = rng.random(count) < 0.4
    names = ("cosine", "patches", "patch-margin")
    return {name: rng.normal(np.where(same, -1.0, 1.0), 1.5) for name in names}, same


def test_the_probability_is_the_logistic_of_the_signal() -> None:
    values = np.array([0.3, 0.5, 0.8])
    expected = 1 / (1 + np.exp(-(0.3 - 2.0 * (values - 0.5) / 0.1)))
    calibration = PairCalibration("", LINE, 0.5)
    assert calibration.probability({"cosine": values}) == pytest.approx(expected)


def test_another_fraction_of_same_places_changes_the_odds_by_bayes() -> None:
    calibration, signals = PairCalibration("", LINE, 0.4), {"cosine": np.array([0.45, 0.5, 0.6])}
    before, after = calibration.probability(signals), calibration.probability(signals, 0.1)
    factor = (0.1 / 0.9) / (0.4 / 0.6)
    assert after / (1 - after) == pytest.approx(factor * before / (1 - before))
    with pytest.raises(KappaPlaceError, match="same_rate"):
        calibration.probability(signals, 1.0)


def test_a_map_is_used_if_its_signals_are_there() -> None:
    calibration = PairCalibration("", LINE, 0.5, BACK)
    signals = {"cosine": np.array([0.5])}
    assert calibration.probability(signals) == pytest.approx(1 / (1 + np.exp(-0.3)))
    signals["patch-margin"] = np.array([1.0])
    assert calibration.probability(signals) == pytest.approx(1 / (1 + np.exp(3.0)))


def test_a_missing_signal_is_named() -> None:
    with pytest.raises(KappaPlaceError, match="needs cosine"):
        PairCalibration("", LINE, 0.5).probability({"patches": np.ones(1)})


def test_the_signals_of_a_pair() -> None:
    a, b = embeddings(5, 0), embeddings(5, 1)
    signals = pair_signals(a, b)
    assert signals["cosine"] == pytest.approx(1 - (a.descriptor * b.descriptor).sum(1), abs=1e-6)
    agreement = patch_agreement(torch.from_numpy(a.patches), torch.from_numpy(b.patches))
    assert 1 - signals["patches"] == pytest.approx(agreement.numpy())
    swapped = pair_signals(b, a)
    assert all(swapped[name] == pytest.approx(values) for name, values in signals.items())
    assert set(pair_signals(a._replace(patches=None), b)) == {"cosine"}


def test_the_patch_margin_compares_with_other_places() -> None:
    reference, a, b = embeddings(30, 2), embeddings(6, 3), embeddings(6, 4)
    a.descriptor[0], a.patches[0] = reference.descriptor[7], reference.patches[7]  # an image of the map
    positions = np.column_stack([np.arange(30) * 10.0, np.zeros(30)])
    references = ArrayReferences(
        reference,
        positions,
        paths=[str(row) for row in range(30)],
        patch_maps=lambda rows: torch.from_numpy(reference.patches[[int(row) for row in rows]]),
    )
    agreement = 1 - pair_signals(a, b)["patches"]
    margin = background_signals(a, b, references, agreement)["patch-margin"]
    for row in range(6):
        similarity = reference.descriptor @ a.descriptor[row]
        place = positions[np.argmax(reference.descriptor @ b.descriptor[row])]
        far = (np.hypot(*(positions - place).T) > 25) & (similarity < COPY)
        others = [other for other in np.argsort(-similarity) if far[other]][:COMPETING]
        best = max(
            float(
                patch_agreement(
                    torch.from_numpy(a.patches[[row]]), torch.from_numpy(reference.patches[[other]])
                )
            )
            for other in others
        )
        assert margin[row] == pytest.approx(np.log((best + LEAST) / (agreement[row] + LEAST)), abs=1e-6)


def test_a_map_of_one_place_has_no_competitor() -> None:
    reference = embeddings(3, 2)
    references = ArrayReferences(
        reference,
        np.zeros((3, 2)),
        paths=["0", "1", "2"],
        patch_maps=lambda rows: torch.from_numpy(reference.patches[[int(row) for row in rows]]),
    )
    margin = background_signals(embeddings(2, 5), embeddings(2, 6), references, np.array([0.1, 0.4]))
    assert margin["patch-margin"] == pytest.approx(np.log(LEAST / (np.array([0.1, 0.4]) + LEAST)))


def test_a_fit_is_calibrated_on_average_and_ranks_pairs() -> None:
    signals, same = labeled()
    calibration = fit_pairs(signals, same, "model", {"origin": "here"})
    probability = calibration.probability(signals)
    assert probability.mean() == pytest.approx(same.mean(), abs=1e-3)
    assert probability[same].mean() > probability[~same].mean() + 0.2
    assert calibration.same_rate == pytest.approx(same.mean())
    assert calibration.facts == {"pairs": 400, "same": int(same.sum()), "origin": "here"}
    del signals["patch-margin"]
    assert fit_pairs(signals, same).with_map is None
    assert fit_pairs({"cosine": signals["cosine"]}, same).bare.scores == ("cosine",)
    with pytest.raises(KappaPlaceError, match="at least 50 pairs"):
        fit_pairs({name: values[:60] for name, values in signals.items()}, same[:60])


def test_a_file_keeps_everything_and_notices_changes(tmp_path) -> None:
    signals, same = labeled()
    calibration, file = fit_pairs(signals, same, "model"), tmp_path / "pairs.json"
    save_pairs(calibration, file)
    assert load_pairs(file, "model") == calibration
    with pytest.raises(KappaPlaceError, match="another model"):
        load_pairs(file, "other")
    values = json.loads(file.read_text())
    file.write_text(json.dumps({**values, "same_rate": 0.9}))
    with pytest.raises(KappaPlaceError, match="not a valid calibration of pairs"):
        load_pairs(file)
    save_pairs(replace(calibration, agreement=1), file)
    with pytest.raises(KappaPlaceError, match="another version of patch matching"):
        load_pairs(file)
    save_pairs(replace(calibration, model=""), file)
    assert load_pairs(file, "any").model == ""
    with pytest.raises(KappaPlaceError, match="There is no calibration"):
        load_pairs(tmp_path / "none.json")


def test_the_shipped_calibration_of_pairs_belongs_to_the_shipped_model() -> None:
    model = load_model()
    calibration = shipped_pairs(model.fingerprint, model.preprocessing)
    assert calibration is not None
    assert calibration.with_map is not None
    assert calibration.same_rate == 0.5
    agreements = {"patches": 1 - np.linspace(0, 1, 50), "patch-margin": np.linspace(3, -3, 50)}
    probability = calibration.probability(agreements)
    assert (
        np.diff(probability) > 0
    ).all()  # it rises with the agreement, and unrelated images are improbable
    bare = calibration.probability({"patches": agreements["patches"]})
    assert (np.diff(bare) >= 0).all()
    assert bare[0] < 0.2
    assert bare[-1] > 0.95
    assert shipped_pairs("other", model.preprocessing) is None
