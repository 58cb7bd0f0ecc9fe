"""Smooth ECE against the kernel itself: mirror images summed one by one, exact areas between the roots."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize  # noqa: F401 (imported late by smooth_ece: not to be timed by Hypothesis)
from hypothesis import given
from scipy.special import ndtr

from kappaplace.metrics import smooth_ece
from kappaplace.metrics.smooth import FINEST
from tests.metrics.examples import Pair, probabilities, quick


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
