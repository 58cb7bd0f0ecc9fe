"""Calibrators against optimizers and loops written again, and in every hard corner."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from kappaplace.calibration.calibrators import (
    CALIBRATORS,
    Beta,
    Calibrator,
    Isotonic,
    Logistic,
    LogitTemperature,
    Temperature,
    best_calibrator,
    fit_calibrator,
    pool_adjacent_violators,
)
from kappaplace.errors import KappaPlaceError
from kappaplace.records import RecordError, from_plain, to_plain
from tests.calibration.helpers import informative

EVERY = list(CALIBRATORS.values())


def log_loss(p: np.ndarray, t: np.ndarray) -> float:
    return float(-(t * np.log(p) + (1 - t) * np.log1p(-p)).sum())


def platt_targets(right: np.ndarray) -> np.ndarray:
    """Written out as in Platt's paper."""
    plus, minus = right.sum(), (~right).sum()
    return np.array([(plus + 1) / (plus + 2) if one else 1 / (minus + 2) for one in right])


def slow_pav(values: list[float], weights: list[float]) -> list[float]:
    """Falling isotonic regression by the min-max formula: a loop over every interval."""
    n, fitted = len(values), []
    mean = lambda a, b: np.average(values[a:b], weights=weights[a:b])  # noqa: E731
    for i in range(n):
        fitted.append(min(max(mean(a, b) for b in range(i + 1, n + 1)) for a in range(i + 1)))
    return fitted


@pytest.mark.parametrize("seed", range(3))
def test_logistic_is_platts_optimum(seed: int) -> None:
    u, right = informative(seed, 200)
    ours = Logistic.fit(u, right)
    t = platt_targets(right)
    found = minimize(lambda b: log_loss(1 / (1 + np.exp(b[0] * u + b[1])), t), [0.0, 0.0], tol=1e-12).x
    np.testing.assert_allclose(ours.probability(u), 1 / (1 + np.exp(found[0] * u + found[1])), atol=1e-5)


def test_beta_is_the_constrained_optimum() -> None:
    for seed, power in ((0, 1.0), (1, 8.0), (2, 0.2)):
        u, right = informative(seed, 300)
        u = u**power
        ours = Beta.fit(u, right)
        t, s = platt_targets(right), np.clip(1 - u, 1e-9, 1 - 1e-9)

        def p(x: np.ndarray, s: np.ndarray = s) -> np.ndarray:
            return 1 / (1 + 1 / (np.exp(x[2]) * s ** x[0] / (1 - s) ** x[1]))

        best = minimize(
            lambda x: log_loss(np.clip(p(x), 1e-12, 1 - 1e-12), t),  # noqa: B023
            [1.0, 1.0, 0.0],
            bounds=[(0, None), (0, None), (None, None)],
        )
        assert log_loss(ours.probability(u), t) <= best.fun + 1e-6
        assert ours.a >= 0
        assert ours.b >= 0


def test_temperature_finds_the_temperature() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, 20_000)
    right = rng.random(len(logits)) < 1 / (1 + np.exp(-logits / 2))
    assert Temperature.fit(1 / (1 + np.exp(logits)), right).sharpness == pytest.approx(0.5, abs=0.03)
    assert LogitTemperature.fit(-logits, right).sharpness == pytest.approx(0.5, abs=0.03)


@settings(deadline=None, max_examples=60)
@given(
    values=st.lists(st.floats(0, 1), min_size=1, max_size=12),
    seed=st.integers(0, 99),
)
def test_pav_is_the_min_max_formula(values: list[float], seed: int) -> None:
    weights = np.random.default_rng(seed).integers(1, 5, len(values)).astype(float)
    levels, ends = pool_adjacent_violators(np.array(values), weights)
    expanded = np.repeat(levels, np.diff(ends, prepend=0))
    np.testing.assert_allclose(expanded, slow_pav(values, weights.tolist()), atol=1e-9)


def test_isotonic_keeps_ties_together_and_off_the_ends() -> None:
    u = np.repeat([0.0, 1.0, 2.0], [8, 4, 6])
    right = np.array([True] * 8 + [True, False, True, False] + [False] * 6)
    fitted = Isotonic.fit(u, right)
    np.testing.assert_allclose(fitted.probability([0.0, 1.0, 2.0]), [9 / 10, 0.5, 1 / 8])
    np.testing.assert_allclose(fitted.probability([-9.0, 0.5, 9.0]), [0.9, 0.7, 1 / 8])


