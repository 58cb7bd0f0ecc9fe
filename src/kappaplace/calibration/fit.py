"""Fit of a calibration on queries with outcomes.

    blocks.append(examples_of(evidence, right, outside))      # for every block of queries
    calibration = fit_calibration(join(blocks), CalibrateOptions(max_risk=0.05))

**Queries with counterparts.** If no labelled query is out-of-map, each one is searched twice. The first
search uses the whole map, the second the map without the query's place. The latter is a real out-of-map query
of the same camera. Score and probabilities are fitted on both. Thresholds are set on one of the two, sampled
at random with the expected fraction of out-of-map queries. So the queries remain independent, and the
guarantee exact.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kappaplace.calibration.calibration import (
    UNCERTAINTY,
    Calibration,
)
from kappaplace.calibration.calibrators import LEAST_QUERIES
from kappaplace.calibration.candidates import Candidates, correct_scores
from kappaplace.calibration.combination import Combination, Signal, fit_signal
from kappaplace.calibration.decision import (
    SELF_CALIBRATED,
    DecisionRule,
    fit_rule,
    rule_by_probability,
)
from kappaplace.calibration.domain import fit_domain
from kappaplace.calibration.drift import Sketch
from kappaplace.calibration.examples import Examples
from kappaplace.calibration.expected import by_difficulty
from kappaplace.calibration.groups import KAPPA, RANGES, GroupRules, Quarter, kappa_edges, kappa_groups
from kappaplace.calibration.options import OUTSIDE_RATE, CalibrateOptions, Split, split_queries
from kappaplace.calibration.outside import OutsideAware, fit_outside_aware, thin_to_rate
from kappaplace.calibration.radius import RadiusModel, fit_radius
from kappaplace.calibration.risk import RiskRefused, claim, needed_acceptances
from kappaplace.checks import Bools, Floats, Rows, booleans, percent
from kappaplace.errors import KappaPlaceError
from kappaplace.metrics.probability import mass_bins
from kappaplace.retrieval.agreement import AGREEMENT
from kappaplace.types import Json

SLACK = 1e-4
"""Probability that a random sample with an expected fraction of out-of-map queries is too small."""
EACH_BIN = 20
"""Number of queries per bin of the reliability curve that is stored with a calibration."""
FEW_INCORRECT = (
    "Probabilities were fitted on other places, because only {count} of the labelled answers are incorrect. "
    "Label at least {needed} incorrect or out-of-map queries to fit them on this map."
)
FEW_CORRECT = (
    "Answers are not guaranteed yet, because queries that differ from the correctly answered ones cannot be "
    "detected: {count} labelled queries were answered correctly, and {needed} are needed."
)


def fit_calibration(
    examples: Examples,
    options: CalibrateOptions | None = None,
    *,
    combination: Combination | None = None,
    prior: Calibration | None = None,
) -> Calibration:
    """Split the queries, fit score and probabilities on one part and thresholds on the other.

    Args:
        examples: Queries with outcomes.
        options: Options of the fit and of the guarantee.
        combination: A fitted combination of the scores. Default: logistic regression on the fitting part.
        prior: Calibration of other places with the same scores. If the examples have (nearly) only correct
            answers, its probabilities are used, and answers below 1 − risk are not accepted.

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
    options = _with_rate(examples, options or CalibrateOptions())
    right = booleans(examples.right, np.shape(examples.right), "outcomes (correct or incorrect)")
    if right.ndim != 1:
        raise KappaPlaceError(f"Outcomes must be one boolean per query, got shape {right.shape}.")
    out = None if examples.outside is None else booleans(examples.outside, right.shape, "out-of-map mask")
    if not right.any():
        raise KappaPlaceError(
            f"None of the {len(right):,} queries was answered correctly. Label more queries, or check the "
            "map."
        )
    if prior is not None and int((~right).sum()) < LEAST_QUERIES:
        return _with_prior(examples, options, prior)
    parts = split_queries(len(right), examples.groups, options.seed, fit_share=options.fit_share)
    if options.max_risk is None:  # no query has to be reserved for thresholds
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
        # raises an error early if the rate is impossible
        probability.probability(uncertainty[:1], options.outside_rate)
    pair, pair_right = _fit_pairs(examples, out, parts.fit, options)
    watched = {**examples.signals, UNCERTAINTY: uncertainty}
    queries = len(right)
    if examples.counterparts and out is not None:  # drift is measured against the in-map queries
        watched = {name: values[~out] for name, values in watched.items()}
        queries = len(np.unique(np.asarray(examples.groups)))
    domain = fit_domain(examples.domain, right, options.seed) if examples.domain else None
    rule = candidates = groups = None
    difficulty: tuple[Quarter, ...] = ()
    if options.max_risk is not None:
        part = _part(examples, uncertainty, parts.threshold)
        rule = _fit_rule(part, options, options.max_risk, queries)
        if options.groups:
            groups = _fit_groups(examples, part, parts, options)
            rule = replace(rule, assumptions=(*rule.assumptions, groups.sentence))
        sample = _sample(part, options)
        candidates = _candidates(sample, probability, options.outside_rate)
        difficulty = by_difficulty(sample, rule, probability, options.outside_rate)
        if rule.guaranteed and domain is not None and not domain.conclusive:
            note = FEW_CORRECT.format(count=len(domain.rows), needed=int(np.ceil(2 / domain.level)))
            rule = replace(rule, assumptions=(*rule.assumptions, note))
    counts: dict[str, Json] = {
        "queries": queries,
        "right": int(right.sum()),
        "outside": None if out is None else int(out.sum()),
        "counterparts": examples.counterparts,
        "fitted_on": len(parts.fit),
        "thresholds_on": len(parts.threshold),
        "labelled": examples.labeled,
        "calibrator": probability.right.name,
        "seed": options.seed,
    }
    return Calibration(
        top,
        probability,
        pair,
        pair_right,
        rule,
        Sketch.of(watched),
        options.outside_rate,
        {**counts, **examples.facts},
        examples.rerank,
        domain,
        radius=_fit_radius(examples, uncertainty, parts, options),
        agreement=AGREEMENT if examples.rerank else 1,
        candidates=candidates,
        groups=groups,
        difficulty=difficulty,
    )


