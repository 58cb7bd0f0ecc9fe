"""Recall, ECE@K and AUROC against loops written from their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.metrics import (
    BOTH_TAILS,
    UPPER_TAIL,
    auroc,
    expected_calibration_error,
    recall_at,
    reliability_curve,
    success_at,
)

scores_and_success = st.integers(1, 60).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 12), min_size=n, max_size=n),  # few values: ties are common
        st.lists(st.booleans(), min_size=n, max_size=n),
    )
)


def percentile(values: list[float], q: float) -> float:
    """Linear interpolation between order statistics, by hand."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * q / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def ece_by_hand(
    scores: list[float], success: list[bool], lower: float | None, upper: float, bins: int
) -> float:
    high = percentile(scores, upper)
    low = -math.inf if lower is None else percentile(scores, lower)
    clamped = [min(max(s, low), high) for s in scores]
    first, last = min(clamped), max(clamped)
    total = 0.0
    edges = [first + (last - first) * i / bins for i in range(bins + 1)]
    for i in range(bins):
        inside = [
            ok
            for s, ok in zip(clamped, success, strict=True)
            if edges[i] <= s and (s < edges[i + 1] or i == bins - 1)
        ]
        if inside:
            target = (bins - (i + 1)) / (bins - 1)
            total += len(inside) / len(scores) * abs(sum(inside) / len(inside) - target)
    return total


@settings(max_examples=200)
@given(data=scores_and_success, two_sided=st.booleans(), bins=st.integers(2, 15))
def test_ece_is_its_definition(data: tuple[list[int], list[bool]], two_sided: bool, bins: int) -> None:
    # Powers of two as bin counts and scores keep edges exact, so both sides put ties in the same bin.
    bins = 2 ** (bins % 4 + 1)
    scores = [float(s) * 2.0 for s in data[0]]
    success = np.array(data[1])
    clamp = (0.0, 100.0) if two_sided else (None, 100.0)
    ours = expected_calibration_error(np.array(scores), success, clamp, bins)
    assert ours == pytest.approx(ece_by_hand(scores, data[1], clamp[0], 100.0, bins), abs=1e-9)


@pytest.mark.parametrize(("clamp", "lower"), [(BOTH_TAILS, 1.0), (UPPER_TAIL, None)])
def test_ece_with_the_papers_clamp(clamp: tuple, lower: float | None) -> None:
    rng = np.random.default_rng(3)
    scores = rng.lognormal(size=777)
    success = rng.random(777) < 0.7
    expected = ece_by_hand(scores.tolist(), success.tolist(), lower, 99.0, 10)
    assert expected_calibration_error(scores, success, clamp) == pytest.approx(expected, abs=1e-9)


def test_a_perfectly_expected_score_has_no_error() -> None:
    scores = np.repeat(np.arange(10.0), 9)
    success = np.concatenate(
        [np.arange(9) < 9 - i for i in range(10)]
    )  # bin i succeeds (9 − i)/9 of the time
    assert expected_calibration_error(scores, success, (None, None)) == pytest.approx(0.0, abs=1e-12)


def test_clamped_scores_stay_so_every_query_counts() -> None:
    scores = np.concatenate([np.linspace(0, 1, 299), [1000.0]])
    curve = reliability_curve(scores, np.ones(300, bool), BOTH_TAILS)
    assert curve.counts.sum() == 300
    assert curve.counts.max() < 40


def test_a_constant_score_lies_in_the_least_certain_bin() -> None:
    curve = reliability_curve(np.full(5, 0.3), np.array([True] * 4 + [False]))
    assert curve.counts.tolist() == [0] * 9 + [5]
    assert curve.error == pytest.approx(0.8)


@settings(max_examples=100)
@given(data=scores_and_success)
def test_auroc_counts_pairs(data: tuple[list[int], list[bool]]) -> None:
    scores, success = np.array(data[0], float), np.array(data[1])
    pairs = [
        1.0 if right < wrong else 0.5 if right == wrong else 0.0
        for right in scores[success]
        for wrong in scores[~success]
    ]
    ours = auroc(scores, success)
    if pairs:
        assert ours == pytest.approx(sum(pairs) / len(pairs), abs=1e-9)
    else:
        assert math.isnan(ours)


@given(data=scores_and_success)
def test_auroc_ignores_monotone_rescaling(data: tuple[list[int], list[bool]]) -> None:
    scores, success = np.array(data[0], float), np.array(data[1])
    np.testing.assert_equal(auroc(np.exp(scores), success), auroc(scores, success))


def test_recall_grows_with_k() -> None:
    hits = np.random.default_rng(0).random((50, 10)) < 0.1
    recalls = [recall_at(hits, k) for k in range(1, 11)]
    assert recalls == sorted(recalls)
    expected = sum(any(row[:5]) for row in hits.tolist()) / 50
    assert recall_at(hits, 5) == pytest.approx(expected)


@pytest.mark.parametrize("k", [0, 11])
def test_recall_needs_that_many_matches(k: int) -> None:
    with pytest.raises(KappaPlaceError, match="must be between 1 and 10"):
        success_at(np.zeros((3, 10), bool), k)


@pytest.mark.parametrize(
    ("scores", "sentence"),
    [(np.array([]), "one score and one outcome"), (np.array([np.nan]), "finite"), (np.zeros(2), "one score")],
)
def test_bad_scores_are_one_sentence(scores: np.ndarray, sentence: str) -> None:
    with pytest.raises(KappaPlaceError, match=sentence):
        reliability_curve(scores, np.ones(min(len(scores), 1), bool))


def test_one_bin_is_refused() -> None:
    with pytest.raises(KappaPlaceError, match="bins must be 2 or more"):
        reliability_curve(np.zeros(3), np.ones(3, bool), bins=1)
