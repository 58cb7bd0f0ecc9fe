"""The map of a table: references, queries, lines to positives, coverage; as PNG or as one HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.place_images import PlaceImages
from kappaplace.data.positives import Positives
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file

MAX_POINTS = 100_000  # points of each kind drawn; more only make the file heavy
MAX_LINES = 3_000  # lines from queries to positives
REFERENCE, FOUND, LOST, LINE = "#9aa5b1", "#1f77b4", "#d62728", "#7fb2dd"


@dataclass(frozen=True, eq=False)
class MapView:
    """What is drawn, whatever draws it: points in metres (or in indices, for sets without positions)."""

    title: str
    axes: tuple[str, str]
    references: NDArray[np.float64]
    queries: NDArray[np.float64]
    covered: NDArray[np.bool_]
    """Which of the drawn queries have a positive."""
    lines: NDArray[np.float64]
    """L×4: from a query to one of its positives."""
    rows: tuple[NDArray[np.int64], NDArray[np.int64]]
    """Table rows of the drawn references and queries."""
    counts: NDArray[np.int64]
    """Positives of every query, drawn or not."""
    sentence: str


def map_view(table: PlaceImages, *, seed: int = 0) -> MapView:
    """Choose what to draw; large tables are thinned at random, always in the same way."""
    positives = table.positives()
    posed = table.posed[table.reference_rows].any() and (
        table.posed[table.query_rows].any() or not positives.queries
    )
    rng = np.random.default_rng(seed)
    make = _metric_view if posed else _index_view
    return make(table, positives, rng)


def show(table: PlaceImages, out: str | Path) -> MapView:
    """Write the map as ``.png`` or ``.html``."""
    out = Path(out)
    kind = out.suffix.lower()
    if kind not in (".png", ".html"):
        raise KappaPlaceError(f"{out} is neither .png nor .html: the map is drawn as one of these.")
    view = map_view(table)
    make_folder(out.parent)
    if kind == ".png":
        replace_file(out, lambda part: draw_png(view, part))
    else:
        from kappaplace.data.show_html import html_page

        page = html_page(view, table)
        replace_file(out, lambda part: part.write_text(page, encoding="utf-8"))
    return view


def draw_png(view: MapView, file: Path) -> None:
    """The map, and beside it how many positives queries have."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(1, 2, width_ratios=[3.2, 1])
    axes = figure.add_subplot(grid[0])
    if len(view.lines):
        segments = view.lines.reshape(-1, 2, 2)
        axes.add_collection(LineCollection(list(segments), colors=LINE, linewidths=0.6, zorder=1))
    size = float(np.clip(8e4 / max(len(view.references) + len(view.queries), 1), 1.0, 16.0))
    metric = view.axes[0].endswith("m)")
    found, lost = int(view.covered.sum()), int((~view.covered).sum())
    covered = (
        f"queries with positives ({found:,} drawn)" if metric else f"positives of queries ({found:,} drawn)"
    )
    _dots(axes, view.references, size, REFERENCE, f"references ({len(view.references):,} drawn)", 2)
    _dots(axes, view.queries[view.covered], size, FOUND, covered, 3)
    _dots(axes, view.queries[~view.covered], size * 1.5, LOST, f"queries without ({lost:,})", 4)
    axes.set_aspect("equal" if metric else "auto", adjustable="datalim")
    axes.set_xlabel(view.axes[0])
    axes.set_ylabel(view.axes[1])
    axes.ticklabel_format(useOffset=False, style="plain")
    axes.tick_params(axis="x", labelrotation=20)
    axes.grid(alpha=0.25, linewidth=0.5)
    figure.legend(loc="outside lower left", ncols=3, frameon=False, markerscale=max(1.0, 4 / size**0.5))
    _histogram(figure.add_subplot(grid[1]), view.counts)
    figure.suptitle(f"{view.title}\n{view.sentence}", fontsize=11)
    figure.savefig(file, format="png")