def _part(examples: Examples, uncertainty: Floats, rows: Rows) -> Examples:
    """Return some queries, with their uncertainty as the only feature."""
    return replace(
        examples,
        features=uncertainty[rows],
        right=examples.right[rows],
        outside=None if examples.outside is None else examples.outside[rows],
        groups=None if examples.groups is None else np.asarray(examples.groups)[rows],
        names=[examples.names[row] for row in rows.tolist()] if examples.names else (),
        place=None if examples.place is None else examples.place[rows],
        strata=[examples.strata[row] for row in rows.tolist()] if examples.strata else (),
    )


def _sample(part: Examples, options: CalibrateOptions) -> Examples:
    """Return a random sample of queries with the expected fraction of out-of-map queries."""
    rate, outside = options.outside_rate, part.outside
    if rate is None or outside is None or not outside.any():
        return part
    return _part(part, part.features, _drawn(part, rate, options.seed, SLACK))


def _candidates(sample: Examples, right: OutsideAware, rate: float | None) -> Candidates | None:
    """Return the scores for candidate sets."""
    if sample.place is None:
        return None
    scores = correct_scores(sample.features, sample.place, sample.outside, right, rate)
    return Candidates.of(scores, sample.outside)


def _fit_groups(examples: Examples, part: Examples, parts: Split, options: CalibrateOptions) -> GroupRules:
    """Set thresholds in each group separately."""
    assert options.max_risk is not None
    if not examples.labeled:
        raise KappaPlaceError(
            "Guarantees per group need labelled queries. Omit --groups, or pass --queries instead of --self."
        )
    edges: tuple[float, ...] = ()
    if options.groups == KAPPA:
        if KAPPA not in examples.signals:
            raise KappaPlaceError("Groups by kappa need a model with a kappa head. Omit --groups.")
        kappa = np.asarray(examples.signals[KAPPA])
        edges = kappa_edges(kappa[parts.fit])
        members = np.array(kappa_groups(kappa[parts.threshold], edges))
        names = list(RANGES)
    else:
        if not examples.strata:
            raise KappaPlaceError(f"The labels have no column '{options.groups}'. Pass --groups kappa.")
        members, names = np.array(part.strata), sorted(set(examples.strata))
    rules, needed = {}, {}
    least = int(np.ceil(needed_acceptances(options.max_risk, options.confidence) / (1 - options.fit_share)))
    for name in names:
        rows = np.flatnonzero(members == name)
        own = _part(part, part.features, rows)
        count = len(rows) if own.groups is None or not part.counterparts else len(np.unique(own.groups))
        try:
            if not len(rows):
                raise RiskRefused("", least)
            rules[name] = _fit_rule(own, options, options.max_risk, count)
        except RiskRefused as refusal:
            needed[name] = max(refusal.needed, least) if refusal.needed is not None else 0
        except KappaPlaceError:  # too few in-map or out-of-map queries to draw a sample from
            needed[name] = least
    return GroupRules(options.groups, rules, needed, edges)


