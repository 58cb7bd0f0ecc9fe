"""How time and memory grow: with references, with queries, with the size of an image.

On axes that are both logarithmic a power is a straight line, and its slope is the power: 1 means that twice
as much takes twice as long, 0 that it does not matter.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kappaplace.bench.memory import peak_bytes
from kappaplace.bench.record import Values
from kappaplace.bench.search import K, descriptors
from kappaplace.bench.timing import Call, seconds
from kappaplace.models.place_model import PlaceModel
from kappaplace.retrieval.exact import search


@dataclass(frozen=True)
class Curve:
    """Seconds and peak bytes over one axis."""

    what: str
    axis: str
    x: tuple[float, ...]
    seconds: tuple[float, ...]
    bytes: tuple[float, ...]

    @property
    def time_slope(self) -> float:
        """The fitted power of time."""
        return slope(self.x, self.seconds)

    @property
    def memory_slope(self) -> float:
        """The fitted power of memory."""
        return slope(self.x, self.bytes)

    def records(self) -> list[Values]:
        """As rows of a CSV file."""
        return [
            {
                "what": self.what,
                "axis": self.axis,
                "x": x,
                "seconds": f"{taken:.4g}",
                "peak MiB": f"{held / 2**20:.4g}",
                "slope of time": f"{self.time_slope:.3f}",
                "slope of memory": f"{self.memory_slope:.3f}",
            }
            for x, taken, held in zip(self.x, self.seconds, self.bytes, strict=True)
        ]


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The power p of the fit y ≈ c·xᵖ by least squares of the logarithms.

    >>> round(slope([1, 10, 100], [2, 20, 200]), 6)
    1.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def curve(
    what: str, axis: str, x: Sequence[int], call_for: Callable[[int], Call], device: torch.device, rounds: int
) -> Curve:
    """One call for each x; the median of some rounds, all x in turn."""
    calls = [call_for(value) for value in x]
    for call in calls:
        call()
    taken = [[seconds(call, device) for call in calls] for _ in range(rounds)]
    held = [peak_bytes(call, device) for call in calls]
    medians = [statistics.median(column) for column in zip(*taken, strict=True)]
    return Curve(what, axis, tuple(x), tuple(medians), tuple(held))


def growth_curves(model: PlaceModel, device: torch.device, *, quick: bool, rounds: int = 3) -> list[Curve]:
    """Exact search over references and queries, the model over the pixels of its image."""
    dim, cpu = 256, torch.device("cpu")
    most = 16_000 if quick else 64_000
    references = descriptors(most, dim)
    queries = descriptors(most // 4, dim, 1)
    counts = [most >> i for i in (5, 4, 3, 2, 1, 0)]
    model = model.to(device).eval()

    def over_references(count: int) -> Call:
        return lambda: search(queries[:256], references[:count], K)

    def over_queries(count: int) -> Call:
        return lambda: search(queries[:count], references[: most // 8], K)

    def over_pixels(pixels: int) -> Call:
        side = round(pixels**0.5)
        image = torch.randn(1, 3, side, side, device=device)

        @torch.inference_mode()
        def run() -> None:
            model(image)

        return run

    sides = (96, 128, 192, 256, 384) if quick else (128, 192, 256, 384, 512, 768)
    name = model.architecture.backbone
    return [
        curve("exact search, 256 queries", "references", counts, over_references, cpu, rounds),
        curve(
            f"exact search, {most // 8:,} references",
            "queries",
            [count // 4 for count in counts],
            over_queries,
            cpu,
            rounds,
        ),
        curve(
            f"{name}, batch 1, {device.type}", "pixels", [s * s for s in sides], over_pixels, device, rounds
        ),
    ]
