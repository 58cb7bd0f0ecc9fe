"""What a score may look at, and what every score must say of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.types import Embeddings, Matches

Scores = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything known after retrieval."""

    matches: Matches
    query: Embeddings | None = None
    reference: Embeddings | None = None

    @cached_property
    def distances(self) -> Scores:
        """Euclidean distance between unit vectors, N×K."""
        return np.sqrt(np.maximum(2.0 - 2.0 * self.matches.similarities.astype(np.float64), 0.0))

    @property
    def query_kappa(self) -> Scores:
        """κ of each query, N."""
        return _kappa(self.query, "queries")

    @property
    def match_kappa(self) -> Scores:
        """κ of each retrieved reference, N×K."""
        return _kappa(self.reference, "references")[self.matches.indices]


def _kappa(embeddings: Embeddings | None, whose: str) -> Scores:
    if embeddings is None or embeddings.kappa is None:
        raise KappaPlaceError(f"This score needs κ of the {whose}; use a model with a kappa head.")
    return np.asarray(embeddings.kappa, dtype=np.float64)


@dataclass(frozen=True)
class Score:
    """One way to say how uncertain a query, or each of its matches, is."""

    name: str
    label: str
    """As shown in tables and figures."""
    query: Callable[[Evidence], Scores]
    """One number a query: N."""
    match: Callable[[Evidence], Scores] | None = None
    """One number a pair: N×K; None for scores of the query alone."""
    needs_kappa: bool = False
    one_sided: bool = True
    """Whether the score has one tail only (distances) or two (κ); ECE clamps accordingly."""
