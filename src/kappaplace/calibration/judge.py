"""What a calibration says of a retrieval: from the scores of the evidence to probabilities and decisions.

The same numbers reach the calibration when it is fitted and when it is used, because both come from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kappaplace.calibration.model import Calibration
from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.evidence import Evidence
from kappaplace.retrieval.references import Floats
from kappaplace.uncertainty.base import Score
from kappaplace.uncertainty.fused import features_of
from kappaplace.uncertainty.registry import SCORES, available, score_named

QUERY_SIGNALS = ("cosine", "pa", "margin", "aliasing", "z-score", "inverse-kappa", "kappaplace")
PAIR_SIGNALS = ("cosine", "kappaplace")
PATCH_SIGNALS = ("patches", "patch-margin")
"""Of queries whose first matches were compared patch by patch."""


@dataclass(frozen=True, eq=False)
class Judgement:
    """What a calibration says of some queries; all but the uncertainty is None without one."""

    uncertainty: Floats
    probability: Floats | None = None
    """That the top match is correct, N."""
    inside: Floats | None = None
    """That the query was taken inside the map, N."""
    decision: list[str] | None = None
    pairs: Floats | None = None
    """That each match is correct, N×K."""


def judge(
    evidence: Evidence, calibration: Calibration | None, *, outside_rate: float | None = None
) -> Judgement:
    """Turn the scores of a retrieval into probabilities and decisions.

    Args:
        evidence: What is known of the queries after retrieval.
        calibration: None for the plain uncertainty.
        outside_rate: Expected fraction of queries from outside the map. Default: as at calibration.

    Returns:
        One value per query, and one per match if the calibration was fitted on pairs.
    """
    if calibration is None:
        return Judgement(plain_score(evidence).query(evidence))
    uncertainty = calibration.uncertainty(query_features(evidence, calibration.scores))
    rate = calibration.outside_rate if outside_rate is None else outside_rate
    decision = pairs = None
    if calibration.rule is not None:  # the rule was fitted for the rate of the calibration
        stated = calibration.right.probability(uncertainty, calibration.outside_rate)
        decision = [
            each.value for each in calibration.rule.decide(uncertainty=uncertainty, probability=stated)
        ]
    if calibration.pair_scores:
        pairs = calibration.pair_probability(pair_features(evidence, calibration.pair_scores), outside_rate)
    return Judgement(
        uncertainty,
        calibration.right.probability(uncertainty, rate),
        calibration.right.inside_probability(uncertainty, rate),
        decision,
        pairs,
    )


def plain_score(evidence: Evidence) -> Score:
    """Return the score that stands for uncertainty without a calibration: κ's own, or the cosine."""
    return SCORES["kappaplace" if SCORES["kappaplace"].reason(evidence) is None else "cosine"]


def query_features(evidence: Evidence, names: Sequence[str]) -> Floats:
    """Return scores of each query as columns, N×F, in this order."""
    return features_of(evidence, [score_named(name) for name in names])


def pair_features(evidence: Evidence, names: Sequence[str]) -> Floats:
    """Return scores of each match, N×K×F, in this order."""
    return np.stack([_match(score_named(name), evidence) for name in names], axis=-1)


def usable_signals(evidence: Evidence, names: Sequence[str] = QUERY_SIGNALS) -> list[str]:
    """Return those of these scores that the evidence allows: without κ fewer, with one match fewer."""
    return [score.name for score in available([SCORES[name] for name in names], evidence)[0]]


def _match(score: Score, evidence: Evidence) -> Floats:
    if score.match is None:
        raise KappaPlaceError(f"The score {score.name} judges queries, not single matches; choose another.")
    return score.match(evidence)
