"""A small world in which every score can be had."""

from __future__ import annotations

import numpy as np

from kappaplace.retrieval.evidence import Evidence
from kappaplace.retrieval.exact import IsNear, search
from kappaplace.retrieval.references import ArrayReferences, MatrixReferences, PatchMaps, Queries
from kappaplace.types import Embeddings, Matches


def evidence_of(
    matches: Matches,
    query: Embeddings | None = None,
    reference: Embeddings | None = None,
    *,
    reference_positions: np.ndarray | None = None,
    near: IsNear | None = None,
    similarity_matrix: np.ndarray | None = None,
    query_images: list | None = None,
    reference_images: list | None = None,
    patch_maps: PatchMaps | None = None,
) -> Evidence:
    """Evidence of given matches; what is not given is unknown."""
    highest = int(matches.indices.max(initial=-1)) + 1
    kind = ArrayReferences if similarity_matrix is None else MatrixReferences
    count = highest if similarity_matrix is None else np.shape(similarity_matrix)[1]
    references = kind(reference, reference_positions, near, reference_images, patch_maps, count=count)
    queries = Queries(query, query_images, patch_maps, similarity_matrix)
    return Evidence(queries, references, matches)


def unit(rng: np.random.Generator, rows: int, dim: int = 8) -> np.ndarray:
    z = rng.standard_normal((rows, dim)).astype(np.float32)
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def world(seed: int = 0, queries: int = 6, references: int = 9, k: int = 4, **rest: object) -> Evidence:
    """Random descriptors with κ and variance, references on a plane of 100 m."""
    rng = np.random.default_rng(seed)

    def embeddings(rows: int) -> Embeddings:
        return Embeddings(
            unit(rng, rows), rng.lognormal(2, 2, rows).astype(np.float32), rng.random(rows).astype(np.float32)
        )

    q, r = embeddings(queries), embeddings(references)
    given = {"reference_positions": rng.uniform(0, 100, (references, 2)), **rest}
    return evidence_of(search(q.descriptor, r.descriptor, k), q, r, **given)


def changed(e: Evidence, **given: object) -> Evidence:
    """The same evidence with other parts, named as in `evidence_of`."""
    known = {
        "query": e.queries.embeddings,
        "reference": e.references.embeddings,
        "reference_positions": e.references.positions,
        "near": e.references.neighborhood,
        "similarity_matrix": e.queries.similarities,
        "query_images": e.queries.images,
        "reference_images": e.references.paths,
        "patch_maps": e.queries.patch_maps,
    }
    return evidence_of(e.matches, **(known | given))
