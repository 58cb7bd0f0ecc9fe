"""Leakage-free splits of one collection: by session, by time, or by area.

Session and time make the two sets of queries (calibration, test) that are asked against the same references;
area makes separate places, each with its own queries and references. In every case nothing of one side helps
the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.place_images import PlaceImages
from kappaplace.data.sessions import SESSION_GAP, Sessions, Source, find_sessions
from kappaplace.errors import KappaPlaceError

TIME_GAP = (
    60.0  # seconds left out on the earlier side of a cut, so that neighbouring frames do not face each other
)
BLOCK_RADII = (
    20.0  # first side of an area's blocks, in radii of positives; halved until there are enough blocks
)
_REFERENCES, _CALIBRATION, _TEST, _DROPPED = 0, 1, 2, -1


@dataclass(frozen=True, eq=False)
class Split:
    """Tables by name (calibration, test, and train for areas), and what was done in sentences."""

    parts: dict[str, PlaceImages]
    dropped: int
    notes: tuple[str, ...] = ()


def split_by_session(
    table: PlaceImages,
    *,
    calibration: float = 0.2,
    test: float = 0.2,
    source: Source = "auto",
    gap: float = SESSION_GAP,
    seed: int = 0,
) -> Split:
    """Whole sessions become references, calibration queries or test queries; given queries stay queries."""
    sessions = find_sessions(table, source, gap)
    part = np.zeros(len(table), dtype=np.int64)
    if len(table.query_rows):
        shares = {_CALIBRATION: calibration, _TEST: test}
        part[table.query_rows] = _deal(sessions.number[table.query_rows], _shares(shares), seed)
    else:
        shares = {_REFERENCES: 1.0 - calibration - test, _CALIBRATION: calibration, _TEST: test}
        part = _deal(sessions.number, _shares(shares), seed)
    note = f"{len(sessions)} sessions, told apart by {sessions.source}"
    return Split(_query_parts(table, part), 0, (note, *_shared_sessions(table, sessions, part)))


def split_by_time(
    table: PlaceImages, *, calibration: float = 0.2, test: float = 0.2, gap: float = TIME_GAP
) -> Split:
    """The past is the map, then come calibration and test; given queries are cut in time among themselves.

    Images within ``gap`` seconds before a cut are left out, and so are images without a time.
    """
    asked = table.query_rows if len(table.query_rows) else np.arange(len(table))
    shares = {_CALIBRATION: calibration, _TEST: test}
    if not len(table.query_rows):
        shares = {_REFERENCES: 1.0 - calibration - test} | shares
    time = table.timestamp[asked]
    if not np.isfinite(time).any():
        raise KappaPlaceError("The table has no timestamps: split it by session or by area instead.")
    shares = _shares(shares)
    cuts = np.nanquantile(time, np.cumsum(list(shares.values()))[:-1], method="higher")
    part = np.zeros(len(table), dtype=np.int64)
    position = np.searchsorted(cuts, time, side="right")
    part[asked] = np.array(list(shares))[np.minimum(position, len(shares) - 1)]
    close = np.any((time[:, None] < cuts) & (time[:, None] > cuts - gap), axis=1)
    part[asked[close | ~np.isfinite(time)]] = _DROPPED
    note = (
        f"cut at {', '.join(f'{cut:.0f}' for cut in cuts)} s since 1970, {gap:g} s left out before each cut"
    )
    return Split(_query_parts(table, part), int((part == _DROPPED).sum()), (note,))


def split_by_area(
    table: PlaceImages,
    *,
    calibration: float = 0.2,
    test: float = 0.2,
    block: float = 0.0,
    buffer: float = 0.0,
    queries: float = 0.3,
    source: Source = "auto",
    seed: int = 0,
) -> Split:
    """Square blocks of ground become train, calibration or test; between parts a buffer is left empty.

    ``buffer`` is at least the radius of positives (default), so no image lies within the radius of another
    part. Each part keeps its own queries and references; a table without queries first gets them by session.
    """
    buffer = buffer or table.radius
    if buffer < table.radius:
        raise KappaPlaceError(
            f"A buffer of {buffer:g} m is smaller than the radius of {table.radius:g} m and would leak."
        )
    if not table.posed.any():
        raise KappaPlaceError("The table has no positions: split it by session or by time instead.")
    table, note = _with_queries(table, queries, source, seed)
    shares = _shares({0: 1.0 - calibration - test, 1: calibration, 2: test})
    side, cells = _cells(
        table.positions, table.posed, block or BLOCK_RADII * table.radius, buffer, len(shares), not block
    )
    part = np.full(len(table), _DROPPED, dtype=np.int64)
    part[table.posed] = _deal(cells, shares, seed)
    reach = buffer + 2.0 * (0.0 if table.accuracy is None else float(np.nanmax(table.accuracy, initial=0.0)))
    for keep in (2, 1):  # test loses nothing, calibration only to test, train to both
        _clear(part, keep, table.positions, reach)
    names = {0: "train", 1: "calibration", 2: "test"}
    parts = {names[k]: _part(table, np.flatnonzero(part == k), names[k]) for k in shares}
    sentence = f"blocks of {side:g} m, {reach:g} m left empty between parts"
    return Split(parts, int((part == _DROPPED).sum()), (sentence, *note))


SPLITS: dict[str, Callable[..., Split]] = {
    "session": split_by_session,
    "time": split_by_time,
    "area": split_by_area,
}


def _shares(shares: dict[int, float]) -> dict[int, float]:
    """Shares that sum to 1, without the empty ones."""
    if any(share < -1e-9 or share > 1 for share in shares.values()):
        raise KappaPlaceError("The shares of calibration and test must lie in [0, 1] and sum to at most 1.")
    kept = {key: share for key, share in shares.items() if share > 1e-9}
    if len(kept) < 2:
        raise KappaPlaceError("A split needs at least two parts with a share above 0.")
    total = sum(kept.values())
    return {key: share / total for key, share in kept.items()}


def _deal(groups: NDArray[np.int64], shares: dict[int, float], seed: int) -> NDArray[np.int64]:
    """Give whole groups to parts, largest first, each to the part that lacks most of its share."""
    numbers, inverse, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(numbers) < len(shares):
        raise KappaPlaceError(
            f"There are {len(numbers)} groups for {len(shares)} parts: too few to split without leaks."
        )
    shuffled = np.random.default_rng(seed).permutation(len(numbers))
    lack = {part: share * len(groups) for part, share in shares.items()}
    given = np.zeros(len(numbers), dtype=np.int64)
    order = shuffled[np.argsort(-sizes[shuffled], kind="stable")]
    empty = set(shares)
    for left, group in zip(range(len(order), 0, -1), order, strict=True):
        among = empty if left <= len(empty) else set(lack)
        part = max(among, key=lambda p: (lack[p], -p))
        given[group] = part
        lack[part] -= float(sizes[group])
        empty.discard(part)
    return given[inverse]


def _query_parts(table: PlaceImages, part: NDArray[np.int64]) -> dict[str, PlaceImages]:
    """The same references, asked once by the calibration queries and once by the test queries."""
    whole = replace(table, is_query=part > 0) if not len(table.query_rows) else table
    parts = {}
    for name, number in (("calibration", _CALIBRATION), ("test", _TEST)):
        rows = np.flatnonzero((part == _REFERENCES) | (part == number))
        if (part == number).any():
            parts[name] = _part(whole, rows, name)
    return parts


def _part(table: PlaceImages, rows: NDArray[np.int64], name: str) -> PlaceImages:
    return replace(table.select(rows), name=f"{table.name or 'table'}-{name}", protocol="")


def _shared_sessions(table: PlaceImages, sessions: Sessions, part: NDArray[np.int64]) -> tuple[str, ...]:
    """Given roles may put a session on both sides: that is the table's choice, but it must be known."""
    both = np.intersect1d(sessions.number[part > 0], sessions.number[part == _REFERENCES])
    if not len(both):
        return ()
    return (f"warning: {len(both)} sessions hold both references and queries, as the table came",)


def _with_queries(
    table: PlaceImages, share: float, source: Source, seed: int
) -> tuple[PlaceImages, tuple[str, ...]]:
    if len(table.query_rows) or table.given_positives is not None:
        return table, ()
    try:
        sessions = find_sessions(table, source)
    except KappaPlaceError:
        return table, ("warning: one session only, so every part holds references and no queries",)
    is_query = _deal(sessions.number, _shares({0: 1.0 - share, 1: share}), seed) == 1
    return replace(table, is_query=is_query), (
        f"queries are whole sessions, told apart by {sessions.source}",
    )


def _cells(
    positions: NDArray[np.float64],
    posed: NDArray[np.bool_],
    side: float,
    buffer: float,
    parts: int,
    shrink: bool,
) -> tuple[float, NDArray[np.int64]]:
    """Block number of every posed image; blocks are halved until there are four for each part."""
    while True:
        corners = np.floor(positions[posed] / side).astype(np.int64)
        numbers = np.unique(corners, axis=0, return_inverse=True)[1].reshape(-1)
        if not shrink or numbers.max() + 1 >= 4 * parts or side / 2 < 4 * buffer:
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
        part[lower[distance <= reach]] = _DROPPED
