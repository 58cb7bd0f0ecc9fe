"""The radius of a position, against definitions and simulated errors with a known distribution."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappaplace.calibration import CalibrateOptions, Examples, fit_calibration
from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.radius import (
    ANY_HEADING,
    RadiusModel,
    conformal_radius,
    distances,
    fit_radius,
    position_errors,
)
from kappaplace.errors import KappaPlaceError

LIMIT = 100.0


def simulated(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Uncertainties, and errors with two modes: 3 to 11 m, or 60 m to 3 km."""
    u = rng.random(count)
    near = rng.random(count) < 0.995 / (1 + np.exp(-10 * (0.75 - u)))
    distance = np.where(near, rng.rayleigh(3 + 8 * u), rng.uniform(60, 3000, count))
    turn = rng.uniform(0, 2 * np.pi, count)
    return u, np.column_stack(
        [distance * np.cos(turn), distance * np.sin(turn), np.where(near, rng.normal(0, 5, count), 90.0)]
    )


def fitted(rng: np.random.Generator, count: int, level: float = 0.95) -> RadiusModel | None:
    (u, errors), (v, others) = simulated(rng, count), simulated(rng, count)
    return fit_radius((u, v), (errors, others), LIMIT, level)


@given(st.integers(1, 400), st.floats(0.5, 0.99), st.integers(0, 2**31))
def test_the_conformal_radius_leaves_out_as_few_as_the_level_allows(count, level, seed):
    errors = np.random.default_rng(seed).random(count)
    radius = conformal_radius(errors, level)
    inside = int((errors <= radius).sum())
    # A new error is equally likely in each of the count + 1 gaps between the sorted ones.
    if math.isinf(radius):
        assert count / (count + 1) < level + 1e-9
    else:
        assert inside / (count + 1) >= level - 1e-9
        assert (inside - 1) / (count + 1) < level


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize("count", [100, 400])
def test_the_true_position_is_within_the_radius_as_often_as_stated(count, level):
    rng, inside, stated = np.random.default_rng(count), 0, 0
    for _ in range(200):
        model = fitted(rng, count, level)
        u, errors = simulated(rng, 500)
        radius = model.estimate(u, np.full(len(u), np.nan)).radius
        known = np.isfinite(radius)
        inside, stated = inside + int((distances(errors)[known] <= radius[known]).sum()), stated + known.sum()
    assert stated > 200 * 500 * 0.15
    assert inside / stated == pytest.approx(level, abs=0.02)


def test_answers_that_are_often_far_off_have_no_radius():
    rng = np.random.default_rng(1)
    model = fitted(rng, 1000)
    assert 2 <= len(model.until) <= 4
    assert list(model.until) == sorted(model.until)
    assert all(radius is None or radius <= LIMIT for radius in model.radii)
    u = np.linspace(0, 1, 101)
    estimate = model.estimate(u, np.zeros(101))
    assert np.isnan(estimate.radius[u > 0.75]).all()
    assert np.isfinite(estimate.radius[u < 0.2]).all()
    assert (np.diff(estimate.far) >= 0).all()
    assert estimate.far[u < 0.2].max() < 0.05
    assert estimate.far[-1] > 0.7


def test_far_is_how_often_an_answer_is_far_off():
    rng = np.random.default_rng(2)
    model = fitted(rng, 3000)
    u, errors = simulated(rng, 50_000)
    far = model.estimate(u, np.zeros(len(u))).far
    for low in np.arange(0, 1, 0.2):
        part = (u >= low) & (u < low + 0.2)
        assert (distances(errors)[part] > LIMIT).mean() == pytest.approx(far[part].mean(), abs=0.05)


def test_errors_are_in_the_direction_of_view():
    rng = np.random.default_rng(3)
    estimated = np.column_stack([rng.normal(size=(50, 2)), rng.uniform(0, 360, 50)])
    true = estimated + np.column_stack([rng.normal(size=(50, 2)), rng.uniform(-170, 170, 50)])
    errors = position_errors(estimated, true)
    for row, (a, b) in enumerate(zip(estimated, true, strict=True)):
        step, view = complex(*(b - a)[:2]), complex(np.sin(np.radians(a[2])), np.cos(np.radians(a[2])))
        along = step / view  # forward is real, right is negative imaginary
        assert errors[row, :2] == pytest.approx((along.real, -along.imag))
    np.testing.assert_allclose(distances(errors), np.hypot(*(true - estimated)[:, :2].T))
    np.testing.assert_allclose(errors[:, 2], (true - estimated)[:, 2], atol=1e-9)


