"""Growth of time and memory with the number of references and queries, and with the image size.

python benchmarks/growth.py [--quick] [--out bench]

On two logarithmic axes a power is a straight line, and its slope is the power: 1 means that twice as much
takes twice as long, 0 that the time is constant.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from exact_search import K, descriptors
from kappaplace import PlaceModel, Preprocessing
from kappaplace.cli.bench import Call, Values, save_rows, seconds
from kappaplace.reports.figures import COLORS, PLOT_STYLE, new_figure
from kappaplace.retrieval.exact import search
from overhead import peak_bytes
from record import DEVICE, parse_options


@dataclass(frozen=True)
class Curve:
    """Seconds and peak bytes over one axis."""

    what: str
    axis: str
    x: tuple[float, ...]
    seconds: tuple[float, ...]
    bytes: tuple[float, ...]

    def records(self) -> list[Values]:
        """Return the rows of a CSV file."""
        slopes = {
            "slope of time": f"{slope(self.x, self.seconds):.3f}",
            "slope of memory": f"{slope(self.x, self.bytes):.3f}",
        }
        columns = zip(self.x, self.seconds, self.bytes, strict=True)
        return [
            {
                "what": self.what,
                "axis": self.axis,
                "x": x,
                "seconds": f"{s:.4g}",
                "peak MiB": f"{b / 2**20:.4g}",
            }
            | slopes
            for x, s, b in columns
        ]


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the power p of the fit y ≈ c·xᵖ by least squares of the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def curve(
    what: str, axis: str, x: Sequence[int], call_for: Callable[[int], Call], device: torch.device, rounds: int
) -> Curve:
    """Measure one call per x: the median of some rounds, with all x in turn."""
    calls = [call_for(value) for value in x]
    for call in calls:
        call()
    times = [[seconds(call, device) for call in calls] for _ in range(rounds)]
    peaks = [peak_bytes(call, device) for call in calls]
    medians = [statistics.median(column) for column in zip(*times, strict=True)]
    return Curve(what, axis, tuple(x), tuple(medians), tuple(peaks))


def growth_curves(model: PlaceModel, device: torch.device, *, quick: bool, rounds: int = 3) -> list[Curve]:
    """Measure exact search over references and queries, and the model over the pixels of an image."""
    cpu, most = torch.device("cpu"), 16_000 if quick else 64_000
    references, queries = descriptors(most, 256), descriptors(most // 4, 256, 1)
    counts = [most >> i for i in (5, 4, 3, 2, 1, 0)]
    sides = (96, 128, 192, 256, 384) if quick else (128, 192, 256, 384, 512, 768)
    model = model.to(device).eval().requires_grad_(False)

    def over_references(count: int) -> Call:
        return lambda: search(queries[:256], references[:count], K)

    def over_queries(count: int) -> Call:
        return lambda: search(queries[:count], references[: most // 8], K)

    def over_pixels(pixels: int) -> Call:
        side = round(pixels**0.5)
        return partial(model, torch.randn(1, 3, side, side, device=device))

    few, name = [count // 4 for count in counts], f"{model.architecture.backbone}, batch 1, {device.type}"
    return [
        curve("exact search, 256 queries", "references", counts, over_references, cpu, rounds),
        curve(f"exact search, {most // 8:,} references", "queries", few, over_queries, cpu, rounds),
        curve(name, "pixels", [side * side for side in sides], over_pixels, device, rounds),
    ]


def growth_figure(curves: Sequence[Curve]) -> Figure:
    """Draw one column per curve: time above, memory below, and the fitted power as a dashed line."""
    with matplotlib.rc_context(PLOT_STYLE):
        figure = new_figure(3.4 * len(curves), 5.2)
        axes = figure.subplots(2, len(curves), squeeze=False)
        for column, curve in enumerate(curves):
            for row, (title, y, scale) in enumerate(
                (("milliseconds", curve.seconds, 1e3), ("peak MiB", curve.bytes, 2**-20))
            ):
                axis, power, x = axes[row][column], slope(curve.x, y), np.asarray(curve.x, float)
                y = scale * np.asarray(y)
                level = np.exp(np.mean(np.log(y)) - power * np.mean(np.log(x)))
                axis.loglog(x, y, "o", color=COLORS[row], label="measured")
                axis.loglog(x, level * x**power, "--", color=COLORS[row], lw=1, label=f"slope {power:.2f}")
                for ticks in (axis.xaxis, axis.yaxis):  # 1, 2, 5, 10 … as plain numbers
                    ticks.set_major_locator(LogLocator(subs=(1, 2, 5) if ticks is axis.yaxis else (1, 4)))
                    ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
                    ticks.set_minor_formatter(NullFormatter())
                axis.set_ylabel(title if column == 0 else "")
                axis.set_xlabel(curve.axis if row == 1 else "")
                axis.legend(frameon=False)
            axes[0][column].set_title(curve.what, fontsize=9)
        return figure


def main() -> None:
    given = parse_options(__doc__, quick=False, out=Path("bench"))
    backbone, size = ("resnet50", 512) if DEVICE.type == "cuda" else ("efficientnet_lite0", 320)
    model = PlaceModel.create(backbone, 512, "folded", preprocessing=Preprocessing(size, "exact"))
    curves = growth_curves(model, DEVICE, quick=given.quick)
    save_rows(given.out / "growth.csv", [record for curve in curves for record in curve.records()])
    growth_figure(curves).savefig(given.out / "growth.png", dpi=120)
    for each in curves:
        print(f"{each.what} over {each.axis}: slope of time {slope(each.x, each.seconds):.2f}")


if __name__ == "__main__":
    main()
