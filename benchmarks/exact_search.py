"""What determinism and bounded memory cost: `search` against a bare matrix product and `topk`, in one run.

python benchmarks/exact_search.py [references]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from kappaplace.retrieval.exact import search

QUERIES, DIM, K, ROUNDS = 500, 512, 10, 5


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main(references: int = 100_000) -> None:
    rng = np.random.default_rng(0)
    q, r = (rng.standard_normal((rows, DIM), np.float32) for rows in (QUERIES, references))

    def bare() -> object:
        return (torch.from_numpy(q) @ torch.from_numpy(r).T).topk(K, dim=1)

    # Interleaved, so that a busy machine slows both alike; the median of the ratios is reported.
    pairs = [(seconds(lambda: search(q, r, K)), seconds(bare)) for _ in range(ROUNDS)]
    ratio = float(np.median([ours / theirs for ours, theirs in pairs]))
    print(
        f"{QUERIES} queries × {references:,} references × {DIM}: search takes {ratio:.2f} × the bare product"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
