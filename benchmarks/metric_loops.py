"""Every metric from its definition as a plain loop over queries, for comparison with the package."""

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

    def lists(self) -> Data:
        return Data(*(part.tolist() for part in self))


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
        found, summed = 0, 0.0
        for place, hit in enumerate(row[:k], start=1):
            if hit:
                found += 1
                summed += found / place
        total += summed / max(1, min(k, count))
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


def loop_auc_pr(uncertainty: Values, success: Values) -> float:
    area, before = 0.0, 0
    for accepted, right in loop_curve(uncertainty, success):
        area += (right - before) * right / accepted
        before = right
    return area / before


def loop_r100p(uncertainty: Values, success: Values) -> float:
    sure = 0
    for accepted, right in loop_curve(uncertainty, success):
        if right == accepted:
            sure = right
    return sure / sum(success)


def loop_aurc(uncertainty: Values, success: Values) -> float:
    area, before = 0.0, 0
    for accepted, right in loop_curve(uncertainty, success):
        area += (accepted - before) * (accepted - right) / accepted
        before = accepted
    return area / before


def loop_e_aurc(uncertainty: Values, success: Values) -> float:
    best = loop_aurc(list(range(len(success))), sorted(success, reverse=True))
    return loop_aurc(uncertainty, success) - best


def loop_augrc(uncertainty: Values, success: Values) -> float:
    area, before_accepted, before_wrong = 0.0, 0, 0
    for accepted, right in loop_curve(uncertainty, success):
        wrong = accepted - right
        area += (accepted - before_accepted) * (wrong + before_wrong) / 2
        before_accepted, before_wrong = accepted, wrong
    return area / before_accepted**2


def loop_coverage(uncertainty: Values, success: Values, risk: float) -> float:
    best = 0
    for accepted, right in loop_curve(uncertainty, success):
        if (accepted - right) / accepted <= risk:
            best = accepted
    return best / len(success)


def loop_bins(values: Values, success: Values, bins: int = 15) -> list[tuple[int, float, float]]:
    """Return count, mean probability and success of bins of equal size; ties stay together."""
    first: dict[float, int] = {}
    last: dict[float, int] = {}
    for rank, value in enumerate(sorted(values)):
        first.setdefault(value, rank)
        last[value] = rank
    found: dict[int, list[tuple[float, bool]]] = {}
    for value, ok in zip(values, success, strict=True):
        middle = (first[value] + last[value] + 1) * bins // (2 * len(values))
        found.setdefault(middle, []).append((value, ok))
    return [
        (len(rows), sum(p for p, _ in rows) / len(rows), sum(ok for _, ok in rows) / len(rows))
        for rows in found.values()
    ]


def loop_equal_mass(values: Values, success: Values) -> float:
    return sum(n * abs(y - p) for n, p, y in loop_bins(values, success)) / len(values)


def loop_debiased(values: Values, success: Values) -> float:
    square = 0.0
    for n, p, y in loop_bins(values, success):
        square += n * ((y - p) ** 2 - y * (1 - y) / max(1, n - 1))
    return math.sqrt(max(0.0, square / len(values)))


def loop_brier(values: Values, success: Values) -> float:
    return sum((p - ok) ** 2 for p, ok in zip(values, success, strict=True)) / len(values)


def loop_resolution(values: Values, success: Values) -> float:
    base = sum(success) / len(success)
    return sum(n * (y - base) ** 2 for n, _, y in loop_bins(values, success)) / len(values)


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
    scored("AUC-PR", selective.auc_pr, loop_auc_pr),
    scored("R@100%P", selective.recall_at_full_precision, loop_r100p),
    scored("AURC", selective.aurc, loop_aurc),
    scored("E-AURC", selective.e_aurc, loop_e_aurc),
    scored("AUGRC", selective.augrc, loop_augrc),
    *(
        scored(f"coverage@{risk:.0%}", selective.coverage_at_risk, loop_coverage, risk)
        for risk in selective.RISKS
    ),
    probable("smooth ECE", smooth_ece, loop_smooth, tolerance=5e-3),
    probable("equal-mass ECE", probability.equal_mass_ece, loop_equal_mass),
    probable("debiased ECE", probability.debiased_ece, loop_debiased),
    probable("Brier", probability.brier, loop_brier),
    probable("Brier resolution", lambda p, s: probability.brier_parts(p, s).resolution, loop_resolution),
    probable("log-loss", probability.log_loss, loop_log_loss),
]
