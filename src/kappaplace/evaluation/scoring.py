"""Every score of one set that its evidence allows, and why each of the others is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.near import Neighbourhood
from kappaplace.data.place_images import PlaceImages
from kappaplace.data.positives import NoPositives, apply_policy
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.names import ImageNames
from kappaplace.evaluation.results import ScoreColumns, SetResult
from kappaplace.evaluation.sources import Retrieved
from kappaplace.metrics import ROUTE_BLOCK
from kappaplace.types import Matches
from kappaplace.uncertainty.base import Evidence, Score
from kappaplace.uncertainty.fused import Combination
from kappaplace.uncertainty.registry import SCORES, available, score_named

FUSED = "fused"
MOST_REFERENCES = 200_000  # of one map that are kept in full: plots need no more
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
    block = _block(retrieved.neighbourhood, len(kept.rows))
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


def _block(neighbourhood: Neighbourhood | None, queries: int) -> int:
    """Frames of a route resemble their neighbours, so they are resampled together if there are enough."""
    route = neighbourhood is not None and neighbourhood.kind == "frames"
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


def kept_references(references: int, retrieved: NDArray[np.int64]) -> NDArray[np.int64]:
    """References that a result keeps in full: all, or of a very large map those retrieved and a sample."""
    if references <= MOST_REFERENCES:
        return np.arange(references)
    sample = np.linspace(0, references - 1, MOST_REFERENCES // 2).astype(np.int64)
    return np.union1d(sample, retrieved)
