"""Figures of an evaluation as matplotlib objects, which the caller saves.

They show ECE@K and its sensitivity, histograms of scores and κ, risk–coverage curves, and galleries.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from kappaplace.metrics import AcceptanceCurve, EceSurface, ReliabilityCurve, clamp_tails

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


# Okabe-Ito: color-blind readers can distinguish them.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
RIGHT, WRONG, QUERY = "#1a9850", "#d73027", "#4d4d4d"
Floats: TypeAlias = "NDArray[np.floating[Any]]"
PLOT_STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "font.size": 9.5,
    "svg.hashsalt": "kappaplace",  # the same data gives the same bytes
}
WIDTH = 4.0
"""Width in inches of a figure that is legible on a phone."""
_DASHES = ("-", "--", ":", "-.")


P = ParamSpec("P")
T = TypeVar("T")


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Return a drawing function that uses `PLOT_STYLE`."""

    @wraps(draw)
    def run(*arguments: P.args, **options: P.kwargs) -> T:
        import matplotlib

        with matplotlib.rc_context(PLOT_STYLE):
            return draw(*arguments, **options)

    return run


def new_figure(width: float, height: float) -> Figure:
    """Return a figure without pyplot's global state, which is safe in threads and servers."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def panels(
    count: int, columns: int, width: float, height: float, sharey: bool = False
) -> tuple[Figure, list[Axes], list[Axes]]:
    """Return a figure of small plots, the plots row by row, and the first plot of each row.

    Args:
        count: Number of plots.
        columns: Number of plots per row.
        width: Width of a plot in inches.
        height: Height of a plot in inches.
        sharey: Whether the plots share their y axis.

    Returns:
        The figure, its plots, and the first plot of each row.
    """
    rows = -(-count // columns)
    figure = new_figure(width * columns, height * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=sharey)
    for axis in grid.ravel()[count:]:
        axis.remove()
    return figure, list(grid.ravel()[:count]), list(grid[:, 0])


def plain(text: str) -> str:
    """Escape dollar signs, between which matplotlib would read formulas."""
    return text.replace("$", r"\$")


def wrapped(label: str, letters: int = 26) -> str:
    """Return a name in lines that fit above a small plot."""
    return "\n".join(textwrap.wrap(plain(label), letters)) or " "


def line_style(position: int) -> dict[str, str]:
    """Return color and dashes of the n-th line; 24 lines can be distinguished."""
    dashes = _DASHES[position // len(COLORS) % len(_DASHES)]
    return {"color": COLORS[position % len(COLORS)], "linestyle": dashes}


@styled
def reliability_figure(
    curves: Mapping[str, Mapping[int, ReliabilityCurve]], columns: int | None = None
) -> Figure:
    """Draw one plot per score: observed success at each K against the expected success of each bin.

    Args:
        curves: Curve of each score at each K.
        columns: Number of plots per row, with the counts below the bars. Default: all plots in one row,
            without counts.

    Returns:
        The figure.
    """
    if columns is None:
        figure, axes, starts = panels(len(curves), len(curves), 2.6, 3.2, sharey=True)
    else:
        figure, axes, starts = panels(len(curves), columns, WIDTH / columns, 2.4, sharey=True)
    for axis, (label, by_k) in zip(axes, curves.items(), strict=True):
        curve = next(iter(by_k.values()))  # the bins are those of the score, the same at each K
        bins = np.arange(1, len(curve.counts) + 1)
        fractions = curve.counts / curve.counts.sum()
        axis.bar(bins, fractions, color="#bbbbbb", width=0.9, label="fraction of queries")
        axis.plot(bins, curve.expected, "--", color="#666666", label="expected")
        for (k, each), color, marker in zip(by_k.items(), COLORS, "os^", strict=False):
            # Empty bins are NaN and interrupt the line: nothing was observed there.
            axis.plot(bins, each.observed, f"{marker}-", ms=4, color=color, label=f"R@{k}")
        errors = ", ".join(f"{each.error:.3f}" for each in by_k.values())
        names = "/".join(map(str, by_k))
        title = f"{wrapped(label)}\nECE@{names}\n{errors}"
        axis.set(title=title, xlabel="certain → uncertain", ylim=(0, 1.04))
        axis.set_xticks(bins[::3])
        if columns is not None:
            axis.title.set_fontsize(8)
            axis.xaxis.label.set_fontsize(8)
            _counts_below(axis, bins, curve.counts)
    for axis in starts:
        axis.set_ylabel("recall")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    return figure


def _counts_below(axis: Axes, bins: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
    """Write the count of each bin into a strip below zero, where no curve is."""
    axis.set(ylim=(-0.4, 1.04), yticks=(0, 0.5, 1))
    for position, count in zip(bins, counts, strict=True):
        text = str(count) if count < 10_000 else f"{count / 1000:.0f}k"
        words = axis.text(position, -0.09, text, fontsize=7, rotation=90, ha="center", va="top")
        words.set_in_layout(False)  # it is always inside the plot, and computing its size is slow


@styled
def kappa_figure(
    curves: Mapping[str, tuple[Floats, Floats, Floats]],
    damage: Floats,
    kappa: Floats,
    success: NDArray[np.bool_],
) -> Figure:
    """Draw the mean κ of the same views against degradation (top), and κ of every query (bottom).

    Args:
        curves: Levels, mean and standard error of κ for each kind of degradation.
        damage: Total degradation of each query.
        kappa: κ of each query.
        success: Whether the top match of each query is correct.

    Returns:
        The figure.
    """
    figure = new_figure(WIDTH, 6.4)
    left, right = figure.subplots(2, 1)
    for color, (condition, (levels, mean, error)) in zip(COLORS, curves.items(), strict=False):
        left.errorbar(levels, mean, error, marker="o", ms=3, color=color, label=condition)
    left.set(xlabel="level of degradation", ylabel="mean κ", title="κ of the same views, degraded")
    left.set_ylim(bottom=0)
    left.legend(fontsize=8)
    for mask, color, label in ((success, RIGHT, "correct"), (~success, WRONG, "incorrect")):
        dots = {"s": 9, "alpha": 0.6, "color": color, "label": f"top match {label}"}
        right.scatter(damage[mask], kappa[mask], **dots)
    right.set(xlabel="total degradation of the query", ylabel="κ", title="every query of the unseen district")
    right.set_ylim(bottom=0)
    right.legend(fontsize=8)
    return figure


@dataclass(frozen=True, eq=False)
class GalleryRow:
    """A query and its best matches, for `gallery_figure`."""

    title: str
    """Title of the row."""
    query: NDArray[np.uint8]
    """Image of the query, H×W×3."""
    query_caption: str
    """Caption of the query."""
    matches: Sequence[NDArray[np.uint8]]
    """Image of each match, H×W×3."""
    right: Sequence[bool]
    """Whether each match is correct."""
    captions: Sequence[str]
    """Caption of each match."""


def gallery_figure(rows: Sequence[GalleryRow]) -> Figure:
    """Draw queries (left) and their matches, framed green if correct and red if incorrect.

    Args:
        rows: Queries with their matches, one per row.

    Returns:
        The figure.
    """
    columns = 1 + max(len(row.matches) for row in rows)
    figure = new_figure(2.2 * columns, 2.55 * len(rows))
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for line, row in zip(axes, rows, strict=True):
        _picture(line[0], row.query, QUERY, f"{row.title}\n{row.query_caption}")
        for axis, image, right, caption in zip(line[1:], row.matches, row.right, row.captions, strict=True):
            _picture(axis, image, RIGHT if right else WRONG, caption)
    return figure


def _picture(axis: Axes, image: NDArray[np.uint8], color: str, caption: str) -> None:
    axis.imshow(image)
    axis.set_title(caption, fontsize=8)
    axis.xaxis.set_visible(False)
    axis.yaxis.set_visible(False)
    for spine in axis.spines.values():
        spine.set(color=color, linewidth=4)


PROTOCOL = (10, 1.0)
"""Number of bins, and percentage clamped from a tail, in the paper."""


@styled
def ece_bars_figure(errors: Mapping[str, Mapping[int, float]], ks: Sequence[int]) -> Figure:
    """Draw ECE@K of each score as grouped horizontal bars, which leave room for the names of many scores."""
    thickness = 0.8 / len(ks)
    figure = new_figure(WIDTH, 1.1 + (0.16 * len(ks) + 0.1) * len(errors))
    axis = figure.subplots()
    rows = np.arange(len(errors))
    for position, k in enumerate(ks):
        values = [score[k] for score in errors.values()]
        offsets = rows + (position - (len(ks) - 1) / 2) * thickness
        bars = axis.barh(offsets, values, thickness, color=COLORS[position], label=f"ECE@{k}")
        axis.bar_label(bars, fmt="%.3f", fontsize=7.5, padding=2)
    axis.set_yticks(rows, [wrapped(label, 18) for label in errors])
    axis.set_ylim(len(errors) - 0.5, -0.5)  # the first score on top
    axis.grid(axis="y", visible=False)
    largest = np.nanmax([0.1, *(value for score in errors.values() for value in score.values())])
    axis.set(xlabel="ECE, 0 is best", xlim=(0, 1.15 * float(largest)))
    figure.legend(loc="outside lower center", ncols=len(ks), fontsize=8)
    return figure


@styled
def ece_sensitivity_figure(surfaces: Mapping[str, EceSurface]) -> Figure:
    """Draw ECE@1 over the number of bins, one plot per score, with a band for all clamps, and with zoom."""
    columns = min(2, len(surfaces))
    figure, axes, starts = panels(len(surfaces), columns, WIDTH / columns, 1.9, sharey=True)
    for axis, (label, surface) in zip(axes, surfaces.items(), strict=True):
        usual = int(np.argmin(np.abs(surface.clamp - PROTOCOL[1])))
        low, high = surface.plain.min(axis=0), surface.plain.max(axis=0)
        axis.fill_between(surface.bins, low, high, color=COLORS[0], alpha=0.18, linewidth=0)
        axis.plot(surface.bins, surface.plain[usual], color=COLORS[0], label="1% clamped")
        # Zoom is for scores without a clamp: a clamp fills the last bin, so zoom would change nothing.
        untouched = int(np.argmin(surface.clamp))
        axis.plot(surface.bins, surface.zoomed[untouched], "--", color=COLORS[1], label="zoom, no clamp")
        bin_ = int(np.argmin(np.abs(surface.bins - PROTOCOL[0])))
        protocol = surface.plain[usual, bin_]
        axis.plot(surface.bins[bin_], protocol, "o", color="black", ms=4, label="the paper's choice")
        lowest = min(surface.plain.min(), surface.zoomed.min())
        highest = max(surface.plain.max(), surface.zoomed.max())
        axis.set_title(f"{wrapped(label)}\n{protocol:.3f} ({lowest:.3f}–{highest:.3f})", fontsize=8)
        axis.set_xlabel("bins", fontsize=8)
    top = max(max(surface.plain.max(), surface.zoomed.max()) for surface in surfaces.values())
    axes[0].set_ylim(0, 1.08 * max(top, 0.05))  # all plots share it
    for axis in starts:
        axis.set_ylabel("ECE@1")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    return figure


BINS = 30
TAILS = (0.5, 99.5)
"""Percentiles of the outermost bins, which also contain all values beyond."""


@styled
def score_histogram_figure(scores: Mapping[str, NDArray[np.float64]], success: NDArray[np.bool_]) -> Figure:
    """Draw histograms of each score for correct and for incorrect top matches, one plot per score."""
    columns = min(2, len(scores))
    figure, axes, starts = panels(len(scores), columns, WIDTH / columns, 1.75)
    parts = (
        (success, RIGHT, f"correct ({success.sum():,})", "-"),
        (~success, WRONG, f"incorrect ({(~success).sum():,})", "--"),
    )
    for axis, (label, values) in zip(axes, scores.items(), strict=True):
        clamped = clamp_tails(values, TAILS)
        edges = _edges(clamped)
        for mask, color, name, dashes in parts:
            if mask.any():
                _outline(axis, clamped[mask], edges, color, name, dashes)
        axis.set_title(wrapped(label), fontsize=8)
        _finish(axis)
    for axis in starts:
        axis.set_ylabel("fraction", fontsize=8)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    return figure


@styled
def kappa_histogram_figure(
    queries: NDArray[np.float64],
    references: NDArray[np.float64] | None,
    success: NDArray[np.bool_] | None = None,
) -> Figure:
    """Draw histograms of κ for all references, and for queries with correct and incorrect top matches.

    Args:
        queries: κ of each query.
        references: κ of each reference; None if it is unknown.
        success: Whether the top match of each query is correct; None if it is unknown.

    Returns:
        The figure.
    """
    parts: list[tuple[NDArray[np.float64], str, str, str]] = []
    if references is not None:
        parts.append((references, COLORS[0], f"references ({len(references):,})", ":"))
    if success is None:
        parts.append((queries, QUERY, f"queries ({len(queries):,})", "-"))
    else:
        parts.append((queries[success], RIGHT, f"queries, top match correct ({success.sum():,})", "-"))
        parts.append((queries[~success], WRONG, f"queries, top match incorrect ({(~success).sum():,})", "--"))
    parts = [part for part in parts if len(part[0])]
    figure = new_figure(WIDTH, 3.2)
    axis = figure.subplots()
    edges = _edges(clamp_tails(np.concatenate([part[0] for part in parts]), TAILS))
    for values, color, name, dashes in parts:
        _outline(axis, np.clip(values, edges[0], edges[-1]), edges, color, name, dashes)
    _finish(axis)
    axis.set(xlabel="κ, uncertain → certain", ylabel="fraction")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=1, fontsize=8)
    return figure


def _edges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    low, high = float(values.min()), float(values.max())
    if low == high:  # a constant score still gets a visible bar
        margin = abs(low) * 0.1 or 0.5
        low, high = low - margin, high + margin
    return np.linspace(low, high, BINS + 1)


def _outline(
    axis: Axes, values: NDArray[np.float64], edges: NDArray[np.float64], color: str, name: str, dashes: str
) -> None:
    counts, _ = np.histogram(values, edges)
    fractions = counts / len(values)
    axis.stairs(fractions, edges, fill=True, color=color, alpha=0.18)
    axis.stairs(fractions, edges, color=color, label=name, linestyle=dashes, linewidth=1.3)


def _finish(axis: Axes) -> None:
    axis.set_ylim(bottom=0)
    axis.locator_params(axis="both", nbins=4)
    axis.tick_params(labelsize=8)


POINTS = 1000
"""Maximum number of points per curve; more would not be visible."""
NOISY = 0.05
"""Fraction of the most confident queries whose risk is too noisy to determine the height of the plot."""


@styled
def risk_coverage_figure(curves: Mapping[str, AcceptanceCurve]) -> Figure:
    """Draw the risk–coverage curves of all scores; the legend lists the lowest AURC first."""
    figure = new_figure(WIDTH, 3.0 + 0.17 * -(-len(curves) // 2))
    axis = figure.subplots()
    lines = [
        (curve.aurc, _draw(axis, curve, f"{plain(label)} {curve.aurc:.3f}", line_style(position)))
        for position, (label, curve) in enumerate(curves.items())
    ]
    _finish_acceptance(axis, list(curves.values()))
    handles = [line for _, line in sorted(lines, key=lambda pair: pair[0])]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8, title="AURC, best first")
    return figure


@styled
def comparison_figure(curves: Mapping[str, Mapping[str, AcceptanceCurve]]) -> Figure:
    """Draw the risk–coverage curves of several runs, one plot per score and one line per run."""
    runs = list(dict.fromkeys(run for lines in curves.values() for run in lines))
    columns = min(2, len(curves))
    figure, axes, starts = panels(len(curves), columns, WIDTH / columns, 2.1, sharey=True)
    for axis, (label, lines) in zip(axes, curves.items(), strict=True):
        for run, curve in lines.items():
            _draw(axis, curve, plain(run), line_style(runs.index(run)))
        axis.set_title(wrapped(label), fontsize=8)
    every = [curve for lines in curves.values() for curve in lines.values()]
    for axis in axes:
        _finish_acceptance(axis, every)
        axis.set(xlabel="coverage", ylabel="")
    for axis in starts:
        axis.set_ylabel("risk")
    handles = {line.get_label(): line for axis in axes for line in axis.get_lines()}
    figure.legend(
        handles=[handles[plain(run)] for run in runs], loc="outside lower center", ncols=2, fontsize=8
    )
    return figure


def thinned(curve: AcceptanceCurve) -> tuple[np.ndarray, np.ndarray]:
    """Return coverage and risk at up to `POINTS` evenly spread steps, including the last one."""
    steps = len(curve.accepted)
    rows = np.unique(np.linspace(0, steps - 1, min(steps, POINTS)).round().astype(np.int64))
    return curve.coverage[rows], curve.risk[rows]


def _draw(axis: Axes, curve: AcceptanceCurve, label: str, style: dict[str, str]) -> Line2D:
    coverage, risk = thinned(curve)
    # Queries with equal scores are answered together or not at all, so they share one risk.
    coverage, risk = np.r_[0.0, coverage], np.r_[risk[0], risk]
    marker = "o" if len(coverage) == 2 else None  # a constant score, or a single query, is one point
    line = axis.plot(coverage, risk, label=label, linewidth=1.3, marker=marker, markersize=4)[0]
    line.set(drawstyle="steps-pre", **style)
    return line


def _finish_acceptance(axis: Axes, curves: Sequence[AcceptanceCurve]) -> None:
    # One error among the first three queries is a risk of 0.33: this noise must not flatten the rest.
    top = max(0.05, *(curve.risk[curve.coverage >= NOISY].max() for curve in curves))
    axis.set(xlabel="coverage: fraction of queries answered", ylabel="risk: fraction incorrect")
    axis.set(xlim=(0, 1.01), ylim=(-0.015 * top, min(1.02, 1.08 * top)))
    axis.xaxis.label.set_fontsize(8)
