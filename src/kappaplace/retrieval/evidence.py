"""Retrieval: search the references, re-rank the matches by patches, and return the evidence for scores."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.near import Circle
from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.codes import Column
from kappaplace.retrieval.exact import check_k
from kappaplace.retrieval.patches import compare
from kappaplace.retrieval.patches import rerank as rerank_by_patches
from kappaplace.retrieval.references import NO_SIMILARITIES, Floats, Queries, References, Rows
from kappaplace.types import Matches

COMPETING = 10
"""Number of matches that compete for the patch margin; patches of later ones hardly ever agree."""
DEEP = 64
"""Number of matches in which another place is searched for, before all references are searched."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Results of a retrieval, as `retrieve` returns them.

    If an input is missing, reading a property raises an error with a remedy.
    """

    queries: Queries
    """The N queries."""
    references: References
    """The R references."""
    matches: Matches
    """Matches of the queries, N×K, best first; ``indices`` are row numbers of references."""
    agreement: Floats | None = None
    """Patch agreement with each of the first matches, N×rerank, in [0, 1]; None if not computed."""
    pool: Matches | None = None
    """More matches, in any order, for the margin. Default: ``matches``."""
    area: Circle | None = None
    """Circle that was searched: x, y and radius in metres. None if all references were searched."""
    competing: int = COMPETING
    """Largest number of matches that compete for the patch margin."""

    def __post_init__(self) -> None:
        queries = len(self.matches.indices)
        highest = int(self.matches.indices.max()) if self.matches.indices.size else -1
        if self.queries.images is not None and len(self.queries.images) != queries:
            raise KappaPlaceError(
                f"There are {len(self.queries.images):,} query images but matches for {queries:,} queries. "
                "Pass one image per query, in the same order."
            )
        if (matrix := self.queries.similarities) is not None and (
            len(matrix) != queries or matrix.shape[1] <= highest
        ):
            raise KappaPlaceError(
                f"A similarity matrix of {matrix.shape[0]}×{matrix.shape[1]} does not fit {queries} queries "
                f"with matches up to row {highest}. Pass one row per query and one column per reference."
            )
        if len(self.references) <= highest:
            raise KappaPlaceError(
                f"There are {len(self.references):,} references but matches up to row {highest:,}. Pass one "
                "item per reference, in the same order."
            )

    @cached_property
    def cosines(self) -> Floats:
        """Similarities of the matches in float64, N×K."""
        return self.matches.similarities.astype(np.float64)

    @cached_property
    def distances(self) -> Floats:
        """Euclidean distance of the unit vectors of each match, N×K."""
        return np.sqrt(np.maximum(2.0 - 2.0 * self.cosines, 0.0))

    @property
    def top(self) -> NDArray[np.int64]:
        """Best reference of each query (N)."""
        return self.matches.indices[:, 0]

    @property
    def query_kappa(self) -> Floats:
        """κ of each query (N)."""
        if self.queries.embeddings is None or self.queries.embeddings.kappa is None:
            raise KappaPlaceError("This score needs κ of the queries. Use a model with a kappa head.")
        return np.asarray(self.queries.embeddings.kappa, dtype=np.float64)

    @cached_property
    def match_kappa(self) -> Floats:
        """κ of each match, N×K."""
        kappa = self.references.kappa
        values = None if kappa is None else np.asarray(kappa[self.matches.indices], np.float64)
        if values is None or not np.isfinite(values).all():
            raise KappaPlaceError("This score needs κ of the references. Use a model with a kappa head.")
        return values

    @property
    def query_variance(self) -> Floats:
        """Scalar variance of each query's descriptor (N)."""
        if self.queries.embeddings is None or self.queries.embeddings.variance is None:
            raise KappaPlaceError(
                "This score needs the variance of the queries. Use a model that predicts a variance."
            )
        return np.asarray(self.queries.embeddings.variance, dtype=np.float64)

    @property
    def dim(self) -> int:
        """Dimension of the descriptors."""
        own = None if self.queries.embeddings is None else self.queries.embeddings.descriptor
        for descriptors in (own, self.references.descriptors):
            if descriptors is not None:
                return int(descriptors.shape[1])
        raise KappaPlaceError("This score needs the dimension of the descriptors. Pass descriptors.")

    @cached_property
    def match_positions(self) -> Floats:
        """Position of each match in metres, N×K×2."""
        positions = self.references.positions
        if positions is None:
            raise KappaPlaceError(
                "This score needs the positions of the references in metres. Pass positions."
            )
        values = np.asarray(positions[self.matches.indices], np.float64)
        if affected := int(np.isnan(values).any(axis=(1, 2)).sum()):
            raise KappaPlaceError(
                f"This score needs the positions of all matches, but {affected:,} queries have a match "
                "without one. Remove references without a position."
            )
        return values

    @property
    def vectors(self) -> NDArray[np.floating]:
        """Input of the search, which all references can be compared with."""
        vectors = self.queries.vectors
        if self.references.descriptors is None and self.queries.similarities is None:
            raise KappaPlaceError(NO_SIMILARITIES)
        return vectors

    @cached_property
    def outside_in_list(self) -> Floats:
        """Highest similarity of each query to a match of another place than the top match; −inf if there is
        none."""
        pool = self.matches if self.pool is None else self.pool
        near = self.references.near(self.top[:, None], pool.indices)
        return np.max(np.where(near, -np.inf, pool.similarities.astype(np.float64)), axis=1, initial=-np.inf)

    @cached_property
    def best_outside(self) -> Floats:
        """Highest similarity of each query to a reference of another place than the top match; −inf if there
        is none.

        Matches are the best references, so the first match of another place has this similarity. All
        references are searched again only for queries whose matches all show the same place.
        """
        best = self.outside_in_list.copy()
        rows = np.flatnonzero(np.isneginf(best))
        if len(rows):
            best[rows] = self.references.outside(self.vectors[rows], self.top[rows], self.area)
        return best

    @cached_property
    def best_alias(self) -> Floats:
        """Highest similarity of each top match to a reference of another place (N); −inf if there is none."""
        return self.references.aliases(self.top).astype(np.float64)

    def background(self, rows: Rows | None = None) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of the similarities of each query.

        Args:
            rows: References to compare with. Default: the fixed sample for the z-score.

        Returns:
            Mean and standard deviation, N each.
        """
        return self.references.background(self.vectors, rows)

    @property
    def reference_descriptors(self) -> Column:
        """Descriptors of the references, R×d."""
        if self.references.descriptors is None:
            raise KappaPlaceError(
                "This score compares references with each other, which needs more than a similarity matrix. "
                "Pass their descriptors."
            )
        return self.references.descriptors

    @cached_property
    def competing_agreement(self) -> Floats:
        """Agreement of each query with the matches that compete for the patch margin, N×(at most 10)."""
        count = min(COMPETING, self.competing, self.matches.indices.shape[1])
        for agreement in (self.agreement, self.__dict__.get("match_agreement")):  # from an earlier comparison
            if agreement is not None:
                return agreement[:, :count]
        return compare(self.queries, self.references, self.matches.indices[:, :count])

    @cached_property
    def match_agreement(self) -> Floats:
        """Agreement of each query with all its matches, N×K."""
        for agreement in (self.agreement, self.__dict__.get("competing_agreement")):
            if agreement is not None and agreement.shape == self.matches.indices.shape:
                return agreement
        return compare(self.queries, self.references, self.matches.indices)


def retrieve(
    queries: Queries, references: References, k: int = 10, *, area: Circle | None = None, rerank: int = 0
) -> Evidence:
    """Find the best references of each query.

    Args:
        queries: The queries.
        references: The references to search.
        k: Number of matches per query; fewer if the area contains fewer references.
        area: Search only this circle: x, y and radius in metres.
        rerank: Number of matches to re-rank by patch matching.

    Returns:
        The results, with max(k, rerank) matches per query.

    Raises:
        KappaPlaceError: If k exceeds the number of references, or if an input is missing.
    """
    if area is None or k < 1:
        check_k(k, len(references))
    depth = min(max(k, rerank, DEEP), len(references))
    pool = references.search(queries.vectors, depth, area)
    return from_pool(queries, references, pool, k, area=area, rerank=rerank)


def from_pool(
    queries: Queries,
    references: References,
    pool: Matches,
    k: int,
    *,
    area: Circle | None = None,
    rerank: int = 0,
) -> Evidence:
    """Build the evidence for matches of an earlier search.

    Args:
        queries: The queries.
        references: The references.
        pool: Matches of the search, best first.
        k: Number of matches per query.
        area: Circle that was searched: x, y and radius in metres.
        rerank: Number of matches to re-rank by patch matching.

    Returns:
        The results, with max(k, rerank) matches per query.
    """
    agreement = None
    if rerank and pool.indices.shape[1]:
        pool, agreement = rerank_by_patches(queries, references, pool, rerank)
    compared = 0 if agreement is None else agreement.shape[1]
    count = max(k, compared)
    first = Matches(pool.indices[:, :count], pool.similarities[:, :count])
    return Evidence(queries, references, first, agreement, pool, area, compared or COMPETING)
