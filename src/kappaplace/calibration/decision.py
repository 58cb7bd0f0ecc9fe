"""Accept, doubtful or reject: two thresholds, each with its own risk limit.

At most ``max_risk`` of the accepted answers are incorrect, and at most ``reject_risk`` of the rejected ones
would have been correct. Answers between the thresholds are doubtful: slow down, or use another sensor. Both
thresholds come from `control_risk`. For the second one, correct and incorrect are swapped, and the sign of
the score is reversed.

**Matches below the best one.** The guarantee covers the answer, which is the best match. The other matches
have decisions without a guarantee, because a robot may try several of them. Such a decision is the worst of:

- the decision by the probability of the match, with the risk limits of the rule;
- the decision on the answer, because all matches of a doubtful query (blurred, or outside the map) are
  doubtful;
- exclusion: if no query can show both this match and the best one, at most one of them is correct.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kappaplace.calibration.options import REJECT_RISK
from kappaplace.calibration.risk import RiskRefused, RiskThreshold, control_risk
from kappaplace.checks import Floats, booleans, finite, outcomes, percent, share
from kappaplace.errors import KappaPlaceError

UNCERTAINTY, PROBABILITY = "uncertainty", "probability"
NO_GUARANTEE = "No guarantee: these thresholds are estimates."
SELF_CALIBRATED = (
    "Self-calibrated on degraded images of the map itself, not on labelled queries: the error rate of real "
    "queries may be higher."
)


class Decision(str, Enum):
    """Recommendation for an answer: use it, check it or discard it."""

    ACCEPT = "accept"
    DOUBTFUL = "doubtful"
    REJECT = "reject"

    def __str__(self) -> str:
        return self.value  # NumPy compares an array with a member by its text


_DECISIONS = np.array(list(Decision), dtype=object)
"""From the best to the worst."""


@dataclass(frozen=True)
class DecisionRule:
    """Two thresholds and their guarantee."""

    on: str
    """Quantity that the thresholds apply to: "uncertainty" or "probability"."""
    accept_at: float
    """Accept an uncertainty up to this value, or a probability from this value. It is finite, so that not all
    answers are accepted."""
    reject_at: float
    """Reject an uncertainty from this value, or a probability up to it. If it is infinite, nothing is
    rejected."""
    accepted: RiskThreshold | None = None
    """Test of the first threshold; None if it was not tested."""
    rejected: RiskThreshold | None = None
    """Test of the second threshold: its errors are correct answers, and it applies to −uncertainty."""
    guaranteed: bool = False
    """Whether the accepted risk is guaranteed; never for self-calibration."""
    assumptions: tuple[str, ...] = ()
    """Conditions of the guarantee, or the reason why there is none, in sentences."""

    def __post_init__(self) -> None:
        if self.on not in (UNCERTAINTY, PROBABILITY):
            raise KappaPlaceError(f"on must be 'uncertainty' or 'probability', got '{self.on}'.")
        if np.isnan(self.accept_at) or np.isnan(self.reject_at):
            raise KappaPlaceError("The thresholds of a rule must be numbers, got NaN. Calibrate again.")
        accept, reject = self._signed(self.accept_at), self._signed(self.reject_at)
        if accept == np.inf:
            raise KappaPlaceError(
                f"A decision rule cannot accept every answer, got the threshold {self.accept_at:g} of "
                f"{self.on}. Calibrate again."
            )
        if accept >= reject and reject < np.inf:
            raise KappaPlaceError(
                f"The thresholds of a decision rule overlap: it accepts up to {self.accept_at:g} and rejects "
                f"from {self.reject_at:g} of {self.on}. Calibrate again."
            )
        if self.guaranteed and self.accepted is None:
            raise KappaPlaceError("A decision rule can only guarantee a risk that was tested. Fit it again.")

    def decide(self, *, uncertainty: Any = None, probability: Any = None) -> NDArray[np.object_]:
        """Return a decision for each value, of any shape. Only the quantity of the rule, ``on``, is
        required."""
        values = uncertainty if self.on == UNCERTAINTY else probability
        if values is None:
            raise KappaPlaceError(f"This rule decides by {self.on}. Pass {self.on}=….")
        return np.asarray(_DECISIONS[self._levels(values)], dtype=object)

    def promise(self) -> list[str]:
        """Describe the guarantee of the rule and its conditions, in sentences for the user."""
        lines = []
        if (proof := self.accepted) is not None:
            verb = "are" if self.guaranteed else "were, on the examples of the calibration,"
            lines.append(
                f"Accepted answers {verb} incorrect in at most {percent(proof.max_risk)} of the cases, with "
                f"{percent(proof.confidence)} confidence; about {percent(proof.coverage)} of the queries are "
                "accepted."
            )
        if self.rejected is not None:
            lines.append(
                f"Rejected answers would have been correct in at most {percent(self.rejected.max_risk)} of "
                f"the cases; about {percent(self.rejected.coverage)} of the queries are rejected."
            )
        if not self.guaranteed:
            lines.append(NO_GUARANTEE)
        return [*lines, *self.assumptions]

    def _levels(self, values: Any) -> NDArray[np.int64]:
        """Return the position in `_DECISIONS` of the decision on each value."""
        signed = self._signed(finite(values, "values to decide on"))
        return (signed > self._signed(self.accept_at)).astype(int) + (signed >= self._signed(self.reject_at))

    def _signed(self, values: Any) -> Any:
        """Return the values, with the sign reversed if higher is better."""
        return values if self.on == UNCERTAINTY else -values


def fit_rule(
    uncertainty: NDArray[np.floating],
    success: NDArray[np.bool_],
    max_risk: float = 0.05,
    confidence: float = 0.95,
    *,
    reject_risk: float | None = REJECT_RISK,
    method: str = "multi-start",
    slack: float = 0.0,
    assumptions: tuple[str, ...] = (),
) -> DecisionRule:
    """Set both thresholds, on labelled queries that nothing else was fitted on.

    If the labels do not support the second threshold, nothing is rejected. ``assumptions`` has the reason.

    Args:
        uncertainty: One value per query (N); higher is less certain.
        success: Whether each query was answered correctly (N).
        max_risk: Maximum fraction of errors among the accepted.
        confidence: Confidence level of each guarantee.
        reject_risk: Maximum fraction of correct answers among the rejected. None: reject nothing.
        method: Method to test thresholds, see `control_risk`.
        slack: Part of 1 − confidence that was used for other steps.
        assumptions: Sentences to add to those of the rule.

    Returns:
        The rule, on the uncertainty.

    Raises:
        RiskRefused: If the labels do not support the first threshold.
    """
    scores, right = outcomes(uncertainty, success)
    accepted = control_risk(scores, right, max_risk, confidence, method, slack=slack)
    notes = [accepted.assumptions, *assumptions]
    rejected = None
    if reject_risk is not None and accepted.accepted < len(scores):
        try:
            # Strictly beyond the accepted values: all thresholds that passed hold, so the walk may stop
            # early.
            rejected = control_risk(
                -scores, ~right, reject_risk, confidence, method, below=-accepted.threshold, slack=slack
            )
        except RiskRefused as refusal:
            enough = f" (about {refusal.needed:,} are needed)" if refusal.needed else ""
            notes.append(
                f"Nothing is rejected: {len(right):,} labelled queries{enough} cannot guarantee that at most "
                f"{percent(reject_risk)} of the rejected answers would have been correct."
            )
    return DecisionRule(
        UNCERTAINTY,
        accepted.threshold,
        np.inf if rejected is None else -rejected.threshold,
        accepted,
        rejected,
        True,
        tuple(notes),
    )


def rule_by_probability(
    max_risk: float = 0.05, reject_risk: float | None = REJECT_RISK, *, assumptions: tuple[str, ...] = ()
) -> DecisionRule:
    """Return a rule without a guarantee: accept an answer if its probability is at least 1 − ``max_risk``.

    This is stricter than necessary, because each answer, not only their average, stays within the limit. It
    is as reliable as the probabilities are.

    Args:
        max_risk: Maximum probability that an accepted answer is incorrect.
        reject_risk: Reject up to this probability. None: reject nothing.
        assumptions: Sentences that the rule reports.

    Returns:
        The rule, on the probability.

    Raises:
        KappaPlaceError: If the two thresholds overlap, or a risk is not between 0 and 1.
    """
    share(max_risk, "risk")
    if reject_risk is not None and not share(reject_risk, "risk of rejecting") < 1 - max_risk:
        raise KappaPlaceError(
            f"The thresholds overlap: answers are accepted from a probability of {1 - max_risk:g} and "
            f"rejected up to {reject_risk:g}. Pass a lower risk."
        )
    reject_at = -np.inf if reject_risk is None else float(reject_risk)
    return DecisionRule(PROBABILITY, 1 - max_risk, reject_at, assumptions=assumptions)


def pair_rule(rule: DecisionRule) -> DecisionRule:
    """Return a rule for the probability of single matches, with the risk limits of the answer's rule."""
    if rule.on == PROBABILITY:
        return rule
    assert rule.accepted is not None  # thresholds on the uncertainty are always tested
    max_risk = rule.accepted.max_risk
    reject_risk = REJECT_RISK if rule.rejected is None else rule.rejected.max_risk
    # With a high risk limit the two thresholds would overlap: then nothing is rejected.
    return rule_by_probability(max_risk, reject_risk if reject_risk < 1 - max_risk else None)


