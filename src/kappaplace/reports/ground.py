"""Maps seen from above: references with headings, the uncertainty of queries, and the images of a table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kappaplace.data import ZONE_SHIFT, PlaceImages, Positives, frame_codes, zone_index
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, write_file
from kappaplace.reports.figures import WIDTH, WRONG, new_figure, styled
from kappaplace.reports.html import counts, drawing, page, paragraph, png_of, svg_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from kappaplace.maps import PlaceMap


MOST_REFERENCES = 20_000
MOST_QUERIES = 5_000
"""Maximum number of points. More of them would only overlap."""


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
        references: Positions in metres, N×2.
        queries: Positions in metres, N×2.
        uncertainty: Uncertainty of each query.
        success: Whether the top match of each query is correct.

    Returns:
        The figure.
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


MAX_POINTS = 100_000
"""Maximum number of points of each kind. More of them would only make the file larger."""
MAX_LINES = 3_000
"""Maximum number of lines from queries to positives."""


@dataclass(frozen=True, eq=False)
class Panel:
    """One map: points in metres of one zone, or indices for tables without positions."""

    name: str
    """The zone; empty if there is only one."""
    references: NDArray[np.float64]
    queries: NDArray[np.float64]
    covered: NDArray[np.bool_]
    """Whether each query has a positive."""
    lines: NDArray[np.float64]
    """Lines from a query to one of its positives, L×4."""


@dataclass(frozen=True, eq=False)
class MapView:
    """Map of a table: panels with their titles and labels."""

    title: str
    sentence: str
    axes: tuple[str, str]
    metric: bool
    """Whether both axes are in metres; otherwise a point is a pair of a query and its positive."""
    panels: tuple[Panel, ...]
    labels: dict[str, str]
    """Text in the legend of each layer (reference, line, found, lost)."""
    counts: NDArray[np.int64]
    """Number of positives of each query."""


def map_view(table: PlaceImages, *, seed: int = 0) -> MapView:
    """Return the panels of a table; large tables are subsampled at random, with a fixed seed."""
    positives = table.positives()
    posed = table.posed[table.reference_rows].any() and (
        table.posed[table.query_rows].any() or not positives.queries
    )
    make = _metric_view if posed else _index_view
    return make(table, positives, np.random.default_rng(seed))


def _metric_view(table: PlaceImages, positives: Positives, rng: np.random.Generator) -> MapView:
    references = _some(table.reference_rows[table.posed[table.reference_rows]], rng)
    query_ids = _some(np.flatnonzero(table.posed[table.query_rows]), rng)
    queries = table.query_rows[query_ids]
    covered = positives.counts[query_ids] > 0
    query, reference = _some_pairs(positives, rng, MAX_LINES)
    ends = np.column_stack([table.query_rows[query], table.reference_rows[reference]])
    zone, positions = _unshifted(table)
    # Listed positives may be in another zone or have no position: such lines cannot be drawn.
    ends = ends[(zone[ends[:, 0]] == zone[ends[:, 1]]) & (zone[ends[:, 0]] >= 0)]
    codes = frame_codes(table.frame)
    panels = []
    for number in range(max(len(codes), 1)):
        r, q = references[zone[references] == number], queries[zone[queries] == number]
        e = ends[zone[ends[:, 0]] == number]
        lines = np.concatenate([positions[e[:, 0]], positions[e[:, 1]]], axis=1)
        name = f"EPSG:{codes[number]}" if len(codes) > 1 else ""
        panels.append(Panel(name, positions[r], positions[q], covered[zone[queries] == number], lines))
    with_any = int((positives.counts > 0).sum())
    labels = {
        "reference": _drawn("references", len(references), len(table.reference_rows)),
        "line": _drawn("lines to positives", len(ends), len(positives.indices)),
        "found": _drawn("queries with positives", int(covered.sum()), with_any),
        "lost": _drawn("queries without", int((~covered).sum()), positives.queries - with_any),
    }
    labels = labels if positives.queries else {"reference": labels["reference"]}
    title = _title(table, f"{len(codes)} zones" if len(codes) > 1 else table.frame)
    axes = ("east (m)", "north (m)") if codes else ("x (m)", "y (m)")
    return MapView(title, _sentence(table, positives), axes, True, tuple(panels), labels, positives.counts)


def _index_view(table: PlaceImages, positives: Positives, rng: np.random.Generator) -> MapView:
    """Return the view of a table without positions: its pairs of a query (x) and a positive (y)."""
    query, reference = _some_pairs(positives, rng, MAX_POINTS)
    lost = np.flatnonzero(positives.counts == 0)
    shown = _some(lost, rng)
    points = np.concatenate(
        [np.column_stack([query, reference]), np.column_stack([shown, np.full(len(shown), -1)])]
    )
    covered = np.arange(len(points)) < len(query)
    panel = Panel("", np.empty((0, 2)), points.astype(np.float64), covered, np.empty((0, 4)))
    labels = {
        "found": _drawn("pairs of a query and its positive", len(query), len(positives.indices)),
        "lost": _drawn("queries without, drawn below 0", len(shown), len(lost)),
    }
    title = _title(table, "no positions: indices of queries and references")
    axes = ("query", "reference")
    return MapView(title, _sentence(table, positives), axes, False, (panel,), labels, positives.counts)


def _unshifted(table: PlaceImages) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the zone of every row, and its position in that zone, without the shift between zones."""
    zone = zone_index(table.positions, table.frame)
    return zone, table.positions - np.maximum(zone, 0)[:, None] * [ZONE_SHIFT, 0.0]


