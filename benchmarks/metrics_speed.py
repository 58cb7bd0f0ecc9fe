"""Time of every metric and closed-form score on 100,000 queries × 20 matches, and the ratio to plain loops.

    python benchmarks/metrics_speed.py [--csv results/metrics_speed.csv] [--least 100] [--most 2]

Each metric runs once, and each score once at each of its levels, without bootstrap; shared intermediate
results (a sorted score, the distances) are computed again for each.

The loops use the same NumPy arrays, like evaluation scripts; with --lists they use Python lists, which is
faster. They run on the first --loop-queries queries and are scaled linearly, which favours loops that sort.
Both sides must agree before they are timed. The loops are in metric_loops.py and scores_loops.py. Smooth ECE
outweighs all other loops, so the ratio is also printed without it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kappaplace import KappaPlaceError
from kappaplace.cli.bench import Row
from kappaplace.metrics import calibration
from metric_loops import MATCHES, METRICS, Data, Task, made_up
from record import Option, append_row, parse_options, timed
from scores_loops import SCORE_TASKS, Found, ScoreTask
from scores_loops import made_up as made_up_matches

ALONE: dict[str, Callable[[Data], object]] = {
    "ECE@1 with zoom": lambda d: calibration.expected_calibration_error(
        d.uncertainty, d.success, calibration.NO_CLAMP, zoom=True
    ),
    "ECE surface, 572 cells": lambda d: calibration.ece_surface(d.uncertainty, d.success),
}
"""Metrics without a loop; they count for the time of all metrics."""


def seconds(run: Callable[[], object], rounds: int = 1) -> float:
    """Return the seconds of the fastest round."""
    return min(timed(run)[1] for _ in range(rounds))


class Times(NamedTuple):
    """Seconds of the package, and of the loops scaled to all queries (0 without a loop)."""

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
    """Raise an error if both sides differ."""
    a, b = np.asarray(ours), np.asarray(loop)
    if a.shape != b.shape or not np.allclose(a, b, rtol=tolerance, atol=tolerance):
        raise KappaPlaceError(f"{name}: the loop differs by up to {np.abs(a - b).max()}.")


def time_metric(task: Task, data: Data, sample: Data, lists: bool, rounds: int) -> Times:
    looped = sample.lists() if lists else sample
    agree(task.name, task.ours(sample), task.loop(looped), task.tolerance)
    scale = len(data.success) / len(sample.success)
    return Times(seconds(lambda: task.ours(data), rounds), scale * seconds(lambda: task.loop(looped)))


def measure_metrics(queries: int = 20_000, loop_queries: int = 500) -> list[Row]:
    """Compare all metrics except smooth ECE, whose loop outweighs all others."""
    data = made_up(queries)
    total = Times()
    for task in METRICS:
        if task.name != "smooth ECE":
            total = total.plus(time_metric(task, data, data.first(loop_queries), lists=False, rounds=3))
    where = f"{queries:,} queries × {MATCHES} matches"
    values = 1e3 * total.ours, 1e3 * total.loop, "ms", "plain loops", total.ratio, "higher", 100.0
    return [Row("metrics", where, "all metrics but smooth ECE", *values)]


def time_score(task: ScoreTask, found: Found, sample: Found, lists: bool, rounds: int) -> Times:
    looped = sample.lists() if lists else sample
    agree(task.name, task.ours(sample.evidence()), task.loop(looped))
    scale = len(found.kappa) / len(sample.kappa)
    fresh = [found.evidence() for _ in range(rounds)]  # evidence caches shared results
    ours = min(seconds(partial(task.ours, each)) for each in fresh)
    return Times(ours, scale * seconds(lambda: task.loop(looped)))


def main() -> int:
    arguments = parse_options(
        __doc__,
        queries=100_000,
        loop_queries=2000,
        lists=Option(False, help="use lists instead of arrays in the loops"),
        rounds=Option(5, help="the fastest one counts"),
        least=Option(0.0, help="exit with 1 if the ratio is below this"),
        most=Option(math.inf, help="exit with 1 if all metrics and scores take more seconds"),
        csv=Path,
    )
    load = os.getloadavg()[0]
    print(f"{arguments.queries:,} queries × {MATCHES} matches, load of the machine {load:.1f}")
    print(f"{'':28}{'ms':>10}{'loop ms':>12}{'ratio':>8}")
    how = arguments.lists, arguments.rounds

    data = made_up(arguments.queries)
    sample = data.first(arguments.loop_queries)
    metrics = smooth = alone = scores = Times()
    for task in METRICS:
        times = time_metric(task, data, sample, *how)
        times.show(task.name)
        metrics = metrics.plus(times)
        smooth = times if task.name == "smooth ECE" else smooth
    for name, run in ALONE.items():
        times = Times(seconds(partial(run, data), arguments.rounds))
        times.show(name)
        alone = alone.plus(times)

    found = made_up_matches(arguments.queries, MATCHES)
    found_sample = found.first(arguments.loop_queries)
    for score in SCORE_TASKS:
        times = time_score(score, found, found_sample, *how)
        times.show(score.name)
        scores = scores.plus(times)

    looped = metrics.plus(scores)
    rest = looped.without(smooth)
    print()
    metrics.show("metrics with a loop")
    scores.show("scores")
    looped.show("both")
    rest.show("both, without smooth ECE")
    total = looped.plus(alone).ours
    print(f"{'everything':28}{total * 1e3:10.2f}")
    if arguments.csv:
        facts = {"queries": arguments.queries, "matches": MATCHES, "loop_queries": arguments.loop_queries}
        facts["loops_over"] = "lists" if arguments.lists else "arrays"
        facts |= {
            "load": load,
            "seconds": total,
            "seconds_metrics": metrics.plus(alone).ours,
            "seconds_scores": scores.ours,
            "seconds_without_smooth_ece": total - smooth.ours,
            "ratio": looped.ratio,
            "ratio_metrics": metrics.ratio,
            "ratio_scores": scores.ratio,
            "ratio_without_smooth_ece": rest.ratio,
        }
        append_row(arguments.csv, facts)
    if looped.ratio < arguments.least:
        print(f"The ratio is below {arguments.least:g}.")
    if total > arguments.most:
        print(f"It takes more than {arguments.most:g} s.")
    return int(looped.ratio < arguments.least or total > arguments.most)


if __name__ == "__main__":
    raise SystemExit(main())
