"""Scores of one dataset, and probabilities and combinations that are fitted on a validation set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.calibration import Calibration, judge
from kappaplace.calibration.combination import Combination, features_of, fit_combination, fused
from kappaplace.calibration.decision import match_probabilities
from kappaplace.calibration.examples import examples_of
from kappaplace.calibration.fit import fit_calibration
from kappaplace.calibration.options import RERANK, CalibrateOptions
from kappaplace.data.columns import ImageNames
from kappaplace.data.near import Neighborhood
from kappaplace.data.positives import NoPositives, apply_policy
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.inputs import Retrieved, Twins, find_twins
from kappaplace.evaluation.results import MOST_REFERENCES, ScoreColumns, SetResult, references_to_store
from kappaplace.metrics import ROUTE_BLOCK, mean_cosine, success_at
from kappaplace.retrieval.evidence import from_pool
from kappaplace.retrieval.references import References
from kappaplace.types import Embeddings, Matches
from kappaplace.uncertainty import SCORES, available, score_named
from kappaplace.uncertainty.base import Evidence, Score

CALIBRATED = "calibrated"
NOT_SHIPPED = "The model has no shipped calibration. Pass --fit-on TABLE to fit one on other queries."
OTHER_INPUTS = "The calibration needs inputs that are missing: {reason}"
FUSED = "fused"
LEAST_SESSIONS = 5
"""Minimum number of drives for intervals that resample whole drives."""
COINCIDENT, ROUNDING = 0.995, 1e-6
"""Limits beyond which descriptors count as equal: mean cosine of different references, and difference of
cosines."""
SLOW = {"geometric": "Geometric verification takes about 0.06 s per pair. Pass --scores all to include it."}


def select_scores(text: str = "") -> tuple[list[Score], dict[str, str]]:
    """Parse ``--scores``: "all", a comma-separated list, or "" for all scores except slow ones.

    Args:
        text: The option.

    Returns:
        The scores, and for "" the reason by name for each omitted score.
    """
    if text.strip() == "all":
        return list(SCORES.values()), {}
    if not text.strip():
        return [score for name, score in SCORES.items() if name not in SLOW], dict(SLOW)
    names = dict.fromkeys(name.strip() for name in text.split(",") if name.strip())
    return [score_named(name) for name in names if name != CALIBRATED], {}


def score_set(
    retrieved: Retrieved,
    scores: Sequence[Score],
    *,
    policy: NoPositives | str | None = None,
    calibrations: Mapping[str, Combination] | None = None,
    own: Sequence[ScoreColumns] = (),
    omissions: Mapping[str, str] | None = None,
    keep_twins: bool = False,
) -> SetResult:
    """Compute the scores of one dataset.

    Args:
        retrieved: The dataset after retrieval.
        scores: Scores to compute. A score whose inputs are missing is reported with the reason instead.
        policy: Policy for queries without a positive. Default: the policy of the dataset's protocol.
        calibrations: Calibrations by the name of a score, which convert it to the probability that the top
            match is correct.
        own: The user's own scores of all queries of the dataset.
        omissions: Scores that were not requested, each with the reason.
        keep_twins: Whether to include queries that are near-copies of references.

    Returns:
        Matches and scores.

    Raises:
        KappaPlaceError: If no query is left, or a score is not finite.
    """
    evidence, positives = retrieved.evidence, retrieved.positives
    rule = retrieved.policy if policy is None else NoPositives(policy)
    selection = apply_policy(positives, rule)
    if not len(selection.rows):
        raise KappaPlaceError(
            f"No query of {retrieved.name} is left to evaluate ({selection}). Change --policy."
        )
    twins = Twins() if keep_twins else find_twins(retrieved, selection.rows)
    rows = selection.rows[~np.isin(selection.rows, twins.rows)]
    if not len(rows):
        raise KappaPlaceError(
            f"All queries of {retrieved.name} are near-copies of references, or were taken within a minute "
            "of one. Pass --keep-twins to evaluate them."
        )
    block = _block(retrieved.neighborhood, len(rows))
    rows = _route_order(retrieved.table, rows) if block > 1 else rows
    usable, missing = available(scores, evidence)
    columns = [_columns(score, evidence, calibrations or {}) for score in usable]
    matches = Matches(evidence.matches.indices[rows], evidence.matches.similarities[rows])
    result = SetResult(
        name=retrieved.name,
        hits=positives.hits(evidence.matches.indices)[rows],
        matches=matches,
        scores={each.name: each.take(rows) for each in (*columns, *own)},
        left_out={**(omissions or {}), **missing},
        references=retrieved.references,
        positives=positives.counts[rows],
        without_positives=selection.without_positives,
        policy=rule.value,
        query_kappa=_kappa(evidence.queries.embeddings, rows),
        reference_kappa=_kappa(evidence.references),
        block=block,
        queries=rows,
        sessions=_sessions(retrieved.table, rows),
        facts={
            **retrieved.facts,
            "queries": selection.total,
            "counted": f"{selection}{twins}",
            **twins.facts,
            **_coincident(evidence),
        },
    )
    return _with_table(result, retrieved.table, rows)


def _sessions(table: PlaceImages | None, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return the drive of each query; None if the table has too few for an interval."""
    if table is None:
        return None
    names, session = np.unique(table.condition[table.query_rows[rows]], return_inverse=True)
    return session.astype(np.int64) if len(names) >= LEAST_SESSIONS else None


