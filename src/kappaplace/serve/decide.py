"""An answer decided anew for the risk that a client accepts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kappaplace.calibration.checks import percent
from kappaplace.calibration.decision import DecisionRule
from kappaplace.calibration.decision import rule_by_probability as by_probability
from kappaplace.calibration.expected import reject_risk, rule_for, stated_risk
from kappaplace.calibration.match_decision import decide_matches
from kappaplace.calibration.model import Calibration
from kappaplace.maps.localization import Localization


class Decided(NamedTuple):
    """An answer, the risk it was decided for, and whether that is promised."""

    answer: Localization
    max_risk: float | None
    guaranteed: bool


def decided(
    answer: Localization, calibration: Calibration | None, radius: float, max_risk: float | None = None
) -> Decided:
    """The answer as the calibration decided it, or decided anew for ``max_risk``.

    The rules are those of `localize`: thresholds for the best match; others by their own probability, never
    better than the best one, and never where both cannot be right.
    """
    if calibration is None or answer.probability is None or not answer.matches:
        return Decided(answer, None, False)
    own = calibration.rule
    if max_risk is None:
        return Decided(answer, None if own is None else stated_risk(own), own is not None and own.guaranteed)
    rule = rule_for(calibration, max_risk)
    if rule is own:
        return Decided(answer, max_risk, rule.guaranteed)
    top = rule.decide(uncertainty=[answer.uncertainty], probability=[answer.probability])[0].value
    said = f"Decided for a risk of {percent(max_risk)}; an estimate, nothing is proven for it."
    matches = _decided_matches(answer, match_rule(own, max_risk), top, radius)
    return Decided(
        replace(answer, decision=top, matches=matches, notes=(*answer.notes, said)), max_risk, False
    )


def match_rule(own: DecisionRule | None, max_risk: float) -> DecisionRule:
    """Thresholds on the probability of a single match."""
    rejecting = reject_risk(own)
    return by_probability(max_risk, rejecting if rejecting is not None and rejecting < 1 - max_risk else None)


def _decided_matches(answer: Localization, rule: DecisionRule, top: str, radius: float) -> tuple:
    first, rest = replace(answer.matches[0], decision=top), answer.matches[1:]
    if any(match.probability is None for match in answer.matches):  # only best matches were labelled
        return (first, *(replace(match, decision=None) for match in rest))
    best = answer.matches[0]
    apart = [[math.hypot(match.x - best.x, match.y - best.y) > 2 * radius for match in answer.matches]]
    pairs = [[match.probability for match in answer.matches]]
    made = decide_matches(rule, [top], [answer.probability], np.array(pairs), np.array(apart))[0]
    return tuple(
        replace(match, decision=each.value) for match, each in zip(answer.matches, made, strict=True)
    )
