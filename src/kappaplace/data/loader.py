"""Load images as batches, in order, with threads or processes that decode a few batches ahead."""

from __future__ import annotations

import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.checks import choice, within
from kappaplace.data.decode_pool import DecodeProcesses, Result, Results, available
from kappaplace.data.decode_worker import Pass, Pixels, Spares, unpack
from kappaplace.data.decoding import Source
from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError

log = logging.getLogger(__name__)

# Pillow decodes and resizes without the interpreter's lock, but a tenth of the work needs it. More than a few
# threads therefore gain little and hinder each other.
MAX_DEFAULT_WORKERS = 16
MAX_DEFAULT_PROCESSES = 32
ENOUGH_THREADS = 4
# Starting processes takes a few tenths of a second, in which threads decode about this many images.
FEW_IMAGES = 256

OnError = Literal["raise", "skip"]


class Skipped(NamedTuple):
    """One image that could not be read."""

    row: int
    source: str
    reason: str


class Batch(NamedTuple):
    """Images of the same size and their rows, in the requested order."""

    rows: NDArray[np.int64]
    images: torch.Tensor
    """uint8 N×3×H×W in channels-last memory, or normalized float32 with `normalize=True`."""


@dataclass(frozen=True)
class Workers:
    """Settings for decoding: number of threads or processes, and number of batches in progress."""

    count: int | None = None
    """Number of threads or processes; 0 decodes when a batch is requested. Default: one per usable core, at
    most `MAX_DEFAULT_WORKERS` threads or `MAX_DEFAULT_PROCESSES` processes."""
    processes: bool | None = None
    """Decode in processes (Linux only). Default: if more than `ENOUGH_THREADS` workers have a core each and
    more than `FEW_IMAGES` files are read. Pixels and errors are the same as in threads."""
    prefetch: int = 2
    """Largest number of batches in progress."""


class Threads:
    """Decoding threads of this process. With a count of 0, `submit` decodes immediately."""

    def __init__(
        self, count: int, spares: Spares, load: Callable[[list[int], Pixels | None], list[Result]]
    ) -> None:
        self.count = count
        self.spares = spares
        self.load = load
        self.pool = ThreadPoolExecutor(count or 1, thread_name_prefix="decode")

    def take_buffer(self, shape: tuple[int, ...]) -> tuple[Pixels, None]:
        """Return an array for a batch N×H×W×3, and None, because threads need no offset in shared memory."""
        return self.spares.take(shape), None

    def submit(self, rows: list[int], out: Pixels | None) -> Future[Results]:
        """Decode the images of a few rows, into `out` if it is given and they fit."""
        if self.count:
            return self.pool.submit(self.load, rows, out)
        result: Future[Results] = Future()
        result.set_result(self.load(rows, out))
        return result

    def close(self, keep: bool = False) -> None:
        """End the threads."""
        self.pool.shutdown(wait=True, cancel_futures=True)


Decoders: TypeAlias = Threads | DecodeProcesses
"""Workers that decode the images of one pass."""


