"""Histograms: a score for right and wrong matches, κ for queries and references."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.metrics import clamp_tails
from kappaplace.reports.figures import (
    COLOURS,
    PLOT_STYLE,
    QUERY,
    RIGHT,
    WIDTH,
    WRONG,
    new_figure,
    panels,
    plain,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 30
TAILS = (0.5, 99.5)
"""Percentiles between which the bins lie; what is beyond stands in the outermost bins."""


def score_histogram_figure(scores: Mapping[str, NDArray[np.float64]], success: NDArray[np.bool_]) -> Figure:
    """One small plot a score: how it is spread over right and over wrong top matches."""
    import matplotlib

    columns = min(2, len(scores))
    with matplotlib.rc_context(PLOT_STYLE):
        figure, axes, starts = panels(len(scores), columns, WIDTH / columns, 1.75)
        parts = (
            (success, RIGHT, f"right ({success.sum():,})", "-"),
            (~success, WRONG, f"wrong ({(~success).sum():,})", "--"),
        )
        for axis, (label, values) in zip(axes, scores.items(), strict=True):
            clamped = clamp_tails(values, TAILS)
            edges = _edges(clamped)
            for chosen, colour, name, dashes in parts:
                if chosen.any():
                    _outline(axis, clamped[chosen], edges, colour, name, dashes)
            axis.set_title(plain(label), fontsize=8)
            _finish(axis)
        for axis in starts:
            axis.set_ylabel("share", fontsize=8)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
        return figure


def kappa_histogram_figure(
    queries: NDArray[np.float64],
    references: NDArray[np.float64] | None,
    success: NDArray[np.bool_] | None = None,
) -> Figure:
    """κ of all references and of the queries, the latter split into right and wrong where that is known."""
    import matplotlib

    parts: list[tuple[NDArray[np.float64], str, str, str]] = []
    if references is not None:
        parts.append((references, COLOURS[0], f"references ({len(references):,})", ":"))
    if success is None:
        parts.append((queries, QUERY, f"queries ({len(queries):,})", "-"))
    else:
        parts.append((queries[success], RIGHT, f"queries, top match right ({success.sum():,})", "-"))
        parts.append((queries[~success], WRONG, f"queries, top match wrong ({(~success).sum():,})", "--"))
    parts = [part for part in parts if len(part[0])]
    with matplotlib.rc_context(PLOT_STYLE):
        figure = new_figure(WIDTH, 3.2)
        axis = figure.subplots()
        edges = _edges(clamp_tails(np.concatenate([part[0] for part in parts]), TAILS))
        for values, colour, name, dashes in parts:
            _outline(axis, np.clip(values, edges[0], edges[-1]), edges, colour, name, dashes)
        _finish(axis)
        axis.set(xlabel="κ, unsure → sure", ylabel="share")
        figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=1, fontsize=8)
        return figure


def _edges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    low, high = float(values.min()), float(values.max())
    if low == high:  # a constant score still gets a bar that can be seen
        margin = abs(low) * 0.1 or 0.5
        low, high = low - margin, high + margin
    return np.linspace(low, high, BINS + 1)


def _outline(
    axis: Any, values: NDArray[np.float64], edges: NDArray[np.float64], colour: str, name: str, dashes: str
) -> None:
    counts, _ = np.histogram(values, edges)
    shares = counts / len(values)
    axis.stairs(shares, edges, fill=True, color=colour, alpha=0.18)
    axis.stairs(shares, edges, color=colour, label=name, linestyle=dashes, linewidth=1.3)


def _finish(axis: Any) -> None:
    axis.set_ylim(bottom=0)
    axis.locator_params(axis="both", nbins=4)
    axis.tick_params(labelsize=7.5)
