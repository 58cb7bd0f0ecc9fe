"""A map of where the system is unsure."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.reports.figures import PLOT_STYLE, WIDTH, WRONG, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_REFERENCES = 20_000
MOST_QUERIES = 5_000
"""Points drawn at most; more only cover each other."""


def map_figure(
    references: NDArray[np.float64],
    queries: NDArray[np.float64],
    uncertainty: NDArray[np.float64],
    success: NDArray[np.bool_],
) -> Figure:
    """References grey, queries coloured by the rank of their uncertainty, failures crossed out in red.

    Positions are metres, N×2. Large sets are thinned evenly; `thinning` says so in words.
    """
    import matplotlib
    from scipy.stats import rankdata

    # Ranks, not values: one wild score would turn all other queries into one colour.
    rank = (rankdata(uncertainty) - 0.5) / len(uncertainty)
    rows = _spread(len(queries), MOST_QUERIES)
    origin = np.concatenate([references, queries]).min(axis=0)
    ground = (references - origin)[_spread(len(references), MOST_REFERENCES)]
    points, failed = (queries - origin)[rows], ~success[rows]
    with matplotlib.rc_context(PLOT_STYLE):
        figure = new_figure(WIDTH, _height(np.concatenate([ground, points])))
        axis = figure.subplots()
        # Rasterised: thousands of points would make the SVG huge.
        draw: Any = partial(axis.scatter, rasterized=True)
        draw(ground[:, 0], ground[:, 1], s=3, color="#b5b5b5", linewidths=0, label="reference")
        order = np.argsort(rank[rows], kind="stable")  # the unsure on top
        east, north = points[order].T
        colours = {"c": rank[rows][order], "cmap": "viridis_r", "vmin": 0, "vmax": 1}
        dots = draw(east, north, s=13, linewidths=0, label="query", **colours)
        east, north = points[failed].T
        draw(east, north, s=14, marker="x", color=WRONG, linewidths=0.9, label="wrong match")
        axis.set_aspect("equal", adjustable="datalim")
        axis.set(xlabel="metres east", ylabel="metres north")
        axis.locator_params(nbins=5)
        bar: Any = {"location": "bottom", "shrink": 0.8, "aspect": 30, "pad": 0.02}
        figure.colorbar(dots, ax=axis, label="share of queries that are surer", **bar)
        figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
        return figure


def thinning(references: int, queries: int) -> str:
    """One sentence where not everything is drawn, else nothing."""
    if references <= MOST_REFERENCES and queries <= MOST_QUERIES:
        return ""
    return (
        f" Drawn: {min(references, MOST_REFERENCES):,} of {references:,} references and "
        f"{min(queries, MOST_QUERIES):,} of {queries:,} queries, evenly chosen."
    )


def _spread(count: int, most: int) -> NDArray[np.int64]:
    """All rows, or as many as may be drawn, evenly spread."""
    return np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)


def _height(points: NDArray[np.float64]) -> float:
    """Inches that suit the shape of the ground, within reason."""
    wide, high = np.ptp(points, axis=0)
    return float(np.clip(1.9 + 3.8 * (high / wide if wide > 0 else 1.0), 3.0, 6.0))