def test_isotonic_clipping_stays_monotone() -> None:
    # One right query before a block of nine in ten: its own count supports 2/3 only, so both are pooled.
    u = np.concatenate([[0.0], np.full(10, 1.0), np.full(10, 2.0)])
    right = np.array([True] + [True] * 9 + [False] + [False] * 10)
    p = Isotonic.fit(u, right).probability([0.0, 1.0, 2.0])
    assert p[0] == p[1] == pytest.approx((2 / 3 + 9) / 11)
    assert p[2] == pytest.approx(1 / 12)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(10, 60),
    kind=st.sampled_from(EVERY),
    levels=st.sampled_from([2, 5, 1000]),
    reverse=st.booleans(),
)
def test_probabilities_fall_and_stay_inside(
    seed: int, n: int, kind: type[Calibrator], levels: int, reverse: bool
) -> None:
    rng = np.random.default_rng(seed)
    u = rng.integers(0, levels + 1, n) / levels
    chance = u if reverse else 1 - u
    right = rng.random(n) < chance
    if right.all() or not right.any() or np.ptp(u) == 0:
        return
    fitted = kind.fit(u, right)
    grid = fitted.probability(np.linspace(0, 1, 201))
    assert (np.diff(grid) <= 1e-12).all()
    assert grid.min() >= 0
    assert grid.max() <= 1
    if kind in (Isotonic, Logistic):
        assert grid.min() > 0
        assert grid.max() < 1
    again = from_plain(Calibrator, json.loads(json.dumps(to_plain(fitted))))
    assert again == fitted


@pytest.mark.parametrize("kind", EVERY)
def test_perfectly_separated_scores_stay_finite(kind: type[Calibrator]) -> None:
    u = np.linspace(0.01, 0.99, 40)
    p = kind.fit(u, u < 0.5).probability(u)
    assert (p > 0).all()
    assert (p < 1).all()
    if kind is not LogitTemperature:  # its logit of one half is fixed at 0
        assert p[0] > 0.8
        assert p[-1] < 0.2


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize(
    ("u", "right", "word"),
    [
        (np.linspace(0, 1, 20), np.ones(20, bool), "all 20 are correct"),
        (np.linspace(0, 1, 20), np.zeros(20, bool), "all 20 are incorrect"),
        (np.full(20, 0.3), np.arange(20) < 9, "must vary"),
        (np.linspace(0, 1, 5), np.arange(5) < 2, "at least 10 outcomes"),
        (np.append(np.linspace(0, 1, 19), np.nan), np.arange(20) < 9, "1 of 20 are NaN"),
        (np.linspace(0, 1, 20), np.arange(20.0), "booleans"),
        (np.zeros((4, 5)), np.zeros((4, 5), bool), "one score and one outcome per query"),
    ],
)
def test_refusals(kind: type[Calibrator], u: np.ndarray, right: np.ndarray, word: str) -> None:
    with pytest.raises(KappaPlaceError, match=word) as caught:
        kind.fit(u, right)
    assert str(caught.value).count(".") - str(caught.value).count("0.") <= 2


def test_unit_scores_only_for_beta_and_temperature() -> None:
    u, right = informative(0)
    for kind in (Beta, Temperature):
        with pytest.raises(KappaPlaceError, match="between 0 and 1"):
            kind.fit(u * 5, right)
        with pytest.raises(KappaPlaceError, match="between 0 and 1"):
            kind.fit(u, right).probability([1.2])
    with pytest.raises(KappaPlaceError, match="NaN"):
        Logistic.fit(u, right).probability([np.nan])


def test_the_best_is_the_one_with_the_least_loss_and_any_shape_is_kept() -> None:
    u, right = informative(0, 3000)
    stairs = np.random.default_rng(1).random(3000) < np.where(u < 0.3, 0.97, np.where(u < 0.8, 0.5, 0.03))
    choice = best_calibrator(u, stairs)
    assert choice.calibrator.name == "isotonic"
    assert min(choice.losses, key=choice.losses.__getitem__) == "isotonic"
    assert set(best_calibrator(u * 9, right).losses) == {"logistic", "isotonic"}
    assert choice.calibrator.probability(np.zeros((2, 3))).shape == (2, 3)
    assert fit_calibrator("best", u, stairs) == choice.calibrator
    pairs = best_calibrator(u, right, groups=np.arange(3000) // 10)
    assert np.isfinite(list(pairs.losses.values())).all()


def test_the_best_with_a_single_wrong_query() -> None:
    u, right = np.linspace(0, 1, 12), np.ones(12, bool)
    right[-1] = False
    p = best_calibrator(u, right).calibrator.probability(u)
    assert (np.diff(p) <= 0).all()


def test_unknown_names_and_damaged_storage() -> None:
    with pytest.raises(KappaPlaceError, match="Choose from: logistic"):
        fit_calibrator("magic", *informative(0))
    fitted = to_plain(Logistic.fit(*informative(0)))
    for broken in (
        {},
        None,
        {**fitted, "extra": 1},
        {**fitted, "scale": 0.0},
        {**fitted, "bias": float("nan")},
        {**fitted, "bias": "much"},
        {"name": "isotonic", "knots": [1.0, 0.0], "levels": [0.5, 0.4]},
        {"name": "isotonic", "knots": [], "levels": []},
    ):
        with pytest.raises((RecordError, KappaPlaceError)):
            from_plain(Calibrator, broken)


def test_calibrated_on_fresh_queries() -> None:
    u, right = informative(5, 4000)
    fresh, _ = informative(6, 4000)
    p = best_calibrator(u, right).calibrator.probability(fresh)
    assert np.abs(p - (1 - fresh**2)).mean() < 0.03
