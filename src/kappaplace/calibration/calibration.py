"""Calibrations: from the scores of a retrieval to probabilities and decisions.

Fitting and using a calibration compute scores with the same functions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kappaplace.calibration.candidates import NO_CANDIDATES, Candidates, PlaceSet, place_sets
from kappaplace.calibration.combination import Signal, features_of
from kappaplace.calibration.decision import Decision, DecisionRule
from kappaplace.calibration.domain import Domain, domain_signals
from kappaplace.calibration.drift import Sketch
from kappaplace.calibration.groups import UNGROUPED, GroupRules, Quarter
from kappaplace.calibration.outside import OutsideAware
from kappaplace.calibration.radius import RadiusModel
from kappaplace.checks import Bools, Floats
from kappaplace.errors import KappaPlaceError
from kappaplace.records import from_plain, optional, to_plain
from kappaplace.retrieval.agreement import AGREEMENT
from kappaplace.retrieval.evidence import Evidence
from kappaplace.types import Json
from kappaplace.uncertainty import SCORES, available, score_named
from kappaplace.uncertainty.base import Score

FORMAT = 1
RERANK = "verify"
"""Key of the fact in which earlier versions stored `Calibration.rerank`."""
UNCERTAINTY = "uncertainty"
"""Name of the signal that every drift sketch contains, in addition to those of the caller."""


@dataclass(frozen=True)
class Calibration:
    """Fitted functions that turn scores into probabilities and decisions; see `fit_calibration`."""

    top: Signal
    """The uncertainty of a query's top match."""
    right: OutsideAware
    """Probability that the top match is correct."""
    pair: Signal | None = None
    """The uncertainty of any match."""
    pair_right: OutsideAware | None = None
    """Probability that a match is correct."""
    rule: DecisionRule | None = None
    """Decision rule. None if no decisions were requested."""
    sketch: Sketch | None = None
    """Distribution of the signals of the calibration queries, for `DriftMonitor`."""
    outside_rate: float | None = None
    """Expected fraction of out-of-map queries. None for the fraction among the calibration queries."""
    facts: Mapping[str, Json] = field(default_factory=dict)
    """Facts about the fit, such as the date and the model, as plain values."""
    rerank: int = field(default=0, metadata=optional())
    """Number of top matches that were re-ranked by patch matching at calibration."""
    domain: Domain | None = field(default=None, metadata=optional())
    """Signals of correctly answered calibration queries; None in files of earlier versions."""
    plain: Calibration | None = field(default=None, metadata=optional())
    """Calibration without patch matching, for queries or maps whose images are not available."""
    radius: RadiusModel | None = field(default=None, metadata=optional())
    """Errors of positions; None if the true positions of the calibration queries are unknown."""
    candidates: Candidates | None = field(default=None, metadata=optional())
    """Scores for candidate sets; None if the correct place of incorrectly answered queries is unknown."""
    groups: GroupRules | None = field(default=None, metadata=optional())
    """Decision rules per group of queries; None to decide all queries by ``rule``."""
    difficulty: tuple[Quarter, ...] = field(default=(), metadata=optional())
    """Results by quarter of uncertainty, easiest first, on queries that nothing was fitted on."""
    agreement: int = field(default=1, metadata=optional())
    """Version of the patch agreement at calibration, see `kappaplace.retrieval.agreement.AGREEMENT`."""

    @property
    def outdated(self) -> bool:
        """Whether it was fitted with another version of the patch agreement, whose values differ."""
        return self.rerank > 0 and self.agreement != AGREEMENT

    def check_patches(self) -> None:
        """Raise an error if the calibration is `outdated`."""
        if self.outdated:
            raise KappaPlaceError(
                "The calibration was fitted with an earlier version of patch matching, whose values differ. "
                "Calibrate again."
            )

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the query-level scores, in the order of the feature columns."""
        return self.top.scores

    @cached_property
    def fingerprint(self) -> str:
        """Identifier of this calibration in answers and drift monitors."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def pair_scores(self) -> tuple[str, ...]:
        """Names of the match-level scores; empty if single matches were not calibrated."""
        return () if self.pair is None else self.pair.scores

    def uncertainty(self, features: ArrayLike) -> Floats:
        """Return the uncertainty of each query.

        Args:
            features: Scores of each query, N×F in the order of ``scores`` (or N for one score).

        Returns:
            One value per query (N); higher is less certain.
        """
        return self.top.uncertainty(features, 1)

    def probability(self, features: ArrayLike, outside_rate: float | None = None) -> Floats:
        """Return the probability that each top match is correct.

        Args:
            features: Scores of each query, N×F.
            outside_rate: Expected fraction of out-of-map queries, which count as incorrect. Default: the
                fraction at calibration.

        Returns:
            One probability per query (N).
        """
        return self.right.probability(self.uncertainty(features), self._rate(outside_rate))

    def inside_probability(self, features: ArrayLike, outside_rate: float | None = None) -> Floats | None:
        """Return the probability that each query was taken inside the map.

        Args:
            features: Scores of each query, N×F.
            outside_rate: Expected fraction of out-of-map queries. Default: the fraction at calibration.

        Returns:
            One probability per query (N); None if no out-of-map query was among the examples.
        """
        return self.right.inside_probability(self.uncertainty(features), self._rate(outside_rate))

    def pair_probability(self, features: ArrayLike, outside_rate: float | None = None) -> Floats:
        """Return the probability that each match is correct.

        Args:
            features: Scores of each match, N×K×F (or N×K for one score).
            outside_rate: Expected fraction of out-of-map queries. Default: the fraction at calibration.

        Returns:
            One probability per match, N×K.

        Raises:
            KappaPlaceError: If the calibration was fitted without single matches.
        """
        if self.pair is None or self.pair_right is None:
            raise KappaPlaceError(
                "This calibration has no probabilities of single matches. Fit it again with pairs."
            )
        uncertainty = self.pair.uncertainty(features, 2)
        return self.pair_right.probability(uncertainty, self._rate(outside_rate))

    def decide(self, features: ArrayLike) -> NDArray[np.object_]:
        """Return a `Decision` for each query. The rule was set for the ``outside_rate`` of the calibration.

        Args:
            features: Scores of each query, N×F.

        Returns:
            One decision per query (N).

        Raises:
            KappaPlaceError: If the calibration has no decision rule.
        """
        if self.rule is None:
            raise KappaPlaceError("This calibration has no decision rule. Calibrate with a maximum risk.")
        uncertainty = self.uncertainty(features)
        probability = self.right.probability(uncertainty, self.outside_rate)
        return self.rule.decide(uncertainty=uncertainty, probability=probability)

    def to_dict(self) -> dict[str, Json]:
        """Return plain values for JSON.

        Returns:
            The values, which `from_dict` accepts.
        """
        values = to_plain(self)
        # From an earlier version: it is written unchanged, so that the fingerprint stays the same.
        if RERANK in self.facts:
            values.pop("rerank", None)
        return {"format": FORMAT, **values}

    @classmethod
    def from_dict(cls, values: Json) -> Calibration:
        """Read a calibration from the plain values that `to_dict` returned.

        Args:
            values: Plain values.

        Returns:
            The calibration.

        Raises:
            KappaPlaceError: If something is missing or invalid.
        """
        number = values.get("format") if isinstance(values, Mapping) else None
        if number != FORMAT or not isinstance(values, Mapping):
            raise KappaPlaceError(
                f"The calibration must have format {FORMAT}, got {number}. Calibrate again."
            )
        parts = {key: part for key, part in values.items() if key != "format"}
        try:
            facts = parts.get("facts")
            if isinstance(facts, Mapping) and RERANK in facts:
                parts["rerank"] = facts[RERANK]
            parts["rule"] = _finite_rule(parts.get("rule"), parts.get("sketch"))
            return from_plain(cls, parts)
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise KappaPlaceError(f"The stored calibration is damaged ({error}). Calibrate again.") from None

    def _rate(self, outside_rate: float | None) -> float | None:
        return self.outside_rate if outside_rate is None else outside_rate


