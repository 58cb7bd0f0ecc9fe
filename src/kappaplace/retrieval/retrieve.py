"""From queries to evidence: search, rerank, and hand over everything that is known."""

from __future__ import annotations

from kappaplace.data.near import Circle
from kappaplace.retrieval.evidence import COMPETING, Evidence
from kappaplace.retrieval.exact import check_k
from kappaplace.retrieval.patches import rerank as rerank_by_patches
from kappaplace.retrieval.references import Queries, References
from kappaplace.types import Matches

DEEP = 64
"""Matches looked at for the best one outside the top match's place, before all references are searched."""


def retrieve(
    queries: Queries, references: References, k: int = 10, *, area: Circle | None = None, rerank: int = 0
) -> Evidence:
    """Find the best references of each query.

    Args:
        queries: What is known of the queries.
        references: What they are compared with.
        k: Number of matches per query, fewer if the area holds fewer.
        area: Search only this circle: x, y and radius in meters.
        rerank: Number of matches to compare patch by patch and to order by agreement.

    Returns:
        The evidence, with max(k, rerank) matches per query.
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
    """Build the evidence of matches that were searched before; see `retrieve`."""
    agreement = None
    if rerank and pool.indices.shape[1]:
        pool, agreement = rerank_by_patches(queries, references, pool, rerank)
    compared = 0 if agreement is None else agreement.shape[1]
    count = max(k, compared)
    first = Matches(pool.indices[:, :count], pool.similarities[:, :count])
    return Evidence(queries, references, first, agreement, pool, area, compared or COMPETING)
