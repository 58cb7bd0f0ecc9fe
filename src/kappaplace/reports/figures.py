"""Figures as matplotlib objects: the caller decides where they are saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.metrics import ReliabilityCurve

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
