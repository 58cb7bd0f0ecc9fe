"""Candidate sets: coverage and size over 1,000 draws, an independent derivation, and messages."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappaplace.calibration.calibration import Calibration, judge
from kappaplace.calibration.calibrators import Logistic
from kappaplace.calibration.candidates import (
    DECAY,
    UNLISTED,
    Candidates,
    correct_places,
    correct_scores,
    label_scores,
    place_numbers,
    place_sets,
)
from kappaplace.calibration.examples import Examples
from kappaplace.calibration.fit import fit_calibration
from kappaplace.calibration.options import CalibrateOptions
from kappaplace.calibration.outside import OutsideAware
from kappaplace.data.near import Near
from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.evidence import Evidence, retrieve
from kappaplace.retrieval.references import ArrayReferences, Queries
from kappaplace.types import Embeddings

PLACES = 12


def drawn(
    rng: np.random.Generator, n: int, outside: float = 0.1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return uncertainties, the rank of the correct place, and which queries are out-of-map."""
    out = rng.random(n) < outside
    u = rng.normal(0, 1, n) + 2.0 * out
    right = rng.random(n) < 1 / (1 + np.exp(u - 1))
    place = np.where(right, 0, rng.geometric(0.4, n))
    place = np.where(out | (place >= PLACES), UNLISTED, place)
    return u, place, out


RIGHT = OutsideAware(Logistic(0.0, 1.0, 1.0, 1.0), Logistic(0.0, 1.0, 0.8, 2.6), 0.1, 0.7)
"""Probabilities that only roughly fit `drawn`, as in use."""


