"""Batches of images at the speed of decoding: threads, a bounded window, order kept."""

from __future__ import annotations

import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import groupby, islice
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from kappaplace.data.images import Preprocessing, Source
from kappaplace.errors import KappaPlaceError

Pixels: TypeAlias = NDArray[np.uint8]
Result: TypeAlias = "Pixels | KappaPlaceError"
log = logging.getLogger(__name__)

# Pillow decodes and resizes without the interpreter's lock; what is left in Python saturates near here.
MAX_DEFAULT_WORKERS = 16


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
        prefetch: int = 2,
        normalise: bool = False,
        on_error: Literal["raise", "skip"] = "raise",
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
        self.prefetch = prefetch
        self.normalise = normalise
        self.on_error = on_error
        self.skipped: list[Skipped] = []
        self._unreadable: set[int] = set()
        # In use at a time: those under way, the one just yielded and the one before it.
        self._spares = _Spares(prefetch + 2)

    def __iter__(self) -> Iterator[Batch]:
        for block in self._blocks():
            results = [result for future in block.futures for result in future.result()]
            images = list(self._readable(block.rows, results))
            if images and block.buffer is not None and len(images) == len(block.buffer):
                yield self._batch(block.rows, block.buffer)
                continue
            for _, run in groupby(images, key=lambda pair: pair[1].shape):
                rows, pixels = zip(*run, strict=True)
                # NumPy, because torch would wake its own threads, which then compete with decoding.
                yield self._batch(rows, np.stack(pixels))

    def _batch(self, rows: Sequence[int], pixels: Pixels) -> Batch:
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        return Batch(
            np.array(rows, np.int64), self.preprocessing.normalise(images) if self.normalise else images
        )

    def _blocks(self) -> Iterator[_Block]:
        """Batches of rows under way, in order, at most `prefetch` of them at a time."""
        wanted = iter(range(len(self.paths)) if self.rows is None else self.rows)
        batches = iter(lambda: [int(row) for row in islice(wanted, min(self.batch_size, sys.maxsize))], [])
        pool = ThreadPoolExecutor(self.workers or 1, thread_name_prefix="decode")
        submit = pool.submit if self.workers else _run_now
        try:
            ahead = deque(self._start(rows, submit) for rows in islice(batches, self.prefetch))
            while ahead:
                block = ahead.popleft()
                wait(block.futures)
                ahead.extend(self._start(rows, submit) for rows in islice(batches, 1))
                yield block
        finally:  # also when the consumer stops early
            pool.shutdown(wait=True, cancel_futures=True)

    def _start(self, rows: list[int], submit: Callable[..., Future[list[Result]]]) -> _Block:
        rows = [row for row in rows if row not in self._unreadable]
        size = self.preprocessing.fixed_size
        # With one size for all, threads write straight into the batch: no second copy, no memory in between.
        buffer = None if size is None else self._spares.take((len(rows), *size, 3))
        # A task is a few images: handing over single ones costs some percent in threads waking each other.
        step = max(1, min(4, len(rows) // max(self.workers, 1)))
        parts = [slice(start, start + step) for start in range(0, len(rows), step)]
        futures = [submit(self._load, rows[p], None if buffer is None else buffer[p]) for p in parts]
        return _Block(rows, buffer, futures)

    def _load(self, rows: list[int], out: Pixels | None) -> list[Result]:
        results: list[Result] = []
        for i, row in enumerate(rows):
            try:
                image = self.preprocessing.image(self.paths[row])
            except KappaPlaceError as error:
                results.append(error)
            else:
                results.append(np.asarray(image) if out is None else _unpack(image, out[i]))
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
        self.skipped.append(Skipped(row, name, str(error)))
        log.warning("Skipped image %d: %s", row, error)


class _Block(NamedTuple):
    """The rows of one batch on their way, and where their pixels go if all sizes are the same."""

    rows: list[int]
    buffer: Pixels | None
    futures: list[Future[list[Result]]]


class _Spares:
    """Memory of earlier batches, used again once nobody else holds it.

    The first touch of fresh memory costs up to a tenth of decoding, so it is worth asking for it once.
    Tensors and views of a batch hold a reference to its array, so the count of references tells when it is
    free.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.buffers: list[Pixels] = []

    def take(self, shape: tuple[int, ...]) -> Pixels:
        for i, buffer_shape in enumerate([buffer.shape for buffer in self.buffers]):
            if buffer_shape == shape and _holders(self.buffers, i) == _ALONE:
                return self.buffers[i]
        fresh = np.empty(shape, np.uint8)
        if len(self.buffers) < self.most:
            self.buffers.append(fresh)
        return fresh


def _holders(buffers: list[Pixels], i: int) -> int:
    return sys.getrefcount(buffers[i])


# What the count is for an array in the list alone: measured, for it differs between Python versions.
_ALONE = _holders([np.empty(0, np.uint8)], 0)


class _Pixels:
    """A file to Pillow that keeps the pixels of a PPM and drops its header."""

    def __init__(self, out: Pixels) -> None:
        self.memory = out.data.cast("B")
        self.position = -len(f"P6\n{out.shape[1]} {out.shape[0]}\n255\n")

    def write(self, data: bytes) -> int:
        if self.position >= 0:
            self.memory[self.position : self.position + len(data)] = data
        self.position += len(data)
        return len(data)


def _unpack(image: Image.Image, out: Pixels) -> Pixels:
    """The pixels of an image, written into `out`, H×W×3.

    Saving as PPM streams them there in small pieces, while converting to an array copies them twice more,
    which two decoding threads would notice.
    """
    if type(image) is Image.Image:  # ours alone, as resized: saving briefly marks an image
        file = _Pixels(out)
        image.save(file, "PPM")  # type: ignore[arg-type]
        if file.position == out.size:
            return out
    out[...] = np.asarray(image)
    return out


def _run_now(function: Callable[..., list[Result]], *arguments: Any) -> Future[list[Result]]:
    done: Future[list[Result]] = Future()
    done.set_result(function(*arguments))
    return done


def default_workers() -> int:
    """One thread per core this process may use, up to `MAX_DEFAULT_WORKERS`."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, MAX_DEFAULT_WORKERS)