def _finite_rule(rule: Json, sketch: Json) -> Json:
    """Return the stored decision rule.

    Earlier versions wrote rules that accept everything. Such a rule now accepts up to the largest uncertainty
    of the calibration queries.
    """
    if not isinstance(rule, Mapping) or rule.get("accept_at") != "inf" or not isinstance(sketch, Mapping):
        return rule
    values = sketch.get("values")
    largest = values.get(UNCERTAINTY) if isinstance(values, Mapping) else None
    return {**rule, "accept_at": largest[-1]} if isinstance(largest, list) else rule


QUERY_SIGNALS = ("cosine", "pa", "margin", "aliasing", "z-score", "inverse-kappa", "kappaplace")
PAIR_SIGNALS = ("cosine", "kappaplace")
PATCH_SIGNALS = ("patches", "patch-margin")
"""Available if the top matches were re-ranked by patch matching."""


@dataclass(frozen=True, eq=False)
class Judgment:
    """Probabilities and decisions of queries. Without a calibration, all but the uncertainty are None."""

    uncertainty: Floats
    """N."""
    probability: Floats | None = None
    """Probability that the top match is correct (N)."""
    inside: Floats | None = None
    """Probability that the query was taken inside the map (N)."""
    decision: list[str] | None = None
    """Decision on each query (N); never accept if ``reasons`` has a reason for the query."""
    pairs: Floats | None = None
    """Probability that each match is correct, N×K."""
    reasons: tuple[str, ...] = ()
    """How each query differs from the calibration queries, so that its probability does not apply; empty if
    it applies."""
    guaranteed: Bools | None = None
    """Whether the risk of accepting is guaranteed (N)."""
    candidates: tuple[PlaceSet, ...] | None = None
    """Candidate set of each query; None unless a coverage was requested."""
    notes: tuple[str, ...] = ()
    """Note on the group of each query (N), empty if there is none to give; no notes without groups."""