def included(scores: Candidates, coverage: float, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which labels each set contains, without `place_sets`."""
    places, unmapped = label_scores(RIGHT.probability(u), RIGHT.inside_probability(u), PLACES)
    limit = scores.limit(coverage)
    return places <= limit, unmapped <= limit


@pytest.mark.parametrize("coverage", [0.8, 0.95])
def test_coverage_over_1000_draws(coverage: float) -> None:
    """The mean coverage over draws is at least the requested one, though the probabilities are wrong."""
    rng = np.random.default_rng(0)
    covered, sizes = [], []
    for _ in range(1000):
        u, place, out = drawn(rng, 240)
        scores = Candidates.of(correct_scores(u[:200], place[:200], out[:200], RIGHT, None), out[:200])
        places, unmapped = included(scores, coverage, u[200:])
        hit = places[np.arange(40), np.maximum(place[200:], 0)] & (place[200:] >= 0)
        covered.append(np.where(out[200:], unmapped, hit).mean())
        sizes.append(places.sum(axis=1).mean())
    error = np.std(covered) / np.sqrt(len(covered))
    assert np.mean(covered) >= coverage - 3 * error
    assert np.mean(covered) <= coverage + 0.05  # not by including everything
    assert np.mean(sizes) < fixed_size(coverage) - 0.3  # smaller than as many places for every query


def fixed_size(coverage: float) -> int:
    """Return how many places every query needs, with "unmapped" in every set."""
    _, place, out = drawn(np.random.default_rng(0), 100_000)
    return next(k for k in range(1, PLACES) if (out | ((place >= 0) & (place < k))).mean() >= coverage)


def test_the_threshold_is_the_split_conformal_quantile() -> None:
    """An independent derivation: the k-th smallest score, k = ⌈(n + 1)·coverage⌉."""
    rng = np.random.default_rng(1)
    u, place, out = drawn(rng, 500)
    scores = Candidates.of(correct_scores(u, place, out, RIGHT, None), out)
    own = []
    for each, rank, away in zip(u, place, out, strict=True):
        p = 1 / (1 + np.exp(1.0 * each - 1.0))
        q = 1 / (1 + np.exp(0.8 * each - 2.6))
        p = p * q
        masses = [p, *((q - p) * (1 - DECAY) * DECAY**j for j in range(63))]
        shown, order, lowest = False, [], np.inf
        for j, mass in enumerate(masses):  # "unmapped" comes before the first place that is less probable
            lowest = min(lowest, mass)
            if not shown and 1 - q > lowest:
                order.append(("unmapped", 1 - q))
                shown = True
            order.append((j, mass))
        labels = [label for label, _ in order]
        wanted = "unmapped" if away else rank
        if wanted not in labels:
            own.append(np.inf if not away else sum(masses))
            continue
        own.append(sum(mass for _, mass in order[: labels.index(wanted)]))
    np.testing.assert_allclose(scores.scores, np.sort(own), atol=1e-12)
    k = int(np.ceil(501 * 0.9))
    assert scores.limit(0.9) == pytest.approx(np.sort(own)[k - 1], abs=1e-12)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 64))
def test_scores_grow_with_the_rank(p: float, q: float, places: int) -> None:
    scores, unmapped = label_scores(np.array([p]), np.array([q]), places)
    assert scores.shape == (1, places)
    assert (np.diff(scores[0]) >= -1e-12).all()
    assert scores.min() >= -1e-12
    assert scores.max() <= 1 + 1e-9
    assert min(scores[0, 0], unmapped[0]) == pytest.approx(0, abs=1e-12)  # a set is never empty


def evidence_of(similarities: np.ndarray, positions: np.ndarray) -> Evidence:
    references = ArrayReferences(
        Embeddings(np.eye(len(positions), dtype=np.float32)), positions, Near.meters(positions, 25.0)
    )
    rows = similarities / np.linalg.norm(similarities, axis=1, keepdims=True)
    return retrieve(Queries(Embeddings(rows.astype(np.float32))), references, 2)


def test_matches_are_grouped_into_places() -> None:
    positions = np.array([[0.0, 0], [10, 0], [500, 0], [510, 0], [900, 0]])
    evidence = evidence_of(np.array([[0.9, 0.8, 0.7, 0.6, 0.5], [0.1, 0.2, 0.9, 0.3, 0.8]]), positions)
    numbers = place_numbers(evidence)
    assert numbers.tolist() == [[0, 0, 1, 1, 2], [0, 1, 0, 2, 2]]
    correct = np.isin(evidence.pool.indices, [3])
    assert correct_places(numbers, correct).tolist() == [1, 0]


def test_sets_contain_places_not_images() -> None:
    positions = np.array([[0.0, 0], [10, 0], [500, 0], [510, 0], [900, 0]])
    evidence = evidence_of(np.array([[0.9, 0.8, 0.7, 0.6, 0.5]]), positions)
    scores = Candidates(tuple(np.linspace(0, 0.99, 99)), True)
    own = [
        place_sets(evidence, scores, coverage, np.array([1.0]), RIGHT, None)[0] for coverage in (0.2, 0.99)
    ]
    assert own[0].references == (0,)
    assert own[1].references == (0, 2, 4)
    assert not any(each.guaranteed for each in own)
    lost = place_sets(evidence, scores, 0.2, np.array([4.0]), RIGHT, None)[0]
    assert lost.references == ()  # the most probable label is "unmapped"
    assert lost.unmapped


def test_messages() -> None:
    few = Candidates((0.0,) * 12, True)
    assert few.limit(0.9) == 0.0
    with pytest.raises(KappaPlaceError, match=r"coverage of 95% needs at least 19 labelled queries.*got 12"):
        few.limit(0.95)
    Candidates((0.0,) * 19, True).limit(0.95)
    lost = Candidates((0.0,) * 90 + (np.inf,) * 10, True)
    with pytest.raises(KappaPlaceError, match="only 90% of the calibration queries"):
        lost.limit(0.95)
    with pytest.raises(KappaPlaceError, match="coverage must be between 0 and 1"):
        few.limit(1.0)


def examples(seed: int, n: int = 1200) -> Examples:
    rng = np.random.default_rng(seed)
    u, place, out = drawn(rng, n)
    return Examples(u, place == 0, ["cosine"], outside=out, place=place)


def test_a_calibration_stores_the_scores() -> None:
    calibration = fit_calibration(examples(0), CalibrateOptions(max_risk=0.2))
    again = Calibration.from_dict(json.loads(json.dumps(calibration.to_dict(), allow_nan=False)))
    assert again == calibration
    assert again.candidates is not None
    assert len(again.candidates.scores) == calibration.facts["thresholds_on"]  # nothing was fitted on them
    without = fit_calibration(replace(examples(0), place=None), CalibrateOptions(max_risk=0.2))
    assert without.candidates is None
    assert "candidates" not in without.to_dict()  # files of earlier versions have no such field
    assert fit_calibration(examples(0), CalibrateOptions(max_risk=None)).candidates is None


def test_judge_needs_a_calibration_with_scores() -> None:
    positions = np.arange(10.0)[:, None] * [100.0, 0]
    evidence = evidence_of(np.random.default_rng(0).random((3, 10)), positions)
    with pytest.raises(KappaPlaceError, match=r"this map has none\. Run `kappaplace calibrate`"):
        judge(evidence, None, coverage=0.9)
    calibration = fit_calibration(examples(0), CalibrateOptions(max_risk=0.2))
    with pytest.raises(KappaPlaceError, match="this map has none"):
        judge(evidence, replace(calibration, candidates=None), coverage=0.9)
    judgment = judge(evidence, calibration, coverage=0.8)
    assert judgment.candidates is not None
    assert all(each.guaranteed and each.references for each in judgment.candidates)
    assert judge(evidence, calibration).candidates is None


def test_a_sample_with_the_expected_fraction_of_out_of_map_queries() -> None:
    """Half of the labelled queries are out-of-map, but 10% are expected: coverage holds for 10%."""
    rng, covered = np.random.default_rng(5), []
    options = CalibrateOptions(max_risk=0.5, confidence=0.8, outside_rate=0.1)
    for seed in range(60):
        u, place, out = drawn(rng, 900, outside=0.5)
        known = Examples(u, place == 0, ["cosine"], outside=out, place=place)
        calibration = fit_calibration(known, replace(options, seed=seed))
        assert calibration.candidates is not None
        u, place, out = drawn(rng, 400, outside=0.1)
        inside = calibration.right.inside_probability(u, 0.1)
        places, unmapped = label_scores(calibration.right.probability(u, 0.1), inside, PLACES)
        limit = calibration.candidates.limit(0.9)
        hit = (places[np.arange(400), np.maximum(place, 0)] <= limit) & (place >= 0)
        covered.append(np.where(out, unmapped <= limit, hit).mean())
    assert np.mean(covered) == pytest.approx(0.9, abs=0.02)
