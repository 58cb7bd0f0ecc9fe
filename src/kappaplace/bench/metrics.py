"""Our metrics against the loops of `kappaplace.bench.metric_loops`; both must say the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kappaplace.bench.metric_loops import MATCHES, METRICS, Data, Task, made_up
from kappaplace.bench.rows import Row
from kappaplace.errors import KappaPlaceError


def seconds(run: Callable[[], object], rounds: int = 1) -> float:
    """The fastest of some rounds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


class Times(NamedTuple):
    """Seconds of the package, and of the loops scaled to all queries (none where there is no loop)."""

    ours: float = 0.0
    loop: float = 0.0

    def plus(self, other: Times) -> Times:
        return Times(self.ours + other.ours, self.loop + other.loop)

    def without(self, other: Times) -> Times:
        return Times(self.ours - other.ours, self.loop - other.loop)

    @property
    def ratio(self) -> float:
        return self.loop / self.ours

    def show(self, name: str) -> None:
        looped = f"{self.loop * 1e3:12.0f}{self.ratio:8.0f}" if self.loop else ""
        print(f"{name:28}{self.ours * 1e3:10.2f}{looped}", flush=True)


def agree(name: str, ours: object, loop: object, tolerance: float = 1e-9) -> None:
    """Both sides must say the same of the sample."""
    a, b = np.asarray(ours), np.asarray(loop)
    if a.shape != b.shape or not np.allclose(a, b, rtol=tolerance, atol=tolerance):
        raise KappaPlaceError(f"{name}: the loop does not agree, {np.abs(a - b).max()} apart.")


def time_metric(task: Task, data: Data, sample: Data, lists: bool, rounds: int) -> Times:
    looped = sample.lists() if lists else sample
    agree(task.name, task.ours(sample), task.loop(looped), task.tolerance)
    scale = len(data.success) / len(sample.success)
    return Times(seconds(lambda: task.ours(data), rounds), scale * seconds(lambda: task.loop(looped)))


def measure_metrics(queries: int = 20_000, loop_queries: int = 500) -> list[Row]:
    """All metrics but smooth ECE, whose loop alone outweighs all others."""
    data = made_up(queries)
    total = Times()
    for task in METRICS:
        if task.name != "smooth ECE":
            total = total.plus(time_metric(task, data, data.first(loop_queries), lists=False, rounds=3))
    where = f"{queries:,} queries × {MATCHES} matches"
    return [
        Row(
            "metrics",
            where,
            "all metrics but smooth ECE",
            1e3 * total.ours,
            1e3 * total.loop,
            "ms",
            "plain loops",
            total.ratio,
            "higher",
            100.0,
        )
    ]