def _columns(score: Score, evidence: Evidence, calibrations: Mapping[str, Combination]) -> ScoreColumns:
    query = _finite(score.query(evidence), score.name)
    match = None if score.match is None else _finite(score.match(evidence), score.name)
    combination = calibrations.get(score.name)
    probability = None if combination is None else combination.probability(query[:, None])
    if score.name == FUSED:  # the score already is a probability
        probability = 1.0 - query
    return ScoreColumns(score.name, score.label, query, match, score.one_sided, probability)


def _coincident(evidence: Evidence) -> dict[str, str]:
    """Return a warning if the descriptors do not distinguish references."""
    descriptors = evidence.references.descriptors
    cosine = 0.0
    if descriptors is not None:
        cosine = mean_cosine(np.asarray(descriptors[evidence.references.sample()]))
    similarities = evidence.matches.similarities
    equal = similarities.shape[1] > 1 and np.median(similarities[:, 0] - similarities[:, -1]) <= ROUNDING
    if cosine < COINCIDENT and not equal:
        return {}
    reason = (
        f"their mean cosine is {cosine:.3f}" if cosine >= COINCIDENT else "all matches are equally similar"
    )
    return {
        "coincident": f"the descriptors of different references coincide: {reason}. Train the encoder again."
    }


def _finite(values: NDArray[np.floating], name: str) -> NDArray[np.float64]:
    if not np.isfinite(values).all():
        raise KappaPlaceError(f"The score {name} is NaN or infinite for some queries. Omit it from --scores.")
    return np.asarray(values, np.float64)


def _kappa(
    source: Embeddings | References | None, rows: NDArray[np.int64] | None = None
) -> NDArray[np.float64] | None:
    if source is None or source.kappa is None:
        return None
    kappa = np.asarray(source.kappa, np.float64)
    return kappa if rows is None else kappa[rows]


def _block(neighborhood: Neighborhood | None, queries: int) -> int:
    """Return how many frames are resampled together, because frames of a route resemble their neighbours."""
    route = neighborhood is not None and neighborhood.kind == "frames"
    return ROUTE_BLOCK if route and queries >= 2 * ROUTE_BLOCK else 1


