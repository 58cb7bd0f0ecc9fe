"""Risk–coverage curves: how many errors are left when the doubtful queries are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kappaplace.metrics import AcceptanceCurve
from kappaplace.reports.figures import PLOT_STYLE, WIDTH, line_style, new_figure, panels, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 1000
"""Drawn of each curve; more cannot be seen."""
NOISY = 0.05
"""Share of first queries that may leave the plot at its top."""


def risk_coverage_figure(curves: Mapping[str, AcceptanceCurve]) -> Figure:
    """All scores in one plot; the legend is sorted, best area first."""
    import matplotlib

    with matplotlib.rc_context(PLOT_STYLE):
        figure = new_figure(WIDTH, 3.0 + 0.17 * -(-len(curves) // 2))
        axis = figure.subplots()
        lines = [
            (curve.aurc, _draw(axis, curve, f"{plain(label)} {curve.aurc:.3f}", line_style(position)))
            for position, (label, curve) in enumerate(curves.items())
        ]
        _finish(axis, list(curves.values()))
        handles = [line for _, line in sorted(lines, key=lambda pair: pair[0])]
        figure.legend(
            handles=handles, loc="outside lower center", ncols=2, fontsize=7.5, title="AURC, best first"
        )
        return figure


def comparison_figure(curves: Mapping[str, Mapping[str, AcceptanceCurve]]) -> Figure:
    """One small plot a score, one line a run: score → run → curve."""
    import matplotlib

    runs = list(dict.fromkeys(run for lines in curves.values() for run in lines))
    columns = min(2, len(curves))
    with matplotlib.rc_context(PLOT_STYLE):
        figure, axes, starts = panels(len(curves), columns, WIDTH / columns, 2.1, sharey=True)
        for axis, (label, lines) in zip(axes, curves.items(), strict=True):
            for run, curve in lines.items():
                _draw(axis, curve, plain(run), line_style(runs.index(run)))
            axis.set_title(plain(label), fontsize=8)
        every = [curve for lines in curves.values() for curve in lines.values()]
        for axis in axes:
            _finish(axis, every)
            axis.set_ylabel("")
        for axis in starts:
            axis.set_ylabel("risk")
        handles = {line.get_label(): line for axis in axes for line in axis.get_lines()}
        figure.legend(
            handles=[handles[plain(run)] for run in runs], loc="outside lower center", ncols=2, fontsize=8
        )
        return figure


def thinned(curve: AcceptanceCurve) -> tuple[np.ndarray, np.ndarray]:
    """Coverage and risk at no more than `POINTS` evenly spread steps, the last one included."""
    steps = len(curve.accepted)
    chosen = np.unique(np.linspace(0, steps - 1, min(steps, POINTS)).round().astype(np.int64))
    return curve.coverage[chosen], curve.risk[chosen]


def _draw(axis: Any, curve: AcceptanceCurve, label: str, style: dict[str, str]) -> Any:
    coverage, risk = thinned(curve)
    # Queries with tied scores are answered together or not at all: their risk is that of the whole group.
    coverage, risk = np.r_[0.0, coverage], np.r_[risk[0], risk]
    marker = "o" if len(coverage) == 2 else None  # a constant score, or a single query, is one point
    line = axis.plot(coverage, risk, label=label, linewidth=1.3, marker=marker, markersize=4, **style)[0]
    line.set_drawstyle("steps-pre")
    return line


def _finish(axis: Any, curves: Sequence[AcceptanceCurve]) -> None:
    # One wrong query among the first three is a risk of a third: that noise must not flatten all the rest.
    top = max(0.05, *(curve.risk[curve.coverage >= NOISY].max() for curve in curves))
    axis.set(xlabel="coverage: share of queries answered", ylabel="risk: share that is wrong")
    axis.set(xlim=(0, 1.01), ylim=(-0.015 * top, min(1.02, 1.08 * top)))
    axis.xaxis.label.set_fontsize(8)
