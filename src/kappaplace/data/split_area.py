"""Blocks of ground for `split --by area`: dealt to parts, with an empty buffer between parts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.place_images import PlaceImages
from kappaplace.data.split_deal import DROPPED, deal
from kappaplace.errors import KappaPlaceError

BLOCK_RADII = 20.0  # first side of the blocks, in radii of positives; halved until there are enough blocks


def split_blocks(
    table: PlaceImages, shares: dict[int, float], *, block: float | None, buffer: float | None, seed: int
) -> tuple[NDArray[np.int64], str]:
    """Part of every row (`DROPPED` in the buffer), and a sentence about it."""
    buffer = table.radius if buffer is None else buffer
    if not buffer >= table.radius:
        raise KappaPlaceError(
            f"A buffer of {buffer:g} m is smaller than the radius of {table.radius:g} m and would leak."
        )
    if block is not None and not block >= 2 * buffer:  # smaller ones lie in the buffer from edge to edge
        raise KappaPlaceError(
            f"--block {block:g} must be at least twice the buffer of {buffer:g} m, or nothing is left of it."
        )
    side, cells = _cells(table, block, buffer, len(shares))
    part = np.full(len(table), DROPPED, dtype=np.int64)
    what, hint = f"blocks of {side:g} m", "choose a smaller --block, or --by session or time"
    part[table.posed] = deal(cells, shares, seed, what=what, hint=hint)
    reach = buffer + 2.0 * (0.0 if table.accuracy is None else float(np.nanmax(table.accuracy, initial=0.0)))
    for keep in (2, 1):  # test loses nothing, calibration only to test, train to both
        _clear(part, keep, table.positions, reach)
    if not set(shares) <= set(part.tolist()):
        raise KappaPlaceError(
            f"With blocks of {side:g} m and {reach:g} m left empty between parts, one of the {len(shares)} "
            "parts is empty: choose a larger --block, a smaller --buffer or another --seed."
        )
    return part, f"blocks of {side:g} m, {reach:g} m left empty between parts"


def _cells(
    table: PlaceImages, block: float | None, buffer: float, parts: int
) -> tuple[float, NDArray[np.int64]]:
    """Side of the blocks and block number of every posed image; unless given, blocks are halved until there
    are four for each part."""
    side = max(BLOCK_RADII * table.radius, 4 * buffer) if block is None else block
    while True:
        corners = np.floor(table.positions[table.posed] / side).astype(np.int64)
        numbers = np.unique(corners, axis=0, return_inverse=True)[1].reshape(-1)
        if block is not None or numbers.max() + 1 >= 4 * parts or side / 2 < 4 * buffer:
            return side, numbers
        side /= 2


def _clear(part: NDArray[np.int64], keep: int, positions: NDArray[np.float64], reach: float) -> None:
    """Drop images of lower parts that come within ``reach`` of an image of part ``keep``."""
    from scipy.spatial import cKDTree

    there = np.flatnonzero(part == keep)
    lower = np.flatnonzero((part >= 0) & (part < keep))
    if len(there) and len(lower):
        distance, _ = cKDTree(positions[there]).query(
            positions[lower], distance_upper_bound=reach * (1 + 1e-9)
        )
        part[lower[distance <= reach]] = DROPPED
