"""Who decodes the images of a loader: threads of this process, or processes of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeAlias

from kappaplace.data.batch_memory import Spares
from kappaplace.data.decode_processes import DecodeProcesses
from kappaplace.data.images import Source
from kappaplace.data.pixels import Pixels
from kappaplace.errors import KappaPlaceError

Result: TypeAlias = "Pixels | KappaPlaceError"
Results: TypeAlias = "Sequence[Result | None]"


class Crew(Protocol):
    """Some workers that decode; a result of None is left to whoever asked."""

    count: int

    def room(self, shape: tuple[int, ...]) -> tuple[Pixels | None, int | None]:
        """Memory for a batch and its place, as the crew numbers it."""

    def submit(self, rows: list[int], out: Pixels | None, place: int | None) -> Future[Results]: ...

    def close(self, keep: bool = False) -> None:
        """The pass is over; `keep`: all of its work is done, so another may use who did it."""


class Threads:
    """Threads of this process, or none at all: work is then done when it is handed over."""

    def __init__(
        self, count: int, spares: Spares, load: Callable[[list[int], Pixels | None], list[Result]]
    ) -> None:
        self.count = count
        self.spares = spares
        self.load = load
        self.pool = ThreadPoolExecutor(count or 1, thread_name_prefix="decode")

    def room(self, shape: tuple[int, ...]) -> tuple[Pixels | None, int | None]:
        return self.spares.take(shape), None

    def submit(self, rows: list[int], out: Pixels | None, place: int | None) -> Future[Results]:
        if self.count:
            return self.pool.submit(self.load, rows, out)
        done: Future[Results] = Future()
        done.set_result(self.load(rows, out))
        return done

    def close(self, keep: bool = False) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)


class Processes:
    """Processes, which are told paths."""

    def __init__(self, count: int, started: DecodeProcesses, paths: Sequence[Source]) -> None:
        self.count = count
        self.room = started.room
        self.close = started.close
        self.started = started
        self.paths = paths

    def submit(self, rows: list[int], out: Pixels | None, place: int | None) -> Future[Results]:
        paths = [os.fspath(self.paths[row]) for row in rows]  # type: ignore[arg-type]
        return self.started.submit(paths, out, place)  # type: ignore[return-value]