def match_probabilities(probability: ArrayLike, pairs: ArrayLike, apart: ArrayLike) -> Floats:
    """Return one probability per match, consistent with the probability of the answer.

    Args:
        probability: Probability that each answer, the best match, is correct (N).
        pairs: Probability of each single match, N×K.
        apart: Matches that cannot be correct if the best one is, N×K.

    Returns:
        Probabilities, N×K. The best match has the probability p of the answer, a match elsewhere at most 1 −
        p.

    Raises:
        KappaPlaceError: If shapes disagree.
    """
    own = finite(pairs, "probabilities of matches")
    top = finite(probability, "probabilities of answers")
    if own.ndim != 2 or top.shape != own.shape[:1]:
        raise KappaPlaceError(
            f"Probabilities of matches must have one row per answer, got shapes {own.shape} and {top.shape}."
        )
    excluded = booleans(apart, own.shape, "mask of matches elsewhere")
    bounded = np.where(excluded, np.minimum(own, 1 - top[:, None]), own)
    bounded[:, :1] = top[:, None]
    return bounded


def decide_matches(
    rule: DecisionRule, decisions: Sequence[str], probability: ArrayLike, pairs: ArrayLike, apart: ArrayLike
) -> NDArray[np.object_]:
    """Decide on every match.

    Args:
        rule: Rule for the answers.
        decisions: Decisions on the answers (N).
        probability: Probability that each answer is correct (N).
        pairs: Probability of each match, N×K.
        apart: Matches that cannot be correct if the best one is, N×K.

    Returns:
        One `Decision` per match, N×K. The first column has the decisions on the answers; no other is better.

    Raises:
        KappaPlaceError: If shapes disagree.
    """
    bounded = match_probabilities(probability, pairs, apart)
    if np.shape(decisions) != bounded.shape[:1]:
        raise KappaPlaceError(
            f"Decisions on matches need one answer per row, got {len(decisions)} for {len(bounded)} "
            f"rows. Pass arrays of the same retrieval."
        )
    answer = np.array([list(Decision).index(Decision(each)) for each in decisions], dtype=np.int64)
    level = np.maximum(pair_rule(rule)._levels(bounded), answer[:, None])
    level[:, 0] = answer
    return np.asarray(_DECISIONS[level], dtype=object)
