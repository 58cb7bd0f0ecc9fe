"""Many clients, one batch: nothing is lost, nothing is mixed up, and what is too much is told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.serve.batching import Batcher
from kappaplace.serve.problems import ApiError


def run(
    work: Callable[[list[Any]], list[Any]], body: Callable[[Batcher], Awaitable[Any]], **options: Any
) -> Any:
    async def main() -> Any:
        batcher: Batcher = Batcher(work, **options)
        batcher.start()
        try:
            return await body(batcher)
        finally:
            await batcher.close()

    return asyncio.run(main())


async def ask(batcher: Batcher, jobs: list[Any], decode: float = 0.0) -> list[Any]:
    with batcher.admit(len(jobs)):
        with batcher.arrival(len(jobs)):
            await asyncio.sleep(decode)
            futures = batcher.enqueue(jobs)
        return await batcher.answers(futures)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.floats(0, 0.01)), min_size=1, max_size=20),
    st.integers(1, 8),
    st.sampled_from([0.0, 0.002]),
)
def test_every_answer_belongs_to_its_question(clients: list, batch_size: int, window: float) -> None:
    sizes: list[int] = []

    async def body(batcher: Batcher) -> Any:
        jobs = [[(i, j) for j in range(count)] for i, (count, _) in enumerate(clients)]
        waits = [decode for _, decode in clients]
        return jobs, await asyncio.gather(*(ask(batcher, j, w) for j, w in zip(jobs, waits, strict=True)))

    jobs, answers = run(
        lambda batch: [("answer", job) for job in batch],
        body,
        batch_size=batch_size,
        window=window,
        report=sizes.append,
    )
    assert answers == [[("answer", job) for job in group] for group in jobs]
    assert sum(sizes) == sum(count for count, _ in clients)
    assert max(sizes) <= batch_size


def test_what_arrives_together_is_one_batch() -> None:
    sizes: list[int] = []

    async def body(batcher: Batcher) -> None:
        await asyncio.gather(*(ask(batcher, [i], decode=0.001 * i) for i in range(16)))

    run(lambda batch: batch, body, window=0.5, batch_size=16, report=sizes.append)
    assert sizes == [16]


def test_a_single_client_does_not_wait_for_the_window() -> None:
    async def body(batcher: Batcher) -> float:
        start = time.perf_counter()
        await ask(batcher, [1])
        return time.perf_counter() - start

    assert run(lambda batch: batch, body, window=1.0) < 0.5


def test_a_full_queue_says_when_to_come_back() -> None:
    release = threading.Event()

    def work(batch: list[int]) -> list[int]:
        release.wait(5)
        return batch

    async def body(batcher: Batcher) -> list[int]:
        taken = [asyncio.create_task(ask(batcher, [i])) for i in range(4)]
        await asyncio.sleep(0.01)
        with pytest.raises(ApiError) as refused, batcher.admit(1):
            pass
        assert refused.value.status == 429
        assert int(refused.value.headers["Retry-After"]) >= 1
        release.set()
        return [(await task)[0] for task in taken]

    assert run(work, body, room=4) == [0, 1, 2, 3]


def test_one_bad_job_spoils_no_other() -> None:
    def work(batch: list[int]) -> list[int]:
        if 3 in batch:
            raise KappaPlaceError("three is bad")
        return batch

    async def body(batcher: Batcher) -> list[Any]:
        return await asyncio.gather(*(ask(batcher, [i], 0.005) for i in range(6)), return_exceptions=True)

    found = run(work, body, window=0.2)
    assert [each for each in found if isinstance(each, list)] == [[0], [1], [2], [4], [5]]
    assert str(found[3]) == "three is bad"


def test_who_gives_up_frees_the_room_and_is_not_worked_for() -> None:
    worked: list[int] = []
    release = threading.Event()

    def work(batch: list[int]) -> list[int]:
        release.wait(5)
        worked.extend(batch)
        return batch

    async def body(batcher: Batcher) -> None:
        first = asyncio.create_task(ask(batcher, [1]))
        await asyncio.sleep(0.01)
        second = asyncio.create_task(ask(batcher, [2]))
        await asyncio.sleep(0.01)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        assert batcher.admitted == 1
        release.set()
        assert await first == [1]

    run(work, body)
    assert worked == [1]


def test_closing_finishes_what_was_taken() -> None:
    async def body(batcher: Batcher) -> list[Any]:
        tasks = [asyncio.create_task(ask(batcher, [i], decode=0.02)) for i in range(5)]
        await asyncio.sleep(0.001)
        closing = asyncio.create_task(batcher.close())
        await asyncio.sleep(0)
        with pytest.raises(ApiError, match="shutting down"), batcher.admit(1):
            pass
        answers = await asyncio.gather(*tasks)
        await closing
        return answers

    def slow(batch: list[int]) -> list[int]:
        time.sleep(0.02)
        return batch

    assert run(slow, body, batch_size=2) == [[i] for i in range(5)]
