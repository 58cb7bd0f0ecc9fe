"""Ranking and selective metrics against exact fractions, one query at a time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.metrics import (
    acceptance_curve,
    auc_pr,
    augrc,
    aurc,
    auroc,
    coverage_at_risk,
    e_aurc,
    random_auc_pr,
    recall_at_full_precision,
    score_summary,
)
from tests.metrics.examples import Pair, quick, scored

METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "AUROC": auroc,
    "AUC-PR": auc_pr,
    "AUC-PR random": lambda _, success: random_auc_pr(success),
    "R@100%P": recall_at_full_precision,
    "AURC": aurc,
    "E-AURC": e_aurc,
    "AUGRC": augrc,
    "coverage@1%": lambda u, s: coverage_at_risk(u, s, 0.01),
    "coverage@5%": lambda u, s: coverage_at_risk(u, s, 0.05),
    "coverage@10%": lambda u, s: coverage_at_risk(u, s, 0.10),
}


def accepted_with(data: Pair, limit: float) -> list[bool]:
    """Outcomes of all queries that are accepted when one of this uncertainty is."""
    return [bool(ok) for u, ok in zip(*data, strict=True) if u <= limit]


def risk_with(data: Pair, limit: float) -> Fraction:
    outcomes = accepted_with(data, limit)
    return Fraction(outcomes.count(False), len(outcomes))


def mean(values: list[Fraction]) -> float:
    return float(sum(values, Fraction(0)) / len(values)) if values else math.nan


def same(ours: float, expected: float) -> None:
    assert ours == pytest.approx(expected, abs=1e-9, nan_ok=True)


@quick
@given(data=scored())
def test_auc_pr_is_the_mean_precision_at_right_queries(data: Pair) -> None:
    expected = mean([1 - risk_with(data, u) for u, ok in zip(*data, strict=True) if ok])
    same(auc_pr(*data), expected)


@quick
@given(data=scored())
def test_auc_pr_by_trapezoids(data: Pair) -> None:
    """Straight lines between the points of every threshold, from recall 0 and precision 1."""
    pairs = list(zip(*data, strict=True))
    right = sum(ok for _, ok in pairs)
    points = [(0.0, 1.0)]
    for threshold in sorted({u for u, _ in pairs}):
        accepted = [ok for u, ok in pairs if u <= threshold]
        points.append((sum(accepted) / max(1, right), sum(accepted) / len(accepted)))
    area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(points))
    same(auc_pr(*data, trapezoid=True), area if right else math.nan)


@quick
@given(data=scored())
def test_recall_before_the_first_error(data: Pair) -> None:
    right = [u for u, ok in zip(*data, strict=True) if ok]
    wrong = [u for u, ok in zip(*data, strict=True) if not ok]
    sure = [u for u in right if not wrong or u < min(wrong)]
    same(recall_at_full_precision(*data), len(sure) / len(right) if right else math.nan)


@quick
@given(data=scored())
def test_aurc_is_the_mean_risk_at_each_query(data: Pair) -> None:
    same(aurc(*data), mean([risk_with(data, u) for u in data[0]]))


def aurc_of_order(outcomes: tuple[bool, ...]) -> Fraction:
    """AURC by its definition for queries without ties, most certain first."""
    risks = [Fraction(outcomes[:k].count(False), k) for k in range(1, len(outcomes) + 1)]
    return sum(risks, Fraction(0)) / len(risks)


@quick
@given(data=scored(5))
def test_e_aurc_is_the_excess_over_the_best_of_all_orders(data: Pair) -> None:
    best = min(aurc_of_order(order) for order in permutations(data[1].tolist()))
    same(e_aurc(*data), mean([risk_with(data, u) for u in data[0]]) - float(best))


@quick
@given(data=scored())
def test_augrc_counts_pairs(data: Pair) -> None:
    uncertainty, success = data
    pairs = [
        Fraction(int(a < b) * 2 + int(a == b), 2) * int(not ok)
        for a, ok in zip(uncertainty, success, strict=True)
        for b in uncertainty
    ]
    same(augrc(*data), mean(pairs))


@quick
@given(data=scored())
def test_augrc_is_auroc_and_accuracy(data: Pair) -> None:
    accuracy = data[1].mean()
    ranking = 0.0 if accuracy in (0, 1) else accuracy * (1 - accuracy) * (1 - auroc(*data))
    same(augrc(*data), (1 - accuracy) ** 2 / 2 + ranking)


@quick
@given(outcomes=st.lists(st.booleans(), min_size=1, max_size=5))
def test_ties_cost_the_mean_over_their_orders(outcomes: list[bool]) -> None:
    success = np.array(outcomes)
    every = [augrc(np.array(order, float), success) for order in permutations(range(len(outcomes)))]
    same(augrc(np.zeros(len(outcomes)), success), float(np.mean(every)))


@quick
@given(data=scored(), risk=st.sampled_from([0.0, 0.01, 0.05, 0.1, 0.25, 1 / 3, 0.5, 1.0]))
def test_coverage_at_risk_tries_every_threshold(data: Pair, risk: float) -> None:
    limit = Fraction(risk).limit_denominator(1000)
    fine = [len(accepted_with(data, u)) for u in data[0] if risk_with(data, u) <= limit]
    same(coverage_at_risk(*data, risk), max(fine, default=0) / len(data[0]))


def test_a_risk_that_is_met_exactly_is_met() -> None:
    # 29 of 100 wrong is a risk of 0.29, although 0.29 × 100 < 29 in floating point.
    success = np.arange(100) >= 29
    assert coverage_at_risk(np.zeros(100), success, 0.29) == 1.0
    assert coverage_at_risk(np.zeros(100), success, 0.28) == 0.0
    assert coverage_at_risk(np.arange(100.0), ~success, 0.0) == 0.29  # no risk at all is one, too
    assert coverage_at_risk(np.zeros(3), np.zeros(3, bool), 1.0) == 1.0  # and so is any


def test_coverage_at_risk_may_pass_a_risky_stretch() -> None:
    success = np.array([False] + [True] * 19)
    assert coverage_at_risk(np.arange(20.0), success, 0.05) == 1.0
    assert coverage_at_risk(np.arange(20.0), success, 0.04) == 0.0


@quick
@given(data=scored())
def test_the_curve_ends_with_everything_accepted(data: Pair) -> None:
    curve = acceptance_curve(*data)
    assert curve.coverage[-1] == 1.0
    assert curve.risk[-1] == pytest.approx(1 - data[1].mean())
    assert curve.threshold.tolist() == sorted(set(data[0].tolist()))
    for limit, accepted, right in zip(*curve, strict=True):
        outcomes = accepted_with(data, limit)
        assert (accepted, right) == (len(outcomes), sum(outcomes))


@quick
@given(data=scored(), seed=st.integers(0, 99))
def test_order_and_monotone_rescaling_do_not_matter(data: Pair, seed: int) -> None:
    uncertainty, success = data
    values = score_summary(uncertainty, success)
    order = np.random.default_rng(seed).permutation(len(success))
    np.testing.assert_equal(score_summary(uncertainty[order], success[order]), values)
    np.testing.assert_equal(score_summary(np.exp(3 * uncertainty) - 1, success), values)


@quick
@given(data=scored())
def test_bounds(data: Pair) -> None:
    for name, value in score_summary(*data).items():
        assert math.isnan(value) or 0 <= value <= (0.5 if name == "AUGRC" else 1), name


@pytest.mark.parametrize(
    ("success", "expected"),
    [
        (True, {"AUROC": math.nan, "AUC-PR": 1, "R@100%P": 1, "AURC": 0, "AUGRC": 0, "coverage@1%": 1}),
        (
            False,
            {"AUROC": math.nan, "AUC-PR": math.nan, "R@100%P": math.nan, "AURC": 1, "E-AURC": 0, "AUGRC": 0.5}
            | {"AUC-PR random": 0, "coverage@10%": 0},
        ),
    ],
)
@pytest.mark.parametrize("queries", [1, 7])
def test_one_class_only(success: bool, expected: dict[str, float], queries: int) -> None:
    scores = np.arange(float(queries))
    for name, value in expected.items():
        same(METRICS[name](scores, np.full(queries, success)), value)


def test_a_constant_score_is_worth_the_base_rate() -> None:
    data = np.full(10, 0.3), np.arange(10) < 7
    expected = {"AUROC": 0.5, "AUC-PR": 0.7, "R@100%P": 0, "AURC": 0.3, "AUGRC": 0.15, "coverage@10%": 0}
    for name, value in expected.items():
        same(METRICS[name](*data), value)


@quick
@given(data=scored())
def test_the_summary_is_every_metric(data: Pair) -> None:
    np.testing.assert_equal(score_summary(*data), {name: metric(*data) for name, metric in METRICS.items()})


@pytest.mark.parametrize(
    ("uncertainty", "success", "sentence"),
    [
        ([], np.array([], bool), "one score and one outcome"),
        ([1.0, 2.0], np.array([True]), "one score and one outcome"),
        ([[1.0]], np.array([[True]]), "one score and one outcome"),
        ([1.0, math.nan], np.array([True, False]), "finite"),
        ([1.0, math.inf], np.array([True, False]), "finite"),
        ([1.0, 2.0], np.array([1, 0]), "booleans"),
    ],
)
def test_bad_input_is_one_sentence(uncertainty: list, success: np.ndarray, sentence: str) -> None:
    with pytest.raises(KappaPlaceError, match=sentence):
        acceptance_curve(np.array(uncertainty), success)


@pytest.mark.parametrize("risk", [-0.1, 1.1, math.nan])
def test_a_risk_is_a_share(risk: float) -> None:
    with pytest.raises(KappaPlaceError, match="between 0 and 1"):
        coverage_at_risk(np.zeros(2), np.ones(2, bool), risk)
