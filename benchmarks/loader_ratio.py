"""Speed of the image loader relative to bare decoding: prints both rates and their ratio.

Bare decoding is the same decode and resize in as many threads, without keeping, ordering or batching. Both
run in turn over the same JPEG files, and each round gives one ratio, so that other load slows both alike.

    python benchmarks/loader_ratio.py --images 400 --workers 2 --least 0.85 --csv results/loader_ratio.csv

With `--scaling`, it measures images per second with different numbers of threads and processes, including
their start, also with resizing on a GPU, and the CPU time per image of the main process. With processes, this
part cannot be distributed to more cores. With threads, it is the time that holds the interpreter lock (the
same steps on a tiny image, and unpacking the pixels). For comparison it measures torch's DataLoader with
spawned workers: a first pass with their start, and a second pass with persistent workers.

    python benchmarks/loader_ratio.py --scaling 1 2 4 8 16 --images 2048 --rounds 3 --csv FILE
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from kappaplace.cli.bench import write_photos
from kappaplace.data.decode_worker import unpack
from kappaplace.data.images import Preprocessing
from kappaplace.data.loader import ImageLoader, Workers
from record import Option, append_row, parse_options, timed


def bare(paths: list[Path], preprocessing: Preprocessing, workers: int) -> None:
    def work(part: list[Path]) -> None:
        for path in part:
            preprocessing.image(path)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, [paths[i::workers] for i in range(workers)]))


def loaded(loader: ImageLoader) -> None:
    count = sum(len(batch.rows) for batch in loader)
    assert count == len(loader.paths)


class Files(Dataset[torch.Tensor]):
    """Dataset with the same decoding for torch's DataLoader."""

    def __init__(self, paths: list[Path], preprocessing: Preprocessing) -> None:
        self.paths, self.preprocessing = paths, preprocessing

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> torch.Tensor:
        image = self.preprocessing.image(self.paths[row])
        return torch.from_numpy(unpack(image, np.empty((image.height, image.width, 3), np.uint8)))


def data_loader(args: argparse.Namespace, paths: list[Path], workers: int) -> tuple[float, float]:
    """Return images per second of a first pass, in which workers start, and of a second one."""
    loader = DataLoader(
        Files(paths, Preprocessing(size=args.size, mode="exact")),
        args.batch_size,
        num_workers=workers,
        multiprocessing_context="spawn",
        persistent_workers=True,
    )
    passes = [rate(lambda: sum(len(batch) for batch in loader), len(paths)) for _ in range(2)]
    return passes[0], passes[1]


def rate(run: Callable[[], None], count: int) -> float:
    return count / timed(run)[1]


def arguments() -> argparse.Namespace:
    return parse_options(
        __doc__,
        images=200,
        width=640,
        height=480,
        size=Option(512, help="side of the square output"),
        workers=2,
        batch_size=32,
        rounds=15,
        least=Option(0.0, help="exit with 1 if the ratio is below this"),
        scaling=Option([], kind=int, help="numbers of workers to measure"),
        csv=Option(Path, help="append the result to this file"),
    )


def measure(args: argparse.Namespace) -> list[tuple[float, float]]:
    """Return images per second of every round: bare decoding, and the loader."""
    preprocessing = Preprocessing(size=args.size, mode="exact")
    with tempfile.TemporaryDirectory() as folder:
        paths = write_photos(Path(folder), args.images, (args.width, args.height))
        kib = statistics.mean(p.stat().st_size for p in paths) / 1024
        print(f"{args.images} JPEGs of {args.width}×{args.height}, {kib:.0f} KiB, to {args.size}×{args.size}")
        bare(paths, preprocessing, args.workers)  # warm the file cache
        loader = ImageLoader(paths, preprocessing, args.batch_size, workers=Workers(args.workers, False))
        runs = [lambda: bare(paths, preprocessing, args.workers), lambda: loaded(loader)]
        rates = []
        for i in range(args.rounds):  # the order alternates
            order = (0, 1) if i % 2 == 0 else (1, 0)
            measured = {which: rate(runs[which], args.images) for which in order}
            rates.append((measured[0], measured[1]))
    return rates


