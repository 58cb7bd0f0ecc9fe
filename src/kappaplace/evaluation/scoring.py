"""Every score of one set that its evidence allows, and why each of the others is missing.

What is learnt on a validation set: one combination of several scores, and a probability for each score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.combination import Combination, features_of, fit_combination, fused
from kappaplace.data.near import Neighborhood
from kappaplace.data.positives import NoPositives, apply_policy
from kappaplace.data.table import ImageNames, PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.inputs import Retrieved
from kappaplace.evaluation.results import MOST_REFERENCES, ScoreColumns, SetResult, kept_references
from kappaplace.metrics import ROUTE_BLOCK, success_at
from kappaplace.types import Matches
from kappaplace.uncertainty import SCORES, available, score_named
from kappaplace.uncertainty.base import Evidence, Score

FUSED = "fused"
_PATCHES = "Comparing cells takes another pass over the images; ask for it with --scores all."
SLOW = {
    "patches": _PATCHES,
    "patch-margin": _PATCHES,
    "geometric": "Geometric verification takes about 0.06 s a pair; ask for it with --scores all.",
}


def chosen_scores(text: str = "") -> tuple[list[Score], dict[str, str]]:
    """Scores from "all", from names with commas between them, or (nothing said) all that are quick.

    Also those that were not asked for only because they are slow, each with that reason.
    """
    if text.strip() == "all":
        return list(SCORES.values()), {}
    if not text.strip():
        return [score for name, score in SCORES.items() if name not in SLOW], dict(SLOW)
    names = [name.strip() for name in text.split(",") if name.strip()]
    return [score_named(name) for name in dict.fromkeys(names)], {}


def score_set(
    retrieved: Retrieved,
    scores: Sequence[Score],
    *,
    policy: NoPositives | str | None = None,
    calibrations: Mapping[str, Combination] | None = None,
    own: Sequence[ScoreColumns] = (),
    not_asked: Mapping[str, str] | None = None,
) -> SetResult:
    """One set with all its scores.

    ``calibrations`` turn a score, by name, into the probability that the top match is right; ``own`` are a
    researcher's scores of all queries of the set.
    """
    evidence, positives = retrieved.evidence, retrieved.positives
    rule = retrieved.policy if policy is None else NoPositives(policy)
    kept = apply_policy(positives, rule)
    if not len(kept.rows):
        raise KappaPlaceError(f"{retrieved.name}: no query is left to evaluate ({kept}).")
    block = _block(retrieved.neighborhood, len(kept.rows))
    rows = _route_order(retrieved.table, kept.rows) if block > 1 else kept.rows
    usable, left_out = available(scores, evidence)
    columns = {}
    for score in usable:
        columns[score.name] = _taken(_columns(score, evidence, calibrations or {}), rows)
    columns |= {each.name: _taken(each, rows) for each in own}
    matches = Matches(evidence.matches.indices[rows], evidence.matches.similarities[rows])
    return SetResult(
        name=retrieved.name,
        hits=positives.hits(evidence.matches.indices)[rows],
        matches=matches,
        scores=columns,
        left_out={**(not_asked or {}), **left_out},
        references=retrieved.references,
        positives=positives.counts[rows],
        without_positives=kept.without_positives,
        policy=rule.value,
        query_kappa=_kappa(evidence.queries.embeddings, rows),
        reference_kappa=_kappa(evidence.references),
        block=block,
        queries=rows,
        facts={**retrieved.facts, "queries": kept.total, "counted": str(kept)},
        **_of_table(retrieved.table, rows, matches.indices),
    )


def _columns(score: Score, evidence: Evidence, calibrations: Mapping[str, Combination]) -> ScoreColumns:
    query = _finite(score.query(evidence), score.name)
    match = None if score.match is None else _finite(score.match(evidence), score.name)
    combination = calibrations.get(score.name)
    probability = None if combination is None else combination.probability(query[:, None])
    if score.name == FUSED:  # it is a probability by itself
        probability = 1.0 - query
    return ScoreColumns(score.name, score.label, query, match, score.one_sided, probability)


def _finite(values: NDArray[Any], name: str) -> NDArray[np.float64]:
    if not np.isfinite(values).all():
        raise KappaPlaceError(
            f"The score {name} is NaN or infinite for some queries; leave it out of --scores."
        )
    return np.asarray(values, np.float64)


def _taken(score: ScoreColumns, rows: NDArray[np.int64]) -> ScoreColumns:
    parts = (score.query, score.match, score.probability)
    query, match, probability = (None if part is None else part[rows] for part in parts)
    assert query is not None
    return ScoreColumns(score.name, score.label, query, match, score.one_sided, probability)


def _kappa(embeddings: Any, rows: NDArray[np.int64] | None = None) -> NDArray[np.float64] | None:
    if embeddings is None or embeddings.kappa is None:
        return None
    kappa = np.asarray(embeddings.kappa, np.float64)
    return kappa if rows is None else kappa[rows]


def _block(neighborhood: Neighborhood | None, queries: int) -> int:
    """Frames of a route resemble their neighbours, so they are resampled together if there are enough."""
    route = neighborhood is not None and neighborhood.kind == "frames"
    return ROUTE_BLOCK if route and queries >= 2 * ROUTE_BLOCK else 1


def _route_order(table: PlaceImages | None, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Queries in the order in which they were driven, one route after the other."""
    if table is None:
        return rows
    at = table.query_rows[rows]
    _, route = np.unique(table.condition[at], return_inverse=True)
    return rows[np.lexsort((table.frame_numbers()[at], route))]


def _of_table(
    table: PlaceImages | None, rows: NDArray[np.int64], retrieved: NDArray[np.int64]
) -> dict[str, Any]:
    if table is None:
        return {}
    at, root = table.query_rows[rows], str(table.root)
    images = ImageNames(table.paths, root, table.reference_rows)
    if len(images) > MOST_REFERENCES:  # a result must not keep the whole table in memory
        images = images.keeping(kept_references(len(images), retrieved))
    posed = bool(table.posed.any())
    return {
        "query_images": ImageNames(table.paths[at], root),
        "reference_images": images,
        "query_positions": table.positions[at] if posed else None,
        "reference_positions": table.positions[table.reference_rows] if posed else None,
    }


class Fitted(NamedTuple):
    """Fitted on validation queries, ready for any other set."""

    calibrations: dict[str, Combination]
    """Score → the logistic curve of that score alone."""
    combined: Score | None
    combination: Combination | None


def fit(retrieved: Retrieved, scores: Sequence[Score], names: Sequence[str] = ()) -> Fitted:
    """Calibrate every usable score on a validation set, and combine those named.

    Queries without positives count as failures here: the probability is that of being right.
    """
    parts = [score_named(name) for name in dict.fromkeys(names)]
    for part in parts:
        if reason := part.reason(retrieved.evidence):
            raise KappaPlaceError(f"{part.name} cannot be fused: {reason}")
    judged = score_set(retrieved, scores, policy="fail")
    right = success_at(judged.hits, 1)
    calibrations = {
        name: fit_combination(column.query[:, None], right, [name]) for name, column in judged.scores.items()
    }
    if not parts:
        return Fitted(calibrations, None, None)
    features = features_of(retrieved.evidence, parts)[judged.queries]
    combination = fit_combination(features, right, [part.name for part in parts])
    return Fitted(calibrations, fused(combination), combination)
