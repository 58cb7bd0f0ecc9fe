"""Figures as matplotlib objects: the caller decides where they are saved.

ECE@K as grouped bars, and how far it moves with choices that its definition leaves open.

Histograms: a score for right and wrong matches, κ for queries and references.

Risk–coverage curves: how many errors are left when the doubtful queries are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.metrics import AcceptanceCurve, EceSurface, ReliabilityCurve, clamp_tails

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Okabe-Ito: told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
RIGHT, WRONG, QUERY = "#1a9850", "#d73027", "#4d4d4d"
PLOT_STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "font.size": 9,
    "svg.hashsalt": "kappaplace",  # the same data gives the same bytes
}
WIDTH = 4.6
"""Inches of a figure whose letters can be read on a phone."""
_DASHES = ("-", "--", ":", "-.")


def new_figure(width: float, height: float) -> Figure:
    """A figure without pyplot's global state, so that figures can be made in threads and servers."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def panels(
    count: int, columns: int, width: float, height: float, sharey: bool = False
) -> tuple[Figure, list[Any], list[Any]]:
    """A figure of small plots row by row: the figure, its plots, and those that start a row."""
    rows = -(-count // columns)
    figure = new_figure(width * columns, height * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=sharey)
    for axis in grid.ravel()[count:]:
        axis.remove()
    return figure, list(grid.ravel()[:count]), list(grid[:, 0])


def plain(text: str) -> str:
    """A name as it is: matplotlib would read formulas between dollar signs."""
    return text.replace("$", r"\$")


def line_style(position: int) -> dict[str, str]:
    """Colour and dashes of the n-th line: two dozen are told apart."""
    dashes = _DASHES[position // len(COLOURS) % len(_DASHES)]
    return {"color": COLOURS[position % len(COLOURS)], "linestyle": dashes}


def reliability_figure(
    curves: Mapping[str, ReliabilityCurve],
    errors: Mapping[str, float],
    k: int,
    columns: int | None = None,
) -> Figure:
    """One small plot a score: success in each bin against what the bin promises; bars show the counts.

    All in one row, or so many ``columns`` to a row; the numbers then stand below the bars.
    """
    import matplotlib

    with matplotlib.rc_context(PLOT_STYLE):
        if columns is None:
            figure, axes, starts = panels(len(curves), len(curves), 2.6, 3.2, sharey=True)
        else:
            figure, axes, starts = panels(len(curves), columns, WIDTH / columns, 2.1, sharey=True)
        for position, (axis, (label, curve)) in enumerate(zip(axes, curves.items(), strict=True)):
            bins = np.arange(1, len(curve.counts) + 1)
            shares = curve.counts / curve.counts.sum()
            axis.bar(bins, shares, color="#bbbbbb", width=0.9, label="share of queries")
            axis.plot(bins, curve.expected, "--", color="#666666", label="expected")
            colour = COLOURS[position % len(COLOURS)]
            # Empty bins are NaN, and break the line: nothing was observed there.
            axis.plot(bins, curve.observed, "o-", color=colour, label="observed")
            title = f"{plain(label)}{': ' if columns is None else chr(10)}ECE@{k} {errors[label]:.3f}"
            axis.set(title=title, xlabel="bin, certain → uncertain", ylim=(0, 1.04))
            axis.set_xticks(bins[::3])
            if columns is not None:
                axis.title.set_fontsize(8)
                axis.xaxis.label.set_fontsize(8)
                _counts_below(axis, bins, curve.counts)
        for axis in starts:
            axis.set_ylabel(f"R@{k}")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
        return figure


def _counts_below(axis: Any, bins: NDArray[Any], counts: NDArray[np.int64]) -> None:
    """Write each bin's count into a strip below zero, where no curve crosses it."""
    axis.set(ylim=(-0.4, 1.04), yticks=(0, 0.5, 1))
    for position, count in zip(bins, counts, strict=True):
        text = str(count) if count < 10_000 else f"{count / 1000:.0f}k"
        words = axis.text(position, -0.09, text, fontsize=6, rotation=90, ha="center", va="top")
        words.set_in_layout(False)  # inside the plot in any case; asking for its size is slow


def kappa_figure(
    curves: Mapping[str, tuple[NDArray[Any], NDArray[Any], NDArray[Any]]],
    damage: NDArray[Any],
    kappa: NDArray[Any],
    success: NDArray[np.bool_],
    title: str = "every query of the unseen district",
) -> Figure:
    """Left: mean κ of the same views as one kind of damage grows. Right: κ of every query, under a title."""
    import matplotlib

    with matplotlib.rc_context(PLOT_STYLE):
        figure = new_figure(9.0, 3.3)
        left, right = figure.subplots(1, 2)
        for colour, (condition, (levels, mean, error)) in zip(COLOURS, curves.items(), strict=False):
            left.errorbar(levels, mean, error, marker="o", ms=3, color=colour, label=condition)
        left.set(xlabel="level of damage", ylabel="mean κ", title="κ of the same views under growing damage")
        left.set_ylim(bottom=0)
        left.legend(fontsize=8)
        for right_or_wrong, colour, label in ((True, RIGHT, "right"), (False, WRONG, "wrong")):
            chosen = success == right_or_wrong
            right.scatter(
                damage[chosen], kappa[chosen], s=9, alpha=0.6, color=colour, label=f"top match {label}"
            )
        right.set(xlabel="total damage of the query", ylabel="κ", title=title)
        right.set_ylim(bottom=0)
        right.legend(fontsize=8)
        return figure


@dataclass(frozen=True, eq=False)
class GalleryRow:
    """A query and its best matches."""

    title: str
    query: NDArray[np.uint8]
    query_caption: str
    matches: Sequence[NDArray[np.uint8]]
    right: Sequence[bool]
    captions: Sequence[str]


def gallery_figure(rows: Sequence[GalleryRow]) -> Figure:
    """Queries on the left, matches framed green where right and red where wrong."""
    columns = 1 + max(len(row.matches) for row in rows)
    figure = new_figure(2.2 * columns, 2.55 * len(rows))
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for line, row in zip(axes, rows, strict=True):
        _picture(line[0], row.query, QUERY, f"{row.title}\n{row.query_caption}")
        for axis, image, right, caption in zip(line[1:], row.matches, row.right, row.captions, strict=True):
            _picture(axis, image, RIGHT if right else WRONG, caption)
    return figure


def _picture(axis: Any, image: NDArray[np.uint8], colour: str, caption: str) -> None:
    axis.imshow(image)
    axis.set_title(caption, fontsize=8)
    axis.xaxis.set_visible(False)
    axis.yaxis.set_visible(False)
    for spine in axis.spines.values():
        spine.set(color=colour, linewidth=4)


PROTOCOL = (10, 1.0)
"""Bins and percent clamped from a tail in the paper."""


def ece_bars_figure(errors: Mapping[str, Mapping[int, float]], ks: Sequence[int]) -> Figure:
    """Grouped bars, score → K → ECE@K; lying, so that many scores keep readable names."""
    import matplotlib

    thickness = 0.8 / len(ks)
    with matplotlib.rc_context(PLOT_STYLE):
        figure = new_figure(WIDTH, 1.1 + (0.16 * len(ks) + 0.1) * len(errors))
        axis = figure.subplots()
        rows = np.arange(len(errors))
        for position, k in enumerate(ks):
            values = [score[k] for score in errors.values()]
            at = rows + (position - (len(ks) - 1) / 2) * thickness
            bars = axis.barh(at, values, thickness, color=COLOURS[position], label=f"ECE@{k}")
            axis.bar_label(bars, fmt="%.3f", fontsize=6.5, padding=2)
        axis.set_yticks(rows, [plain(label) for label in errors])
        axis.set_ylim(len(errors) - 0.5, -0.5)  # the first score on top
        axis.grid(axis="y", visible=False)
        largest = np.nanmax([0.1, *(value for score in errors.values() for value in score.values())])
        axis.set(xlabel="ECE, 0 is best", xlim=(0, 1.15 * float(largest)))
        figure.legend(loc="outside lower center", ncols=len(ks), fontsize=8)
        return figure


def ece_sensitivity_figure(surfaces: Mapping[str, EceSurface]) -> Figure:
    """One small plot a score: ECE@1 over the number of bins, a band for all clamps, with and without zoom."""
    import matplotlib

    columns = min(2, len(surfaces))
    with matplotlib.rc_context(PLOT_STYLE):
        figure, axes, starts = panels(len(surfaces), columns, WIDTH / columns, 1.9, sharey=True)
        for axis, (label, surface) in zip(axes, surfaces.items(), strict=True):
            usual = int(np.argmin(np.abs(surface.clamp - PROTOCOL[1])))
            low, high = surface.plain.min(axis=0), surface.plain.max(axis=0)
            axis.fill_between(surface.bins, low, high, color=COLOURS[0], alpha=0.18, linewidth=0)
            axis.plot(surface.bins, surface.plain[usual], color=COLOURS[0], label="1 % clamped")
            # Zoom is for scores whose tails are left alone: a clamp fills the last bin, and nothing is cut.
            untouched = int(np.argmin(surface.clamp))
            axis.plot(surface.bins, surface.zoomed[untouched], "--", color=COLOURS[1], label="zoom, no clamp")
            at = int(np.argmin(np.abs(surface.bins - PROTOCOL[0])))
            protocol = surface.plain[usual, at]
            axis.plot(surface.bins[at], protocol, "o", color="black", ms=4, label="the paper's choice")
            lowest = min(surface.plain.min(), surface.zoomed.min())
            highest = max(surface.plain.max(), surface.zoomed.max())
            axis.set_title(f"{plain(label)}\n{protocol:.3f}, can be {lowest:.3f}–{highest:.3f}", fontsize=8)
            axis.set_xlabel("bins", fontsize=8)
        top = max(max(surface.plain.max(), surface.zoomed.max()) for surface in surfaces.values())
        axes[0].set_ylim(0, 1.08 * max(top, 0.05))  # all plots share it
        for axis in starts:
            axis.set_ylabel("ECE@1")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=7.5)
        return figure


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
        _finish_acceptance(axis, list(curves.values()))
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
            _finish_acceptance(axis, every)
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


def _finish_acceptance(axis: Any, curves: Sequence[AcceptanceCurve]) -> None:
    # One wrong query among the first three is a risk of a third: that noise must not flatten all the rest.
    top = max(0.05, *(curve.risk[curve.coverage >= NOISY].max() for curve in curves))
    axis.set(xlabel="coverage: share of queries answered", ylabel="risk: share that is wrong")
    axis.set(xlim=(0, 1.01), ylim=(-0.015 * top, min(1.02, 1.08 * top)))
    axis.xaxis.label.set_fontsize(8)
