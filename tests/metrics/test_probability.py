"""Metrics of probabilities against exact fractions and precise logarithms, smooth ECE against its kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import scipy.optimize  # noqa: F401 (imported late by smooth_ece: not to be timed by Hypothesis)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from kappaplace.errors import KappaPlaceError
from kappaplace.metrics import (
    brier,
    brier_parts,
    debiased_ece,
    equal_mass_ece,
    log_loss,
    mass_bins,
    probability_summary,
    smooth_ece,
)
from kappaplace.metrics.probability import FINEST
from tests.metrics.examples import Pair, probabilities, quick

METRICS: list[Callable[[np.ndarray, np.ndarray], float]] = [
    brier,
    log_loss,
    equal_mass_ece,
    debiased_ece,
    smooth_ece,
]


def bins_by_hand(data: Pair, bins: int) -> list[list[tuple[Fraction, int]]]:
    """A query stands at the mean rank of all that share its probability; bins cut the ranks evenly."""
    ordered = sorted((Fraction(float(p)), int(ok)) for p, ok in zip(*data, strict=True))
    filled: dict[int, list[tuple[Fraction, int]]] = {}
    for p, ok in ordered:
        ranks = [i for i, (other, _) in enumerate(ordered) if other == p]
        middle = Fraction(sum(ranks), len(ranks)) + Fraction(1, 2)
        filled.setdefault(math.floor(middle * bins / len(ordered)), []).append((p, ok))
    return list(filled.values())


def gaps_by_hand(data: Pair, bins: int) -> list[tuple[Fraction, Fraction, Fraction]]:
    """Weight, mean probability and success of each bin."""
    return [
        (
            Fraction(len(members), len(data[0])),
            sum((p for p, _ in members), Fraction(0)) / len(members),
            Fraction(sum(ok for _, ok in members), len(members)),
        )
        for members in bins_by_hand(data, bins)
    ]


@quick
@given(data=probabilities(), bins=st.integers(1, 20))
def test_equal_mass_ece_is_its_definition(data: Pair, bins: int) -> None:
    expected = sum(w * abs(y - p) for w, p, y in gaps_by_hand(data, bins))
    assert equal_mass_ece(*data, bins) == pytest.approx(float(expected), abs=1e-9)


@quick
@given(data=probabilities(), bins=st.integers(1, 20))
def test_debiased_ece_is_its_definition(data: Pair, bins: int) -> None:
    square = Fraction(0)
    for w, p, y in gaps_by_hand(data, bins):
        n = w * len(data[0])
        square += w * ((y - p) ** 2 - (y * (1 - y) / (n - 1) if n > 1 else 0))
    # Compared as squares: a root near zero would only magnify rounding.
    assert debiased_ece(*data, bins) ** 2 == pytest.approx(max(0.0, float(square)), abs=1e-9)


@quick
@given(queries=st.integers(1, 60), bins=st.integers(1, 20), seed=st.integers(0, 99))
def test_bins_are_equally_full_without_ties(queries: int, bins: int, seed: int) -> None:
    values = np.random.default_rng(seed).permutation(queries) / queries
    counts = mass_bins(values, np.ones(queries, bool), bins).counts
    assert len(counts) == min(bins, queries)
    assert counts.max() - counts.min() <= 1


def test_ties_share_a_bin_and_empty_bins_go() -> None:
    curve = mass_bins(np.array([0.5] * 9 + [0.9]), np.arange(10) < 6, 5)
    assert curve.counts.tolist() == [9, 1]
    np.testing.assert_allclose(curve.probability, [0.5, 0.9])
    np.testing.assert_allclose(curve.observed, [6 / 9, 0.0])


def test_debiasing_takes_the_noise_off() -> None:
    rng = np.random.default_rng(0)
    plain, debiased = [], []
    for _ in range(40):  # perfectly calibrated: whatever is measured is noise
        p = rng.random(600)
        success = rng.random(600) < p
        plain.append(equal_mass_ece(p, success))
        debiased.append(debiased_ece(p, success))
    assert np.mean(plain) > 0.04
    assert np.mean(debiased) < 0.5 * np.mean(plain)


@quick
@given(data=probabilities())
def test_brier_and_log_loss_are_their_definitions(data: Pair) -> None:
    exact = [(Fraction(float(p)) - int(ok)) ** 2 for p, ok in zip(*data, strict=True)]
    assert brier(*data) == pytest.approx(float(sum(exact, Fraction(0)) / len(exact)), abs=1e-9)
    with mpmath.workdps(40):
        given_to = [mpmath.mpf(p) if ok else 1 - mpmath.mpf(p) for p, ok in zip(*data, strict=True)]
        least = mpmath.mpf(10) ** -12
        losses = [-mpmath.log(min(max(g, least), 1 - least)) for g in given_to]
        expected = float(sum(losses) / len(losses))
    # 1 − 10⁻¹² is itself rounded, which moves its logarithm by 10⁻¹⁶.
    assert log_loss(*data) == pytest.approx(expected, abs=1e-9)


def test_one_certain_error_has_a_finite_price() -> None:
    assert log_loss(np.array([1.0]), np.array([False])) == pytest.approx(-math.log(1e-12))
    assert log_loss(np.array([1.0]), np.array([True])) == pytest.approx(1e-12, rel=1e-3)  # certainty, too


@quick
@given(data=probabilities(), bins=st.integers(1, 20))
def test_brier_parts_are_their_definitions_and_add_up(data: Pair, bins: int) -> None:
    gaps = gaps_by_hand(data, bins)
    base = Fraction(int(data[1].sum()), len(data[1]))
    parts = brier_parts(*data, bins)
    assert parts.score == pytest.approx(brier(*data), abs=1e-12)
    assert parts.reliability == pytest.approx(float(sum(w * (p - y) ** 2 for w, p, y in gaps)), abs=1e-9)
    assert parts.resolution == pytest.approx(float(sum(w * (y - base) ** 2 for w, _, y in gaps)), abs=1e-9)
    assert parts.uncertainty == pytest.approx(float(base * (1 - base)), abs=1e-9)
    total = parts.reliability - parts.resolution + parts.uncertainty + parts.within
    assert total == pytest.approx(parts.score, abs=1e-12)
    # What is left is the spread inside the bins: Var(p) − 2 Cov(p, success), summed over queries.
    spread = Fraction(0)
    for members, (_, p, y) in zip(bins_by_hand(data, bins), gaps, strict=True):
        spread += sum(((a - p) ** 2 - 2 * (a - p) * (b - y) for a, b in members), Fraction(0))
    assert parts.within == pytest.approx(float(spread / len(data[0])), abs=1e-9)


def test_nothing_is_within_bins_of_one_value() -> None:
    p = np.repeat([0.25, 0.5, 1.0], 4)
    parts = brier_parts(p, np.arange(12) % 3 == 0, 3)
    assert parts.within == pytest.approx(0.0, abs=1e-15)
    assert parts.resolution == pytest.approx(np.var([0.5, 0.25, 0.25]))  # success of the three bins


@quick
@given(data=probabilities(), seed=st.integers(0, 99))
def test_order_does_not_matter_and_zero_is_best(data: Pair, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(data[1]))
    for metric in METRICS:
        value = metric(*data)
        shuffled = metric(data[0][order], data[1][order])
        # Sums are taken in another order; a root of about 0 magnifies that to 1e-8, so squares are compared.
        assert shuffled**2 == pytest.approx(value**2, abs=1e-10)
        assert 0 <= value <= (28 if metric is log_loss else 1)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("success", [True, False])
@pytest.mark.parametrize("queries", [1, 5])
def test_certain_and_right_or_certain_and_wrong(metric: Callable, success: bool, queries: int) -> None:
    outcome = np.full(queries, success)
    right = np.full(queries, float(success))
    assert metric(right, outcome) == pytest.approx(0.0, abs=1e-11)
    worst = -math.log(1e-12) if metric is log_loss else 1.0
    assert metric(1 - right, outcome) == pytest.approx(worst, abs=1e-9)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("values", "sentence"),
    [([0.5, 1.1], "between 0 and 1"), ([-0.1, 0], "between"), ([math.nan, 0], "finite")],
)
def test_only_probabilities_are_judged(metric: Callable, values: list[float], sentence: str) -> None:
    with pytest.raises(KappaPlaceError, match=sentence):
        metric(np.array(values), np.array([True, False]))


def test_no_bin_is_refused() -> None:
    with pytest.raises(KappaPlaceError, match="bins must be 1 or more"):
        mass_bins(np.array([0.5]), np.array([True]), 0)


@settings(max_examples=20)
@given(data=probabilities())
def test_the_summary_is_every_metric(data: Pair) -> None:
    summary = probability_summary(*data)
    parts = brier_parts(*data)
    assert summary == {
        "smooth ECE": smooth_ece(*data),
        "equal-mass ECE": equal_mass_ece(*data),
        "debiased ECE": debiased_ece(*data),
        "Brier": parts.score,
        "Brier reliability": parts.reliability,
        "Brier resolution": parts.resolution,
        "Brier uncertainty": parts.uncertainty,
        "Brier within": parts.within,
        "log-loss": log_loss(*data),
    }


def test_fifteen_bins_unless_told() -> None:
    rng = np.random.default_rng(0)
    data = rng.random(200), rng.random(200) < 0.5
    assert len(mass_bins(*data).counts) == 15
    assert equal_mass_ece(*data) == equal_mass_ece(*data, 15)
    assert debiased_ece(*data) == debiased_ece(*data, 15)
    assert brier_parts(*data) == brier_parts(*data, 15)
    assert probability_summary(*data) == probability_summary(*data, 15)
    assert probability_summary(*data, 4)["equal-mass ECE"] == equal_mass_ece(*data, 4)
    assert probability_summary(*data, 4)["debiased ECE"] == debiased_ece(*data, 4)
    assert probability_summary(*data, 4)["Brier reliability"] == brier_parts(*data, 4).reliability


def test_one_bin_holds_all() -> None:
    curve = mass_bins(np.array([0.2, 0.6]), np.array([True, False]), 1)
    assert curve.counts.tolist() == [2]
    assert curve.probability.tolist() == [0.4]
    assert curve.observed.tolist() == [0.5]


def residual_and_area(data: Pair, width: float, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The smoothed residual at t and its integral from minus infinity to t."""
    turns = math.ceil(4 * width)  # images further away are beyond 8 widths
    residual, area = np.zeros(len(t)), np.zeros(len(t))
    for p, ok in zip(*data, strict=True):
        for turn in range(-turns, turns + 1):
            for image in (2 * turn + p, 2 * turn - p):
                z = (t - image) / width
                weight = (float(ok) - p) / len(data[0])
                residual += weight * np.exp(-0.5 * z**2) / (width * math.sqrt(2 * math.pi))
                area += weight * ndtr(z)
    return residual, area


