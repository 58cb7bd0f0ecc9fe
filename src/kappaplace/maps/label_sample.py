"""Which queries a person shall label: a random sample, one a place, in random order.

The guarantee of a calibration is about queries drawn like the labelled ones, so nobody may choose them: not
the person who labels, and not the order of the files. As the order is random too, whoever stops early has
labelled a smaller random sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.checks import checked_seed
from kappaplace.calibration.splits import thin_to_places
from kappaplace.data.place_images import PlaceImages
from kappaplace.errors import KappaPlaceError

SIZE = 300
"""Queries that are drawn: half of them set the thresholds, and 5 % at 95 % needs 59 that are accepted."""
SECONDS = 10.0
"""Images taken closer in time than this are taken to show one place, where no position is known."""


@dataclass(frozen=True)
class Sample:
    """Queries in the order in which they shall be labelled."""

    names: tuple[str, ...]
    """Paths below ``root``."""
    root: str
    seed: int
    of: int
    """Queries there were."""
    places: int
    """Queries left when one a place was kept."""
    thinned: str
    """What kept them apart: "25 m", "10 s", both, or "nothing"."""


def draw_sample(
    table: PlaceImages, radius: float, *, size: int = SIZE, seed: int = 0, thin: bool = True
) -> Sample:
    """A random sample of a table's queries (of all its images, where none is marked as a query)."""
    queries = table.queries if len(table.query_rows) else table
    if size < 1:
        raise KappaPlaceError(f"At least one query must be drawn, not {size}.")
    if not len(queries):
        raise KappaPlaceError("There are no queries to draw from.")
    # First the order, then one a place: which frame of a place is kept is then chance, too.
    order = np.random.default_rng(checked_seed(seed)).permutation(len(queries))
    kept, thinned = np.ones(len(order), bool), "nothing"
    if thin:
        kept, thinned = _one_a_place(queries.select(order), radius)
    chosen = order[kept][:size]
    return Sample(
        tuple(queries.paths[chosen].tolist()),
        str(queries.root.absolute()),
        seed,
        len(queries),
        int(kept.sum()),
        thinned,
    )


def _one_a_place(queries: PlaceImages, radius: float) -> tuple[NDArray[np.bool_], str]:
    """Which of these to keep, earlier ones first, and by what: positions, else times, else nothing."""
    posed = queries.posed
    timed = ~posed & np.isfinite(queries.timestamp)
    kept = np.ones(len(queries), bool)
    by = []
    for rows, where, spacing, unit in (
        (posed, queries.positions, radius, "m"),
        (timed, queries.timestamp, SECONDS, "s"),
    ):
        if rows.any():
            kept[rows] = False
            kept[np.flatnonzero(rows)[thin_to_places(where[rows], spacing)]] = True
            by.append(f"{spacing:g} {unit}")
    if not (posed | timed).all() and by:
        by.append("nothing where neither position nor time is known")
    return kept, " or ".join(by) or "nothing"
