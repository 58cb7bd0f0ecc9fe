"""The drawn figures of the documentation: python docs/make_figures.py"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from kappaplace.metrics import UPPER_TAIL, acceptance_curve, auroc, reliability_curve
from kappaplace.reports.figures import COLORS, WIDTH, new_figure, styled
from kappaplace.reports.html import png_of

ASSETS = Path(__file__).parent / "assets"
QUERIES = 4000
HALF = 0.0025
"""Constant of the rescaling u → u/(u + 0.0025), which keeps the order of the queries."""


def rescaling_example() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Return a score, the same score rescaled, and which queries are correct (seven of eight)."""
    # Most queries are certain. The probability of a correct match is 1 − u, so u is calibrated.
    quantile = (np.arange(QUERIES) + 0.5) / QUERIES
    uncertainty = (-np.log1p(-quantile)) ** 1.5
    uncertainty /= np.quantile(uncertainty, 0.99)
    # Multiples of the golden ratio fill [0, 1) evenly, without the noise of random numbers.
    success = np.arange(1, QUERIES + 1) * ((5**0.5 - 1) / 2) % 1 >= uncertainty
    return uncertainty, uncertainty / (uncertainty + HALF), success


@styled
def rescaling_figure() -> Figure:
    """Draw a score (left) and the same score rescaled (right): histogram, reliability, risk–coverage."""
    before, after, success = rescaling_example()
    figure = new_figure(WIDTH, 6.2)
    grid = figure.subplots(3, 2, sharey="row")
    for column, values, title, color in (
        (0, before, "a score u", COLORS[0]),
        (1, after, "the same as u/(u + 0.0025)", COLORS[1]),
    ):
        _column(grid[:, column], values, success, title, color)
    for axis, label in zip(grid[:, 0], ("fraction of queries", "R@1", "risk"), strict=True):
        axis.set_ylabel(label)
    return figure


def _column(
    axes: Sequence[Axes], values: NDArray[np.float64], success: NDArray[np.bool_], title: str, color: str
) -> None:
    counts, edges = np.histogram(values, 20, (0, 1))
    axes[0].stairs(counts / len(values), edges, fill=True, color=color)
    axes[0].set_title(title)
    axes[0].set_xlabel("uncertainty", fontsize=8)
    curve = reliability_curve(values, success, UPPER_TAIL)
    bins, filled = np.arange(1, len(curve.counts) + 1), curve.counts > 0
    axes[1].bar(bins, curve.counts / curve.counts.sum(), color="#bbbbbb", width=0.9)
    axes[1].plot(bins, curve.expected, "--", color="#666666")
    axes[1].plot(bins[filled], curve.observed[filled], "o-", color=color, ms=4)
    axes[1].set_title(f"ECE@1 {curve.error:.2f}")
    axes[1].set_xlabel("bin, certain → uncertain", fontsize=8)
    axes[1].set_xticks(bins[::3])
    accepted = acceptance_curve(values, success)
    axes[2].plot(accepted.coverage, accepted.risk, color=color)
    axes[2].set_title(f"AUROC {auroc(values, success):.2f}, AURC {accepted.aurc:.3f}")
    axes[2].set_xlabel("coverage", fontsize=8)
    for axis in axes:
        axis.title.set_fontsize(9)


if __name__ == "__main__":
    (ASSETS / "rescaling.png").write_bytes(png_of(rescaling_figure(), dpi=150))