def error_by_hand(data: Pair, width: float) -> float:
    """∫|r|: roots by bisection, exact areas between them."""
    t = np.linspace(0, 1, 3001)
    r, _ = residual_and_area(data, width, t)
    t, r = t[r != 0], r[r != 0]  # far from all data r is too small for a number
    change = np.flatnonzero(np.sign(r[:-1]) != np.sign(r[1:]))
    low, high = t[change], t[change + 1]
    for _ in range(30):
        middle = (low + high) / 2
        left = residual_and_area(data, width, middle)[0] * r[change] > 0
        low, high = np.where(left, middle, low), np.where(left, high, middle)
    ends = np.concatenate([[0.0], (low + high) / 2, [1.0]])
    return float(np.abs(np.diff(residual_and_area(data, width, ends)[1])).sum())


@pytest.mark.parametrize(
    ("queries", "wrong_by", "seed"), [(2, 0.0, 0), (9, 0.0, 1), (25, 0.3, 2), (25, 0.0, 3), (40, 0.1, 4)]
)
def test_it_is_the_width_that_equals_its_own_error(queries: int, wrong_by: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = rng.random(queries)
    p[0] = 0.0  # the mirror matters most at the ends
    data = p, rng.random(queries) < np.clip(p + wrong_by, 0, 1)
    ours = smooth_ece(*data)
    assert error_by_hand(data, ours) == pytest.approx(ours, abs=1e-9)


def test_narrow_kernels_are_exact_too() -> None:
    # Many queries with small, wavy errors: as many sign changes as data of 100,000 queries show.
    p = np.repeat(np.linspace(0.01, 0.99, 60), 2)
    wave = np.round(p * 300 + 2 * np.sin(p * 120)) / 300
    success = np.arange(120) % 2 == 0
    data = (wave * 0.02 + np.where(success, 0.97, 0.01), success)
    ours = smooth_ece(*data)
    assert FINEST < ours < 0.03
    assert error_by_hand(data, ours) == pytest.approx(ours, abs=1e-9)


@pytest.mark.parametrize(("p", "share"), [(0.5, 0.75), (0.3, 0.0), (0.9, 1.0), (0.0, 0.5)])
def test_a_constant_probability_errs_by_its_distance(p: float, share: float) -> None:
    success = np.arange(20) < 20 * share
    assert smooth_ece(np.full(20, p), success) == pytest.approx(abs(p - share), abs=1e-9)


@quick
@given(data=probabilities())
def test_failure_is_the_mirror_of_success(data: Pair) -> None:
    assert smooth_ece(1 - data[0], ~data[1]) == pytest.approx(smooth_ece(*data), abs=1e-9)


@quick
@given(data=probabilities())
def test_it_lies_between_bias_and_mean_error(data: Pair) -> None:
    p, success = data
    ours = smooth_ece(p, success)
    assert abs((success - p).mean()) - 1e-9 <= ours <= np.abs(success - p).mean() + 1e-9


def test_below_the_finest_kernel_its_value_is_given() -> None:
    p = np.array([1e-4, 1 - 1e-4])
    data = p, np.array([False, True])
    assert smooth_ece(*data) == pytest.approx(error_by_hand(data, FINEST), abs=1e-9)
    assert smooth_ece(*data) < FINEST


def test_calibrated_probabilities_err_less_with_more_queries() -> None:
    rng = np.random.default_rng(0)
    errors = []
    for queries in (100, 2000, 40_000):
        p = rng.random(queries)
        errors.append(smooth_ece(p, rng.random(queries) < p))
    assert errors[0] > 2 * errors[1] > 4 * errors[2]
