"""Retrieval: search the references for the queries, and re-rank the matches by patches."""

from __future__ import annotations

from kappaplace.data.near import Circle
from kappaplace.retrieval.evidence import COMPETING, Evidence
from kappaplace.retrieval.exact import check_k
from kappaplace.retrieval.patches import rerank as rerank_by_patches
from kappaplace.retrieval.references import Queries, References
from kappaplace.types import Matches

DEEP = 64
"""Matches to check for the best one of another place, before all references are searched."""


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
