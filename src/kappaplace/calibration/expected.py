"""Expected risk and coverage of a calibration for any risk limit: an estimate, not a guarantee.

The drift sketch of a calibration contains percentiles of the uncertainty u. At each of them, the calibrator
gives the probability of a correct answer. If the most certain fraction of the queries is accepted, the
expected fraction of errors is the mean of 1 − P(correct | u) over them. The fraction b of out-of-map queries
may differ from the fraction a at calibration. A query with P(inside | u) = q then has the weight q·(1 − b)/(1
− a) + (1 − q)·b/a.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from kappaplace.calibration.calibration import UNCERTAINTY as SKETCHED
from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.candidates import correct_scores
from kappaplace.calibration.decision import PROBABILITY, UNCERTAINTY, Decision, DecisionRule
from kappaplace.calibration.decision import rule_by_probability as by_probability
from kappaplace.calibration.examples import Examples
from kappaplace.calibration.groups import Quarter, quarters
from kappaplace.calibration.options import REJECT_RISK
from kappaplace.calibration.outside import OutsideAware
from kappaplace.checks import Floats, share

LEAST_INSIDE = 0.01
COVERAGE = 0.95
"""Coverage of the candidate sets that are counted by difficulty."""
ESTIMATED = "Thresholds for this risk are estimated from the calibrated probabilities, without a guarantee."


class ExpectedCurve(NamedTuple):
    """Risk and coverage as functions of the threshold on the uncertainty, most certain first."""

    uncertainty: Floats
    probability: Floats
    """Probability that an answer with this uncertainty is correct."""
    coverage: Floats
    """Fraction of queries that are at most this uncertain."""
    risk: Floats
    """Expected fraction of errors among them."""

    def at(self, accepted: Floats) -> tuple[float, float | None]:
        """Return coverage and risk if these points are accepted. The risk is None if no point is accepted."""
        if not accepted.any():
            return 0.0, None
        last = int(np.flatnonzero(accepted)[-1])
        return float(self.coverage[last]), float(self.risk[last])


def expected_curve(calibration: Calibration) -> ExpectedCurve | None:
    """Return the expected curve of a calibration; None if it has no sketch."""
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
    """Return the risk limit of a rule."""
    return 1 - rule.accept_at if rule.accepted is None else rule.accepted.max_risk


def reject_risk(rule: DecisionRule | None) -> float | None:
    """Return the allowed fraction of correct answers among the rejected; None if nothing is rejected."""
    if rule is None or (rule.on == UNCERTAINTY and rule.rejected is None):
        return REJECT_RISK
    if rule.on == PROBABILITY:
        return rule.reject_at if np.isfinite(rule.reject_at) else None
    assert rule.rejected is not None
    return rule.rejected.max_risk


def rule_for(calibration: Calibration, max_risk: float) -> DecisionRule:
    """Return the rule of the calibration if it has this risk limit; otherwise estimate one.

    A lower risk limit never accepts more than a higher one.
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
    safe = np.flatnonzero(curve.risk <= max_risk)
    accept = float(curve.uncertainty[safe[-1]]) if len(safe) else -math.inf
    accept = min(accept, own.accept_at) if max_risk < stated_risk(own) else max(accept, own.accept_at)
    reject = max(own.reject_at, math.nextafter(accept, math.inf))  # the two thresholds must not overlap
    return DecisionRule(UNCERTAINTY, accept, reject, assumptions=(ESTIMATED,))


def expected_at(calibration: Calibration, rule: DecisionRule) -> tuple[float, float | None] | None:
    """Return the expected coverage and risk of a rule; None if the calibration has no sketch."""
    curve = expected_curve(calibration)
    if curve is None:
        return None
    decisions = rule.decide(uncertainty=curve.uncertainty, probability=curve.probability)
    return curve.at(decisions == "accept")


def by_difficulty(
    sample: Examples, rule: DecisionRule, right: OutsideAware, rate: float | None
) -> tuple[Quarter, ...]:
    """Count correct, accepted and covered queries by quarter of their uncertainty, easiest first.

    A guarantee holds on average, and less than that for the most difficult queries.

    Args:
        sample: Queries that nothing was fitted on; ``features`` is their uncertainty.
        rule: Decision rule.
        right: Probability that an answer is correct.
        rate: Expected fraction of out-of-map queries.

    Returns:
        One record per quarter.
    """
    uncertainty = sample.features
    probability = right.probability(uncertainty, rate)
    accepted = rule.decide(uncertainty=uncertainty, probability=probability) == Decision.ACCEPT
    covered = None
    if sample.place is not None and len(uncertainty):
        scores = correct_scores(uncertainty, sample.place, sample.outside, right, rate)
        limit = np.sort(scores)[int(np.ceil(len(scores) * COVERAGE - 1e-9)) - 1]  # without the query itself
        covered = scores <= limit if np.isfinite(limit) else None
    return tuple(
        Quarter(
            len(rows),
            int(sample.right[rows].sum()),
            int(accepted[rows].sum()),
            int((accepted & ~sample.right)[rows].sum()),
            None if covered is None else int(covered[rows].sum()),
        )
        for rows in quarters(uncertainty)
    )
