"""What the map of a table shows, whatever draws it: one panel for each zone, thinned to what can be seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.geodesy import ZONE_SHIFT, frame_codes, zone_index
from kappaplace.data.place_images import PlaceImages
from kappaplace.data.positives import Positives

MAX_POINTS = 100_000  # points of each kind drawn; more only make the file heavy
MAX_LINES = 3_000  # lines from queries to positives


@dataclass(frozen=True, eq=False)
class Panel:
    """One map: points in metres of one zone, or in indices for sets without positions."""

    name: str
    """The zone; empty where there is only one."""
    references: NDArray[np.float64]
    queries: NDArray[np.float64]
    covered: NDArray[np.bool_]
    """Which of the queries drawn have a positive."""
    lines: NDArray[np.float64]
    """L×4: from a query to one of its positives."""
    rows: tuple[NDArray[np.int64], NDArray[np.int64]]
    """Table rows of the references and queries drawn."""


@dataclass(frozen=True, eq=False)
class MapView:
    """All panels of a table with what is written beside them."""

    title: str
    sentence: str
    axes: tuple[str, str]
    metric: bool
    """Whether both axes are metres; otherwise a point is a pair of a query and its positive."""
    panels: tuple[Panel, ...]
    labels: dict[str, str]
    """Layer (reference, line, found, lost) → its name in the legend with how many of how many are drawn."""
    counts: NDArray[np.int64]
    """Positives of every query, drawn or not."""


def map_view(table: PlaceImages, *, seed: int = 0) -> MapView:
    """Choose what to draw; large tables are thinned at random, always in the same way."""
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
    # Given positives may lead from one zone to another, or to an unposed image: no map can show that line.
    ends = ends[(zone[ends[:, 0]] == zone[ends[:, 1]]) & (zone[ends[:, 0]] >= 0)]
    codes = frame_codes(table.frame)
    panels = []
    for number in range(max(len(codes), 1)):
        r, q = references[zone[references] == number], queries[zone[queries] == number]
        e = ends[zone[ends[:, 0]] == number]
        lines = np.concatenate([positions[e[:, 0]], positions[e[:, 1]]], axis=1)
        name = f"EPSG:{codes[number]}" if len(codes) > 1 else ""
        panels.append(
            Panel(name, positions[r], positions[q], covered[zone[queries] == number], lines, (r, q))
        )
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
    """Sets without positions: which reference (upwards) is a positive of which query (to the right)."""
    query, reference = _some_pairs(positives, rng, MAX_POINTS)
    lost = np.flatnonzero(positives.counts == 0)
    shown = _some(lost, rng)
    points = np.concatenate(
        [np.column_stack([query, reference]), np.column_stack([shown, np.full(len(shown), -1)])]
    )
    rows = (np.empty(0, dtype=np.int64), table.query_rows[points[:, 0].astype(np.int64)])
    covered = np.arange(len(points)) < len(query)
    nothing = np.empty((0, 2)), np.empty((0, 4))
    panel = Panel("", nothing[0], points.astype(np.float64), covered, nothing[1], rows)
    labels = {
        "found": _drawn("pairs of a query and its positive", len(query), len(positives.indices)),
        "lost": _drawn("queries without, drawn below 0", len(shown), len(lost)),
    }
    title = _title(table, "no positions: indices of queries and references")
    axes = ("query", "reference")
    return MapView(title, _sentence(table, positives), axes, False, (panel,), labels, positives.counts)


def _unshifted(table: PlaceImages) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Zone of every row, and positions as that zone has them, without the shift that keeps zones apart."""
    zone = zone_index(table.positions, table.frame)
    return zone, table.positions - np.maximum(zone, 0)[:, None] * [ZONE_SHIFT, 0.0]


def _drawn(what: str, drawn: int, total: int) -> str:
    return f"{what} ({total:,})" if drawn == total else f"{what} ({drawn:,} of {total:,} drawn)"


def _some(rows: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    return rows if len(rows) <= MAX_POINTS else np.sort(rng.choice(rows, MAX_POINTS, replace=False))


def _some_pairs(
    positives: Positives, rng: np.random.Generator, most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    total = len(positives.indices)
    chosen = np.arange(total) if total <= most else np.unique(rng.choice(total, most, replace=False))
    query = np.searchsorted(positives.indptr, chosen, side="right") - 1
    return query, positives.indices[chosen].astype(np.int64)


def _title(table: PlaceImages, where: str) -> str:
    """Name, protocol and frame, each once: a protocol's table is called as the protocol."""
    return " · ".join(dict.fromkeys(part for part in (table.name or "table", table.protocol, where) if part))


def _sentence(table: PlaceImages, positives: Positives) -> str:
    how = "given" if table.given_positives is not None else f"within {table.radius:g} m"
    unposed = f"{int((~table.posed).sum()):,} images unposed"
    if not positives.queries:
        return f"no queries, {len(table.reference_rows):,} references, {unposed}"
    covered = float((positives.counts > 0).mean())
    return (
        f"{len(table.query_rows):,} queries, {len(table.reference_rows):,} references, positives {how}; "
        f"{covered:.1%} of queries covered, {unposed}"
    )
