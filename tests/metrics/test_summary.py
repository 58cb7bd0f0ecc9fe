"""Scores that cannot rank queries, and what a constant score and a perfect ranking would get."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappaplace.metrics import (
    CONSTANT,
    PERFECT,
    expected_calibration_error,
    mean_cosine,
    reference_metrics,
    score_flaw,
    success_at,
    tied_fraction,
)

hit_rows = st.integers(1, 40).flatmap(
    lambda n: st.lists(st.lists(st.booleans(), min_size=10, max_size=10), min_size=n, max_size=n)
)


@given(values=st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_ties_are_counted_as_by_hand(values: list[int]) -> None:
    assert tied_fraction(np.array(values, float)) == max(map(values.count, values)) / len(values)


def test_values_that_differ_by_rounding_are_tied_and_outliers_do_not_matter() -> None:
    rng = np.random.default_rng(0)
    assert score_flaw(300 * (1 + 1e-8 * rng.normal(size=1000))) == "constant"
    assert score_flaw(300 * (1 + 1e-3 * rng.normal(size=1000))) == ""
    assert score_flaw(np.append(rng.random(99), 1e9)) == ""
    assert score_flaw(np.maximum(1 / np.linspace(0.4, 4, 100), 1.0)) == "83% tied"  # floored
    assert score_flaw(np.array([1.0])) == score_flaw(np.array([])) == ""


def test_a_constant_score_may_have_the_better_ece() -> None:
    """At low recall, the ECE of a constant is below that of a score with a perfect order."""
    success = np.arange(100) < 12
    living = expected_calibration_error(np.arange(100.0), success)
    constant = expected_calibration_error(np.ones(100), success)
    assert constant == pytest.approx(0.12)
    assert constant < living


@given(rows=hit_rows)
def test_a_constant_gets_recall_and_a_perfect_ranking_a_perfect_order(rows: list[list[bool]]) -> None:
    hits = np.array(rows)
    metrics = reference_metrics(hits)
    for k in (1, 5, 10):
        assert metrics[CONSTANT][f"ECE@{k}"] == pytest.approx(success_at(hits, k).mean())
        assert 0 <= metrics[PERFECT][f"ECE@{k}"] <= 1
    right = hits[:, 0]
    if right.any() and not right.all():
        assert metrics[PERFECT]["AUROC"] == 1
        assert metrics[CONSTANT]["AUROC"] == 0.5
        assert metrics[PERFECT]["E-AURC"] == pytest.approx(0, abs=1e-9)


@given(recall=st.integers(0, 1000))
def test_a_perfect_ranking_is_not_calibrated(recall: int) -> None:
    hits = (np.arange(1000) < recall)[:, None]
    assert 0.17 < reference_metrics(hits)[PERFECT]["ECE@1"] < 0.505


def test_mean_cosine_is_that_of_all_pairs() -> None:
    rng = np.random.default_rng(0)
    unit = rng.normal(size=(12, 4))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    assert mean_cosine(unit) == pytest.approx(np.mean([a @ b for a, b in combinations(unit, 2)]))
    assert mean_cosine(np.tile(unit[:1], (5, 1))) == pytest.approx(1)
    assert mean_cosine(unit[:1]) == 0
