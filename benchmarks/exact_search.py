"""Exact search against a bare product and `topk`, a loop in NumPy and faiss, in one run.

python benchmarks/exact_search.py [references]
"""

from __future__ import annotations

import importlib.util
import statistics
import sys

import numpy as np
import torch

from kappaplace import KappaPlaceError
from kappaplace.cli.bench import Rounds, Row, interleaved, ratio
from kappaplace.retrieval.exact import search
from record import report

K = 10


def descriptors(rows: int, dim: int, seed: int = 0) -> np.ndarray:
    """Create random unit vectors."""
    values = np.random.default_rng(seed).standard_normal((rows, dim), np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def measure_search(references: int, queries: int = 200, dim: int = 512, *, rounds: int = 3) -> list[Row]:
    """Time one batch of queries; all methods must return the same matches."""
    q, r = descriptors(queries, dim, 1), descriptors(references, dim)
    tensors = torch.from_numpy(q), torch.from_numpy(r)
    peers = {
        "bare product and topk": lambda: (tensors[0] @ tensors[1].T).topk(K, dim=1).indices.numpy(),
        "loop over queries in NumPy": lambda: np.stack(
            [np.argsort(-(r @ one), kind="stable")[:K] for one in q]
        ),
    }
    if importlib.util.find_spec("faiss") is not None:
        import faiss

        faiss.omp_set_num_threads(torch.get_num_threads())  # as many threads as ours
        index = faiss.IndexFlatIP(dim)
        index.add(r)
        peers["faiss flat"] = lambda: index.search(q, K)[1]
    matches = search(q, r, K).indices
    for name, peer in peers.items():
        if (peer() != matches).mean() > 0.001:  # rounding may swap nearly equal matches
            raise KappaPlaceError(f"The matches of {name} differ from exact search.")
    calls = {"ours": lambda: search(q, r, K), **peers}
    times = interleaved(calls, torch.device("cpu"), Rounds(1, rounds, 1))
    ms = {name: 1e3 * statistics.median(values) for name, values in times.items()}
    where = f"{queries} queries × {references:,} references × {dim}"
    return [
        Row("search", where, f"exact search against {name}", ms["ours"], ms[name], "ms", name, gain, "higher")
        for name, gain in {name: ratio(times[name], times["ours"]) for name in peers}.items()
    ]


if __name__ == "__main__":
    report(measure_search(*map(int, sys.argv[1:] or ["100000"]), 500, rounds=5), None)
