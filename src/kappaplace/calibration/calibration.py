"""Calibrations: from the scores of a retrieval to probabilities and decisions. What a map keeps.

The same numbers reach a calibration when it is fitted and when it is used, because both come from here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.combination import Signal, features_of
from kappaplace.calibration.decision import (
    DecisionRule,
)
from kappaplace.calibration.drift import Sketch
from kappaplace.calibration.outside import OutsideAware
from kappaplace.checks import Floats
from kappaplace.errors import KappaPlaceError
from kappaplace.records import from_plain, to_plain
from kappaplace.retrieval.evidence import Evidence
from kappaplace.types import Json
from kappaplace.uncertainty import SCORES, available, score_named
from kappaplace.uncertainty.base import Score

FORMAT = 1
RERANK = "verify"
"""The stored fact that `Calibration.rerank` reads."""
UNCERTAINTY = "uncertainty"
"""The signal that every drift sketch holds beside those of the caller."""


@dataclass(frozen=True)
class Calibration:
    """Everything that turns scores into probabilities and decisions; see `fit_calibration`."""

    top: Signal
    """The uncertainty of a query's top match."""
    right: OutsideAware
    """That the top match is right."""
    pair: Signal | None = None
    """The uncertainty of any match."""
    pair_right: OutsideAware | None = None
    """That a match is right."""
    rule: DecisionRule | None = None
    """None where no decisions were asked for."""
    sketch: Sketch | None = None
    """For `DriftMonitor`."""
    outside_rate: float | None = None
    """Stated share of queries from outside the map; None: as among the queries of calibration."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """How it was fitted, in plain values."""

    @property
    def rerank(self) -> int:
        """Number of matches that were compared patch by patch when it was fitted."""
        return int(self.facts.get(RERANK, 0))

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the query-level scores, in the order of the feature columns."""
        return self.top.scores

    @cached_property
    def fingerprint(self) -> str:
        """Tells this calibration from others: answers carry it, and a drift monitor asks for it."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def pair_scores(self) -> tuple[str, ...]:
        """Names of the match-level scores; empty without a pair calibrator."""
        return () if self.pair is None else self.pair.scores

    def uncertainty(self, features: Any) -> Floats:
        """One a query, N, from features N×F in the order of ``scores`` (or N for one score)."""
        return self.top.uncertainty(features, 1)

    def probability(self, features: Any, outside_rate: float | None = None) -> Floats:
        """That the top match is right, N; being outside the map counts as wrong."""
        return self.right.probability(self.uncertainty(features), self._rate(outside_rate))

    def inside_probability(self, features: Any, outside_rate: float | None = None) -> Floats | None:
        """That a query was taken inside the map, N; None where no example from outside was seen."""
        return self.right.inside_probability(self.uncertainty(features), self._rate(outside_rate))

    def pair_probability(self, features: Any, outside_rate: float | None = None) -> Floats:
        """That each match is right, N×K, from features N×K×F (or N×K for one score)."""
        if self.pair is None or self.pair_right is None:
            raise KappaPlaceError("This calibration knows nothing of single matches; fit it with pairs.")
        uncertainty = self.pair.uncertainty(features, 2)
        return self.pair_right.probability(uncertainty, self._rate(outside_rate))

    def decide(self, features: Any) -> NDArray[np.object_]:
        """One `Decision` a query, N. The rule was fitted for the stated share of queries from outside."""
        if self.rule is None:
            raise KappaPlaceError("This calibration has no decision rule; calibrate with a risk.")
        uncertainty = self.uncertainty(features)
        probability = self.right.probability(uncertainty, self.outside_rate)
        return self.rule.decide(uncertainty=uncertainty, probability=probability)

    def to_dict(self) -> dict[str, Json]:
        """Return plain values for JSON."""
        return {"format": FORMAT, **to_plain(self)}

    @classmethod
    def from_dict(cls, values: Json) -> Calibration:
        """Read what `to_dict` returned.

        Raises:
            KappaPlaceError: If something is missing or makes no sense.
        """
        number = values.get("format") if isinstance(values, Mapping) else None
        if number != FORMAT or not isinstance(values, Mapping):
            raise KappaPlaceError(
                f"A calibration of format {number} cannot be read, this version knows format {FORMAT}; "
                "calibrate again."
            )
        parts = {key: part for key, part in values.items() if key != "format"}
        try:
            return from_plain(cls, parts)
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise KappaPlaceError(f"A stored calibration is damaged ({error}); calibrate again.") from None

    def _rate(self, outside_rate: float | None) -> float | None:
        return self.outside_rate if outside_rate is None else outside_rate


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
