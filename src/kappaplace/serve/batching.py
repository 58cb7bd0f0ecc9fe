"""One batch for many clients: what arrives within a few milliseconds is worked on together.

A job goes three steps: *admitted* (there is room for it), *arriving* (being decoded), *waiting* (for its
batch). A batch starts when it is full, when nothing more is arriving, or when the window is over, so a single
client never waits, and while one batch is worked on the next one gathers by itself.
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
from kappaplace.serve.protect import busy

log = logging.getLogger("kappaplace.serve")
Job = TypeVar("Job")
Answer = TypeVar("Answer")


class Batcher(Generic[Job, Answer]):
    """Runs ``work`` on batches of jobs, one batch at a time, in a thread of its own."""

    def __init__(
        self,
        work: Callable[[list[Job]], Sequence[Answer]],
        *,
        batch_size: int = 32,
        window: float = 0.004,
        room: int = 128,
        seen: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.work, self.batch_size, self.window, self.room, self.seen = work, batch_size, window, room, seen
        self.admitted = self.arriving = 0
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="map")
        """All that touches the map runs here, one thing after the other: a map is not for several threads."""
        self._waiting: deque[tuple[Job, asyncio.Future[Answer]]] = deque()
        self._changed = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to work; needs a running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    @contextlib.contextmanager
    def admit(self, count: int) -> Iterator[None]:
        """Room for some jobs for as long as this lasts, or 429."""
        if self._closing:
            raise busy("The service is shutting down.", 503)
        if self.admitted + count > self.room:
            raise busy(f"The service is busy with {self.admitted} images; try again in a moment.")
        self.admitted += count
        try:
            yield
        finally:
            self.admitted -= count

    @contextlib.contextmanager
    def arrival(self, count: int) -> Iterator[None]:
        """While jobs are being prepared: a batch waits a little for them."""
        self.arriving += count
        try:
            yield
        finally:
            self.arriving -= count
            self._changed.set()

    def enqueue(self, jobs: Sequence[Job]) -> list[asyncio.Future[Answer]]:
        """Let admitted jobs wait for their batch."""
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Answer]] = [loop.create_future() for _ in jobs]
        self._waiting.extend(zip(jobs, futures, strict=True))
        self._changed.set()
        return futures

    async def answers(self, futures: Sequence[asyncio.Future[Answer]]) -> list[Answer]:
        """What became of them, in their order."""
        try:
            return list(await asyncio.gather(*futures))
        finally:  # who gives up, or fails in one part, no longer needs the others
            for future in futures:
                future.cancel()

    async def close(self) -> None:
        """Finish what was taken, then stop."""
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
                self.seen(len(batch))
                await self._finish(batch)

    async def _gather(self) -> None:
        """Wait for what is about to arrive, but not for long."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.window
        while self.arriving and len(self._waiting) < self.batch_size and loop.time() < end:
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), end - loop.time())

    async def _finish(self, batch: list[tuple[Job, asyncio.Future[Answer]]]) -> None:
        loop = asyncio.get_running_loop()
        try:
            made = await loop.run_in_executor(self.pool, self.work, [job for job, _ in batch])
        except Exception as error:
            if len(batch) == 1:
                if not isinstance(error, KappaPlaceError):
                    log.exception("A query failed")
                _tell(batch[0][1], error)
                return
            for single in batch:  # one bad job must not spoil those of others
                await self._finish([single])
            return
        for (_, future), answer in zip(batch, made, strict=True):
            if not future.done():
                future.set_result(answer)


def _tell(future: asyncio.Future[Answer], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
