"""Search engines against our exact one in the same run: recall, speed, bytes, build time, memory.

python benchmarks/search_engines.py --references 1000000 --csv results/search_engines.csv

Descriptors are a hierarchy of von Mises-Fisher-like clusters (Gaussian and normalised): districts, in them
places of 1 to 19 images, and energy that falls as 1/i over the directions, as that of real descriptors does
(about 28 effective dimensions of 512). A query is one more image of a place. They lie on disk as float16.
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kappaplace.retrieval import Coded, Engine, EngineOptions, open_engine
from kappaplace.retrieval.codes import CODE_BYTES, learn_codebook
from record import Option, append_row, parse_options

DIM, QUERIES, TIMED, SINGLE, K = 512, 1000, 300, 5, 10
STEP = 1 << 18  # descriptors encoded together
SHARES = (0.35, 0.35, 0.3)  # of district, place and image in the energy of a descriptor
CODES = "pq-codes"  # those of a map with --storage pq, compared one and all
ENGINES = ("ivf-pq", CODES)


def make(folder: Path, references: int, seed: int = 0, asked_in_all: int = QUERIES) -> None:
    """Write descriptors.npy, places.npy, queries.npy and answers.npy (the place of each query)."""
    rng = np.random.default_rng(seed)
    energy = 1 / np.sqrt(np.arange(1, DIM + 1))
    turned = np.linalg.qr(rng.standard_normal((DIM, DIM)))[0]
    mix = (energy[:, None] * turned / np.linalg.norm(energy)).astype(np.float32)
    district, place, image = np.sqrt(np.array(SHARES, np.float32))

    def noise(rows: int) -> NDArray[np.float32]:
        return rng.standard_normal((rows, DIM), np.float32)

    def images(centres: NDArray[np.float32]) -> NDArray[np.float32]:
        wide = (centres + image * noise(len(centres))) @ mix
        return wide / np.linalg.norm(wide, axis=1, keepdims=True)

    descriptors = np.lib.format.open_memmap(
        folder / "descriptors.npy", "w+", np.dtype(np.float16), (references, DIM)
    )
    places = np.empty(references, np.int64)
    districts = noise(max(1, references // 2000))
    queries, answers = [], []
    done = known = 0
    while done < references:
        count = 2000
        centres = district * districts[rng.integers(len(districts), size=count)] + place * noise(count)
        of = np.repeat(np.arange(count), rng.integers(1, 20, count))[: references - done]
        descriptors[done : done + len(of)] = images(centres[of])
        places[done : done + len(of)] = known + of
        asked = rng.choice(np.unique(of), max(1, 2 * asked_in_all * len(of) // references))
        queries.append(images(centres[asked]))
        answers.append(known + asked)
        done, known = done + len(of), known + count
    descriptors.flush()
    chosen = rng.permutation(sum(map(len, answers)))[:asked_in_all]
    np.save(folder / "places.npy", places)
    np.save(folder / "queries.npy", np.concatenate(queries)[chosen])
    np.save(folder / "answers.npy", np.concatenate(answers)[chosen])


def seconds(call: object) -> float:
    start = time.perf_counter()
    call()  # type: ignore[operator]
    return time.perf_counter() - start


def coded(descriptors: NDArray[np.float16]) -> Coded:
    """All descriptors as a map's codes."""
    book = learn_codebook(descriptors)
    parts = [book.encode(np.asarray(descriptors[i : i + STEP])) for i in range(0, len(descriptors), STEP)]
    return Coded(np.concatenate(parts), book)


def measure(folder: Path, name: str, timed: bool) -> dict[str, float | int | str]:
    """One engine against the exact one, in a process of its own so that the peak of memory is its own."""
    import torch

    descriptors = np.load(folder / "descriptors.npy", mmap_mode="r")
    queries, places, answers = (np.load(folder / f"{what}.npy") for what in ("queries", "places", "answers"))
    kept = folder / "index"
    kept.mkdir(exist_ok=True)
    file = kept / f"{name}.index"
    there = file.is_file()
    start = time.perf_counter()
    if name == CODES:
        engine = open_engine(coded(descriptors), kind="exact")
    else:
        engine = open_engine(
            descriptors, kind=name, folder=kept, options=EngineOptions(fingerprint=folder.name)
        )
    opened = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20

    exact = open_engine(descriptors, kind="exact")
    truth, found = exact.search(queries, K).indices, engine.search(queries, K).indices
    size = file.stat().st_size if file.is_file() else 4 * descriptors.size
    if name == CODES:
        size = CODE_BYTES * len(descriptors)
    return {
        "references": len(descriptors),
        "dim": DIM,
        "threads": torch.get_num_threads(),
        "engine": name,
        "recall@10": float(np.mean([len(set(a) & set(b)) / K for a, b in zip(found, truth, strict=True)])),
        "R@1": float(np.mean(places[found[:, 0]] == answers)),
        "exact R@1": float(np.mean(places[truth[:, 0]] == answers)),
        **(speeds(exact, engine, queries) if timed else dict.fromkeys(SPEEDS, "")),
        "bytes a reference": size / len(descriptors),
        "build or load s": opened,
        "loaded": int(there),
        "peak GiB": peak,
        "peak with search GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


SPEEDS = ("speed in batches", "speed one by one", "ms a query", "exact ms a query")


def speeds(exact: Engine, engine: Engine, queries: NDArray[np.float32]) -> dict[str, float]:
    """Interleaved, so that a busy machine slows both alike."""
    many = queries[:TIMED]
    times = [
        (seconds(lambda: exact.search(many, K)), min(seconds(lambda: engine.search(many, K)) for _ in "ab"))
        for _ in range(2)
    ]
    alone = [
        (seconds(lambda q=query: exact.search(q, K)), seconds(lambda q=query: engine.search(q, K)))
        for query in np.split(queries[:SINGLE], SINGLE)
    ]
    ratios = [float(np.median([theirs / ours for theirs, ours in pairs])) for pairs in (times, alone)]
    each = [1000 * min(column) / TIMED for column in zip(*times, strict=True)]
    return dict(zip(SPEEDS, (*ratios, each[1], each[0]), strict=True))


def main() -> None:
    options = parse_options(
        __doc__,
        references=100_000,
        engines=Option(["ivf-pq"], choices=ENGINES),
        queries=Option(QUERIES, help="more tell smaller differences apart"),
        folder=Option(Path, help="keep data and indices here, to go on another time"),
        untimed=Option(False, help="what is found alone, not how fast"),
        csv=Path,
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.folder or scratch) / f"{options.references}"
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "answers.npy").is_file():
            make(folder, options.references, asked_in_all=options.queries)
        for name in options.engines:
            spawned = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(1, mp_context=spawned) as pool:
                row = pool.submit(measure, folder, name, not options.untimed).result()
            said = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
            print(", ".join(said), flush=True)
            append_row(options.csv, row)


if __name__ == "__main__":
    main()
