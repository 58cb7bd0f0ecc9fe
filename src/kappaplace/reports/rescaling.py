"""One picture: the same ranking, calibrated or not, as you please."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.metrics import UPPER_TAIL, acceptance_curve, auroc, reliability_curve
from kappaplace.reports.figures import COLOURS, PLOT_STYLE, WIDTH, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUERIES = 4000
HALF = 0.0025
"""The re-scaling: u → u/(u + 0.0025). It rises with u, so no two queries change places."""


def rescaling_example() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """A score, the same score re-scaled, and which queries are right (seven of eight)."""
    # Most queries are sure and a few are not; the chance to be right is 1 − u, so u is honest.
    quantile = (np.arange(QUERIES) + 0.5) / QUERIES
    uncertainty = (-np.log1p(-quantile)) ** 1.5
    uncertainty /= np.quantile(uncertainty, 0.99)
    # Multiples of the golden ratio fill [0, 1) evenly: the shares come out without the noise of a dice.
    success = np.arange(1, QUERIES + 1) * ((5**0.5 - 1) / 2) % 1 >= uncertainty
    return uncertainty, uncertainty / (uncertainty + HALF), success


def rescaling_figure() -> Figure:
    """Left a score, right the same score re-scaled: histogram, reliability, risk–coverage."""
    import matplotlib

    before, after, success = rescaling_example()
    with matplotlib.rc_context(PLOT_STYLE):
        figure = new_figure(WIDTH, 6.2)
        grid = figure.subplots(3, 2, sharey="row")
        for column, values, title, colour in (
            (0, before, "a score u", COLOURS[0]),
            (1, after, "the same as u/(u + 0.0025)", COLOURS[1]),
        ):
            _column(grid[:, column], values, success, title, colour)
        for axis, label in zip(grid[:, 0], ("share of queries", "R@1", "risk"), strict=True):
            axis.set_ylabel(label)
        return figure


def _column(
    axes: Any, values: NDArray[np.float64], success: NDArray[np.bool_], title: str, colour: str
) -> None:
    counts, edges = np.histogram(values, 20, (0, 1))
    axes[0].stairs(counts / len(values), edges, fill=True, color=colour)
    axes[0].set_title(title)
    axes[0].set_xlabel("uncertainty", fontsize=8)
    curve = reliability_curve(values, success, UPPER_TAIL)
    bins, filled = np.arange(1, len(curve.counts) + 1), curve.counts > 0
    axes[1].bar(bins, curve.counts / curve.counts.sum(), color="#bbbbbb", width=0.9)
    axes[1].plot(bins, curve.expected, "--", color="#666666")
    axes[1].plot(bins[filled], curve.observed[filled], "o-", color=colour, ms=4)
    axes[1].set_title(f"ECE@1 {curve.error:.2f}")
    axes[1].set_xlabel("bin, certain → uncertain", fontsize=8)
    axes[1].set_xticks(bins[::3])
    accepted = acceptance_curve(values, success)
    axes[2].plot(accepted.coverage, accepted.risk, color=colour)
    axes[2].set_title(f"AUROC {auroc(values, success):.2f}, AURC {accepted.aurc:.3f}")
    axes[2].set_xlabel("coverage", fontsize=8)
    for axis in axes:
        axis.title.set_fontsize(9)