def _with_rate(examples: Examples, options: CalibrateOptions) -> CalibrateOptions:
    """Return the options, with the default rate of out-of-map queries if these are counterparts."""
    if not examples.counterparts or options.outside_rate is not None:
        return options
    return replace(options, outside_rate=OUTSIDE_RATE)


def _with_prior(examples: Examples, options: CalibrateOptions, prior: Calibration) -> Calibration:
    """Return a calibration with the probabilities of other places, and a rule that needs no incorrect
    answers."""
    incorrect = int((~examples.right).sum())
    note = FEW_INCORRECT.format(count=incorrect, needed=LEAST_QUERIES)
    rule = None
    if options.max_risk is not None:
        reject = options.reject_risk if (options.reject_risk or 0.0) < 1 - options.max_risk else None
        rule = rule_by_probability(options.max_risk, reject, assumptions=(note,))
    columns = [list(examples.scores).index(name) for name in prior.scores]
    features = examples.features.reshape(len(examples.right), -1)[:, columns]
    uncertainty = prior.uncertainty(features)
    parts = split_queries(len(features), examples.groups, options.seed, fit_share=options.fit_share)
    sample = _sample(_part(examples, uncertainty, np.arange(len(features))), options)
    return replace(
        prior,
        rule=rule,
        sketch=Sketch.of({**examples.signals, UNCERTAINTY: uncertainty}),
        radius=_fit_radius(examples, uncertainty, parts, options),
        facts={
            "queries": len(features),
            "right": len(features) - incorrect,
            "labelled": examples.labeled,
            **examples.facts,
        },
        domain=fit_domain(examples.domain, examples.right, options.seed) if examples.domain else None,
        candidates=_candidates(sample, prior.right, prior.outside_rate),
    )


