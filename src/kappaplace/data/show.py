"""The map of a table: references, queries, lines to positives, coverage; as PNG or as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.place_images import PlaceImages
from kappaplace.data.show_view import MapView, Panel, map_view
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file

COLOURS = {"reference": "#9aa5b1", "line": "#7fb2dd", "found": "#1f77b4", "lost": "#d62728"}
MAX_COLUMNS = 3  # panels side by side


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
    """The map, a panel for each zone, and beside it how many positives queries have."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(len(view.panels), MAX_COLUMNS)
    lines = -(-len(view.panels) // columns)
    figure = Figure(figsize=(11, 7) if lines == 1 else (11, 3.5 * lines + 1), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(1, 2, width_ratios=[3.2, 1])
    maps = grid[0].subgridspec(lines, columns)
    for number, panel in enumerate(view.panels):
        axes = figure.add_subplot(maps[number // columns, number % columns])
        _draw_panel(axes, panel, view)
    figure.legend(handles=_legend(view), loc="outside lower left", ncols=2, frameon=False)
    _histogram(figure.add_subplot(grid[1]), view.counts)
    figure.suptitle(f"{view.title}\n{view.sentence}", fontsize=11)
    figure.savefig(file, format="png")


def _draw_panel(axes: Any, panel: Panel, view: MapView) -> None:
    from matplotlib.collections import LineCollection

    if len(panel.lines):
        segments = list(panel.lines.reshape(-1, 2, 2))
        axes.add_collection(LineCollection(segments, colors=COLOURS["line"], linewidths=0.6, zorder=1))
    size = float(np.clip(8e4 / max(len(panel.references) + len(panel.queries), 1), 1.0, 16.0))
    _dots(axes, panel.references, size, COLOURS["reference"], 2)
    _dots(axes, panel.queries[panel.covered], size, COLOURS["found"], 3)
    _dots(axes, panel.queries[~panel.covered], size * 1.5, COLOURS["lost"], 4)
    axes.set_aspect("equal" if view.metric else "auto", adjustable="datalim")
    axes.set_title(panel.name, fontsize=10)
    axes.set_xlabel(view.axes[0])
    axes.set_ylabel(view.axes[1])
    axes.ticklabel_format(useOffset=False, style="plain")
    axes.tick_params(axis="x", labelrotation=20)
    # Coordinates of seven digits need their room, and a map among others has little.
    axes.locator_params(axis="x", nbins=6 if len(view.panels) == 1 else 3)
    axes.grid(alpha=0.25, linewidth=0.5)


def _dots(axes: Any, points: NDArray[np.float64], size: float, colour: str, order: int) -> None:
    if len(points):
        axes.scatter(*points.T, s=size, c=colour, zorder=order, linewidths=0, rasterized=True)


def _legend(view: MapView) -> list[Any]:
    """A key for every layer, whether or not this table has any of it."""
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=COLOURS[layer], linewidth=1.5, label=label)
        if layer == "line"
        else Line2D([], [], color=COLOURS[layer], marker="o", linestyle="", markersize=5, label=label)
        for layer, label in view.labels.items()
    ]


def _histogram(axes: Any, counts: NDArray[np.int64]) -> None:
    axes.set_title("coverage", fontsize=10)
    axes.set_xlabel("positives of a query")
    axes.set_ylabel("queries")
    if not len(counts):
        axes.text(0.5, 0.5, "no queries", ha="center", va="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
        return
    top = int(counts.max())
    edges = np.arange(top + 2) - 0.5
    if top > 40:  # wide bins, the first for the queries without any
        edges = np.linspace(0.5, top + 0.5, 31)
        edges = np.concatenate([[2 * edges[0] - edges[1]], edges])
    _, _, bars = axes.hist(counts, bins=edges, color=COLOURS["found"])
    bars[0].set_facecolor(COLOURS["lost"])  # the queries without any
    axes.xaxis.get_major_locator().set_params(integer=True)
