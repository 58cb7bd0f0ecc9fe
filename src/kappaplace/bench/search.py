"""Exact search against faiss' flat index and against a loop over queries in NumPy."""

from __future__ import annotations

import importlib.util

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.bench.rows import Row
from kappaplace.bench.timing import Call, interleaved, ratio
from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.exact import search

PART = "search"
K = 10


def descriptors(rows: int, dim: int, seed: int = 0) -> NDArray[np.float32]:
    """Random directions."""
    made = np.random.default_rng(seed).standard_normal((rows, dim), np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def measure_search(
    references: int = 20_000, queries: int = 200, dim: int = 512, *, rounds: int = 3
) -> list[Row]:
    """Times of one batch of queries; all must find the same."""
    q, r = descriptors(queries, dim, 1), descriptors(references, dim)

    def bare() -> NDArray[np.int64]:
        return (torch.from_numpy(q) @ torch.from_numpy(r).T).topk(K, dim=1).indices.numpy()

    def loop() -> NDArray[np.int64]:
        return np.stack([np.argsort(-(r @ one), kind="stable")[:K] for one in q])

    peers = {"bare product and topk": bare, "loop over queries in NumPy": loop}
    if importlib.util.find_spec("faiss") is not None:
        import faiss

        faiss.omp_set_num_threads(torch.get_num_threads())  # as many as we have
        index = faiss.IndexFlatIP(dim)
        index.add(r)
        peers["faiss flat"] = lambda: index.search(q, K)[1]
    ours = search(q, r, K).indices
    for name, peer in peers.items():
        if (peer() != ours).mean() > 0.001:  # sums in another order may swap two that are nearly equal
            raise KappaPlaceError(f"The {name} does not find what exact search finds.")
    calls: dict[str, Call] = {"ours": lambda: search(q, r, K), **peers}
    taken = interleaved(calls, runs=1, rounds=rounds, warm_up=1)
    ms = {name: 1e3 * sorted(values)[len(values) // 2] for name, values in taken.items()}
    where = f"{queries} queries × {references:,} references × {dim}"
    return [
        Row(
            PART,
            where,
            f"exact search against {name}",
            ms["ours"],
            ms[name],
            "ms",
            name,
            ratio(taken[name], taken["ours"]),
            "higher",
        )
        for name in peers
    ]