def _fit_pairs(
    examples: Examples, outside: Bools | None, rows: Rows, options: CalibrateOptions
) -> tuple[Signal | None, OutsideAware | None]:
    """Fit probabilities of single matches; return nothing if all of them are correct, or none."""
    if examples.pairs is None:
        return None, None
    hits = np.asarray(examples.pair_right)
    hits = booleans(hits, hits.shape, "outcomes of pairs")
    if hits.ndim != 2 or len(hits) != len(examples.right):
        raise KappaPlaceError(
            f"Outcomes of pairs must have one row per query ({len(examples.right):,}), got shape "
            f"{hits.shape}."
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


def _drawn(examples: Examples, rate: float, seed: int, slack: float) -> Rows:
    """Return the rows of a random sample of queries, of which this fraction is out-of-map."""
    assert examples.outside is not None
    if not examples.counterparts:
        return thin_to_rate(examples.outside, rate, seed, slack=slack)
    assert examples.groups is not None
    _, group = np.unique(examples.groups, return_inverse=True)
    has = np.zeros((2, group.max() + 1), bool)
    has[examples.outside.astype(int), group] = True
    both, alone = int(has.all(axis=0).sum()), int((has[0] & ~has[1]).sum())
    # Queries without a counterpart are omitted as often as other queries are replaced by theirs.
    away = np.random.default_rng(seed).random(len(has[0])) < rate * (both + alone) / max(
        both + rate * alone, 1
    )
    return np.flatnonzero((examples.outside == away[group]) & has[0][group])


def _fit_radius(
    examples: Examples, uncertainty: Floats, parts: Split, options: CalibrateOptions
) -> RadiusModel | None:
    """Fit the radius of positions, for the expected fraction of out-of-map queries."""
    if examples.errors is None:
        return None
    errors, out, halves = examples.errors, examples.outside, []
    for rows in parts:
        rows = rows[np.isfinite(errors[rows, 0])]
        if out is not None and out[rows].any() and options.outside_rate is not None:
            groups = None if examples.groups is None else np.asarray(examples.groups)[rows]
            part = replace(examples, outside=out[rows], groups=groups)
            rows = rows[_drawn(part, options.outside_rate, options.seed, 1e-4)]
        halves.append(rows)
    first, second = halves
    return fit_radius(
        (uncertainty[first], uncertainty[second]),
        (errors[first], errors[second]),
        examples.limit,
        options.radius_level,
        "labels" if examples.labeled else "map",
    )


def _fit_rule(part: Examples, options: CalibrateOptions, max_risk: float, queries: int) -> DecisionRule:
    """Set thresholds for the expected fraction of out-of-map queries.

    The risk of a threshold grows with that fraction, because all out-of-map queries are incorrect. If the
    fraction is not specified, the guarantee holds up to the fraction in the sample. Otherwise the sample is
    reduced to this fraction. Without labels, the rule uses the probability if nothing can be guaranteed.

    Args:
        part: Queries that nothing was fitted on; ``features`` is their uncertainty.
        options: Options of the fit and of the guarantee.
        max_risk: The risk limit of ``options``.
        queries: Number of all labelled queries, for messages.

    Returns:
        The decision rule.
    """
    outside, rate = part.outside, options.outside_rate
    rows = np.arange(len(part.right))
    notes = [] if part.labeled else [SELF_CALIBRATED]
    guaranteed, slack = part.labeled, 0.0
    if rate is None:
        seen = "" if outside is None else f" ({percent(float(outside.mean()))})"
        notes.append(f"Holds if out-of-map queries are at most as frequent as in the calibration{seen}.")
    elif outside is None or not outside.any():
        if rate > 0:
            guaranteed = False
            notes.append(
                "None of the calibration queries was out-of-map, so nothing is guaranteed if "
                f"{percent(rate)} of new queries are."
            )
        else:
            notes.append("Holds for in-map queries only.")
    else:
        slack = 0.0 if part.counterparts else (1 - options.confidence) / 100
        rows = _drawn(part, rate, options.seed, slack)
        if not len(rows):
            raise KappaPlaceError(
                f"There are too few in-map or out-of-map queries for a fraction of {percent(rate)}. "
                "Label more queries, or choose another --outside-rate."
            )
        notes.append(f"Holds if at most {percent(rate)} of the queries are out-of-map.")
        if part.counterparts:
            notes.append(
                "The out-of-map queries of the calibration were labelled queries whose place was removed "
                "from the map."
            )
    try:
        rule = fit_rule(
            part.features[rows],
            part.right[rows],
            max_risk,
            options.confidence,
            reject_risk=options.reject_risk,
            method=options.method,
            slack=slack,
            assumptions=tuple(notes),
        )
    except RiskRefused as refusal:
        if not part.labeled:
            return rule_by_probability(max_risk, options.reject_risk, assumptions=(SELF_CALIBRATED,))
        raise _in_all(refusal, part, rows, options, queries) from None
    if part.labeled:
        return replace(rule, guaranteed=guaranteed)
    # Without labels, an answer that is less certain than every correct one of the sample is not accepted.
    surest = float(part.features[rows][part.right[rows]].max(initial=-np.inf))
    return replace(rule, guaranteed=False, accept_at=min(rule.accept_at, surest))


def _in_all(
    refusal: RiskRefused, part: Examples, rows: Rows, options: CalibrateOptions, queries: int
) -> RiskRefused:
    """Return the error with the number of labelled queries in both parts, and the label to check."""
    used = 1 - options.fit_share  # of the labelled queries; fewer if their out-of-map queries are too many
    used *= 1.0 if part.counterparts else len(rows) / len(part.right)
    needed = None if refusal.needed is None else int(np.ceil(refusal.needed / used))
    max_risk = options.max_risk or 0.0
    subject, advice = claim(max_risk, options.confidence), [refusal.higher]
    if needed is None:
        cause = str(refusal).split(". ")[0]
    elif refusal.row is None:
        cause = f"{subject} needs {needed:,} labelled queries, got {queries:,}"
        advice.insert(0, "label more")
    else:
        cause = f"{subject} cannot be guaranteed from these {queries:,} labelled queries"
        advice.insert(0, f"label about {needed:,} queries in all")
    if refusal.row is not None and part.names:
        name = part.names[rows[refusal.row]]
        advice.append(f"check the label of '{name}', the most confident incorrect answer")
    text = ", or ".join(filter(None, [", ".join(advice[:-1]), advice[-1]]))
    return RiskRefused(f"{cause}. {text[0].upper()}{text[1:]}.", needed, refusal.row, refusal.lowest)


def check_label_count(queries: int, options: CalibrateOptions) -> None:
    """Fail early if there are fewer labelled queries than any outcome could support.

    Args:
        queries: Number of labelled queries that will be used.
        options: Options of the guarantee.

    Raises:
        RiskRefused: If there are too few queries, even if all answers are correct.
    """
    if options.max_risk is None:
        return
    needed = int(np.ceil(needed_acceptances(options.max_risk, options.confidence) / (1 - options.fit_share)))
    if queries < needed:
        raise RiskRefused(
            f"A risk of at most {percent(options.max_risk)} with {percent(options.confidence)} confidence "
            f"needs at least {needed:,} labelled queries, got {queries:,}. Label more, or allow a higher "
            "risk.",
            needed,
        )


def reliability(examples: Examples, options: CalibrateOptions, calibration: Calibration) -> list[list[float]]:
    """Return the reliability curve of the queries that the probabilities were not fitted on.

    Out-of-map queries are reduced to the fraction that the options specify.

    Args:
        examples: All queries of the calibration.
        options: Options of the calibration.
        calibration: The fitted calibration.

    Returns:
        Predicted probability, observed accuracy and count of each bin.
    """
    options = _with_rate(examples, options)
    right = examples.right
    outside = np.zeros(len(right), dtype=bool) if examples.outside is None else examples.outside
    rows = split_queries(len(right), examples.groups, options.seed).threshold
    if options.outside_rate is not None and outside[rows].any():
        groups = None if examples.groups is None else np.asarray(examples.groups)[rows]
        part = replace(examples, outside=outside[rows], groups=groups)
        rows = rows[_drawn(part, options.outside_rate, options.seed, SLACK)]
    predicted = calibration.probability(examples.features[rows], options.outside_rate)
    curve = mass_bins(predicted, right[rows], max(3, min(10, len(rows) // EACH_BIN)))
    return [part.tolist() for part in (curve.probability, curve.observed, curve.counts)]
