"""Batches of images at the speed of decoding: threads or processes, a bounded window, order kept."""

from __future__ import annotations

import logging
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future, wait
from itertools import groupby, islice
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.data import decode_pool as decode_processes
from kappaplace.data.decode_pool import (
    Crew,
    DecodeProcesses,
    Pass,
    Pixels,
    Processes,
    Result,
    Results,
    Spares,
    Threads,
    unpack,
)
from kappaplace.data.images import Preprocessing, Source
from kappaplace.errors import KappaPlaceError

log = logging.getLogger(__name__)

# Pillow decodes and resizes without the interpreter's lock, but a tenth of the work needs it: threads gain
# little beyond a few, and more of them hinder each other.
MAX_DEFAULT_WORKERS = 16
MAX_DEFAULT_PROCESSES = 32
ENOUGH_THREADS = 4
# Starting processes takes some tenths of a second, in which threads would have decoded about so many.
FEW_IMAGES = 256


class Skipped(NamedTuple):
    """One image that could not be read."""

    row: int
    source: str
    reason: str


class Batch(NamedTuple):
    """Images of one size with the rows they come from, in the order asked for."""

    rows: NDArray[np.int64]
    images: torch.Tensor
    """uint8 N×3×H×W in channels-last memory, or normalised float32 with `normalise=True`."""


