"""Everything that is known after retrieval, and what several scores share of it.

What is missing raises one message that says what to do, when a score asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.near import Circle
from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.patches import compare
from kappaplace.retrieval.references import Column, Floats, Queries, References, Rows
from kappaplace.types import Matches

COMPETING = 10
"""Matches that compete for the patch margin; deeper ones hardly ever agree."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything known after retrieval; `retrieve` builds it."""

    queries: Queries
    references: References
    matches: Matches
    """N×K, best first; ``indices`` count references."""
    agreement: Floats | None = None
    """Fraction of patches that agree with each of the first matches, N×rerank; None if none were compared."""
    pool: Matches | None = None
    """More matches, in any order, that only serve the margin; None: the same as ``matches``."""
    area: Circle | None = None
    """The circle that was searched."""
    competing: int = COMPETING
    """Matches that compete for the patch margin, at most; more may be shown."""

    def __post_init__(self) -> None:
        queries = len(self.matches.indices)
        highest = int(self.matches.indices.max()) if self.matches.indices.size else -1
        if self.queries.images is not None and len(self.queries.images) != queries:
            raise KappaPlaceError(
                f"There are {len(self.queries.images):,} query images but the matches speak of {queries:,}; "
                "give one for each, in the same order."
            )
        if (matrix := self.queries.similarities) is not None and (
            len(matrix) != queries or matrix.shape[1] <= highest
        ):
            raise KappaPlaceError(
                f"A similarity matrix of {matrix.shape[0]}×{matrix.shape[1]} does not fit {queries} queries "
                f"matched with references up to row {highest}; give one row a query and one column a "
                "reference."
            )
        if len(self.references) <= highest:
            raise KappaPlaceError(
                f"There are {len(self.references):,} references but the matches speak of {highest + 1:,} or "
                "more; give one for each, in the same order."
            )

    @cached_property
    def cosines(self) -> Floats:
        """Similarities in double precision, N×K."""
        return self.matches.similarities.astype(np.float64)

    @cached_property
    def distances(self) -> Floats:
        """Euclidean distance between unit vectors, N×K."""
        return np.sqrt(np.maximum(2.0 - 2.0 * self.cosines, 0.0))

    @property
    def top(self) -> NDArray[np.int64]:
        """The best reference of each query, N."""
        return self.matches.indices[:, 0]

    @property
    def query_kappa(self) -> Floats:
        """κ of each query, N."""
        if self.queries.embeddings is None or self.queries.embeddings.kappa is None:
            raise KappaPlaceError("This score needs κ of the queries; use a model with a kappa head.")
        return np.asarray(self.queries.embeddings.kappa, dtype=np.float64)

    @cached_property
    def match_kappa(self) -> Floats:
        """κ of each retrieved reference, N×K."""
        kappa = self.references.kappa
        values = None if kappa is None else np.asarray(kappa[self.matches.indices], np.float64)
        if values is None or not np.isfinite(values).all():
            raise KappaPlaceError("This score needs κ of the references; use a model with a kappa head.")
        return values

    @property
    def query_variance(self) -> Floats:
        """Scalar variance of each query's descriptor, N."""
        if self.queries.embeddings is None or self.queries.embeddings.variance is None:
            raise KappaPlaceError(
                "This score needs the variance of the queries; use a model that predicts one."
            )
        return np.asarray(self.queries.embeddings.variance, dtype=np.float64)

    @property
    def dim(self) -> int:
        """Length of a descriptor."""
        own = None if self.queries.embeddings is None else self.queries.embeddings.descriptor
        for descriptors in (own, self.references.descriptors):
            if descriptors is not None:
                return int(descriptors.shape[1])
        raise KappaPlaceError("This score needs the descriptors, or at least their length; give them.")

    @cached_property
    def match_positions(self) -> Floats:
        """Position of each retrieved reference, N×K×2 in metres."""
        positions = self.references.positions
        if positions is None:
            raise KappaPlaceError("This score needs the positions of the references; give them in metres.")
        values = np.asarray(positions[self.matches.indices], np.float64)
        if affected := int(np.isnan(values).any(axis=(1, 2)).sum()):
            raise KappaPlaceError(
                f"This score needs the positions of all retrieved references, {affected:,} queries have "
                "matches without one; leave unposed references out of the map."
            )
        return values

    @property
    def vectors(self) -> NDArray[np.floating]:
        """What was searched with, if all references can be compared with it."""
        vectors = self.queries.vectors
        if self.references.descriptors is None and self.queries.similarities is None:
            raise KappaPlaceError(
                "This score needs similarities beyond the top K; give the descriptors of queries and "
                "references, or the full similarity matrix."
            )
        return vectors

    @cached_property
    def outside_in_list(self) -> Floats:
        """Highest similarity among the retrieved that lie outside the top match's place; −inf if none."""
        pool = self.matches if self.pool is None else self.pool
        near = self.references.near(self.top[:, None], pool.indices)
        return np.max(np.where(near, -np.inf, pool.similarities.astype(np.float64)), axis=1, initial=-np.inf)

    @cached_property
    def best_outside(self) -> Floats:
        """Highest similarity of each query to a reference outside the place of its top match; −inf if none.

        The retrieved are the best there are, so the first of them that lies outside is the answer. Only
        queries whose matches are all of one place search all references once more.
        """
        best = self.outside_in_list.copy()
        rows = np.flatnonzero(np.isneginf(best))
        if len(rows):
            best[rows] = self.references.outside(self.vectors[rows], self.top[rows], self.area)
        return best

    @cached_property
    def best_alias(self) -> Floats:
        """Highest similarity of each top match to a reference outside its own place; −inf if none."""
        return self.references.aliases(self.top).astype(np.float64)

    def background(self, rows: Rows | None = None) -> tuple[Floats, Floats]:
        """Return mean and deviation of each query's similarities to these references.

        Args:
            rows: Default: the references' own fixed sample.
        """
        return self.references.background(self.vectors, rows)

    @property
    def reference_descriptors(self) -> Column:
        """Descriptors of the references, R×d."""
        if self.references.descriptors is None:
            raise KappaPlaceError(
                "This score compares references with each other; give their descriptors, a similarity matrix "
                "of queries and references does not hold that."
            )
        return self.references.descriptors

    @cached_property
    def competing_agreement(self) -> Floats:
        """Agreement of each query with the matches that compete for the patch margin, N×at most ten."""
        count = min(COMPETING, self.competing, self.matches.indices.shape[1])
        for known in (self.agreement, self.__dict__.get("match_agreement")):  # what was compared before
            if known is not None:
                return known[:, :count]
        return compare(self.queries, self.references, self.matches.indices[:, :count])

    @cached_property
    def match_agreement(self) -> Floats:
        """Agreement of each query with all its matches, N×K."""
        for known in (self.agreement, self.__dict__.get("competing_agreement")):
            if known is not None and known.shape == self.matches.indices.shape:
                return known
        return compare(self.queries, self.references, self.matches.indices)
