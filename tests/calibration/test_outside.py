"""Queries from outside the map: the formula against densities, against simulation, and thinning."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.calibration.outside import OutsideAware, fit_outside_aware, shift_prior, thin_to_rate
from kappaplace.errors import KappaPlaceError
from kappaplace.records import RecordError, from_plain, to_plain
from tests.calibration.helpers import with_outside


def gauss(x: np.ndarray, mean: float) -> np.ndarray:
    return np.exp(-((x - mean) ** 2) / 2)


def truth(u: np.ndarray, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """P(right | u) and P(inside | u) in the world of the helpers, from its densities."""
    inside, outside = (1 - rate) * gauss(u, 0.0), rate * gauss(u, 1.5)
    right = 1 / (1 + np.exp(1.5 * u - 2.0))
    return inside * right / (inside + outside), inside / (inside + outside)


@settings(deadline=None)
@given(p=st.floats(0, 1), a=st.floats(0.01, 0.99), b=st.floats(0.01, 0.99))
def test_shifting_is_bayes_and_goes_back(p: float, a: float, b: float) -> None:
    there = shift_prior(np.array([p]), a, b)
    assert 0 <= there[0] <= 1
    assert shift_prior(there, b, a)[0] == pytest.approx(p, abs=1e-6)
    if 0 < p < 1:
        odds = p / (1 - p) * (b / (1 - b)) / (a / (1 - a))
        assert there[0] == pytest.approx(odds / (1 + odds))


def test_shifting_to_the_ends() -> None:
    p = np.array([0.0, 0.4, 1.0])
    np.testing.assert_array_equal(shift_prior(p, 0.5, 0.0), [0, 0, 0])
    np.testing.assert_array_equal(shift_prior(p, 0.5, 1.0), [1, 1, 1])


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.6])
def test_a_calibrator_of_three_tenths_serves_any_share(rate: float) -> None:
    fitted = fit_outside_aware(*with_outside(3, 20_000, 0.3), calibrator="logistic")
    u = np.linspace(-2, 3, 60)
    right, inside = truth(u, rate)
    np.testing.assert_allclose(fitted.probability(u, rate), right, atol=0.03)
    np.testing.assert_allclose(fitted.inside_probability(u, rate), inside, atol=0.03)


def test_simulated_deployment_is_calibrated_where_the_uncorrected_is_not() -> None:
    fitted = fit_outside_aware(*with_outside(0, 8000, 0.1))
    u, right, _ = with_outside(1, 8000, 0.6)
    corrected, as_fitted = fitted.probability(u, 0.6), fitted.probability(u)
    for low, high in ((0.0, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 1.0)):
        rows = (corrected >= low) & (corrected < high)
        if rows.sum() > 200:
            assert abs(corrected[rows].mean() - right[rows].mean()) < 0.05
    assert abs(corrected.mean() - right.mean()) < 0.02
    assert abs(as_fitted.mean() - right.mean()) > 0.1


def test_without_examples_from_outside_they_are_taken_for_wrong_ones() -> None:
    """Exact where that is true: right and wrong scores are normal, queries from outside score as wrong."""
    rng = np.random.default_rng(0)
    right = rng.random(20_000) < 0.7
    u = rng.normal(np.where(right, -1.0, 1.0), 1.0)
    fitted = fit_outside_aware(u, right, calibrator="logistic")
    assert fitted.inside is None
    assert fitted.inside_probability(u) is None
    grid = np.linspace(-3, 3, 30)
    share_right = 0.7 * (1 - 0.4)
    up, down = share_right * gauss(grid, -1.0), (1 - share_right) * gauss(grid, 1.0)
    np.testing.assert_allclose(fitted.probability(grid, 0.4), up / (up + down), atol=0.03)


def test_all_inside_right_needs_one_calibrator_only() -> None:
    rng = np.random.default_rng(0)
    outside = rng.random(3000) < 0.5
    u = rng.normal(outside * 2.0, 1.0)
    fitted = fit_outside_aware(u, ~outside, outside, calibrator="logistic")
    assert fitted.inside is None
    grid = np.linspace(-2, 4, 30)
    up, down = 0.9 * gauss(grid, 0.0), 0.1 * gauss(grid, 2.0)
    np.testing.assert_allclose(fitted.probability(grid, 0.1), up / (up + down), atol=0.04)
    for rate in (None, 0.1):  # a far query must still be said to be outside
        np.testing.assert_array_equal(fitted.inside_probability(grid, rate), fitted.probability(grid, rate))
    none_from_outside = OutsideAware(fitted.right, None, 0.0, 1.0)
    assert none_from_outside.inside_probability(grid) is None


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 999), rate=st.floats(0, 0.99), name=st.sampled_from(["logistic", "isotonic"]))
def test_corrected_probabilities_fall_with_the_score_and_with_the_share(
    seed: int, rate: float, name: str
) -> None:
    fitted = fit_outside_aware(*with_outside(seed, 300, 0.3), calibrator=name)
    grid = np.linspace(-4, 5, 100)
    p = fitted.probability(grid, rate)
    assert (np.diff(p) <= 1e-12).all()
    assert p.min() >= 0
    assert p.max() <= 1
    assert (fitted.probability(grid, rate + (0.999 - rate) / 2) <= p + 1e-12).all()
    assert from_plain(OutsideAware, json.loads(json.dumps(to_plain(fitted)))) == fitted


def test_thinned_samples_have_the_stated_share_as_if_drawn() -> None:
    outside = np.random.default_rng(0).random(2000) < 0.5
    shares = [outside[thin_to_rate(outside, 0.1, seed)].mean() for seed in range(200)]
    sizes = {len(thin_to_rate(outside, 0.1, seed)) for seed in range(5)}
    assert len(sizes) == 1  # the size is fixed beforehand, the share is drawn
    size = sizes.pop()
    assert 800 < size <= 1200
    assert np.mean(shares) == pytest.approx(0.1, abs=0.003)
    assert np.std(shares) == pytest.approx(np.sqrt(0.1 * 0.9 / size), rel=0.2)
    rows = thin_to_rate(outside, 0.0, 0)
    assert not outside[rows].any()
    assert len(rows) == (~outside).sum()
    assert len(np.unique(rows)) == len(rows)


def test_bad_input() -> None:
    u, right, outside = with_outside(0, 100, 0.3)
    fitted = fit_outside_aware(u, right, outside)
    for rate in (-0.1, 1.0, np.nan):
        with pytest.raises(KappaPlaceError, match="at least 0 and below 1"):
            fitted.probability(u, rate)
    with pytest.raises(KappaPlaceError, match="cannot be correct"):
        fit_outside_aware(u, right, right)
    with pytest.raises(KappaPlaceError, match="needs in-map queries"):
        fit_outside_aware(u, np.zeros(100, bool), np.ones(100, bool))
    with pytest.raises(KappaPlaceError, match="between 0 and 1"):
        shift_prior(np.array([1.2]), 0.5, 0.5)
    with pytest.raises(RecordError, match="the field 'inside' is missing"):
        from_plain(OutsideAware, {"right": 1})