def judge(
    evidence: Evidence,
    calibration: Calibration | None,
    *,
    outside_rate: float | None = None,
    bank: Domain | None = None,
    coverage: float | None = None,
    group: str | None = None,
) -> Judgment:
    """Turn the scores of a retrieval into probabilities and decisions.

    A query that is unlike the correctly answered calibration queries is never accepted, because its
    probability was not calibrated on anything like it.

    Args:
        evidence: Results of the retrieval.
        calibration: The calibration. None: return only the uncertainty.
        outside_rate: Expected fraction of out-of-map queries. Default: the fraction at calibration.
        bank: Correctly answered queries of other maps. If the calibration has too few queries of its own, a
            query must be like both, and nothing is guaranteed.
        coverage: Probability that the candidate set of a query contains its correct place. Default: no sets.
        group: Group of the queries, if the calibration has groups by a column. Default: unknown.

    Returns:
        One value per query, and one per match if the calibration was fitted on pairs.

    Raises:
        KappaPlaceError: If the calibration was fitted with an earlier version of patch matching.
        KappaPlaceError: If the calibration does not support the coverage or the group.
    """
    if group is not None and (calibration is None or calibration.groups is None):
        raise KappaPlaceError(UNGROUPED)
    if coverage is not None and calibration is None:
        raise KappaPlaceError(NO_CANDIDATES)
    if calibration is None:
        return Judgment(plain_score(evidence).query(evidence))
    calibration.check_patches()
    uncertainty = calibration.uncertainty(query_features(evidence, calibration.scores))
    domain = calibration.domain
    conclusive = domain is not None and domain.conclusive
    reasons = _reasons(evidence, calibration, bank)
    decision = pairs = guaranteed = sets = None
    notes: tuple[str, ...] = ()
    if (rule := calibration.rule) is not None:  # the rule was set for the rate of the calibration
        expected = calibration.right.probability(uncertainty, calibration.outside_rate)
        decided = rule.decide(uncertainty=uncertainty, probability=expected)
        valid = np.full(len(decided), rule.guaranteed)
        if (groups := calibration.groups) is not None:
            members = groups.members(lambda: evidence.query_kappa, len(decided), group)
            decided, own = groups.decide(members, uncertainty, expected)
            valid, notes = valid & own, tuple(groups.note(member) for member in members)
        decision = [
            Decision.DOUBTFUL.value if reason and each == Decision.ACCEPT else each.value
            for each, reason in zip(decided, reasons, strict=True)
        ]
        guaranteed = valid & np.array([conclusive and not reason for reason in reasons])
    if calibration.pair_scores:
        pairs = calibration.pair_probability(pair_features(evidence, calibration.pair_scores), outside_rate)
    if coverage is not None:  # like the rule, the scores hold for the rate of the calibration
        labeled = bool(calibration.facts.get("labelled", True))
        sets = place_sets(
            evidence,
            calibration.candidates,
            coverage,
            uncertainty,
            calibration.right,
            calibration.outside_rate,
            np.array([labeled and not reason for reason in reasons]),
        )
    rate = calibration.outside_rate if outside_rate is None else outside_rate
    return Judgment(
        uncertainty,
        calibration.right.probability(uncertainty, rate),
        calibration.right.inside_probability(uncertainty, rate),
        decision,
        pairs,
        reasons,
        guaranteed,
        sets,
        notes,
    )


def _reasons(evidence: Evidence, calibration: Calibration, bank: Domain | None) -> tuple[str, ...]:
    """Return how each query differs from the correctly answered ones; empty if it does not."""
    own, labeled = calibration.domain, bool(calibration.facts.get("labelled", True))
    # Few queries leave out much of what is different, and degraded images, which a calibration without labels
    # was fitted on, resemble junk: then both domains must agree.
    alone = own is not None and own.conclusive and labeled
    domains = [domain for domain in (own, None if alone else bank) if domain is not None]
    if not domains:
        return ("",) * len(evidence.top)
    signals = domain_signals(evidence)
    differences = zip(*(domain.differences(signals) for domain in domains), strict=True)
    return tuple(next(filter(None, reasons), "") for reasons in differences)


def plain_score(evidence: Evidence) -> Score:
    """Return the score used as uncertainty without a calibration: the score of κ, or the cosine."""
    return SCORES["kappaplace" if SCORES["kappaplace"].reason(evidence) is None else "cosine"]


def query_features(evidence: Evidence, names: Sequence[str]) -> Floats:
    """Return scores of each query as columns, N×F, in the order of ``names``."""
    return features_of(evidence, [score_named(name) for name in names])


def pair_features(evidence: Evidence, names: Sequence[str]) -> Floats:
    """Return scores of each match, N×K×F, in the order of ``names``."""
    return np.stack([_match(score_named(name), evidence) for name in names], axis=-1)


def usable_signals(evidence: Evidence, names: Sequence[str] = QUERY_SIGNALS) -> list[str]:
    """Return the names of those scores that can be computed from the evidence."""
    return [score.name for score in available([SCORES[name] for name in names], evidence)[0]]


def _match(score: Score, evidence: Evidence) -> Floats:
    if score.match is None:
        raise KappaPlaceError(f"The score '{score.name}' rates queries, not single matches. Choose another.")
    return score.match(evidence)
