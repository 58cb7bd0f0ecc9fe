"""mAP@K against a loop."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from kappaplace.errors import KappaPlaceError
from kappaplace.metrics import average_precision_at, mean_average_precision_at, recall_at, success_at


def average_precision_by_hand(row: list[bool], positives: int, k: int) -> float:
    total, hits = Fraction(0), 0
    for place, hit in enumerate(row[:k], start=1):
        if hit:
            hits += 1
            total += Fraction(hits, place)
    return float(total / min(k, positives)) if positives else 0.0


@pytest.mark.parametrize("k", [1, 4, 10])
def test_average_precision_is_its_definition(k: int) -> None:
    rng = np.random.default_rng(k)
    hits = rng.random((80, 10)) < rng.random((80, 1)) * 0.6
    positives = hits.sum(axis=1) + rng.integers(0, 9, 80) * (rng.random(80) < 0.5)
    assert (positives == 0).any()
    expected = [
        average_precision_by_hand(row, count, k)
        for row, count in zip(hits.tolist(), positives.tolist(), strict=True)
    ]
    np.testing.assert_allclose(average_precision_at(hits, positives, k), expected, atol=1e-12)
    assert mean_average_precision_at(hits, positives, k) == pytest.approx(sum(expected) / 80, abs=1e-12)


def test_at_one_it_is_recall() -> None:
    hits = np.random.default_rng(0).random((40, 3)) < 0.5
    assert mean_average_precision_at(hits, np.full(40, 7), 1) == pytest.approx(recall_at(hits, 1))


def test_all_positives_first_is_perfect() -> None:
    hits = np.array([[True, True, False], [True, False, False]])
    assert average_precision_at(hits, np.array([2, 1]), 3).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("positives", "sentence"),
    [(np.array([1, 1]), "number of hits"), (np.array([2]), "each of 2"), (np.array([2.0, 2.0]), "float64")],
)
def test_impossible_counts_of_positives(positives: np.ndarray, sentence: str) -> None:
    hits = np.array([[True, True], [False, True]])
    with pytest.raises(KappaPlaceError, match=sentence):
        average_precision_at(hits, positives, 2)


@pytest.mark.parametrize("hits", [np.zeros((0, 3), bool), np.zeros(3, bool), np.zeros((3, 3), int)])
def test_hits_are_a_table_of_booleans(hits: np.ndarray) -> None:
    with pytest.raises(KappaPlaceError, match="booleans"):
        success_at(hits, 1)


def test_all_k_matches_may_be_asked_for() -> None:
    hits = np.array([[False, True], [False, False]])
    assert success_at(hits, 2).tolist() == [True, False]
    for k in (0, 3):
        with pytest.raises(KappaPlaceError, match=f"must be between 1 and 2, got {k}"):
            success_at(hits, k)


def test_the_query_with_impossible_positives_is_named() -> None:
    hits = np.array([[True, False], [True, True], [True, True]])
    with pytest.raises(KappaPlaceError, match="at least the number of hits, got 1 for query 1 with 2"):
        average_precision_at(hits, np.array([1, 1, 0]), 2)
