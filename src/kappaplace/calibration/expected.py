"""What to expect of a calibration at another risk than its own: no proof, but the curve it implies itself.

The drift sketch keeps percentiles of the uncertainty at calibration; the calibrator says how probable a right
answer is at each. Accepting the most certain share c of the queries, the share of errors among them is the
mean of 1 − P(right | u) over it. Where the share b of queries from outside differs from the share a at
calibration, a query of P(inside | u) = q counts q·(1 − b)/(1 − a) + (1 − q)·b/a times.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from kappaplace.calibration.calibration import UNCERTAINTY as SKETCHED
from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.decision import PROBABILITY, UNCERTAINTY, DecisionRule
from kappaplace.calibration.decision import rule_by_probability as by_probability
from kappaplace.calibration.options import REJECT_RISK
from kappaplace.checks import Floats, share

LEAST_INSIDE = 0.01
ESTIMATED = "Thresholds for this risk are estimated from the calibration's own probabilities, not proven."


class ExpectedCurve(NamedTuple):
    """Risk and coverage as the threshold grows, most certain first."""

    uncertainty: Floats
    probability: Floats
    """That an answer of just this uncertainty is right."""
    coverage: Floats
    """Share of queries that are not more uncertain."""
    risk: Floats
    """Share of errors to expect among these."""

    def at(self, accepted: Floats) -> tuple[float, float | None]:
        """Coverage and risk where these points are accepted, as booleans; no risk where none is."""
        if not accepted.any():
            return 0.0, None
        last = int(np.flatnonzero(accepted)[-1])
        return float(self.coverage[last]), float(self.risk[last])


def expected_curve(calibration: Calibration) -> ExpectedCurve | None:
    """The curve that a calibration implies; None where it keeps no sketch."""
    sketch = calibration.sketch
    if sketch is None or SKETCHED not in sketch.values:
        return None
    uncertainty = np.asarray(sketch.values[SKETCHED])
    probability = calibration.right.probability(uncertainty, calibration.outside_rate)
    weight = np.diff(np.asarray(sketch.ranks, float), prepend=0.0)
    then, now = calibration.right.fitted_rate, calibration.outside_rate
    inside = calibration.right.inside_probability(uncertainty)
    if now is not None and inside is not None and 0 < then < 1:
        weight = weight * (inside * (1 - now) / (1 - then) + (1 - inside) * now / then)
    if calibration.facts.get("counterparts") and inside is not None and now is not None:
        weight = weight * (1 - then) / np.maximum(inside, LEAST_INSIDE)  # the sketch has in-map queries only
    total = np.cumsum(weight)
    return ExpectedCurve(
        uncertainty, probability, total / total[-1], np.cumsum(weight * (1 - probability)) / total
    )


def stated_risk(rule: DecisionRule) -> float:
    """The risk that a rule decides for."""
    return 1 - rule.accept_at if rule.accepted is None else rule.accepted.max_risk


def reject_risk(rule: DecisionRule | None) -> float | None:
    """Share of right answers that a rule allows among the rejected; None where nothing is rejected."""
    if rule is None or (rule.on == UNCERTAINTY and rule.rejected is None):
        return REJECT_RISK
    if rule.on == PROBABILITY:
        return rule.reject_at if np.isfinite(rule.reject_at) else None
    assert rule.rejected is not None
    return rule.rejected.max_risk


def rule_for(calibration: Calibration, max_risk: float) -> DecisionRule:
    """The calibration's own rule where it states this risk, else one that is estimated.

    A lower risk never accepts more than a higher one, the proven one included.
    """
    share(max_risk, "risk")
    own = calibration.rule
    if own is not None and math.isclose(stated_risk(own), max_risk, rel_tol=1e-6):
        return own
    curve = expected_curve(calibration)
    if own is None or own.on == PROBABILITY or curve is None:
        rejecting = reject_risk(own)
        fits = rejecting is not None and rejecting < 1 - max_risk
        return by_probability(max_risk, rejecting if fits else None, assumptions=(ESTIMATED,))
    held = np.flatnonzero(curve.risk <= max_risk)
    found = float(curve.uncertainty[held[-1]]) if len(held) else -math.inf
    found = min(found, own.accept_at) if max_risk < stated_risk(own) else max(found, own.accept_at)
    # Where more is accepted than was to be rejected, what is left is rejected.
    reject = max(own.reject_at, math.nextafter(found, math.inf))
    return DecisionRule(UNCERTAINTY, found, reject, assumptions=(ESTIMATED,))


def expected_at(calibration: Calibration, rule: DecisionRule) -> tuple[float, float | None] | None:
    """Coverage and risk to expect of a rule; None where nothing is known of either."""
    curve = expected_curve(calibration)
    if curve is None:
        return None
    decisions = rule.decide(uncertainty=curve.uncertainty, probability=curve.probability)
    return curve.at(decisions == "accept")
