"""Time of every metric and closed-form score on 100,000 queries × 20 matches, and the ratio to plain loops.

    python benchmarks/metrics_speed.py [--csv results/metrics_speed.csv] [--least 100] [--most 2]

Each metric once and each score once at each of its levels, without bootstrap; what several of them share (a
sorted score, the distances) is computed anew for each.

The loops go over the same NumPy arrays, as evaluation scripts do; with --lists over Python lists, the fastest
that a loop can get. They run on the first --loop-queries queries in the same run and are scaled linearly,
which favours them where they sort. Both sides must agree before anything is timed. Those of the metrics are
in kappaplace.bench.metric_loops, those of the scores in scores_loops.py. Smooth ECE outweighs all other
loops, so the ratio is told without it, too.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kappaplace.bench.metric_loops import MATCHES, METRICS, Data, made_up
from kappaplace.bench.metrics import Times, agree, seconds, time_metric
from kappaplace.metrics import calibration
from record import append_row
from scores_loops import SCORE_TASKS, Found, ScoreTask
from scores_loops import made_up as made_up_matches

ALONE: dict[str, Callable[[Data], object]] = {
    "ECE@1 with zoom": lambda d: calibration.expected_calibration_error(
        d.uncertainty, d.success, calibration.NO_CLAMP, zoom=True
    ),
    "ECE surface, 572 cells": lambda d: calibration.ece_surface(d.uncertainty, d.success),
}
"""In the time of all metrics, but without a loop to compare with."""


def time_score(task: ScoreTask, found: Found, sample: Found, lists: bool, rounds: int) -> Times:
    looped = sample.lists() if lists else sample
    agree(task.name, task.ours(sample.evidence()), task.loop(looped))
    scale = len(found.kappa) / len(sample.kappa)
    fresh = [found.evidence() for _ in range(rounds)]  # it remembers what it was asked before
    ours = min(seconds(partial(task.ours, each)) for each in fresh)
    return Times(ours, scale * seconds(lambda: task.loop(looped)))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queries", type=int, default=100_000)
    parser.add_argument("--loop-queries", type=int, default=2000)
    parser.add_argument("--lists", action="store_true", help="loops go over lists instead of arrays")
    parser.add_argument("--rounds", type=int, default=5, help="the fastest one counts")
    parser.add_argument("--least", type=float, default=0.0, help="exit with 1 if the ratio is below this")
    parser.add_argument("--most", type=float, default=math.inf, help="exit with 1 if it takes more seconds")
    parser.add_argument("--csv", type=Path, help="append the result to this file as a dated row")
    arguments = parser.parse_args()
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
    failed = False
    if looped.ratio < arguments.least:
        print(f"The ratio is below {arguments.least:g}.")
        failed = True
    if total > arguments.most:
        print(f"It takes more than {arguments.most:g} s.")
        failed = True
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
