"""Signals of incoming queries against the calibrated range, window by window."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kappaplace.calibration import SHOWN, DriftMonitor
from kappaplace.errors import KappaPlaceError
from kappaplace.files import replace_file
from kappaplace.reports.figures import COLOURS, PLOT_STYLE, WIDTH, WRONG, new_figure, plain
from kappaplace.reports.html import page, paragraph, picture, png_of, svg_of, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".html")
HOW_TO_READ = (
    "Grey: the calibrated range (p1 to p99) and median. Blue: median and p5 to p95 of each full window. "
    "Red cross: a window that warned. Hollow: queries that wait for their window to be full."
)
_COLUMN = 1.5
"""Inches of height a signal."""


def drift_figure(monitor: DriftMonitor) -> Figure:
    """One plot a signal, one below the other, against the number of queries seen."""
    import matplotlib

    sketch, history = monitor.sketch, list(monitor.history)
    at = np.array([window.queries for window in history], dtype=np.float64)
    with matplotlib.rc_context(PLOT_STYLE):
        figure = new_figure(WIDTH, 0.8 + _COLUMN * len(sketch.values))
        axes = figure.subplots(len(sketch.values), 1, sharex=True, squeeze=False)[:, 0]
        for axis, (name, points) in zip(axes, sketch.values.items(), strict=True):
            if (calibrated := sketch.calibrated_range(name)) is not None:
                axis.axhspan(*calibrated, color="#8a8a8a", alpha=0.25, linewidth=0)
            axis.axhline(float(np.median(points)), color="#8a8a8a", linestyle="--", linewidth=1)
            values = np.array([window.quantiles[name] for window in history]).reshape(-1, len(SHOWN))
            axis.errorbar(
                at,
                values[:, 1],
                [values[:, 1] - values[:, 0], values[:, 2] - values[:, 1]],
                fmt="o-",
                markersize=3,
                linewidth=1,
                capsize=2,
                color=COLOURS[0],
            )
            told = [any(w.signal == name for w in window.warnings) for window in history]
            axis.plot(at[told], values[told, 1], "x", color=WRONG, markersize=8, markeredgewidth=2, zorder=3)
            if monitor.waiting:
                middle = float(np.median(monitor.waiting_values[name]))
                axis.plot([monitor.queries], [middle], "o", color=COLOURS[0], markerfacecolor="none")
            axis.set_ylabel(plain("κ" if name == "kappa" else name))
        axes[-1].set_xlabel("queries seen")
        axes[-1].set_xlim(left=0)
        return figure


def write_drift(monitor: DriftMonitor, file: str | Path, title: str) -> None:
    """Write the picture as .png or .svg, or a page around it as .html."""
    file = Path(file)
    kind = file.suffix.lower()
    if kind not in SUFFIXES:
        raise KappaPlaceError(f"A picture of drift is written as {', '.join(SUFFIXES)}, not as {file.name}.")
    figure = drift_figure(monitor)
    if kind == ".png":
        data = png_of(figure)
    elif kind == ".svg":
        data = svg_of(figure)
    else:
        data = _page(monitor, figure, title).encode("utf-8", "backslashreplace")
    replace_file(file, lambda part: part.write_bytes(data))


def _page(monitor: DriftMonitor, figure: Figure, title: str) -> str:
    sections = [paragraph(warning.sentence) for warning in monitor.drifting]
    if not sections:
        words = "No full window yet." if not monitor.history else "The last full window shows no drift."
        sections = [paragraph(words)]
    sections.append(picture(png_of(figure), "signals of incoming queries by window", HOW_TO_READ))
    rows = [
        [f"{window.queries:,}", _date(window.time), "; ".join(w.sentence for w in window.warnings) or "–"]
        for window in reversed(monitor.history)
    ]
    if rows:
        sections.append(table(["queries seen", "full at", "warnings"], rows).replace("<table", _WORDS))
    lead = f"{monitor.queries:,} queries in windows of {monitor.window:,}, {monitor.waiting:,} are waiting"
    return page(title, lead, sections)


_WORDS = '<table class="words"'


def _date(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
