"""Groups of images that a split never divides: sessions, blocks of ground, and their assignment to parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError

Rows: TypeAlias = NDArray[np.int64]
Fractions: TypeAlias = dict[int, float]
"""Part → its fraction of the images."""
SessionSource = Literal["auto", "condition", "time", "folder"]

SESSION_GAP = 600.0  # seconds without an image after which a new session begins
BLOCK_RADII = 20.0  # first side of the blocks, in radii of positives; halved until there are enough blocks


@dataclass(frozen=True, eq=False)
class Sessions:
    """Sessions of a table; ``len()`` returns their number."""

    number: Rows
    """Session of every row, from 0."""
    source: str
    """How the sessions were detected: "condition", "time" or "folder"."""

    def __len__(self) -> int:
        return int(self.number.max(initial=-1)) + 1


def find_sessions(
    table: PlaceImages, source: SessionSource | None = None, gap: float | None = None
) -> Sessions:
    """Detect sessions by condition, by gaps in time or by folder.

    Folders are never used automatically: they often contain one drive in pieces (one folder per hour, or per
    thousand files), and a split between the pieces would leak.

    Args:
        table: The table.
        source: How to detect sessions. Default: "auto", which tries the condition, then gaps in time.
        gap: Seconds without an image that begin a new session. Default: 600.

    Returns:
        The sessions.

    Raises:
        KappaPlaceError: If "auto" detects only one session.
    """
    gap = SESSION_GAP if gap is None else gap
    source = source or "auto"
    for kind in ("condition", "time") if source == "auto" else (source,):
        sessions = Sessions(_session_numbers(table, kind, gap), kind)
        if len(sessions) > 1 or source != "auto":
            return sessions
    raise KappaPlaceError(
        f"The table has a single session: one condition and no gap in time longer than {gap:g} s. "
        "Split it by time or by area, or pass --sessions folder if every folder is a separate drive."
    )


def _session_numbers(table: PlaceImages, kind: str, gap: float) -> Rows:
    if kind == "condition":
        return np.unique(table.condition, return_inverse=True)[1]
    if kind == "folder":
        return np.unique([path.rpartition("/")[0] for path in table.paths.tolist()], return_inverse=True)[1]
    timed = np.isfinite(table.timestamp)
    number = np.zeros(len(table), dtype=np.int64)
    order = np.flatnonzero(timed)[np.argsort(table.timestamp[timed], kind="stable")]
    starts = np.diff(table.timestamp[order], prepend=table.timestamp[order[:1]]) > gap
    number[order] = np.cumsum(starts)
    if not timed.all() and timed.any():  # images without a time are one more session
        number[~timed] = number[order[-1]] + 1
    return number


def assign_groups(groups: Rows, fractions: Fractions, seed: int | None, *, kind: str, hint: str) -> Rows:
    """Assign whole groups to parts, largest first, each to the part that lacks most of its fraction.

    Args:
        groups: Group number of every row.
        fractions: Fraction of the rows of each part.
        seed: Random seed for the order of groups of the same size. Default: 0.
        kind: Name of the groups, for the message if there are too few.
        hint: Advice for the same message.

    Returns:
        The part of every row.

    Raises:
        KappaPlaceError: If there are fewer groups than parts.
    """
    numbers, inverse, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(numbers) < len(fractions):
        raise KappaPlaceError(
            f"{len(numbers)} {kind} are too few for {len(fractions)} parts without leaks. {hint}."
        )
    shuffled = np.random.default_rng(seed or 0).permutation(len(numbers))
    lack = {part: fraction * len(groups) for part, fraction in fractions.items()}
    parts = np.zeros(len(numbers), dtype=np.int64)
    order = shuffled[np.argsort(-sizes[shuffled], kind="stable")]
    empty = set(fractions)
    for left, group in zip(range(len(order), 0, -1), order, strict=True):
        candidates = empty if left <= len(empty) else set(lack)
        part = max(candidates, key=lambda p: (lack[p], -p))
        parts[group] = part
        lack[part] -= float(sizes[group])
        empty.discard(part)
    return parts[inverse]


def ground_blocks(table: PlaceImages, block: float | None, buffer: float, parts: int) -> tuple[float, Rows]:
    """Divide the ground into square blocks.

    Args:
        table: A table with positions.
        block: Side of the blocks in metres. Default: 20 radii, halved until there are four blocks per part.
        buffer: Metres between parts. A default side is at least four times as large.
        parts: Number of parts.

    Returns:
        The side in metres, and the block number of every image with a position.
    """
    side = max(BLOCK_RADII * table.radius, 4 * buffer) if block is None else block
    while True:
        corners = np.floor(table.positions[table.posed] / side).astype(np.int64)
        numbers = np.unique(corners, axis=0, return_inverse=True)[1].reshape(-1)
        if block is not None or numbers.max() + 1 >= 4 * parts or side / 2 < 4 * buffer:
            return side, numbers
        side /= 2


def any_within(points: NDArray[np.float64], others: NDArray[np.float64], reach: float) -> NDArray[np.bool_]:
    """Return whether each point is near any of the others.

    Args:
        points: Positions in metres, N×2.
        others: Positions in metres, M×2.
        reach: Largest distance in metres.

    Returns:
        Booleans, N.
    """
    from scipy.spatial import cKDTree

    distance, _ = cKDTree(others).query(points, distance_upper_bound=reach * (1 + 1e-9))
    return np.asarray(distance <= reach)
