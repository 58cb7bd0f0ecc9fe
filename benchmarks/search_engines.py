"""Search engines against exact search in the same run: recall, speed, bytes, build time, memory.

python benchmarks/search_engines.py --references 1000000 --csv results/search_engines.csv

Descriptors are a hierarchy of clusters (normalized Gaussians): districts, in them places of 1 to 19 images.
Their energy decreases as 1/i over the directions, like real descriptors (about 28 effective dimensions of
512). A query is one more image of a place. Descriptors are stored on disk as float16.
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kappaplace.retrieval import Coded, Engine, EngineOptions, open_engine
from kappaplace.retrieval.codes import CODE_BYTES, learn_codebook
from record import Option, log_row, parse_options, timed

DIM, QUERIES, TIMED, SINGLE, K = 512, 1000, 300, 5, 10
STEP = 1 << 18  # descriptors encoded together
SHARES = (0.35, 0.35, 0.3)  # fractions of district, place and image in the energy of a descriptor
CODES = "pq-codes"  # codes of a map with --storage pq, searched exhaustively
ENGINES = ("ivf-pq", CODES)


def make(folder: Path, references: int, seed: int = 0, query_count: int = QUERIES) -> None:
    """Write descriptors.npy, places.npy, queries.npy and answers.npy (the place of each query)."""
    rng = np.random.default_rng(seed)
    energy = 1 / np.sqrt(np.arange(1, DIM + 1))
    turned = np.linalg.qr(rng.standard_normal((DIM, DIM)))[0]
    mix = (energy[:, None] * turned / np.linalg.norm(energy)).astype(np.float32)
    district, place, image = np.sqrt(np.array(SHARES, np.float32))

    def noise(rows: int) -> NDArray[np.float32]:
        return rng.standard_normal((rows, DIM), np.float32)

    def images(centers: NDArray[np.float32]) -> NDArray[np.float32]:
        wide = (centers + image * noise(len(centers))) @ mix
        return wide / np.linalg.norm(wide, axis=1, keepdims=True)

    descriptors = np.lib.format.open_memmap(
        folder / "descriptors.npy", "w+", np.dtype(np.float16), (references, DIM)
    )
    places = np.empty(references, np.int64)
    districts = noise(max(1, references // 2000))
    queries, answers = [], []
    done = place_count = 0
    while done < references:
        count = 2000
        centers = district * districts[rng.integers(len(districts), size=count)] + place * noise(count)
        of = np.repeat(np.arange(count), rng.integers(1, 20, count))[: references - done]
        descriptors[done : done + len(of)] = images(centers[of])
        places[done : done + len(of)] = place_count + of
        query_places = rng.choice(np.unique(of), max(1, 2 * query_count * len(of) // references))
        queries.append(images(centers[query_places]))
        answers.append(place_count + query_places)
        done, place_count = done + len(of), place_count + count
    descriptors.flush()
    selection = rng.permutation(sum(map(len, answers)))[:query_count]
    np.save(folder / "places.npy", places)
    np.save(folder / "queries.npy", np.concatenate(queries)[selection])
    np.save(folder / "answers.npy", np.concatenate(answers)[selection])


def coded(descriptors: NDArray[np.float16]) -> Coded:
    """Encode all descriptors like a map."""
    book = learn_codebook(descriptors)
    parts = [book.encode(np.asarray(descriptors[i : i + STEP])) for i in range(0, len(descriptors), STEP)]
    return Coded(np.concatenate(parts), book)


def measure(folder: Path, name: str, with_times: bool) -> dict[str, float | int | str]:
    """Compare one engine with exact search, in its own process to measure its peak memory."""
    import torch

    descriptors = np.load(folder / "descriptors.npy", mmap_mode="r")
    queries, places, answers = (np.load(folder / f"{what}.npy") for what in ("queries", "places", "answers"))
    indices = folder / "index"
    indices.mkdir(exist_ok=True)
    file = indices / f"{name}.index"
    exists = file.is_file()
    options = EngineOptions(fingerprint=folder.name)
    engine, opened = timed(
        lambda: (
            open_engine(coded(descriptors), kind="exact")
            if name == CODES
            else open_engine(descriptors, kind=name, folder=indices, options=options)
        )
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20

    exact = open_engine(descriptors, kind="exact")
    truth, matches = exact.search(queries, K).indices, engine.search(queries, K).indices
    size = file.stat().st_size if file.is_file() else 4 * descriptors.size
    if name == CODES:
        size = CODE_BYTES * len(descriptors)
    return {
        "references": len(descriptors),
        "dim": DIM,
        "threads": torch.get_num_threads(),
        "engine": name,
        "recall@10": float(np.mean([len(set(a) & set(b)) / K for a, b in zip(matches, truth, strict=True)])),
        "R@1": float(np.mean(places[matches[:, 0]] == answers)),
        "exact R@1": float(np.mean(places[truth[:, 0]] == answers)),
        **(speeds(exact, engine, queries) if with_times else dict.fromkeys(SPEEDS, "")),
        "bytes a reference": size / len(descriptors),
        "build or load s": opened,
        "loaded": int(exists),
        "peak GiB": peak,
        "peak with search GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


SPEEDS = ("speed in batches", "speed one by one", "ms a query", "exact ms a query")


def seconds(engine: Engine, queries: NDArray[np.float32]) -> float:
    return timed(lambda: engine.search(queries, K))[1]


def speeds(exact: Engine, engine: Engine, queries: NDArray[np.float32]) -> dict[str, float]:
    """Measure in turn, so that other load slows both alike."""
    many = queries[:TIMED]
    times = [(seconds(exact, many), min(seconds(engine, many) for _ in "ab")) for _ in range(2)]
    alone = [(seconds(exact, query), seconds(engine, query)) for query in np.split(queries[:SINGLE], SINGLE)]
    ratios = [float(np.median([theirs / ours for theirs, ours in pairs])) for pairs in (times, alone)]
    each = [1000 * min(column) / TIMED for column in zip(*times, strict=True)]
    return dict(zip(SPEEDS, (*ratios, each[1], each[0]), strict=True))


def main() -> None:
    options = parse_options(
        __doc__,
        references=100_000,
        engines=Option(["ivf-pq"], choices=ENGINES),
        queries=Option(QUERIES, help="more queries detect smaller differences"),
        folder=Option(Path, help="keep data and indices in this folder for later runs"),
        untimed=Option(False, help="measure recall only, not speed"),
        csv=Path,
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.folder or scratch) / f"{options.references}"
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "answers.npy").is_file():
            make(folder, options.references, query_count=options.queries)
        for name in options.engines:
            spawned = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(1, mp_context=spawned) as pool:
                row = pool.submit(measure, folder, name, not options.untimed).result()
            log_row(options.csv, row)


if __name__ == "__main__":
    main()