class ImageLoader:
    """Iterate over images as batches; see `Batch`.

    Each pass starts afresh. `rows` picks and orders the images and may be an endless iterable such as a
    sampler: it is read at most `prefetch` batches ahead. A batch comes from the next `batch_size` rows and
    holds images of one size: where sizes differ, it is yielded in parts, still in the order asked for.

    `workers` decode, in threads of this process; where more than `ENOUGH_THREADS` cores are usable and more
    than `FEW_IMAGES` files are to be read, in processes of their own (Linux). `processes` says which, True or
    False. Pixels and errors are the same. 0 workers: decoding happens when a batch is asked for.

    Images that are decoded to the (height, width) `unresized` stay as they are, to be resized on the device
    that embeds them (`data/resample.py`).

    With `on_error="skip"` an unreadable image is left out, logged and listed in `skipped` once, and not
    tried again; with "raise" the first one ends the pass with its error.
    """

    def __init__(
        self,
        paths: Sequence[Source],
        preprocessing: Preprocessing,
        batch_size: int = 32,
        *,
        rows: Iterable[int] | None = None,
        workers: int | None = None,
        processes: bool | None = None,
        prefetch: int = 2,
        normalise: bool = False,
        on_error: Literal["raise", "skip"] = "raise",
        unresized: tuple[int, int] | None = None,
    ) -> None:
        if batch_size < 1 or prefetch < 1 or (workers is not None and workers < 0):
            got = f"got {batch_size}, {prefetch} and {workers}"
            raise KappaPlaceError(f"The loader needs batch_size ≥ 1, prefetch ≥ 1 and workers ≥ 0; {got}.")
        if on_error not in ("raise", "skip"):
            raise KappaPlaceError(f"on_error must be 'raise' or 'skip'; got {on_error!r}.")
        self.paths = paths
        self.preprocessing = preprocessing
        self.batch_size = batch_size
        self.rows = rows
        self.workers = default_workers() if workers is None else workers
        self._stated_workers = workers
        self.processes = processes
        self.prefetch = prefetch
        self.normalise = normalise
        self.on_error = on_error
        self.unresized = unresized
        self.skipped: list[Skipped] = []
        self._unreadable: set[int] = set()
        # In use at a time: those under way, the one just yielded and the one before it.
        self._spares = Spares(prefetch + 2)

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
        """All of a block; what a process could not read is tried here, so errors are as in threads."""
        found = [result for future in block.futures for result in future.result()]
        return [
            self._load([row], None if block.buffer is None else block.buffer[i : i + 1])[0]
            if result is None
            else result
            for i, (row, result) in enumerate(zip(block.rows, found, strict=True))
        ]

    def _batch(self, rows: Sequence[int], pixels: Pixels) -> Batch:
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        return Batch(
            np.array(rows, np.int64), self.preprocessing.normalise(images) if self.normalise else images
        )

    def _blocks(self) -> Iterator[_Block]:
        """Batches of rows under way, in order, at most `prefetch` of them at a time."""
        wanted = iter(range(len(self.paths)) if self.rows is None else self.rows)
        batches = iter(lambda: [int(row) for row in islice(wanted, min(self.batch_size, sys.maxsize))], [])
        crew = self._crew()
        finished = False
        try:
            ahead = deque(self._start(rows, crew) for rows in islice(batches, self.prefetch))
            while ahead:
                block = ahead.popleft()
                wait(block.futures)
                ahead.extend(self._start(rows, crew) for rows in islice(batches, 1))
                yield block
            finished = True
        finally:  # also when the consumer stops early
            crew.close(keep=finished)

    def _crew(self) -> Crew:
        """Who decodes the images of a pass."""
        if self._in_processes():
            count = self.workers
            if self._stated_workers is None:
                count = min(usable_cores(), MAX_DEFAULT_PROCESSES)
            most = self._count()
            size = self.batch_size if most is None else min(self.batch_size, most)
            # One more than in threads, for a consumer that looks back; untouched memory costs nothing.
            wanted = Pass(self.preprocessing, self.unresized)
            started = DecodeProcesses.start(count, wanted, self.prefetch + 3, size)
            if started is not None:
                return Processes(count, started, self.paths)
        return Threads(self.workers, self._spares, self._load)

    def _in_processes(self) -> bool:
        if not self.workers or self.processes is False:
            return False
        # Other sources would have to be sent there, and other preprocessings might be unknown there.
        possible = (
            decode_processes.available()
            and type(self.preprocessing) is Preprocessing
            and isinstance(self.paths, list | tuple)
            and all(issubclass(kind, str | os.PathLike) for kind in set(map(type, self.paths)))
        )
        if self.processes and not possible:
            raise KappaPlaceError("Decoding in processes needs Linux and a list of paths; use threads.")
        count = self._count()
        many = min(self.workers, usable_cores()) > ENOUGH_THREADS and (count is None or count > FEW_IMAGES)
        return possible and (self.processes or many)

    def _count(self) -> int | None:
        """How many images a pass has; None if nobody knows."""
        if self.rows is None:
            return len(self.paths)
        return len(self.rows) if isinstance(self.rows, Sized) else None

    def _start(self, rows: list[int], crew: Crew) -> _Block:
        rows = [row for row in rows if row not in self._unreadable]
        size = Pass(self.preprocessing, self.unresized).size
        # With one size for all, pixels go straight into the batch: no second copy, no memory in between.
        buffer, place = (None, None) if size is None else crew.room((len(rows), *size, 3))
        # A task is a few images: handing over single ones costs some percent in threads waking each other.
        step = max(1, min(4, len(rows) // max(crew.count, 1)))
        futures = []
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            out = None if buffer is None else buffer[part]
            where = None if place is None or buffer is None else place + start * buffer[0].size
            futures.append(crew.submit(rows[part], out, where))
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
        if row in self._unreadable:  # it was asked for twice within one window
            return
        self._unreadable.add(row)
        source = self.paths[row]
        name = os.fspath(source) if isinstance(source, str | os.PathLike) else f"<{type(source).__name__}>"
        # Its text alone: with its traceback, whoever keeps the record would keep the memory of a batch.
        self.skipped.append(Skipped(row, name, str(error)))
        log.warning("Skipped image %d: %s", row, str(error))


class _Block(NamedTuple):
    """The rows of one batch on their way, and where their pixels go if all sizes are the same."""

    rows: list[int]
    buffer: Pixels | None
    futures: list[Future[Results]]


def _in_place(images: list[tuple[int, Pixels]], buffer: Pixels | None) -> bool:
    """Whether all images of a batch lie in its memory already."""
    return (
        buffer is not None
        and len(images) == len(buffer)
        and all(np.may_share_memory(pixels, buffer) for _, pixels in images)
    )


def default_workers() -> int:
    """One thread per core this process may use, up to `MAX_DEFAULT_WORKERS`."""
    return min(usable_cores(), MAX_DEFAULT_WORKERS)


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
