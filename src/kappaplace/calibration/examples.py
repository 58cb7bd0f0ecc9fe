"""Labelled queries as examples for a calibration: their scores, and which of their answers are correct."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.calibration import (
    PAIR_SIGNALS,
    PATCH_SIGNALS,
    pair_features,
    query_features,
    usable_signals,
)
from kappaplace.calibration.domain import domain_signals
from kappaplace.checks import Bools, Floats
from kappaplace.retrieval.evidence import Evidence
from kappaplace.types import Json
from kappaplace.uncertainty import SCORES

Number = TypeVar("Number", bound=np.generic)
SCORES_FOR_TOP = ("cosine", "margin", "aliasing", "z-score", "inverse-kappa")
"""Names of the scores that are combined. κ is omitted if the model has none."""
DISTANCE = "cosine distance"
"""Name of the score `cosine` in messages, which shows that higher is worse."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Queries with outcomes.

    Args:
        features: Scores of each query, N×F in the order of ``scores``, or N for one score.
        right: Whether the top match of each query is correct (N).
        scores: Names of the scores.
        pairs: Scores of each match, N×K×F (or N×K), with ``pair_right`` N×K and ``pair_scores``.
        pair_right: Whether each match is correct, N×K.
        pair_scores: Names of the scores of matches.
        outside: Which queries have no correct reference at all (N).
        groups: Place, route or day of each query; groups are never split.
        signals: Values of each query to watch for drift, such as κ.
        domain: Values by which other queries are compared with these, see `domain_signals`.
        counterparts: Whether each group is one image, searched with and without its place in the map.
        names: Names of the queries, for messages.
        labeled: False for self-calibration, which never has a guarantee.
        facts: Further values to store, such as the date, the model and the origin of the queries.
        rerank: Number of top matches that were re-ranked by patch matching.
        errors: How far each answer is from the true pose, N×3 as `position_errors` returns them. Rows with
            NaN positions are not used for the radius.
        limit: Errors above this many metres are far off.
        place: Number of the correct place among the places of each query's matches (N), see
            `kappaplace.calibration.candidates.correct_places`. None: unknown, so there are no candidate sets.
        strata: Value of each query in the column by which guarantees are grouped (N). Default: unknown.
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
    domain: Mapping[str, Floats] = field(default_factory=dict)
    counterparts: bool = False
    names: Sequence[str] = ()
    labeled: bool = True
    facts: Mapping[str, Json] = field(default_factory=dict)
    rerank: int = 0
    errors: Floats | None = None
    limit: float = 0.0
    place: NDArray[np.int64] | None = None
    strata: Sequence[str] = ()


def examples_of(
    evidence: Evidence,
    right: Bools,
    outside: Bools | None = None,
    groups: NDArray[np.int64] | None = None,
    names: Sequence[str] = (),
    place: NDArray[np.int64] | None = None,
) -> Examples:
    """Return the scores of queries with their outcomes.

    Args:
        evidence: Results of the retrieval.
        right: Whether each match is correct, N×K, or only the top match (N).
        outside: Which queries have no correct reference at all (N).
        groups: Place of each query (N).
        names: Names of the queries (N).
        place: Number of the correct place of each query (N), for candidate sets.

    Returns:
        The examples, ready for `fit_calibration`.
    """
    patches = evidence.agreement is not None
    scores = usable_signals(evidence, (*SCORES_FOR_TOP, *(PATCH_SIGNALS if patches else ())))
    features = query_features(evidence, scores)
    signals = {DISTANCE: features[:, scores.index("cosine")]}
    if SCORES["inverse-kappa"].reason(evidence) is None:
        signals["kappa"] = evidence.query_kappa
    first = Examples(
        features,
        right if right.ndim == 1 else right[:, 0],
        scores,
        outside=outside,
        groups=groups,
        signals=signals,
        domain=domain_signals(evidence),
        names=names,
        rerank=0 if evidence.agreement is None else evidence.agreement.shape[1],
        place=place,
    )
    if right.ndim == 1:
        return first
    pair_scores = usable_signals(evidence, (*PAIR_SIGNALS, *(PATCH_SIGNALS[:1] if patches else ())))
    pairs = pair_features(evidence, pair_scores)
    return replace(first, pairs=pairs, pair_right=right, pair_scores=pair_scores)


def join(blocks: Sequence[Examples]) -> Examples:
    """Concatenate examples with the same scores.

    Args:
        blocks: One or more blocks of examples.

    Returns:
        All queries in this order. Fields that are not per query come from the first block.
    """
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
        domain={name: np.concatenate([block.domain[name] for block in blocks]) for name in first.domain},
        names=[name for block in blocks for name in block.names],
        errors=_joined([block.errors for block in blocks]),
        place=_joined([block.place for block in blocks]),
        strata=[value for block in blocks for value in block.strata],
    )


def _joined(parts: Sequence[NDArray[Number] | None]) -> NDArray[Number] | None:
    present = [part for part in parts if part is not None]
    return np.concatenate(present) if len(present) == len(parts) else None