def scaling(args: argparse.Namespace) -> None:
    """Print and record the rates with threads and with processes for each number of workers."""
    preprocessing = Preprocessing(size=args.size, mode="exact")
    with tempfile.TemporaryDirectory() as folder:
        paths = write_photos(Path(folder), args.images, (args.width, args.height))
        held = lock_held(paths[0], preprocessing)
        print(f"{args.images} JPEGs of {args.width}×{args.height} to {args.size}×{args.size}")
        print(f"an image holds the interpreter lock for {held:.0f} µs if threads decode it")
        print(
            "workers  threads/s  processes/s  not resized/s  DataLoader/s  again/s  "
            "main process with processes, µs per image"
        )
        bare(paths, preprocessing, max(args.scaling))  # warm the file cache
        for workers in args.scaling:
            left = args.height, args.width
            loaders = [
                ImageLoader(
                    paths, preprocessing, args.batch_size, workers=Workers(workers, processes), unresized=size
                )
                for processes, size in ((False, None), (True, None), (True, left))
            ]
            rounds = []
            for _ in range(args.rounds):
                threads = rate(partial(loaded, loaders[0]), args.images)
                before = time.process_time()  # of this process without its children
                processes = rate(partial(loaded, loaders[1]), args.images)
                main = (time.process_time() - before) / args.images * 1e6
                unresized = rate(partial(loaded, loaders[2]), args.images)
                rounds.append((threads, processes, unresized, main, *data_loader(args, paths, workers)))
            threads, processes, unresized, main, first, again = map(
                statistics.median, zip(*rounds, strict=True)
            )
            rates = f"{threads:9.1f}  {processes:11.1f}  {unresized:13.1f}  {first:12.1f}  {again:7.1f}"
            print(f"{workers:7d}  {rates}  {main:10.0f}")
            facts = {"images": args.images, "workers": workers, "rounds": args.rounds}
            speeds = {"threads_images_per_s": threads, "processes_images_per_s": processes}
            speeds["unresized_images_per_s"] = unresized
            speeds |= {"dataloader_images_per_s": first, "dataloader_again_images_per_s": again}
            costs = {"threads_lock_us": held, "processes_main_us": main}
            append_row(args.csv, facts | speeds | {"ratio": processes / threads} | costs)


def lock_held(path: Path, preprocessing: Preprocessing) -> float:
    """Return the microseconds per image that hold the interpreter lock: Python code and unpacking."""
    tiny = io.BytesIO()
    image = preprocessing.image(path)
    image.resize((16, 16)).save(tiny, "JPEG")
    small = Preprocessing(size=8, mode="exact")
    out = np.empty((image.height, image.width, 3), np.uint8)
    return cpu_us(lambda: small.image(tiny.getvalue())) + cpu_us(lambda: unpack(image, out))


def cpu_us(run: Callable[[], object], times: int = 200) -> float:
    taken = []
    for _ in range(times):
        start = time.thread_time()
        run()
        taken.append(time.thread_time() - start)
    return statistics.median(taken) * 1e6


def main() -> int:
    args = arguments()
    if args.scaling:
        scaling(args)
        return 0
    rates = measure(args)
    decoding, loading = (statistics.median(column) for column in zip(*rates, strict=True))
    print(f"bare decoding  {decoding:7.1f} images/s, {args.workers} threads")
    print(f"image loader   {loading:7.1f} images/s, {args.workers} workers")
    best = max(x for _, x in rates) / max(b for b, _ in rates)
    ratio = statistics.median(x / b for b, x in rates)
    print(f"ratio          {ratio:7.3f} (median of {args.rounds} rounds; of the fastest rounds {best:.3f})")
    facts = {"images": args.images, "workers": args.workers, "rounds": args.rounds}
    speeds = {"bare_images_per_s": decoding, "loader_images_per_s": loading}
    append_row(args.csv, facts | speeds | {"ratio": ratio, "ratio_of_fastest": best})
    if ratio < args.least:
        print(f"The ratio is below {args.least:g}.")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