def test_the_covariance_is_the_second_moment_of_near_errors_east_and_north():
    """Errors along the street are larger than across: the ellipse turns with the direction of view."""
    rng, count = np.random.default_rng(4), 4000
    heading = 30.0
    view = np.array([np.sin(np.radians(heading)), np.cos(np.radians(heading))])
    side = np.array([view[1], -view[0]])
    step = rng.normal(0, 9, (count, 1)) * view + rng.normal(0, 2, (count, 1)) * side
    estimated = np.tile([0.0, 0.0, heading], (count, 1))
    true = np.column_stack([step, heading + rng.normal(0, 4, count)])
    u, half = rng.random(count), count // 2
    errors = position_errors(estimated, true)
    model = fit_radius((u[:half], u[half:]), (errors[:half], errors[half:]), LIMIT)
    covariance = model.estimate([0.5], [heading]).covariance[0]
    np.testing.assert_allclose(covariance[:2, :2], step.T @ step / count, atol=4)
    assert covariance[0, 1] > 20
    assert covariance[2, 2] == pytest.approx(np.radians(4) ** 2, rel=0.15)
    assert (np.linalg.eigvalsh(covariance) > 0).all()
    unknown = model.estimate([0.5], [np.nan]).covariance[0]
    assert unknown[0, 0] == pytest.approx(unknown[1, 1]) == pytest.approx((81 + 4) / 2, rel=0.2)
    assert unknown[0, 1] == 0


def test_without_headings_the_covariance_has_no_direction():
    rng = np.random.default_rng(5)
    errors = np.column_stack([rng.normal(0, [9, 2], (400, 2)), np.full(400, np.nan)])
    model = fit_radius((rng.random(200), rng.random(200)), (errors[:200], errors[200:]), LIMIT)
    covariance = model.estimate([0.5], [45.0]).covariance[0]
    assert covariance[0, 0] == pytest.approx(covariance[1, 1])
    assert covariance[0, 1] == pytest.approx(0)
    assert covariance[2, 2] == ANY_HEADING


def test_too_few_queries_have_no_radius():
    rng = np.random.default_rng(6)
    assert fitted(rng, 9) is None
    few = np.zeros((12, 3))
    model = fit_radius((rng.random(12), rng.random(12)), (few, few), LIMIT)
    assert np.isnan(model.estimate(rng.random(9), np.zeros(9)).radius).all()
    for count, radius in ((18, None), (19, 5.0)):  # 19 errors are the fewest with a 95% quantile
        u, v = np.linspace(0, 1, 200), np.linspace(0, 0.1, count)
        errors = np.tile([3.0, -4.0, 0.0], (count, 1))
        assert fit_radius((u, v), (np.zeros((200, 3)), errors), LIMIT).radii == (radius,)
    assert fit_radius((np.ones(50), np.ones(50)), (np.zeros((50, 3)),) * 2, LIMIT) is None
    for wrong in ({"level": 1.0}, {"limit": 0.0}, {"limit": math.inf}):
        with pytest.raises(KappaPlaceError):
            fit_radius((few[:, 0],) * 2, (few, few), **{"limit": LIMIT, **wrong})


def examples(rng: np.random.Generator, count: int) -> Examples:
    u, errors = simulated(rng, count)
    return Examples(u, distances(errors) <= 25, ["margin"], errors=errors, limit=LIMIT)


def test_a_calibration_stores_the_radius_and_its_source(tmp_path):
    rng = np.random.default_rng(7)
    queries = examples(rng, 800)
    calibration = fit_calibration(queries, CalibrateOptions(max_risk=0.2, radius_level=0.9))
    assert (calibration.radius.level, calibration.radius.source) == (0.9, "labels")
    assert Calibration.from_dict(calibration.to_dict()).radius == calibration.radius
    own = fit_calibration(replace(queries, labeled=False), CalibrateOptions(max_risk=0.2))
    assert own.radius.source == "map"
    plain = fit_calibration(replace(queries, errors=None), CalibrateOptions(max_risk=0.2))
    assert plain.radius is None
    assert "radius" not in plain.to_dict()  # as earlier versions wrote it


def test_rows_without_a_true_position_do_not_count():
    rng = np.random.default_rng(8)
    queries = examples(rng, 800)
    rows = rng.random(800) < 0.5
    part = queries.errors.copy()
    part[rows] = np.nan
    calibration = fit_calibration(replace(queries, errors=part), CalibrateOptions(max_risk=0.2))
    assert calibration.radius.radii[0] is not None
    assert np.isfinite(np.array(calibration.radius.variances)).all()


def test_the_radius_is_for_the_expected_rate_of_queries_elsewhere():
    """Half of the sample is out-of-map, one in fifty or two in five are expected."""
    rng = np.random.default_rng(9)
    u, errors = simulated(rng, 2000)
    u, outside = 0.5 * u, rng.random(2000) < 0.5
    errors[outside] = [2000.0, 0.0, 90.0]
    queries = Examples(u, ~outside & (distances(errors) < 25), ["margin"], outside=outside, errors=errors)
    few, many = (
        fit_calibration(replace(queries, limit=LIMIT), CalibrateOptions(max_risk=0.7, outside_rate=rate))
        for rate in (0.02, 0.4)
    )
    assert any(radius is not None for radius in few.radius.radii)
    assert set(many.radius.radii) <= {None}
