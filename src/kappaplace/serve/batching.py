"""One batch for many clients: requests that arrive within a few milliseconds are processed together.

A job has three states: *admitted* (there is room for it), *arriving* (being decoded) and *waiting* (for its
batch). A batch starts if it is full, if no other job is arriving, or if the window is over. So a single
client never waits, and the next batch fills up while one is processed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from kappaplace.errors import KappaPlaceError
from kappaplace.serve.problems import busy

log = logging.getLogger("kappaplace.serve")
Job = TypeVar("Job")
Answer = TypeVar("Answer")


class Batcher(Generic[Job, Answer]):
    """Queue of jobs that are processed in batches, one batch at a time, in a separate thread."""

    def __init__(
        self,
        work: Callable[[list[Job]], Sequence[Answer]],
        *,
        batch_size: int = 32,
        window: float = 0.004,
        room: int = 128,
        report: Callable[[int], None] = lambda size: None,
    ) -> None:
        """Prepare a queue; `start` begins to process it.

        Args:
            work: Function that returns one answer per job.
            batch_size: Largest number of jobs per batch.
            window: Seconds that a batch waits for arriving jobs.
            room: Largest number of admitted jobs.
            report: Function that receives the size of each batch.
        """
        self.work, self.batch_size, self.window, self.room = work, batch_size, window, room
        self.report = report
        self.admitted = self.arriving = 0
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="map")
        """Everything that uses the map runs here, one call at a time, because a map is not thread-safe."""
        self._waiting: deque[tuple[Job, asyncio.Future[Answer]]] = deque()
        self._changed = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to process jobs; requires a running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    @contextlib.contextmanager
    def admit(self, count: int) -> Iterator[None]:
        """Reserve room for some jobs, or raise an error with status 429."""
        if self._closing:
            raise busy("The service is shutting down. Try again later.", 503)
        if self.admitted + count > self.room:
            raise busy(f"The service is busy with {self.admitted} images. Try again in a moment.")
        self.admitted += count
        try:
            yield
        finally:
            self.admitted -= count

    @contextlib.contextmanager
    def arrival(self, count: int) -> Iterator[None]:
        """Mark jobs as being prepared: a batch waits for them for a short time."""
        self.arriving += count
        try:
            yield
        finally:
            self.arriving -= count
            self._changed.set()

    def enqueue(self, jobs: Sequence[Job]) -> list[asyncio.Future[Answer]]:
        """Add admitted jobs to the queue."""
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Answer]] = [loop.create_future() for _ in jobs]
        self._waiting.extend(zip(jobs, futures, strict=True))
        self._changed.set()
        return futures

    async def answers(self, futures: Sequence[asyncio.Future[Answer]]) -> list[Answer]:
        """Wait for the answers, in the order of the futures."""
        try:
            return list(await asyncio.gather(*futures))
        finally:  # after a failure or a disconnect the other answers are not needed
            for future in futures:
                future.cancel()

    async def close(self) -> None:
        """Finish admitted jobs, then stop."""
        self._closing = True
        self._changed.set()
        if self._task is not None:
            await self._task
        self.pool.shutdown(wait=True)

    async def _run(self) -> None:
        while not (self._closing and not self._waiting and not self.arriving):
            if not self._waiting:
                self._changed.clear()
                await self._changed.wait()
                continue
            await self._gather()
            batch = [self._waiting.popleft() for _ in range(min(self.batch_size, len(self._waiting)))]
            batch = [(job, future) for job, future in batch if not future.done()]
            if batch:
                self.report(len(batch))
                await self._finish(batch)

    async def _gather(self) -> None:
        """Wait for arriving jobs, at most as long as the window."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.window
        while self.arriving and len(self._waiting) < self.batch_size and loop.time() < end:
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), end - loop.time())

    async def _finish(self, batch: list[tuple[Job, asyncio.Future[Answer]]]) -> None:
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self.pool, self.work, [job for job, _ in batch])
        except Exception as error:
            if len(batch) == 1:
                if not isinstance(error, KappaPlaceError):
                    log.exception("A query failed")
                if not batch[0][1].done():
                    batch[0][1].set_exception(error)
                return
            for single in batch:  # an invalid job must not fail the others
                await self._finish([single])
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
