"""False alarms and detection delay of the drift monitor: windows of 200 queries against the martingale.

    python benchmarks/monitoring.py --csv results/monitoring.csv

Each run draws a calibration of 300 queries and a stream of independent queries. One signal (normal, or
rounded to three values) changes after some queries: its mean moves by a multiple of its standard deviation.
"""

from __future__ import annotations

import argparse
import csv
from datetime import date
from pathlib import Path

import numpy as np

from kappaplace.calibration import DriftMonitor, Sketch

CALIBRATION = 300
COLUMNS = (
    *("date", "values", "shift", "change_after", "queries", "runs", "windows_false", "martingale_false"),
    *("windows_detected", "martingale_detected", "windows_delay", "martingale_delay"),
)


def drawn(rng: np.random.Generator, count: int, shift: float, values: str) -> np.ndarray:
    """Return values of a signal."""
    x = rng.normal(shift, 1, count)
    return x if values == "continuous" else np.clip(np.round(x), -1, 1)


def run(seed: int, values: str, shift: float, change: int, queries: int) -> tuple[int, int]:
    """Return the query at which each of the two raises its first warning; 0 if it raises none."""
    rng = np.random.default_rng(seed)
    monitor = DriftMonitor(Sketch.of({"x": drawn(rng, CALIBRATION, 0.0, values)}))
    stream = np.concatenate([drawn(rng, change, 0.0, values), drawn(rng, queries - change, shift, values)])
    monitor.update({"x": stream})
    windows = next((each.queries for each in monitor.history if each.warnings), 0)
    state = monitor.state().martingales["x"]
    return windows, state.alarm


def main() -> None:
    """Write one row per kind of change."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=100)
    arguments = parser.parse_args()
    cases = [("continuous", 0.0, 4000, 4000), ("three values", 0.0, 4000, 4000)]
    cases += [
        (values, shift, change, change + 1000)
        for values in ("continuous", "three values")
        for shift in (0.5, 1.0, 2.0)
        for change in (100, 2000)
    ]
    rows = []
    for values, shift, change, queries in cases:
        firsts = np.array([run(s, values, shift, change, queries) for s in range(arguments.runs)])
        early = (firsts > 0) & (firsts <= change)
        late = firsts > change
        delays = [
            float(np.median(firsts[late[:, i], i] - change)) if late[:, i].any() else "" for i in range(2)
        ]
        counts = [*early.sum(axis=0).tolist(), *late.sum(axis=0).tolist()]
        rows.append((date.today(), values, shift, change, queries, arguments.runs, *counts, *delays))
        print(*rows[-1])
    with open(arguments.csv, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
