"""Queries with outcomes, and the calibration that is fitted on them.

blocks.append(examples_of(evidence, right, outside))      # for every block of queries
calibration = fit_calibration(join(blocks), CalibrateOptions(max_risk=0.05))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.calibration import (
    PAIR_SIGNALS,
    PATCH_SIGNALS,
    RERANK,
    UNCERTAINTY,
    Calibration,
    pair_features,
    query_features,
    usable_signals,
)
from kappaplace.calibration.combination import Combination, Signal, fit_signal
from kappaplace.calibration.decision import (
    SELF_CALIBRATED,
    DecisionRule,
    fit_rule,
    rule_by_probability,
)
from kappaplace.calibration.drift import Sketch
from kappaplace.calibration.options import CalibrateOptions
from kappaplace.calibration.outside import OutsideAware, fit_outside_aware, thin_to_rate
from kappaplace.calibration.risk import RiskRefused
from kappaplace.calibration.splits import Split, split_queries
from kappaplace.checks import Bools, Floats, Rows, booleans, percent
from kappaplace.errors import KappaPlaceError
from kappaplace.metrics.probability import mass_bins
from kappaplace.retrieval.evidence import Evidence
from kappaplace.types import Json
from kappaplace.uncertainty import SCORES

Number = TypeVar("Number", bound=np.generic)
SCORES_FOR_TOP = ("cosine", "margin", "aliasing", "z-score", "inverse-kappa")
"""What the best combination is made of; κ is left out if the model has none."""
EACH_BIN = 20
"""Queries in a bin of the reliability that is kept with a calibration."""
DISTANCE = "cosine distance"
"""The score `cosine` by a name that says which way is worse, for messages that people read."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Queries with outcomes.

    Args:
        features: Scores of each query, N×F in the order of ``scores``; N will do for one.
        right: Whether the top match of each query is correct, N.
        scores: Names of the scores.
        pairs: Scores of each match, N×K×F (or N×K), with ``pair_right`` N×K and ``pair_scores``.
        outside: Which queries have no correct reference at all, N.
        groups: Place, route or day of each query; groups are never split.
        signals: Values of each query to watch for drift, such as κ.
        labelled: False for self-calibration, which never carries a guarantee.
        facts: What else to keep: the date, the model, where the queries came from.
        rerank: Number of matches that were compared patch by patch.
    """

    features: Floats
    right: Bools
    scores: Sequence[str]
    pairs: Floats | None = None
    pair_right: Bools | None = None
    pair_scores: Sequence[str] = ()
    outside: Bools | None = None
    groups: NDArray[np.int64] | None = None
    signals: Mapping[str, Floats] = field(default_factory=dict)
    labelled: bool = True
    facts: Mapping[str, Json] = field(default_factory=dict)
    rerank: int | None = None


def examples_of(
    evidence: Evidence,
    right: Bools,
    outside: Bools | None = None,
    groups: NDArray[np.int64] | None = None,
) -> Examples:
    """Return the scores of some queries with their outcomes.

    Args:
        evidence: What is known of the queries after retrieval.
        right: Whether each match is correct, N×K, or the top match alone, N.
        outside: Which queries have no correct reference at all, N.
        groups: Place of each query.
    """
    patches = evidence.agreement is not None
    scores = usable_signals(evidence, (*SCORES_FOR_TOP, *(PATCH_SIGNALS if patches else ())))
    features = query_features(evidence, scores)
    signals = {DISTANCE: features[:, scores.index("cosine")]}
    if SCORES["inverse-kappa"].reason(evidence) is None:
        signals["kappa"] = evidence.query_kappa
    if right.ndim == 1:
        return Examples(features, right, scores, outside=outside, groups=groups, signals=signals)
    pair_scores = usable_signals(evidence, (*PAIR_SIGNALS, *(PATCH_SIGNALS[:1] if patches else ())))
    pairs = pair_features(evidence, pair_scores)
    return Examples(features, right[:, 0], scores, pairs, right, pair_scores, outside, groups, signals)


def join(blocks: Sequence[Examples]) -> Examples:
    """Concatenate blocks of queries with the same scores."""
    first = blocks[0]
    return replace(
        first,
        features=np.concatenate([block.features for block in blocks]),
        right=np.concatenate([block.right for block in blocks]),
        pairs=_joined([block.pairs for block in blocks]),
        pair_right=_joined([block.pair_right for block in blocks]),
        outside=_joined([block.outside for block in blocks]),
        groups=_joined([block.groups for block in blocks]),
        signals={name: np.concatenate([block.signals[name] for block in blocks]) for name in first.signals},
    )


def _joined(parts: Sequence[NDArray[Number] | None]) -> NDArray[Number] | None:
    present = [part for part in parts if part is not None]
    return np.concatenate(present) if len(present) == len(parts) else None


def fit_calibration(
    examples: Examples, options: CalibrateOptions | None = None, *, combination: Combination | None = None
) -> Calibration:
    """Split the queries, fit score and probabilities on one part and thresholds on the other.

    Args:
        examples: Queries with outcomes.
        options: What is guaranteed and how.
        combination: A fitted combination of the scores. Default: logistic regression on the fitting part.

    Returns:
        Probabilities, decisions and a sketch of the queries for `DriftMonitor`.

    Raises:
        RiskRefused: If the labels cannot support the risk. Self-calibration then decides by the
            probability instead.
        KappaPlaceError: If shapes disagree, or all outcomes are the same.

    >>> uncertainty = np.linspace(0, 1, 400)
    >>> examples = Examples(uncertainty, uncertainty < 0.7, ["margin"])
    >>> calibration = fit_calibration(examples, CalibrateOptions(max_risk=0.1))
    >>> [str(decision) for decision in calibration.decide(np.array([0.1, 0.95]))]
    ['accept', 'reject']
    """
    options = options or CalibrateOptions()
    right = booleans(examples.right, np.shape(examples.right), "outcomes (right or wrong)")
    if right.ndim != 1:
        raise KappaPlaceError(f"Outcomes are one boolean a query, got the shape {right.shape}.")
    out = None if examples.outside is None else booleans(examples.outside, right.shape, "marks of outside")
    parts = split_queries(len(right), examples.groups, options.seed, fit_share=options.fit_share)
    if options.max_risk is None:  # no threshold will be set, so that no query has to be kept apart for it
        parts = Split(np.arange(len(right)), np.arange(0))
    top = fit_signal(examples.features, right, tuple(examples.scores), combination, parts.fit, 1)
    uncertainty = top.uncertainty(examples.features, 1)
    probability = fit_outside_aware(
        uncertainty[parts.fit],
        right[parts.fit],
        None if out is None else out[parts.fit],
        calibrator=options.calibrator,
        seed=options.seed,
    )
    if options.outside_rate is not None:
        probability.probability(uncertainty[:1], options.outside_rate)  # refuses an impossible rate now
    pair, pair_right = _fit_pairs(examples, out, parts.fit, options)
    rule = None
    if options.max_risk is not None:
        rows = parts.threshold
        part = replace(
            examples,
            features=uncertainty[rows],
            right=right[rows],
            outside=None if out is None else out[rows],
        )
        rule = _fit_rule(part, options, options.max_risk, len(right))
    counts: dict[str, Json] = {
        "queries": len(right),
        "right": int(right.sum()),
        "outside": None if out is None else int(out.sum()),
        "fitted_on": len(parts.fit),
        "thresholds_on": len(parts.threshold),
        "labelled": examples.labelled,
        "calibrator": probability.right.name,
        "seed": options.seed,
    }
    sketch = Sketch.of({**examples.signals, UNCERTAINTY: uncertainty})
    patches = {} if examples.rerank is None else {RERANK: examples.rerank}
    facts = {**counts, **examples.facts, **patches}
    return Calibration(top, probability, pair, pair_right, rule, sketch, options.outside_rate, facts)


def _fit_pairs(
    examples: Examples, outside: Bools | None, rows: Rows, options: CalibrateOptions
) -> tuple[Signal | None, OutsideAware | None]:
    """Fit on single matches; nothing where all of them are correct, or none."""
    if examples.pairs is None:
        return None, None
    given = np.asarray(examples.pair_right)
    hits = booleans(given, given.shape, "outcomes of pairs")
    if hits.ndim != 2 or len(hits) != len(examples.right):
        raise KappaPlaceError(
            f"Outcomes of pairs are one row a query ({len(examples.right):,}), got the shape {hits.shape}."
        )
    if hits.all() or not hits.any():
        return None, None
    signal = fit_signal(examples.pairs, hits, tuple(examples.pair_scores), None, rows, 2)
    values = signal.uncertainty(examples.pairs, 2)[rows]
    per_query = hits.shape[1]
    fitted = fit_outside_aware(
        values.ravel(),
        hits[rows].ravel(),
        None if outside is None else np.repeat(outside[rows], per_query),
        calibrator=options.calibrator,
        groups=np.repeat(np.arange(len(rows)), per_query),
        seed=options.seed,
    )
    return signal, fitted


def _fit_rule(part: Examples, options: CalibrateOptions, max_risk: float, queries: int) -> DecisionRule:
    """Set thresholds for the stated share of queries from outside the map.

    The risk of a threshold grows with that share, as all those queries are wrong; so without a stated one the
    promise holds up to the share of the sample. For a stated one the sample is thinned to it. Without labels,
    the rule goes by the probability where nothing can be proven.

    Args:
        part: Queries that nothing was fitted on; ``features`` is their uncertainty.
        options: What is guaranteed and how.
        max_risk: The risk that ``options`` state.
        queries: Number of all labelled queries, for what a refusal says.
    """
    uncertainty, right, outside, rate = part.features, part.right, part.outside, options.outside_rate
    notes = [] if part.labelled else [SELF_CALIBRATED]
    guaranteed, slack = part.labelled, 0.0
    if rate is None:
        seen = "" if outside is None else f" ({percent(float(outside.mean()))})"
        notes.append(f"Queries from outside the map may not be more frequent than at calibration{seen}.")
    elif outside is None or not outside.any():
        if rate > 0:
            guaranteed = False
            notes.append(
                "None of the queries at calibration was from outside the map, so nothing is proven for a "
                f"share of {percent(rate)} that is."
            )
        else:
            notes.append("Holds for queries from inside the map only.")
    else:
        slack = (1 - options.confidence) / 100
        rows = thin_to_rate(outside, rate, options.seed, slack=slack)
        if not len(rows):
            raise KappaPlaceError(
                f"Too few queries are from inside or outside the map for a share of {percent(rate)}."
            )
        uncertainty, right = uncertainty[rows], right[rows]
        notes.append(f"No more than {percent(rate)} of the queries may come from outside the map.")
    try:
        rule = fit_rule(
            uncertainty,
            right,
            max_risk,
            options.confidence,
            reject_risk=options.reject_risk,
            method=options.method,
            slack=slack,
            assumptions=tuple(notes),
        )
    except RiskRefused as refusal:
        if not part.labelled:
            return rule_by_probability(max_risk, options.reject_risk, assumptions=(SELF_CALIBRATED,))
        raise _in_all(refusal, len(uncertainty) / queries) from None
    return replace(rule, guaranteed=guaranteed)


def _in_all(refusal: RiskRefused, threshold_share: float) -> RiskRefused:
    """The same refusal, counted in all labelled queries; the thresholds had this share of them."""
    if refusal.needed is None:
        return refusal
    needed = int(np.ceil(refusal.needed / threshold_share))
    sentence = str(refusal).rstrip(".")
    return RiskRefused(
        f"{sentence}; with those that the score is fitted on, that is about {needed:,} labelled queries in "
        "all.",
        needed,
    )


def judged(examples: Examples, options: CalibrateOptions, calibration: Calibration) -> tuple[Floats, Bools]:
    """Return probabilities and outcomes of the queries that the probabilities were not fitted on.

    Those from outside are thinned to the share that the options state, so that both belong together.
    """
    right = examples.right
    outside = np.zeros(len(right), dtype=bool) if examples.outside is None else examples.outside
    rows = split_queries(len(right), examples.groups, options.seed).threshold
    if options.outside_rate is not None and outside[rows].any():
        rows = rows[thin_to_rate(outside[rows], options.outside_rate, options.seed)]
    return calibration.probability(examples.features[rows], options.outside_rate), right[rows]


def reliability(examples: Examples, options: CalibrateOptions, calibration: Calibration) -> list[list[float]]:
    """Return stated probability, observed accuracy and count of each bin, of the same queries."""
    stated, right = judged(examples, options, calibration)
    curve = mass_bins(stated, right, max(3, min(10, len(right) // EACH_BIN)))
    return [part.tolist() for part in (curve.probability, curve.observed, curve.counts)]
