"""A small world in which every score can be had."""

from __future__ import annotations

import numpy as np

from kappaplace.retrieval.exact import search
from kappaplace.types import Embeddings
from kappaplace.uncertainty.base import Evidence


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
    return Evidence(search(q.descriptor, r.descriptor, k), q, r, **given)
