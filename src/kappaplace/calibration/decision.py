"""Accept, doubtful or reject: two thresholds, each with its own risk.

Accepted answers are wrong in at most ``max_risk`` of the cases; rejected ones would have been right in at
most ``reject_risk`` of them; what lies between is doubtful: slow down, or ask another sensor. Both thresholds
come from `control_risk`, the second with the roles of right and wrong, and both ends of the score, exchanged.

What to do with the matches below the best one.

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
NO_GUARANTEE = "No guarantee: these thresholds are an estimate, not a proof."
SELF_CALIBRATED = (
    "Self-calibrated on degraded images of the map itself, not on labelled queries: the share of errors in "
    "use may be higher."
)


class Decision(str, Enum):
    """What to do with an answer."""

    ACCEPT = "accept"
    DOUBTFUL = "doubtful"
    REJECT = "reject"

    def __str__(self) -> str:
        return self.value  # NumPy compares an array with a member by its text


_DECISIONS = np.array([Decision.ACCEPT, Decision.DOUBTFUL, Decision.REJECT], dtype=object)


@dataclass(frozen=True)
class DecisionRule:
    """Two thresholds and what they promise."""

    on: str
    """What the thresholds are on: "uncertainty" or "probability"."""
    accept_at: float
    """Accept an uncertainty not above, or a probability not below this; never so that all are accepted."""
    reject_at: float
    """Reject an uncertainty not below, or a probability not above this; infinite: reject none."""
    accepted: RiskThreshold | None = None
    """How the first threshold was proven; None where it was not."""
    rejected: RiskThreshold | None = None
    """The same of the second: its errors are right answers, its threshold is on −uncertainty."""
    guaranteed: bool = False
    """Whether the accepted risk is promised; never for self-calibration."""
    assumptions: tuple[str, ...] = ()
    """What the promise rests on, or why there is none, in sentences."""

    def __post_init__(self) -> None:
        if self.on not in (UNCERTAINTY, PROBABILITY):
            raise KappaPlaceError(f"A decision rule is on uncertainty or probability, not on '{self.on}'.")
        if np.isnan(self.accept_at) or np.isnan(self.reject_at):
            raise KappaPlaceError("The thresholds of a decision rule must be numbers, got NaN.")
        accept, reject = self._signed(self.accept_at), self._signed(self.reject_at)
        if accept == np.inf:
            raise KappaPlaceError(
                f"A decision rule cannot accept every answer, got the threshold {self.accept_at:g} of "
                f"{self.on}. Calibrate again."
            )
        if accept >= reject and reject < np.inf:
            raise KappaPlaceError(
                f"A decision rule cannot accept up to {self.accept_at:g} and reject from {self.reject_at:g} "
                f"of {self.on}: the two overlap."
            )
        if self.guaranteed and self.accepted is None:
            raise KappaPlaceError("A decision rule can only guarantee a risk that was tested; fit it again.")

    def decide(self, *, uncertainty: Any = None, probability: Any = None) -> NDArray[np.object_]:
        """One `Decision` for each value, of the same shape; give at least what the rule is on."""
        given = uncertainty if self.on == UNCERTAINTY else probability
        if given is None:
            raise KappaPlaceError(f"This rule decides by {self.on}; give that.")
        values = self._signed(finite(given, "values to decide on"))
        beyond = (values > self._signed(self.accept_at)).astype(int) + (
            values >= self._signed(self.reject_at)
        )
        return np.asarray(_DECISIONS[beyond], dtype=object)

    def promise(self) -> list[str]:
        """What the rule promises and on what terms, in sentences for people."""
        lines = []
        if (proof := self.accepted) is not None:
            verb = "are" if self.guaranteed else "were, on the examples it was fitted on,"
            lines.append(
                f"Accepted answers {verb} wrong in at most {percent(proof.max_risk)} of the cases, with "
                f"{percent(proof.confidence)} confidence; expect {percent(proof.coverage)} of the queries to "
                "be accepted."
            )
        if self.rejected is not None:
            lines.append(
                f"Rejected answers would have been right in at most {percent(self.rejected.max_risk)} of the "
                f"cases; expect {percent(self.rejected.coverage)} of the queries to be rejected."
            )
        if not self.guaranteed:
            lines.append(NO_GUARANTEE)
        return [*lines, *self.assumptions]

    def _signed(self, values: Any) -> Any:
        """Higher is worse."""
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
    """Thresholds on the uncertainty from labelled queries that nothing else was fitted on.

    Refuses (`RiskRefused`) where the accepted risk cannot be supported. Where only the second threshold
    cannot, or with ``reject_risk=None``, nothing is rejected, and the assumptions say so.
    """
    scores, right = outcomes(uncertainty, success)
    accepted = control_risk(scores, right, max_risk, confidence, method, slack=slack)
    notes = [accepted.assumptions, *assumptions]
    rejected = None
    if reject_risk is not None and accepted.accepted < len(scores):
        try:
            # Strictly beyond what is accepted: the walk may stop earlier, all that passed holds.
            rejected = control_risk(
                -scores, ~right, reject_risk, confidence, method, below=-accepted.threshold, slack=slack
            )
        except RiskRefused as refusal:
            enough = f"; about {refusal.needed:,} would be needed" if refusal.needed else ""
            notes.append(
                f"Nothing is rejected: that at most {percent(reject_risk)} of the rejected would have been "
                f"right cannot be promised from these {len(right):,} labelled queries{enough}."
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
    """Without a proof: accept each answer whose own probability is at least 1 − ``max_risk``.

    That is stricter than it need be (each answer, not their average, keeps to the limit), and as good as the
    probabilities are.
    """
    share(max_risk, "risk")
    if reject_risk is not None and not share(reject_risk, "risk of rejecting") < 1 - max_risk:
        raise KappaPlaceError(
            f"Accepting from a probability of {1 - max_risk:g} and rejecting up to {reject_risk:g} overlap; "
            "choose a lower risk."
        )
    reject_at = -np.inf if reject_risk is None else float(reject_risk)
    return DecisionRule(PROBABILITY, 1 - max_risk, reject_at, assumptions=assumptions)


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


def match_probabilities(probability: ArrayLike, pairs: ArrayLike, apart: ArrayLike) -> Floats:
    """Return one probability per match: the one that decides.

    Args:
        probability: Probability that each answer, the best match, is correct, N.
        pairs: Probability of each match by itself, N×K.
        apart: Matches that cannot be correct if the best one is, N×K.

    Returns:
        N×K: that of the answer for the best match; a match elsewhere has at most what the answer leaves.
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
        rule: That of the answers.
        decisions: Decisions on the answers, N.
        probability: Probability that each answer is correct, N.
        pairs: Probability of each match, N×K.
        apart: Matches that cannot be correct if the best one is, N×K.

    Returns:
        One `Decision` per match, N×K. The first column has the decisions on the answers; no other is better.
    """
    bounded = match_probabilities(probability, pairs, apart)
    if np.shape(decisions) != bounded.shape[:1]:
        raise KappaPlaceError(
            f"Decisions on matches need one answer per row, got {len(decisions)} for {len(bounded)} rows."
        )
    answer = np.array([_WORSE[Decision(each)] for each in decisions], dtype=np.int64)
    own = pair_rule(rule).decide(probability=bounded)
    level = np.vectorize(_WORSE.__getitem__, otypes=[np.int64])(own)
    level = np.maximum(level, answer[:, None])
    level[:, 0] = answer
    return np.asarray(_ORDER[level], dtype=object)