def _dots(axes: Any, points: NDArray[np.float64], size: float, colour: str, label: str, order: int) -> None:
    if len(points):
        axes.scatter(
            points[:, 0],
            points[:, 1],
            s=size,
            c=colour,
            label=label,
            zorder=order,
            linewidths=0,
            rasterized=True,
        )


def _histogram(axes: Any, counts: NDArray[np.int64]) -> None:
    axes.set_title("coverage", fontsize=10)
    axes.set_xlabel("positives of a query")
    axes.set_ylabel("queries")
    if not len(counts):
        axes.text(0.5, 0.5, "no queries", ha="center", va="center", transform=axes.transAxes)
        return
    top = int(counts.max())
    edges = np.arange(top + 2) - 0.5
    if top > 40:  # wide bins, the first for the queries without any
        edges = np.linspace(0.5, top + 0.5, 31)
        edges = np.concatenate([[2 * edges[0] - edges[1]], edges])
    _, _, bars = axes.hist(counts, bins=edges, color=FOUND)
    bars[0].set_facecolor(LOST)  # the queries without any
    axes.xaxis.get_major_locator().set_params(integer=True)


def _metric_view(table: PlaceImages, positives: Positives, rng: np.random.Generator) -> MapView:
    references = _some(table.reference_rows[table.posed[table.reference_rows]], rng)
    query_ids = _some(np.flatnonzero(table.posed[table.query_rows]), rng)
    queries = table.query_rows[query_ids]
    query, reference = _some_pairs(positives, rng, MAX_LINES)
    starts = table.positions[table.query_rows[query]]
    ends = table.positions[table.reference_rows[reference]]
    lines = np.concatenate([starts, ends], axis=1)
    return MapView(
        _title(table),
        ("east (m)", "north (m)") if table.frame.startswith("EPSG") else ("x (m)", "y (m)"),
        table.positions[references],
        table.positions[queries],
        positives.counts[query_ids] > 0,
        lines[np.isfinite(lines).all(axis=1)],
        (references, queries),
        positives.counts,
        _sentence(table, positives),
    )


def _index_view(table: PlaceImages, positives: Positives, rng: np.random.Generator) -> MapView:
    """Sets without positions: which reference (upwards) is a positive of which query (to the right)."""
    query, reference = _some_pairs(positives, rng, MAX_POINTS)
    lost = np.flatnonzero(positives.counts == 0)
    points = np.concatenate(
        [np.column_stack([query, reference]), np.column_stack([lost, np.full(len(lost), -1)])]
    )
    return MapView(
        _title(table) + " (no positions: indices of queries and references)",
        ("query", "reference"),
        np.empty((0, 2)),
        points.astype(np.float64),
        np.arange(len(points)) < len(query),
        np.empty((0, 4)),
        (np.empty(0, dtype=np.int64), table.query_rows[points[:, 0].astype(np.int64)]),
        positives.counts,
        _sentence(table, positives),
    )


def _some(rows: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    return rows if len(rows) <= MAX_POINTS else np.sort(rng.choice(rows, MAX_POINTS, replace=False))


def _some_pairs(
    positives: Positives, rng: np.random.Generator, most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    total = len(positives.indices)
    chosen = np.arange(total) if total <= most else np.sort(rng.integers(0, total, most))
    query = np.searchsorted(positives.indptr, chosen, side="right") - 1
    return query, positives.indices[chosen].astype(np.int64)


def _title(table: PlaceImages) -> str:
    return " · ".join(part for part in (table.name or "table", table.protocol, table.frame) if part)


def _sentence(table: PlaceImages, positives: Positives) -> str:
    covered = float((positives.counts > 0).mean()) if positives.queries else 0.0
    how = "given" if table.given_positives is not None else f"within {table.radius:g} m"
    return (
        f"{len(table.query_rows):,} queries, {len(table.reference_rows):,} references, positives {how}; "
        f"{covered:.1%} of queries covered, {int((~table.posed).sum()):,} images unposed"
    )
