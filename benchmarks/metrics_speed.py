"""Time of metrics against plain loops over queries, which must give the same values.

python benchmarks/metrics_speed.py [--queries 100000] [--csv results/metrics_speed.csv]

The loops (metric_loops.py) use NumPy arrays, like evaluation scripts. They run on the first --loop-queries
queries, and their time is scaled linearly, which favors loops that sort. Smooth ECE has a row of its own,
because its loop outweighs all others.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from kappaplace import KappaPlaceError
from kappaplace.cli.bench import Row
from metric_loops import MATCHES, METRICS, Data, Task, made_up
from record import parse_options, report, timed

SMOOTH = "smooth ECE"
ROUNDS = 3


def agree(name: str, ours: object, loop: object, tolerance: float = 1e-9) -> None:
    """Raise an error if both sides differ."""
    a, b = np.asarray(ours), np.asarray(loop)
    if a.shape != b.shape or not np.allclose(a, b, rtol=tolerance, atol=tolerance):
        raise KappaPlaceError(f"{name}: the loop differs by up to {np.abs(a - b).max()}.")


def fastest(run: Callable[[], object]) -> float:
    """Return the milliseconds of the fastest round."""
    return min(1e3 * timed(run)[1] for _ in range(ROUNDS))


def compare(what: str, tasks: list[Task], data: Data, loop_queries: int) -> Row:
    """Compare the time of some metrics with that of their loops."""
    sample, ours, loops = data.first(loop_queries), 0.0, 0.0
    scale = len(data.success) / len(sample.success)
    for task in tasks:
        value, seconds = timed(lambda task=task: task.loop(sample))
        agree(task.name, task.ours(sample), value, task.tolerance)
        ours += fastest(lambda task=task: task.ours(data))
        loops += 1e3 * scale * seconds
    where = f"{len(data.success):,} queries × {MATCHES} matches"
    return Row("metrics", where, what, ours, loops, "ms", "plain loops", loops / ours, "higher", 100.0)


def measure_metrics(queries: int = 20_000, loop_queries: int = 500) -> list[Row]:
    """Compare R@K, mAP@K, ECE@K, match ECE@K, AUROC, AURC, Brier and log-loss."""
    tasks = [task for task in METRICS if task.name != SMOOTH]
    return [compare(f"metrics except {SMOOTH}", tasks, made_up(queries), loop_queries)]


def main() -> None:
    arguments = parse_options(__doc__, queries=100_000, loop_queries=2000, csv=Path)
    smooth = [task for task in METRICS if task.name == SMOOTH]
    rows = measure_metrics(arguments.queries, arguments.loop_queries)
    report(
        [*rows, compare(SMOOTH, smooth, made_up(arguments.queries), arguments.loop_queries)], arguments.csv
    )


if __name__ == "__main__":
    main()
