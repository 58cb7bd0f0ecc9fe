"""What a calibration lets expect at other risks than its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.examples import Examples
from kappaplace.calibration.expected import ESTIMATED, expected_at, expected_curve, rule_for, stated_risk
from kappaplace.calibration.fit import fit_calibration
from kappaplace.calibration.options import CalibrateOptions
from kappaplace.errors import KappaPlaceError


def sample(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """An uncertainty in [0, 1] and whether each answer is right: seldom at its upper end."""
    rng = np.random.default_rng(seed)
    uncertainty = rng.random(n)
    return uncertainty, rng.random(n) > uncertainty**3


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    uncertainty, right = sample(4000, 0)
    return fit_calibration(Examples(uncertainty, right, ["cosine"]), CalibrateOptions(calibrator="isotonic"))


def test_the_curve_is_what_fresh_queries_show(calibration: Calibration) -> None:
    curve = expected_curve(calibration)
    fresh, right = sample(200_000, 1)
    for at in (20, 50, 80, 100):
        accepted = fresh <= curve.uncertainty[at]
        assert accepted.mean() == pytest.approx(curve.coverage[at], abs=0.03)
        assert 1 - right[accepted].mean() == pytest.approx(curve.risk[at], abs=0.02)


def test_its_own_risk_keeps_the_proven_rule(calibration: Calibration) -> None:
    assert stated_risk(calibration.rule) == 0.05
    assert rule_for(calibration, 0.05) is calibration.rule
    coverage, risk = expected_at(calibration, calibration.rule)
    assert coverage == pytest.approx(calibration.rule.accepted.coverage, abs=0.05)
    assert risk <= 0.05


@given(st.lists(st.floats(0.0005, 0.9995), min_size=2, max_size=8))
@settings(max_examples=40, deadline=None)
def test_a_higher_risk_never_accepts_less(risks: list[float]) -> None:
    uncertainty, right = sample(800, 3)
    made = fit_calibration(
        Examples(uncertainty, right, ["cosine"]), CalibrateOptions(max_risk=0.1, calibrator="logistic")
    )
    rules = [rule_for(made, risk) for risk in sorted([*risks, 0.1])]
    limits = [rule.accept_at for rule in rules]
    assert limits == sorted(limits)
    coverages = [expected_at(made, rule)[0] for rule in rules]
    assert coverages == sorted(coverages)
    for rule in rules:
        assert rule.guaranteed == (rule is made.rule)
        assert rule is made.rule or rule.assumptions == (ESTIMATED,)


def test_queries_from_outside_count_as_often_as_stated() -> None:
    """Half of the examples come from outside; in use a tenth does, so more is accepted."""
    rng = np.random.default_rng(0)
    outside = np.arange(4000) % 2 == 1
    uncertainty = np.where(outside, rng.beta(6, 2, 4000), rng.beta(2, 6, 4000))
    right = ~outside & (rng.random(4000) > uncertainty**2)
    made = fit_calibration(
        Examples(uncertainty, right, ["cosine"], outside=outside),
        CalibrateOptions(outside_rate=0.1, calibrator="isotonic"),
    )
    curve = expected_curve(made)
    fresh_out = rng.random(100_000) < 0.1
    fresh = np.where(fresh_out, rng.beta(6, 2, 100_000), rng.beta(2, 6, 100_000))
    good = ~fresh_out & (rng.random(100_000) > fresh**2)
    for at in (20, 40, 60):
        accepted = fresh <= curve.uncertainty[at]
        assert accepted.mean() == pytest.approx(curve.coverage[at], abs=0.03)
        assert 1 - good[accepted].mean() == pytest.approx(curve.risk[at], abs=0.03)


def test_a_rule_by_probability_stays_one() -> None:
    uncertainty, right = sample(60, 5)
    made = fit_calibration(
        Examples(uncertainty, right, ["cosine"], labeled=False), CalibrateOptions(max_risk=0.01)
    )
    assert made.rule.on == "probability"
    rule = rule_for(made, 0.3)
    assert (rule.on, rule.accept_at) == ("probability", 0.7)
    assert rule_for(made, 0.95).reject_at == -np.inf  # both thresholds would cross


@pytest.mark.parametrize("risk", [0.0, 1.0, -0.1, float("nan")])
def test_a_bad_risk_is_told(calibration: Calibration, risk: float) -> None:
    with pytest.raises(KappaPlaceError):
        rule_for(calibration, risk)


def test_without_a_sketch_nothing_is_expected(calibration: Calibration) -> None:
    from dataclasses import replace

    bare = replace(calibration, sketch=None)
    assert expected_curve(bare) is None
    assert expected_at(bare, bare.rule) is None
    assert rule_for(bare, 0.2).on == "probability"
