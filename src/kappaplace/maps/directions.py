"""Directions in which a map sees: how many references look where, and whether any looks the way of a query.

A query is usually recognized only if a reference at its place looks in about the same direction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.geodesy import unproject
from kappaplace.data.near import Circle
from kappaplace.maps.answer import SAME_VIEW
from kappaplace.maps.references import MapReferences
from kappaplace.maps.store import MapStore

SECTORS = ("N", "NE", "E", "SE", "S", "SW", "W", "NW")
"""Directions of view, 45° each."""
CELL = 2.0
"""Size of a cell in radii of a place, and radius around an answer in which its direction is searched."""
NOT_THIS_WAY = (
    "The map has no image that looks this way here: none of the {count:,} references at most {radius:,.0f} m "
    "away looks within {view:.0f}° of {heading:.0f}°."
)


@dataclass(frozen=True)
class CellDirections:
    """References of one square cell."""

    x: float
    """Metres to the east of the middle of the cell, in the frame of the map."""
    y: float
    """Metres to the north."""
    latitude: float | None
    """Degrees of the middle of the cell; None in a local frame."""
    longitude: float | None
    counts: tuple[int, ...]
    """Number of references that look in each of the `SECTORS`."""


@dataclass(frozen=True)
class Directions:
    """Where and in which directions a map sees."""

    references: int
    """Number of references with a position and a heading."""
    unknown: int
    """Number of references without one of them."""
    size: float
    """Side of a cell in metres."""
    cells: tuple[CellDirections, ...]
    """The cells with references, from south to north and west to east."""

    @property
    def counts(self) -> dict[str, int]:
        """Number of references that look in each direction."""
        totals = np.sum([cell.counts for cell in self.cells], axis=0).tolist() if self.cells else [0] * 8
        return dict(zip(SECTORS, totals, strict=True))

    @property
    def one_way(self) -> int:
        """Number of cells whose references all look in one direction, or in two adjacent ones."""
        return sum(_is_one_way(cell.counts) for cell in self.cells)

    @property
    def sentence(self) -> str:
        """The directions in words."""
        if not self.references:
            return "unknown: no reference has a heading"
        parts = ", ".join(f"{name} {count:,}" for name, count in self.counts.items() if count)
        cells = f"{self.one_way:,} of {len(self.cells):,} cells of {self.size:g} m"
        text = f"{parts}; one direction only in {cells}"
        return text + (f"; {self.unknown:,} references without a heading" if self.unknown else "")


def _is_one_way(counts: tuple[int, ...]) -> bool:
    seen = np.flatnonzero(counts)
    return len(seen) == 1 or (len(seen) == 2 and int(seen[1] - seen[0]) in (1, len(SECTORS) - 1))


def sectors_of(headings: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the number of the direction of each heading in degrees.

    >>> [SECTORS[number] for number in sectors_of(np.array([0.0, 350.0, 30.0, 271.0]))]
    ['N', 'N', 'NE', 'W']
    """
    width = 360.0 / len(SECTORS)
    return (np.floor((headings + width / 2) / width) % len(SECTORS)).astype(np.int64)


def directions_of(store: MapStore) -> Directions:
    """Count the references of a map by cell and direction.

    Args:
        store: The stored map.

    Returns:
        The counts of all cells.
    """
    size = CELL * store.manifest.radius
    poses = np.asarray(store.whole("poses"), np.float64)[:, :3] if len(store) else np.zeros((0, 3))
    known = poses[np.isfinite(poses).all(axis=1)]
    corners, cell = np.unique(np.floor(known[:, 1::-1] / size), axis=0, return_inverse=True)
    counts = np.zeros((len(corners), len(SECTORS)), np.int64)
    np.add.at(counts, (cell.reshape(-1), sectors_of(known[:, 2])), 1)
    middle = (corners[:, ::-1] + 0.5) * size
    latitude, longitude = unproject(middle, store.manifest.frame)
    columns = zip(middle.tolist(), latitude.tolist(), longitude.tolist(), counts.tolist(), strict=True)
    cells = tuple(
        CellDirections(x, y, _known(north), _known(east), tuple(row)) for (x, y), north, east, row in columns
    )
    return Directions(len(known), len(poses) - len(known), size, cells)


def _known(degrees: float) -> float | None:
    return degrees if np.isfinite(degrees) else None


def direction_note(references: MapReferences, area: Circle, heading: float) -> str:
    """Return a note if no reference of an area looks in a direction.

    Args:
        references: References of the map.
        area: x, y and radius in metres in the frame of the map.
        heading: Direction of the query in degrees clockwise from north.

    Returns:
        The note; empty if a reference looks this way, or if headings are unknown.
    """
    rows = references.within(area)
    headings = references.store.gather("poses", rows)[:, 2] if len(rows) else np.zeros(0)
    if not len(rows) or np.isnan(headings).any():
        return ""
    apart = np.abs((headings - heading + 180.0) % 360.0 - 180.0)
    if (apart <= SAME_VIEW).any():
        return ""
    return NOT_THIS_WAY.format(count=len(rows), radius=area[2], view=SAME_VIEW, heading=heading)
