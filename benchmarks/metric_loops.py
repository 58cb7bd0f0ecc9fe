"""Metrics from their definitions as plain loops over queries, for comparison with the package."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from kappaplace.metrics import calibration, probability, retrieval, selective, smooth_ece

MATCHES = 20

Values = Sequence[float] | np.ndarray
Table = Sequence[Sequence[float]] | np.ndarray


class Data(NamedTuple):
    """Input of the metrics."""

    hits: np.ndarray
    positives: np.ndarray
    match_uncertainty: np.ndarray
    uncertainty: np.ndarray
    probability: np.ndarray
    success: np.ndarray

    def first(self, queries: int) -> Data:
        return Data(*(part[:queries] for part in self))


def made_up(queries: int) -> Data:
    rng = np.random.default_rng(0)
    ease = rng.random((queries, 1))
    hits = rng.random((queries, MATCHES)) < ease * np.linspace(1, 0.4, MATCHES)
    match_uncertainty = 1 / (1 + 50 * ease * rng.gamma(8, 1 / 8, hits.shape))
    return Data(
        hits,
        hits.sum(axis=1) + rng.integers(0, 5, queries),
        match_uncertainty,
        match_uncertainty[:, 0].copy(),
        np.clip(ease[:, 0] + 0.1 * rng.normal(size=queries), 0, 1),
        hits[:, 0].copy(),
    )


def loop_recall(hits: Table, k: int) -> float:
    return sum(any(row[:k]) for row in hits) / len(hits)


def loop_map(hits: Table, positives: Values, k: int) -> float:
    total = 0.0
    for row, count in zip(hits, positives, strict=True):
        correct, total_precision = 0, 0.0
        for place, hit in enumerate(row[:k], start=1):
            if hit:
                correct += 1
                total_precision += correct / place
        total += total_precision / max(1, min(k, count))
    return total / len(hits)


def loop_percentile(values: Values, q: float) -> float:
    ordered = sorted(values)
    place = (len(ordered) - 1) * q / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def loop_ece(uncertainty: Values, success: Values, bins: int = 10) -> float:
    values = list(uncertainty)
    low, high = loop_percentile(values, 1), loop_percentile(values, 99)
    counts, right = [0] * bins, [0] * bins
    for value, ok in zip(values, success, strict=True):
        clamped = min(max(value, low), high)
        position = bins - 1
        while position > 0 and clamped < low + (high - low) * position / bins:
            position -= 1
        counts[position] += 1
        right[position] += ok
    gaps = (abs(r - c * (1 - i / (bins - 1))) for i, (c, r) in enumerate(zip(counts, right, strict=True)))
    return sum(gaps) / len(values)


def loop_match_ece(uncertainty: Table, hits: Table, k: int) -> float:
    return loop_ece([u for row in uncertainty for u in row[:k]], [h for row in hits for h in row[:k]])


def loop_curve(uncertainty: Values, success: Values) -> list[tuple[int, int]]:
    """Return accepted and correct counts after each group of ties."""
    curve: list[tuple[int, int]] = []
    previous, right = None, 0
    for accepted, (value, ok) in enumerate(sorted(zip(uncertainty, success, strict=True)), start=1):
        right += ok
        if value == previous:
            curve.pop()
        curve.append((accepted, right))
        previous = value
    return curve


def loop_auroc(uncertainty: Values, success: Values) -> float:
    area, before_accepted, before_right = 0.0, 0, 0
    for accepted, right in loop_curve(uncertainty, success):
        wrong = (accepted - right) - (before_accepted - before_right)
        area += wrong * (right + before_right) / 2
        before_accepted, before_right = accepted, right
    return area / (before_right * (before_accepted - before_right))


def loop_aurc(uncertainty: Values, success: Values) -> float:
    area, before = 0.0, 0
    for accepted, right in loop_curve(uncertainty, success):
        area += (accepted - before) * (accepted - right) / accepted
        before = accepted
    return area / before


def loop_brier(values: Values, success: Values) -> float:
    return sum((p - ok) ** 2 for p, ok in zip(values, success, strict=True)) / len(values)


def loop_log_loss(values: Values, success: Values) -> float:
    total = 0.0
    for p, ok in zip(values, success, strict=True):
        total -= math.log(min(max(p if ok else 1 - p, 1e-12), 1 - 1e-12))
    return total / len(values)


def loop_smooth(values: Values, success: Values, cells: int = 100) -> float:
    """Use the kernel with its two nearest mirror images on a grid; bisect the width to 1e-3."""
    low, high = 0.0, 1.0
    while high - low > 1e-3:
        width = (low + high) / 2
        smoothed = [0.0] * cells
        for p, ok in zip(values, success, strict=True):
            for i in range(cells):
                t = (i + 0.5) / cells
                images = (t - p, t + p, t + p - 2)
                smoothed[i] += (ok - p) * sum(math.exp(-0.5 * (x / width) ** 2) for x in images)
        error = sum(map(abs, smoothed)) / (len(values) * cells * width * math.sqrt(2 * math.pi))
        low, high = (width, high) if error > width else (low, width)
    return (low + high) / 2


class Task(NamedTuple):
    """One metric: the package and the loop."""

    name: str
    ours: Callable[[Data], float]
    loop: Callable[[Data], float]
    tolerance: float = 1e-9


def scored(name: str, ours: Callable[..., float], loop: Callable[..., float], *more: float) -> Task:
    return Task(
        name,
        lambda d: ours(d.uncertainty, d.success, *more),
        lambda d: loop(d.uncertainty, d.success, *more),
    )


def probable(
    name: str, ours: Callable[..., float], loop: Callable[..., float], tolerance: float = 1e-9
) -> Task:
    return Task(
        name,
        lambda d: ours(d.probability, d.success),
        lambda d: loop(d.probability, d.success),
        tolerance,
    )


def at(k: int) -> list[Task]:
    """Metrics at each K."""
    return [
        Task(f"R@{k}", lambda d: retrieval.recall_at(d.hits, k), lambda d: loop_recall(d.hits, k)),
        Task(
            f"mAP@{k}",
            lambda d: retrieval.mean_average_precision_at(d.hits, d.positives, k),
            lambda d: loop_map(d.hits, d.positives, k),
        ),
        Task(
            f"ECE@{k}",
            lambda d: calibration.expected_calibration_error(d.uncertainty, retrieval.success_at(d.hits, k)),
            lambda d: loop_ece(d.uncertainty, [any(row[:k]) for row in d.hits]),
        ),
        Task(
            f"match ECE@{k}",
            lambda d: calibration.match_calibration_error(d.match_uncertainty, d.hits, k),
            lambda d: loop_match_ece(d.match_uncertainty, d.hits, k),
        ),
    ]


METRICS = [
    *(task for k in (1, 5, 10, MATCHES) for task in at(k)),
    scored("AUROC", selective.auroc, loop_auroc),
    scored("AURC", selective.aurc, loop_aurc),
    probable("smooth ECE", smooth_ece, loop_smooth, tolerance=5e-3),
    probable("Brier", probability.brier, loop_brier),
    probable("log-loss", probability.log_loss, loop_log_loss),
]
