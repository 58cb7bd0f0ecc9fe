"""What to do with the matches below the best one.

The guarantee is about the answer: the best match, or none. The others carry a decision too, because a robot
may try several, but none that is promised. It follows from three things, the worst of which counts:

- the match's own probability: accept from 1 − max_risk, reject up to the risk of rejecting, as the answer's
  rule states them (an estimate for each match, not a proof for all of them);
- the answer: the query itself is what makes it doubtful (a blurred image, a place outside the map), so no
  match of a query is decided better than its best one;
- what excludes each other: a match so far from the best one that no query can show both is right at most
  where the best one is wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.checks import booleans, finite
from kappaplace.calibration.decision import (
    PROBABILITY,
    REJECT_RISK,
    Decision,
    DecisionRule,
    rule_by_probability,
)
from kappaplace.errors import KappaPlaceError

_WORSE = {Decision.ACCEPT: 0, Decision.DOUBTFUL: 1, Decision.REJECT: 2}
_ORDER = np.array(list(_WORSE), dtype=object)


def pair_rule(rule: DecisionRule) -> DecisionRule:
    """Thresholds on the probability of one match, at the risks that the answer's rule states."""
    if rule.on == PROBABILITY:
        return rule
    assert rule.accepted is not None  # thresholds on the uncertainty are always tested
    max_risk = rule.accepted.max_risk
    reject_risk = REJECT_RISK if rule.rejected is None else rule.rejected.max_risk
    # A user may allow so many errors that both thresholds would cross: then nothing is rejected.
    return rule_by_probability(max_risk, reject_risk if reject_risk < 1 - max_risk else None)


def decide_matches(
    rule: DecisionRule, decisions: Any, probability: Any, pairs: Any, apart: Any
) -> NDArray[np.object_]:
    """One `Decision` a match, N×K; the first column is the answers' own.

    ``decisions`` and ``probability`` are those of the answers (N), ``pairs`` the probability of each match
    (N×K), ``apart`` marks matches that cannot be right where the best one is (N×K).
    """
    own = finite(pairs, "probabilities of matches")
    top = finite(probability, "probabilities of answers")
    if own.ndim != 2 or top.shape != own.shape[:1] or np.shape(decisions) != top.shape:
        raise KappaPlaceError(
            f"Decisions on matches need one answer a row, got {np.shape(decisions)} decisions and "
            f"{top.shape} probabilities for matches of shape {own.shape}."
        )
    excluded = booleans(apart, own.shape, "marks of matches elsewhere")
    bounded = np.where(excluded, np.minimum(own, 1 - top[:, None]), own)
    answer = np.array([_WORSE[Decision(each)] for each in decisions], dtype=np.int64)
    found = pair_rule(rule).decide(probability=bounded)
    level = np.vectorize(_WORSE.__getitem__, otypes=[np.int64])(found)
    level = np.maximum(level, answer[:, None])
    level[:, 0] = answer
    return np.asarray(_ORDER[level], dtype=object)
