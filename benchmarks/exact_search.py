"""Exact search against a bare product and `topk`, a loop in NumPy and faiss, in one run.

python benchmarks/exact_search.py [references]
"""

from __future__ import annotations

import sys

from kappaplace.bench.rows import as_text
from kappaplace.bench.search import measure_search


def main(references: int = 100_000) -> None:
    print(as_text(measure_search(references, 500, rounds=5)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
