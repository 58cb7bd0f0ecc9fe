"""Map of the uncertainty of queries."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kappaplace.reports.figures import WIDTH, WRONG, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_REFERENCES = 20_000
MOST_QUERIES = 5_000
"""Maximum number of points; more only cover each other."""


@styled
def map_figure(
    references: NDArray[np.float64],
    queries: NDArray[np.float64],
    uncertainty: NDArray[np.float64],
    success: NDArray[np.bool_],
) -> Figure:
    """Draw references gray, queries colored by the rank of their uncertainty, and failures as red crosses.

    Large datasets are subsampled evenly, see `thinning`.

    Args:
        references: Positions in meters, N×2.
        queries: Positions in meters, N×2.
        uncertainty: Uncertainty of each query.
        success: Whether the top match of each query is correct.
    """
    from scipy.stats import rankdata

    # Ranks, not values: with one outlier, all other queries would have the same color.
    rank = (rankdata(uncertainty) - 0.5) / len(uncertainty)
    rows = _spread(len(queries), MOST_QUERIES)
    origin = np.concatenate([references, queries]).min(axis=0)
    ground = (references - origin)[_spread(len(references), MOST_REFERENCES)]
    points, failed = (queries - origin)[rows], ~success[rows]
    figure = new_figure(WIDTH, _height(np.concatenate([ground, points])))
    axis = figure.subplots()
    # Rasterised: thousands of points would make the SVG huge.
    draw = partial(axis.scatter, rasterized=True)
    draw(ground[:, 0], ground[:, 1], s=3, color="#b5b5b5", linewidths=0, label="reference")
    order = np.argsort(rank[rows], kind="stable")  # uncertain queries on top
    east, north = points[order].T
    rank = rank[rows][order]
    dots = draw(east, north, s=13, linewidths=0, label="query", c=rank, cmap="viridis_r", vmin=0, vmax=1)
    east, north = points[failed].T
    draw(east, north, s=14, marker="x", color=WRONG, linewidths=0.9, label="incorrect match")
    axis.set_aspect("equal", adjustable="datalim")
    axis.set(xlabel="east (m)", ylabel="north (m)")
    axis.locator_params(nbins=5)
    label = "fraction of queries that are more confident"
    figure.colorbar(dots, ax=axis, label=label, location="bottom", shrink=0.8, aspect=30, pad=0.02)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return figure


def thinning(references: int, queries: int) -> str:
    """Return a note if not all points are drawn, otherwise nothing."""
    if references <= MOST_REFERENCES and queries <= MOST_QUERIES:
        return ""
    return (
        f" Drawn: {min(references, MOST_REFERENCES):,} of {references:,} references and "
        f"{min(queries, MOST_QUERIES):,} of {queries:,} queries, evenly subsampled."
    )


def _spread(count: int, most: int) -> NDArray[np.int64]:
    """Return all rows, or ``most`` rows that are evenly spread."""
    return np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)


def _height(points: NDArray[np.float64]) -> float:
    """Return the height of the figure in inches that suits the shape of the mapped area."""
    wide, high = np.ptp(points, axis=0)
    return float(np.clip(1.9 + 3.8 * (high / wide if wide > 0 else 1.0), 3.0, 6.0))