def _drawn(name: str, drawn: int, total: int) -> str:
    return f"{name} ({total:,})" if drawn == total else f"{name} ({drawn:,} of {total:,} drawn)"


def _some(rows: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    return rows if len(rows) <= MAX_POINTS else np.sort(rng.choice(rows, MAX_POINTS, replace=False))


def _some_pairs(
    positives: Positives, rng: np.random.Generator, most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    total = len(positives.indices)
    pairs = np.arange(total) if total <= most else np.unique(rng.choice(total, most, replace=False))
    query = np.searchsorted(positives.indptr, pairs, side="right") - 1
    return query, positives.indices[pairs].astype(np.int64)


def _title(table: PlaceImages, frame: str) -> str:
    """Return name, protocol and frame without repetition: a table may have the name of its protocol."""
    return " · ".join(dict.fromkeys(part for part in (table.name or "table", table.protocol, frame) if part))


def _sentence(table: PlaceImages, positives: Positives) -> str:
    rule = "listed" if table.given_positives is not None else f"within {table.radius:g} m"
    unposed = f"{int((~table.posed).sum()):,} images without a position"
    if not positives.queries:
        return f"no queries, {len(table.reference_rows):,} references, {unposed}"
    covered = float((positives.counts > 0).mean())
    return (
        f"{len(table.query_rows):,} queries, {len(table.reference_rows):,} references, positives {rule}; "
        f"{covered:.1%} of queries have positives, {unposed}"
    )


COLORS = {"reference": "#9aa5b1", "line": "#7fb2dd", "found": "#1f77b4", "lost": "#d62728"}
MAX_COLUMNS = 3
"""Maximum number of panels per row."""


def write_table_map(table: PlaceImages, out: str | Path) -> MapView:
    """Draw the map of a table.

    Args:
        table: The table.
        out: File to write, .png.

    Returns:
        The map; its ``sentence`` is a summary.

    Raises:
        KappaPlaceError: If the file is not a .png.
    """
    out = Path(out)
    if out.suffix.lower() != ".png":
        raise KappaPlaceError(f'The map must be a .png file, got "{out}".')
    view = map_view(table)
    make_folder(out.parent)
    write_file(out, png_of(table_figure(view)))
    return view


def table_figure(view: MapView) -> Figure:
    """Draw the map, one panel per zone, and a histogram of the positives per query."""
    columns = min(len(view.panels), MAX_COLUMNS)
    lines = -(-len(view.panels) // columns)
    figure = new_figure(11, 7 if lines == 1 else 3.5 * lines + 1)
    grid = figure.add_gridspec(1, 2, width_ratios=[3.2, 1])
    maps = grid[0].subgridspec(lines, columns)
    for number, panel in enumerate(view.panels):
        axes = figure.add_subplot(maps[number // columns, number % columns])
        _draw_panel(axes, panel, view)
    figure.legend(handles=_legend(view), loc="outside lower left", ncols=2, frameon=False)
    _histogram(figure.add_subplot(grid[1]), view.counts)
    figure.suptitle(f"{view.title}\n{view.sentence}", fontsize=11)
    return figure


def _draw_panel(axes: Axes, panel: Panel, view: MapView) -> None:
    from matplotlib.collections import LineCollection

    if len(panel.lines):
        segments = list(panel.lines.reshape(-1, 2, 2))
        axes.add_collection(LineCollection(segments, colors=COLORS["line"], linewidths=0.6, zorder=1))
    size = float(np.clip(8e4 / max(len(panel.references) + len(panel.queries), 1), 1.0, 16.0))
    _dots(axes, panel.references, size, COLORS["reference"], 2)
    _dots(axes, panel.queries[panel.covered], size, COLORS["found"], 3)
    _dots(axes, panel.queries[~panel.covered], size * 1.5, COLORS["lost"], 4)
    axes.set_aspect("equal" if view.metric else "auto", adjustable="datalim")
    axes.set_title(panel.name, fontsize=10)
    axes.set(xlabel=view.axes[0], ylabel=view.axes[1])
    axes.ticklabel_format(useOffset=False, style="plain")
    axes.tick_params(axis="x", labelrotation=20)
    # Coordinates have seven digits, and a panel among others is small.
    axes.locator_params(axis="x", nbins=6 if len(view.panels) == 1 else 3)
    axes.grid(alpha=0.25, linewidth=0.5)


def _dots(axes: Axes, points: NDArray[np.float64], size: float, color: str, order: int) -> None:
    if len(points):
        axes.scatter(points[:, 0], points[:, 1], s=size, c=color, zorder=order, linewidths=0, rasterized=True)


def _legend(view: MapView) -> list[Line2D]:
    """Return a key for every layer, even if it is empty."""
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=COLORS[layer], linewidth=1.5, label=label)
        if layer == "line"
        else Line2D([], [], color=COLORS[layer], marker="o", linestyle="", markersize=5, label=label)
        for layer, label in view.labels.items()
    ]


def _histogram(axes: Axes, counts: NDArray[np.int64]) -> None:
    axes.set_title("coverage", fontsize=10)
    axes.set_xlabel("positives per query")
    axes.set_ylabel("number of queries")
    if not len(counts):
        axes.text(0.5, 0.5, "no queries", ha="center", va="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
        return
    top = int(counts.max())
    edges = np.arange(top + 2) - 0.5
    if top > 40:  # wide bins; the first one contains the queries without positives
        edges = np.linspace(0.5, top + 0.5, 31)
        edges = np.concatenate([[2 * edges[0] - edges[1]], edges])
    heights, _ = np.histogram(counts, edges)
    colors = [COLORS["lost"], *[COLORS["found"]] * (len(heights) - 1)]  # the first: queries without positives
    axes.bar(edges[:-1], heights, np.diff(edges), align="edge", color=colors)
    axes.locator_params(axis="x", integer=True)


MOST_ARROWS = 3_000
"""Maximum number of arrows; more of them would hide each other."""
MAP_SUFFIXES = (".png", ".svg", ".html")
HOW_TO_READ = "Gray dots are references. Blue lines show in which direction they look."


def write_place_map(place_map: PlaceMap, out: str | Path) -> str:
    """Draw the references of a map from above, with their headings if they are known.

    Args:
        place_map: The map.
        out: File to write: .png, .svg or .html.

    Returns:
        The drawing in words.

    Raises:
        KappaPlaceError: If the file has another suffix, or no reference has a position.
    """
    out, store = Path(out), place_map.store
    kind = out.suffix.lower()
    if kind not in MAP_SUFFIXES:
        raise KappaPlaceError(f'The drawing must be a {", ".join(MAP_SUFFIXES)} file, got "{out.name}".')
    posed = np.isfinite(store.positions).all(axis=1)
    if not posed.any():
        raise KappaPlaceError(
            f"The map {place_map.folder} cannot be drawn, because no reference has a position. Build it from "
            "images with positions."
        )
    headings = np.asarray(store.whole("poses")[:, 2], np.float64)[posed]
    figure = references_figure(store.positions[posed], headings)
    numbers = {
        "references": ("", len(store)),
        "with a heading": ("", int(np.isfinite(headings).sum())),
        "without a position": ("", int((~posed).sum())),
    }
    title = f"Map {place_map.manifest.name}".strip()
    wide, high = np.ptp(store.positions[posed], axis=0).tolist()
    sentence = f"{len(store):,} references on {wide:,.0f} m × {high:,.0f} m ({place_map.manifest.frame})"
    directions = f"Directions of view: {place_map.directions().sentence}."
    make_folder(out.parent)
    if kind == ".html":
        shown = drawing(figure, "References of the map from above", HOW_TO_READ)
        sections = [counts(numbers), paragraph(directions), shown]
        write_file(out, page(title, f"{sentence}.", sections).encode("utf-8", "backslashreplace"))
    else:
        write_file(out, png_of(figure, 200) if kind == ".png" else svg_of(figure))
    return sentence


@styled
def references_figure(positions: NDArray[np.float64], headings: NDArray[np.float64]) -> Figure:
    """Draw references from above, each with a short line in the direction of view.

    Args:
        positions: Positions in metres, N×2.
        headings: Degrees clockwise from north, N; NaN if unknown.

    Returns:
        The figure.
    """
    from matplotlib.collections import LineCollection

    origin = positions.min(axis=0)
    points = positions - origin
    figure = new_figure(1.4 * WIDTH, 1.4 * _height(points))
    axis = figure.subplots()
    ground = points[_spread(len(points), MOST_REFERENCES)]
    axis.scatter(ground[:, 0], ground[:, 1], s=5, color="#748494", linewidths=0, rasterized=True)
    known = np.flatnonzero(np.isfinite(headings))
    rows = known[_spread(len(known), MOST_ARROWS)] if len(known) else known
    angle = np.deg2rad(headings[rows])
    length = max(float(np.ptp(points, axis=0).max()) / 60, 1.0)
    ends = points[rows] + length * np.column_stack([np.sin(angle), np.cos(angle)])
    lines = np.stack([points[rows], ends], axis=1)
    axis.add_collection(LineCollection(list(lines), colors="#0b5cad", linewidths=0.8, rasterized=True))
    axis.autoscale()
    axis.set_aspect("equal", adjustable="box")
    axis.set(xlabel=f"metres east of {origin[0]:,.0f}", ylabel=f"metres north of {origin[1]:,.0f}")
    axis.locator_params(nbins=5)
    return figure
