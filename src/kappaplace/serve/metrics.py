"""Metrics in the text format of Prometheus."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Histogram:
    """Counts of values up to each bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.total = tuple(bounds), [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: Mapping[str, str]) -> list[str]:
        """Return the lines of one metric."""
        buckets, below = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            below += count
            edge = "+Inf" if bound == float("inf") else f"{bound:g}"
            buckets.append(f"{name}_bucket{_labels({**labels, 'le': edge})} {below}")
        return [
            *buckets,
            f"{name}_sum{_labels(labels)} {self.total:g}",
            f"{name}_count{_labels(labels)} {below}",
        ]


class Metrics:
    """Counts of a service since its start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, str, str], int] = {}
        self._seconds: dict[str, Histogram] = {}
        self._batches: dict[str, Histogram] = {}

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request.

        Args:
            method: HTTP method.
            route: Pattern of the route, never a path that a client made up.
            status: HTTP status.
            seconds: Time to the answer.
        """
        with self._lock:
            key = (method, route, str(status))
            self._requests[key] = self._requests.get(key, 0) + 1
            self._seconds.setdefault(route, Histogram(SECONDS)).add(seconds)

    def batch(self, place_map: str, size: int) -> None:
        """Count a batch of images."""
        with self._lock:
            self._batches.setdefault(place_map, Histogram(SIZES)).add(size)

    def text(self, gauges: Mapping[str, tuple[str, Mapping[str, float]]]) -> str:
        """Return all metrics; ``gauges`` are a help text and one value per map, by name."""
        lines = [
            "# HELP kappaplace_requests_total Answered requests.",
            "# TYPE kappaplace_requests_total counter",
        ]
        with self._lock:
            for (method, route, status), count in sorted(self._requests.items()):
                labels = _labels({"method": method, "route": route, "status": status})
                lines.append(f"kappaplace_requests_total{labels} {count}")
            lines += _histograms("request_seconds", "Time to the answer.", "route", self._seconds)
            lines += _histograms("batch_images", "Images embedded together.", "map", self._batches)
        for name, (help_text, values) in gauges.items():
            lines += [f"# HELP kappaplace_{name} {help_text}", f"# TYPE kappaplace_{name} gauge"]
            lines += [f"kappaplace_{name}{_labels({'map': key})} {value:g}" for key, value in values.items()]
        return "\n".join(lines) + "\n"


def _histograms(name: str, help_text: str, label: str, histograms: Mapping[str, Histogram]) -> list[str]:
    lines = [f"# HELP kappaplace_{name} {help_text}", f"# TYPE kappaplace_{name} histogram"]
    for key, histogram in sorted(histograms.items()):
        lines += histogram.lines(f"kappaplace_{name}", {label: key})
    return lines


def _labels(values: Mapping[str, str]) -> str:
    def quoted(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{quoted(value)}"' for name, value in values.items()) + "}"