def _route_order(table: PlaceImages | None, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the queries sorted by route and frame."""
    if table is None:
        return rows
    images = table.query_rows[rows]
    _, route = np.unique(table.condition[images], return_inverse=True)
    return rows[np.lexsort((table.frame_numbers()[images], route))]


def _with_table(result: SetResult, table: PlaceImages | None, rows: NDArray[np.int64]) -> SetResult:
    """Add the images and positions of a table to the result of its queries."""
    if table is None:
        return result
    queries, root = table.query_rows[rows], str(table.root)
    images = ImageNames(table.paths, root, table.reference_rows)
    if len(images) > MOST_REFERENCES:  # a result must not keep the whole table in memory
        images = images.keeping(references_to_store(len(images), result.matches.indices))
    posed = bool(table.posed.any())
    return replace(
        result,
        query_images=ImageNames(table.paths[queries], root),
        reference_images=images,
        query_positions=table.positions[queries] if posed else None,
        reference_positions=table.positions[table.reference_rows] if posed else None,
    )


class Fitted(NamedTuple):
    """Probabilities and a combination of scores, fitted on validation queries."""

    calibrations: dict[str, Combination]
    """Logistic curve of each score, by name."""
    combined: Score | None
    """The combination as a score. None if no scores were combined."""
    combination: Combination | None
    """Weights of the combination. None if no scores were combined."""
    own: Calibration | None = None
    """Calibration that a map would use. None if the model has none."""


def fit(retrieved: Retrieved, scores: Sequence[Score], names: Sequence[str] = ()) -> Fitted:
    """Calibrate every available score on a validation set, and combine some of them.

    Queries without a positive count as failures, because the probability is that of a correct top match.

    Args:
        retrieved: The validation set after retrieval.
        scores: Scores to calibrate.
        names: Names of the scores to combine.

    Returns:
        The fitted curves.

    Raises:
        KappaPlaceError: If the inputs of a score to combine are missing.
    """
    parts = [score_named(name) for name in dict.fromkeys(names)]
    for part in parts:
        if reason := part.reason(retrieved.evidence):
            raise KappaPlaceError(f"The score {part.name} cannot be combined. {reason}")
    result = score_set(retrieved, scores, policy="fail")
    success = success_at(result.hits, 1)
    if not parts and (success.all() or not success.any()):
        return Fitted({}, None, None)  # nothing can be fitted; a combination fails below, with the reason
    calibrations = {
        name: fit_combination(column.query[:, None], success, [name])
        for name, column in result.scores.items()
    }
    if not parts:
        return Fitted(calibrations, None, None)
    features = features_of(retrieved.evidence, parts)[result.queries]
    combination = fit_combination(features, success, [part.name for part in parts])
    return Fitted(calibrations, fused(combination), combination)


def includes_calibrated(scores: str) -> bool:
    """Return whether ``--scores`` includes the calibrated probability, as its default and "all" do."""
    names = [name.strip() for name in scores.split(",")]
    return names in ([""], ["all"]) or CALIBRATED in names


def fit_calibrated(retrieved: Retrieved) -> Calibration | None:
    """Fit the calibration of a map on a validation set.

    Args:
        retrieved: The validation set after retrieval.

    Returns:
        Probabilities without thresholds; None if they cannot be fitted.
    """
    queries, references = retrieved.evidence.queries, retrieved.evidence.references
    patches = queries.patch_maps is not None and queries.images is not None
    count = min(RERANK, len(references) // 4) if patches else 0
    try:
        evidence = _compared(retrieved, count)
        right = retrieved.positives.hits(evidence.matches.indices)
        examples = examples_of(evidence, right, retrieved.positives.counts == 0)
        return fit_calibration(examples, CalibrateOptions(max_risk=None))
    except KappaPlaceError:
        return None


def calibrated_score(retrieved: Retrieved, calibration: Calibration | None) -> ScoreColumns | str:
    """Return the probabilities of a map as a score, or the reason why there are none.

    A map sorts the first matches by their patches, and its calibration then gives each match one probability.
    The row "Calibrated" of an evaluation has these probabilities, for matches in the order of their
    similarity.

    Args:
        retrieved: The dataset after retrieval.
        calibration: The calibration of the model; its domain is ignored, because every query gets a value.

    Returns:
        One probability per query and match, in the order of the matches.
    """
    if calibration is None:
        return NOT_SHIPPED
    try:
        evidence = _compared(retrieved, calibration.rerank)
        judgment = judge(evidence, replace(calibration, domain=None))
    except KappaPlaceError as error:
        return OTHER_INPUTS.format(reason=error)
    assert judgment.probability is not None
    if judgment.pairs is None:
        return OTHER_INPUTS.format(reason="probabilities of single matches.")
    table, rows = retrieved.table, evidence.matches.indices
    apart = np.zeros(rows.shape, bool)
    if table is not None:
        positions = table.positions[table.reference_rows][rows]
        gap = positions - positions[:, :1]
        apart = np.hypot(gap[..., 0], gap[..., 1]) > 2 * table.radius  # False if a position is unknown
    probability = match_probabilities(judgment.probability, judgment.pairs, apart)
    # Find each match of the evaluation among the matches that are sorted by patches.
    shown = retrieved.evidence.matches.indices
    place = (shown[:, :, None] == rows[:, None, :]).argmax(axis=2)
    own = np.take_along_axis(probability, place, axis=1)
    return ScoreColumns(CALIBRATED, "Calibrated", 1 - own[:, 0], 1 - own, False, own[:, 0])


def _compared(retrieved: Retrieved, rerank: int) -> Evidence:
    """Return the evidence as a map computes it, with the first matches sorted by their patches."""
    evidence = retrieved.evidence
    pool = evidence.matches if evidence.pool is None else evidence.pool
    k = evidence.matches.indices.shape[1]
    return from_pool(evidence.queries, evidence.references, pool, k, rerank=rerank)
