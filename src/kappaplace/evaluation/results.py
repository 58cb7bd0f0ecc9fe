"""What an evaluation found: everything a table or a picture needs, so that nothing is computed again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.types import Matches

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ScoreColumns:
    """One score on one set."""

    name: str
    label: str
    """As shown in tables and figures."""
    query: Floats
    """Uncertainty of each query, N (higher = less certain)."""
    match: Floats | None = None
    """Uncertainty of each pair, N×K; None for scores of the query alone."""
    one_sided: bool = True
    probability: Floats | None = None
    """Probability that the top match is right, N, where the score is calibrated."""


@dataclass(frozen=True, eq=False)
class SetResult:
    """One set of queries against one map."""

    name: str
    hits: NDArray[np.bool_]
    """Whether each match is a positive, N×K."""
    matches: Matches
    scores: dict[str, ScoreColumns]
    left_out: dict[str, str] = field(default_factory=dict)
    """Scores that could not be computed, each with the reason."""
    references: int = 0
    positives: NDArray[np.int64] | None = None
    """How many positives each query has in the map."""
    without_positives: int = 0
    policy: str = "fail"
    """What was done with queries that have no positive: fail, skip or error."""
    query_kappa: Floats | None = None
    reference_kappa: Floats | None = None
    query_positions: Floats | None = None
    reference_positions: Floats | None = None
    query_images: Sequence[str] = ()
    reference_images: Sequence[str] = ()
    block: int = 1
    """Frames of a route that are resampled together; 1 where queries are independent."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Table hash, protocol, whatever else should travel with the result."""
    queries: NDArray[np.int64] | None = None
    """Which query of its set each row is, counted in the set's own order; None: row i is query i."""


@dataclass(frozen=True, eq=False)
class EvaluationResult:
    """One model (or one peer's similarities) on one or several sets."""

    name: str
    sets: tuple[SetResult, ...]
    metrics: dict[str, Any] = field(default_factory=dict)
    """set name, "pooled" or "mean" → {"recall": {...}, "scores": {score: {metric: value}}, "intervals": ...}.

    Intervals repeat that shape with (low, high) for values; the mean over sets has none.
    """
    facts: dict[str, Any] = field(default_factory=dict)
    """Model fingerprint, preprocessing, version, command."""
    times: dict[str, Any] = field(default_factory=dict)
    """When it was made and how long it took: all that may differ between two equal runs."""
