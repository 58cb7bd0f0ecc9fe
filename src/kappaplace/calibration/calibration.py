"""A calibration as one thing: score → probability, decision, and a watch on drift. What a map keeps.

calibration = fit_calibration(features, right, ["margin", "aliasing"], outside=no_positive, max_risk=0.05)
calibration.probability(new_features), calibration.decide(new_features)
text = json.dumps(calibration.to_dict())

What a calibration says of a retrieval: from the scores of the evidence to probabilities and decisions.

The same numbers reach the calibration when it is fitted and when it is used, because both come from here.
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

from kappaplace.calibration.combination import Combination, Signal, features_of, fit_signal
from kappaplace.calibration.decision import (
    REJECT_RISK,
    SELF_CALIBRATED,
    DecisionRule,
    fit_rule_for_rate,
    rule_by_probability,
)
from kappaplace.calibration.drift import Sketch
from kappaplace.calibration.outside import OutsideAware, fit_outside_aware
from kappaplace.calibration.risk import RiskRefused
from kappaplace.calibration.splits import Split, split_queries
from kappaplace.checks import Bools, Floats, Rows, booleans, finite, stored
from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.evidence import Evidence
from kappaplace.uncertainty import SCORES, available, score_named
from kappaplace.uncertainty.score import Score

FORMAT = 1
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

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        parts = {key: getattr(self, key) for key in _PARTS}
        return {
            "format": FORMAT,
            **{key: None if part is None else part.to_dict() for key, part in parts.items()},
            "outside_rate": self.outside_rate,
            "facts": dict(self.facts),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibration:
        """The inverse of `to_dict`."""
        number = values.get("format") if isinstance(values, Mapping) else None
        if number != FORMAT:
            raise KappaPlaceError(
                f"A calibration of format {number} cannot be read, this version knows format {FORMAT}; "
                "calibrate again."
            )
        try:
            return cls._from_parts(
                stored(values, {"format", *_PARTS, "outside_rate", "facts"}, "calibration")
            )
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise KappaPlaceError(f"A stored calibration is damaged ({error}); calibrate again.") from None

    @classmethod
    def _from_parts(cls, parts: Mapping[str, Any]) -> Calibration:
        if parts["top"] is None or parts["right"] is None:
            raise KappaPlaceError("A stored calibration lacks its score or its calibrator; calibrate again.")
        read: dict[str, Any] = {}
        for key, kind in _PARTS.items():
            read[key] = None if parts[key] is None else kind.from_dict(parts[key])
        rate = parts["outside_rate"]
        stated = None if rate is None else float(finite(rate, "stored share from outside"))
        return cls(**read, outside_rate=stated, facts=dict(parts["facts"]))

    def _rate(self, outside_rate: float | None) -> float | None:
        return self.outside_rate if outside_rate is None else outside_rate


_PARTS: dict[str, Any] = {
    "top": Signal,
    "right": OutsideAware,
    "pair": Signal,
    "pair_right": OutsideAware,
    "rule": DecisionRule,
    "sketch": Sketch,
}


def fit_calibration(
    features: NDArray[np.floating],
    success: NDArray[np.bool_],
    scores: Sequence[str],
    *,
    combination: Combination | None = None,
    pair_features: NDArray[np.floating] | None = None,
    pair_success: NDArray[np.bool_] | None = None,
    pair_scores: Sequence[str] = (),
    outside: NDArray[np.bool_] | None = None,
    outside_rate: float | None = None,
    calibrator: str = "best",
    max_risk: float | None = 0.05,
    confidence: float = 0.95,
    reject_risk: float | None = REJECT_RISK,
    method: str = "fixed-sequence",
    labelled: bool = True,
    groups: NDArray[Any] | None = None,
    fit_share: float = 0.5,
    seed: int = 0,
    signals: Mapping[str, NDArray[np.floating]] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Calibration:
    """Split, fit and set thresholds in one call.

    Args:
        features: Scores of each query, N×F in the order of ``scores``; N will do for one.
        success: Whether the top match of each query is right.
        scores: Names of the scores; several are combined by logistic regression on the fitting split.
        combination: One that was fitted elsewhere, to be used instead.
        pair_features: Match-level scores N×K×F (or N×K), with ``pair_success`` N×K and ``pair_scores``.
        outside: Which queries have no positive in the map at all.
        outside_rate: Their share in use; None: as among these queries.
        calibrator: A name of `CALIBRATORS`, or "best".
        max_risk: Share of errors allowed among the accepted; None: no decisions, and every query
            is fitted on.
        labelled: False for self-calibration, which never carries a guarantee; where the sample cannot
            support the risk, it then decides by the probability instead of refusing.
        groups: A place, route or day of each query; groups are never split.
        signals: Further values of each query to watch for drift, such as κ.
        facts: What else to keep: the date, the model, where the queries came from.

    >>> uncertainty = np.linspace(0, 1, 400)
    >>> made = fit_calibration(uncertainty, uncertainty < 0.7, ["margin"], max_risk=0.1)
    >>> [str(decision) for decision in made.decide(np.array([0.1, 0.95]))]
    ['accept', 'reject']
    """
    right = booleans(success, np.shape(success), "outcomes (right or wrong)")
    if right.ndim != 1:
        raise KappaPlaceError(f"Outcomes are one boolean a query, got the shape {right.shape}.")
    out = None if outside is None else booleans(outside, right.shape, "marks of outside")
    parts = split_queries(len(right), groups, seed, fit_share=fit_share)
    if max_risk is None:  # no threshold will be set, so that no query has to be kept apart for it
        parts = Split(np.arange(len(right)), np.arange(0))
    top = fit_signal(features, right, tuple(scores), combination, parts.fit, 1)
    uncertainty = top.uncertainty(features, 1)
    probability = fit_outside_aware(
        uncertainty[parts.fit], right[parts.fit], _take(out, parts.fit), calibrator=calibrator, seed=seed
    )
    if outside_rate is not None:
        probability.probability(uncertainty[:1], outside_rate)  # a wrong share is refused here, not in use
    pair, pair_right = None, None
    if pair_features is not None:
        pair, pair_right = _fit_pairs(
            pair_features, pair_success, tuple(pair_scores), out, len(right), parts.fit, calibrator, seed
        )
    rule = None
    if max_risk is not None:
        options: dict[str, Any] = {"reject_risk": reject_risk, "method": method}
        values, won, lost = (_take(part, parts.threshold) for part in (uncertainty, right, out))
        asked = (outside_rate, max_risk, confidence, labelled, len(right), seed)
        rule = _fit_rule(values, won, lost, *asked, options)
    counts = {
        "queries": len(right),
        "right": int(right.sum()),
        "outside": None if out is None else int(out.sum()),
        "fitted_on": len(parts.fit),
        "thresholds_on": len(parts.threshold),
        "labelled": labelled,
        "calibrator": probability.right.name,
        "seed": seed,
    }
    sketch = Sketch.of({**(signals or {}), UNCERTAINTY: uncertainty})
    return Calibration(
        top, probability, pair, pair_right, rule, sketch, outside_rate, {**counts, **(facts or {})}
    )


def _fit_rule(
    uncertainty: Any,
    right: Any,
    outside: Any,
    outside_rate: float | None,
    max_risk: float,
    confidence: float,
    labelled: bool,
    queries: int,
    seed: int,
    options: dict[str, Any],
) -> DecisionRule:
    """A proven rule; without labels, one by probability where nothing can be proven."""
    try:
        return fit_rule_for_rate(
            uncertainty, right, outside, outside_rate, max_risk, confidence, labelled, queries, seed, options
        )
    except RiskRefused:
        if labelled:
            raise
        return rule_by_probability(max_risk, options["reject_risk"], assumptions=(SELF_CALIBRATED,))


def _fit_pairs(
    features: Any,
    success: Any,
    scores: tuple[str, ...],
    outside: Bools | None,
    queries: int,
    rows: Rows,
    calibrator: str,
    seed: int,
) -> tuple[Signal, OutsideAware]:
    hits = booleans(success, np.shape(success), "outcomes of pairs")
    if hits.ndim != 2 or len(hits) != queries:
        raise KappaPlaceError(
            f"Outcomes of pairs are one row a query ({queries:,}), got the shape {hits.shape}."
        )
    signal = fit_signal(features, hits, scores, None, rows, 2)
    values = signal.uncertainty(features, 2)[rows]
    per_query = hits.shape[1]
    fitted = fit_outside_aware(
        values.ravel(),
        hits[rows].ravel(),
        None if outside is None else np.repeat(outside[rows], per_query),
        calibrator=calibrator,
        groups=np.repeat(np.arange(len(rows)), per_query),
        seed=seed,
    )
    return signal, fitted


def _take(values: Any, rows: Rows) -> Any:
    return None if values is None else values[rows]


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