class ImageLoader:
    """Iterate over images as batches, see `Batch`.

    Every pass starts from the beginning. A batch contains the next `batch_size` images. If their sizes
    differ, it is returned in parts of the same size, in the requested order.

    Args:
        paths: Images: paths, encoded bytes, Pillow images or arrays.
        preprocessing: Preprocessing that resizes the images.
        batch_size: Number of images per batch.
        rows: Indices into `paths`, in the order to read. It may be an endless iterable such as a sampler,
            which is read at most `Workers.prefetch` batches ahead. Default: all, in order.
        workers: Number of threads or processes, or `Workers` for more settings. Default: `Workers()`.
        normalize: Return normalized float32 instead of uint8.
        on_error: "raise" ends the pass with the error of an image that cannot be read. "skip" logs such an
            image and adds it to `skipped`.
        unresized: Images that are decoded to this (height, width) are not resized, so that the device that
            embeds them can do it (`kappaplace.data.resample`).

    Raises:
        KappaPlaceError: If an argument is out of range; while iterating, if an image cannot be read.
    """

    def __init__(
        self,
        paths: Sequence[Source],
        preprocessing: Preprocessing,
        batch_size: int = 32,
        *,
        rows: Iterable[int] | None = None,
        workers: int | Workers | None = None,
        normalize: bool = False,
        on_error: OnError = "raise",
        unresized: tuple[int, int] | None = None,
    ) -> None:
        options = workers if isinstance(workers, Workers) else Workers(workers)
        within(batch_size, "batch_size", 1)
        within(options.prefetch, "prefetch", 1)
        within(options.count or 0, "workers", 0)
        choice(on_error, OnError, "on_error")
        self.paths = paths
        self.preprocessing = preprocessing
        self.batch_size = batch_size
        self.rows = rows
        self.workers = options
        self.normalize = normalize
        self.on_error = on_error
        self.unresized = unresized
        self.skipped: list[Skipped] = []
        self._threads = default_workers() if options.count is None else options.count
        self._unreadable: set[int] = set()
        # In use at the same time: the batches in progress, the one just returned and the one before it.
        self._spares = Spares(options.prefetch + 2)

    def __iter__(self) -> Iterator[Batch]:
        for block in self._blocks():
            images = list(self._readable(block.rows, self._results(block)))
            if images and _in_place(images, block.buffer):
                assert block.buffer is not None
                yield self._batch(block.rows, block.buffer)
                continue
            for _, run in groupby(images, key=lambda pair: pair[1].shape):
                rows, pixels = zip(*run, strict=True)
                # NumPy, because torch would wake its own threads, which then compete with decoding.
                yield self._batch(rows, np.stack(pixels))

    def _results(self, block: _Block) -> list[Result]:
        """Return the results of a block; images that a process could not read are tried again here."""
        results = [result for future in block.futures for result in future.result()]
        return [
            self._load([row], None if block.buffer is None else block.buffer[i : i + 1])[0]
            if result is None
            else result
            for i, (row, result) in enumerate(zip(block.rows, results, strict=True))
        ]

    def _batch(self, rows: Sequence[int], pixels: Pixels) -> Batch:
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        return Batch(
            np.array(rows, np.int64), self.preprocessing.normalize(images) if self.normalize else images
        )

    def _blocks(self) -> Iterator[_Block]:
        """Yield batches of rows in order, with at most `prefetch` of them in progress."""
        rows = iter(range(len(self.paths)) if self.rows is None else self.rows)
        batches = iter(lambda: [int(row) for row in islice(rows, min(self.batch_size, sys.maxsize))], [])
        decoders = self._decoders()
        finished = False
        try:
            ahead = deque(self._start(batch, decoders) for batch in islice(batches, self.workers.prefetch))
            while ahead:
                block = ahead.popleft()
                wait(block.futures)
                ahead.extend(self._start(batch, decoders) for batch in islice(batches, 1))
                yield block
            finished = True
        finally:  # also if the consumer stops early
            decoders.close(keep=finished)

    def _decoders(self) -> Decoders:
        """Return the workers of a pass."""
        if self._in_processes():
            count = self._threads
            if self.workers.count is None:
                count = min(usable_cores(), MAX_DEFAULT_PROCESSES)
            total = self._count()
            size = self.batch_size if total is None else min(self.batch_size, total)
            settings = Pass(self.preprocessing, self.unresized)
            # One more than for threads, for a consumer that looks back; untouched memory costs nothing.
            pool = DecodeProcesses.start(count, settings, self.workers.prefetch + 3, size)
            if pool is not None:
                return pool
        return Threads(self._threads, self._spares, self._load)

    def _in_processes(self) -> bool:
        processes = self.workers.processes
        if not self._threads or processes is False:
            return False
        # Other sources would have to be copied, and other preprocessings might not exist in the worker.
        possible = (
            available()
            and type(self.preprocessing) is Preprocessing
            and isinstance(self.paths, list | tuple)
            and all(issubclass(kind, str | os.PathLike) for kind in set(map(type, self.paths)))
        )
        if processes and not possible:
            raise KappaPlaceError("Decoding in processes needs Linux and a list of paths. Use threads.")
        count = self._count()
        many = min(self._threads, usable_cores()) > ENOUGH_THREADS and (count is None or count > FEW_IMAGES)
        return possible and (processes or many)

    def _count(self) -> int | None:
        """Return the number of images of a pass, None if it is unknown."""
        if self.rows is None:
            return len(self.paths)
        return len(self.rows) if isinstance(self.rows, Sized) else None

    def _start(self, rows: list[int], decoders: Decoders) -> _Block:
        rows = [row for row in rows if row not in self._unreadable]
        size = Pass(self.preprocessing, self.unresized).size
        # If all images get the same size, they are decoded into the batch: no copy and no other memory.
        buffer, offset = (None, None) if size is None else decoders.take_buffer((len(rows), *size, 3))
        # A task is a few images: with single images, threads spend a few percent on waking each other.
        step = max(1, min(4, len(rows) // max(decoders.count, 1)))
        futures = []
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            out = None if buffer is None else buffer[start : start + step]
            if isinstance(decoders, Threads):
                futures.append(decoders.submit(part, out))
                continue
            at = None if offset is None or buffer is None else offset + start * buffer[0].size
            futures.append(decoders.submit([self.paths[row] for row in part], out, at))
        return _Block(rows, buffer, futures)

    def _load(self, rows: list[int], out: Pixels | None) -> list[Result]:
        results: list[Result] = []
        for i, row in enumerate(rows):
            try:
                image = self.preprocessing.image(self.paths[row], self.unresized)
            except KappaPlaceError as error:
                results.append(error)
            else:
                fits = out is not None and (image.height, image.width) == out.shape[1:3]
                results.append(unpack(image, out[i]) if fits and out is not None else np.asarray(image))
        return results

    def _readable(self, rows: list[int], results: list[Result]) -> Iterator[tuple[int, Pixels]]:
        for row, result in zip(rows, results, strict=True):
            if isinstance(result, np.ndarray):
                yield row, result
            elif self.on_error == "raise":
                raise result
            else:
                self._skip(row, result)

    def _skip(self, row: int, error: KappaPlaceError) -> None:
        if row in self._unreadable:  # requested twice within one window
            return
        self._unreadable.add(row)
        source = self.paths[row]
        name = os.fspath(source) if isinstance(source, str | os.PathLike) else f"<{type(source).__name__}>"
        # Only the text: the traceback would keep the memory of a batch.
        self.skipped.append(Skipped(row, name, str(error)))
        log.warning("Skipped image %d: %s", row, str(error))


class _Block(NamedTuple):
    """One batch in progress: its rows, and the array for their pixels if all images get the same size."""

    rows: list[int]
    buffer: Pixels | None
    futures: list[Future[Results]]


def _in_place(images: list[tuple[int, Pixels]], buffer: Pixels | None) -> bool:
    """Return whether all images were decoded into the array of their batch."""
    return (
        buffer is not None
        and len(images) == len(buffer)
        and all(np.may_share_memory(pixels, buffer) for _, pixels in images)
    )


def default_workers() -> int:
    """Return the default number of decoding threads.

    Returns:
        The number of cores that this process may use, at most `MAX_DEFAULT_WORKERS`.
    """
    return min(usable_cores(), MAX_DEFAULT_WORKERS)


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
