"""Peak memory of an evaluation against a large map: search, scores and metrics on memory-mapped descriptors.

    python benchmarks/evaluate_memory.py --references 300000
    python benchmarks/evaluate_memory.py --references 2800000 --most 8 --folder /somewhere/with/6/GB

Descriptors are random unit vectors in a file, written block by block. κ is one float per image, and positions
are those of a city, so that every score except geometric verification is computed. The peak includes mapped
pages of the file, which the system can free at any time; "own" is the memory that the process allocated.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from kappaplace.data.table import PlaceImages
from kappaplace.evaluation.inputs import from_descriptors
from kappaplace.evaluation.measuring import measure
from kappaplace.evaluation.results import EvaluationResult, write_result
from kappaplace.evaluation.scoring import score_set, select_scores
from kappaplace.types import Embeddings
from record import Option, append_row, parse_options

GIB = 2.0**30
BLOCK = 1 << 14


def unit_vectors(file: Path, rows: int, dim: int, kind: str, seed: int) -> np.ndarray:
    """Create random unit vectors as a memory map."""
    array = np.lib.format.open_memmap(file, mode="w+", dtype=kind, shape=(rows, dim))
    rng = np.random.default_rng(seed)
    for start in range(0, rows, BLOCK):
        block = rng.standard_normal((min(BLOCK, rows - start), dim), dtype=np.float32)
        array[start : start + BLOCK] = block / np.linalg.norm(block, axis=1, keepdims=True)
    array.flush()
    del array
    return np.load(file, mmap_mode="c")


def city(queries: int, references: int) -> PlaceImages:
    """Create a table with positions in a city; no image is opened."""
    rng = np.random.default_rng(2)
    names = np.empty(queries + references, np.dtypes.StringDType())
    for start in range(0, len(names), BLOCK):
        stop = min(start + BLOCK, len(names))
        names[start:stop] = [f"@{i:0100d}@.jpg" for i in range(start, stop)]  # as long as those of SF-XL
    positions = rng.uniform(0, 5000, (len(names), 2))
    return PlaceImages.create(names, positions, is_query=np.arange(len(names)) < queries, name="city")


class OwnMemory(threading.Thread):
    """Watches the memory of the process without pages of mapped files."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.over = 0.0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.02):
            try:
                text = Path("/proc/self/status").read_text()
            except OSError:
                return
            line = next((line for line in text.splitlines() if line.startswith("RssAnon")), "RssAnon: 0")
            self.peak = max(self.peak, int(line.split()[1]) * 1024 / GIB)


def main() -> None:
    arguments = parse_options(
        __doc__,
        references=300_000,
        queries=1000,
        dim=512,
        dtype=Option("float32", choices=["float32", "float16"]),
        folder=Option(Path, help="folder for the temporary file of descriptors"),
        most=Option(float, help="fail above this peak, in GiB"),
        csv=Path,
    )
    n, r, d = arguments.queries, arguments.references, arguments.dim
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        reference = unit_vectors(folder / "r.npy", r, d, arguments.dtype, 0)
        query = unit_vectors(folder / "q.npy", n, d, arguments.dtype, 1)
        table = city(n, r)
        rng = np.random.default_rng(3)
        kappas = [rng.uniform(10, 500, size).astype(np.float32) for size in (n, r)]
        watch = OwnMemory()
        watch.start()
        start = time.perf_counter()
        data = from_descriptors(Embeddings(query, kappas[0]), Embeddings(reference, kappas[1]), None, table)
        searched = time.perf_counter() - start
        scores, not_asked = select_scores()
        result = score_set(data, scores, not_asked=not_asked)
        scored = time.perf_counter() - start - searched
        metrics = measure([result], resamples=0)
        write_result(EvaluationResult("random", (result,), metrics), folder / "out")
        watch.over.set()
        seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
    size = r * d * np.dtype(arguments.dtype).itemsize / GIB
    print(f"{n:,} queries, {r:,} × {d} references ({arguments.dtype}, {size:.2f} GiB)")
    print(f"{len(result.scores)} scores")
    print(f"peak {peak:.2f} GiB with mapped pages, own {watch.peak:.2f} GiB")
    print(f"search {searched:.1f} s, scores {scored:.1f} s, all {seconds:.1f} s")
    sizes = {"references": r, "queries": n, "dim": d, "dtype": arguments.dtype}
    times = {"search_s": searched, "scores_s": scored, "all_s": seconds}
    append_row(arguments.csv, {**sizes, "peak_GiB": peak, "own_GiB": watch.peak, **times})
    if arguments.most is not None and peak > arguments.most:
        sys.exit(f"The peak of {peak:.2f} GiB is above {arguments.most:g} GiB.")


if __name__ == "__main__":
    main()
