"""Figure and page of drift: signals of incoming queries against the calibrated range."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kappaplace.calibration import SHOWN, DriftMonitor
from kappaplace.errors import KappaPlaceError
from kappaplace.files import write_file
from kappaplace.reports.figures import COLORS, WIDTH, WRONG, new_figure, plain, styled
from kappaplace.reports.html import page, paragraph, picture, png_of, svg_of, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".html")
HOW_TO_READ = (
    "Gray: the calibrated range (1st to 99th percentile) and median. Blue: median and 5th to 95th percentile "
    "of each full window. Red cross: a window with a warning. Hollow: queries of the current window."
)
_COLUMN = 1.5
"""Height in inches per signal."""


@styled
def drift_figure(monitor: DriftMonitor) -> Figure:
    """Draw each signal against the number of queries, one plot per signal."""
    sketch, history = monitor.sketch, list(monitor.history)
    queries = np.array([window.queries for window in history], dtype=np.float64)
    figure = new_figure(WIDTH, 0.8 + _COLUMN * len(sketch.values))
    axes = figure.subplots(len(sketch.values), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (name, points) in zip(axes, sketch.values.items(), strict=True):
        if (calibrated := sketch.calibrated_range(name)) is not None:
            axis.axhspan(*calibrated, color="#8a8a8a", alpha=0.25, linewidth=0)
        axis.axhline(float(np.median(points)), color="#8a8a8a", linestyle="--", linewidth=1)
        values = np.array([window.quantiles[name] for window in history]).reshape(-1, len(SHOWN))
        axis.errorbar(
            queries,
            values[:, 1],
            [values[:, 1] - values[:, 0], values[:, 2] - values[:, 1]],
            fmt="o-",
            markersize=3,
            linewidth=1,
            capsize=2,
            color=COLORS[0],
        )
        rows = [any(w.signal == name for w in window.warnings) for window in history]
        style = {"color": WRONG, "markersize": 8, "markeredgewidth": 2, "zorder": 3}
        axis.plot(queries[rows], values[rows, 1], "x", **style)
        if monitor.waiting:
            middle = float(np.median(monitor.waiting_values[name]))
            axis.plot([monitor.queries], [middle], "o", color=COLORS[0], markerfacecolor="none")
        axis.set_ylabel(plain("κ" if name == "kappa" else name))
    axes[-1].set_xlabel("number of queries")
    axes[-1].set_xlim(left=0)
    return figure


def write_drift(monitor: DriftMonitor, file: str | Path, title: str) -> None:
    """Write the figure of drift as an image, or as a page with the warnings.

    Args:
        monitor: State of the monitor.
        file: File to write: .png, .svg or .html.
        title: Title of the page.

    Raises:
        KappaPlaceError: If the suffix is not supported.
    """
    file = Path(file)
    kind = file.suffix.lower()
    if kind not in SUFFIXES:
        raise KappaPlaceError(f'The figure must be a {", ".join(SUFFIXES)} file, got "{file.name}".')
    figure = drift_figure(monitor)
    if kind == ".png":
        data = png_of(figure)
    elif kind == ".svg":
        data = svg_of(figure)
    else:
        data = _page(monitor, figure, title).encode("utf-8", "backslashreplace")
    write_file(file, data)


def _page(monitor: DriftMonitor, figure: Figure, title: str) -> str:
    sections = [paragraph(warning.sentence) for warning in monitor.drifting]
    if not sections:
        text = "No full window yet." if not monitor.history else "The last full window shows no drift."
        sections = [paragraph(text)]
    sections.append(picture(png_of(figure), "Signals of incoming queries by window", HOW_TO_READ))
    rows = [
        [f"{window.queries:,}", _date(window.time), "; ".join(w.sentence for w in window.warnings) or "–"]
        for window in reversed(monitor.history)
    ]
    if rows:
        sections.append(table(["number of queries", "full at", "warnings"], rows, words=True))
    lead = f"{monitor.queries:,} queries in windows of {monitor.window:,}, {monitor.waiting:,} in the current"
    return page(title, lead, sections)


def _date(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
