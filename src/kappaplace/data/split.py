"""Leakage-free splits of one collection: by session, by time (or frame number), or by area.

Session and time make the two sets of queries (calibration, test) that are asked against the same references;
area makes separate places, each with its own queries and references. In every case nothing of one side helps
the other.

Blocks of ground for `split --by area`: dealt to parts, with an empty buffer between parts.

Shares of a split, and whole groups of images dealt out to its parts.

Which images were taken together: the unit that must never be torn apart by a split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError

REFERENCES, CALIBRATION, TEST, DROPPED = 0, 1, 2, -1  # by area, 0 is train


def checked_shares(calibration: float, test: float, *, rest: bool) -> dict[int, float]:
    """Part → its share, without the empty ones, summing to 1.

    ``rest``: what the two leave is the references' (or train's); otherwise only the proportion of the two
    counts, for queries that the table came with belong to one or the other.
    """
    inside = 0.0 <= calibration <= 1.0 and 0.0 <= test <= 1.0
    if not inside or calibration + test > 1.0 + 1e-9:
        raise KappaPlaceError(
            "The shares of calibration and test must lie in [0, 1] and sum to at most 1, "
            f"not {calibration:g} and {test:g}."
        )
    shares = {REFERENCES: 1.0 - calibration - test if rest else 0.0, CALIBRATION: calibration, TEST: test}
    kept = {key: share for key, share in shares.items() if share > 1e-9}
    if len(kept) < 2:
        raise KappaPlaceError("A split needs at least two parts with a share above 0.")
    total = sum(kept.values())
    return {key: share / total for key, share in kept.items()}


def deal(
    groups: NDArray[np.int64], shares: dict[int, float], seed: int, *, what: str, hint: str
) -> NDArray[np.int64]:
    """Give whole groups to parts, largest first, each to the part that lacks most of its share.

    ``what`` the groups are and a ``hint`` are for the error that there are too few of them.
    """
    numbers, inverse, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(numbers) < len(shares):
        raise KappaPlaceError(
            f"{len(numbers)} {what} are too few for {len(shares)} parts without leaks: {hint}."
        )
    if seed < 0:
        raise KappaPlaceError(f"The seed of a split must not be negative, got {seed}.")
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


SESSION_GAP = 600.0  # seconds without an image after which a new session begins
Source = Literal["auto", "condition", "time", "folder"]


@dataclass(frozen=True, eq=False)
class Sessions:
    """Session number of every row, and what the sessions were told by."""

    number: NDArray[np.int64]
    source: str

    def __len__(self) -> int:
        return int(self.number.max(initial=-1)) + 1


def find_sessions(table: PlaceImages, source: Source = "auto", gap: float = SESSION_GAP) -> Sessions:
    """Sessions by condition, gaps in time or folder; ``auto`` takes condition, else time.

    Folders are only taken when asked for: they often hold one drive in pieces (a folder for every hour, or
    for every thousand files), and a split between the pieces would leak.
    """
    for kind in ("condition", "time") if source == "auto" else (source,):
        sessions = Sessions(_number(table, kind, gap), kind)
        if len(sessions) > 1 or source != "auto":
            return sessions
    raise KappaPlaceError(
        "The table shows a single session: it has one condition and no gap in time longer than "
        f"{gap:g} s; split it by time or by area, or, if every folder is a drive of its own, "
        "with --sessions folder."
    )


def leak_rate(table: PlaceImages, calibration: NDArray[np.int64], test: NDArray[np.int64]) -> float:
    """Share of the test rows within the radius of a calibration row; NaN where no positions tell.

    Two drives through one street meet as well: it is a warning sign where sessions are a guess.
    """
    from scipy.spatial import cKDTree

    near, asked = (table.positions[rows[table.posed[rows]]] for rows in (calibration, test))
    if not len(near) or not len(asked):
        return float("nan")
    distance, _ = cKDTree(near).query(asked, distance_upper_bound=table.radius * (1 + 1e-9))
    return float(np.mean(distance <= table.radius))


def _number(table: PlaceImages, kind: str, gap: float) -> NDArray[np.int64]:
    if kind == "condition":
        return np.unique(table.condition, return_inverse=True)[1]
    if kind == "folder":
        return np.unique(_folders(table.paths), return_inverse=True)[1]
    if kind != "time":
        raise KappaPlaceError(f"Sessions by {kind!r} are unknown; choose auto, condition, time or folder.")
    known = np.isfinite(table.timestamp)
    number = np.zeros(len(table), dtype=np.int64)
    order = np.flatnonzero(known)[np.argsort(table.timestamp[known], kind="stable")]
    starts = np.diff(table.timestamp[order], prepend=table.timestamp[order[:1]]) > gap
    number[order] = np.cumsum(starts)
    if not known.all() and known.any():  # images without a time form a session of their own
        number[~known] = number[order[-1]] + 1
    return number


def _folders(paths: NDArray[Any]) -> NDArray[Any]:
    return np.array([path.rpartition("/")[0] for path in paths.tolist()], dtype=np.dtypes.StringDType())


TIME_GAP = 60.0  # seconds left out before a cut, so that neighbouring frames do not face each other
QUERY_SHARE = 0.3  # of the sessions, for a table without queries that is split by area
_NAMES = {CALIBRATION: "calibration", TEST: "test"}


@dataclass(frozen=True, eq=False)
class Split:
    """Tables by name (calibration, test, and train for areas), and what was done in sentences."""

    parts: dict[str, PlaceImages]
    dropped: int
    """Images that are in no part."""
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
    shares = checked_shares(calibration, test, rest=not len(table.query_rows))
    sessions = find_sessions(table, source, gap)
    asked = table.query_rows if len(table.query_rows) else np.arange(len(table))
    part = np.full(len(table), REFERENCES, dtype=np.int64)
    part[asked] = deal(
        sessions.number[asked],
        shares,
        seed,
        what=f"sessions{' of queries' * bool(len(table.query_rows))} (told apart by {sessions.source})",
        hint="choose another --sessions, or --by time or area",
    )
    note = f"{len(sessions)} sessions, told apart by {sessions.source}"
    warnings = (*_shared_sessions(sessions, part), *_folder_leak(table, sessions, part))
    return Split(_query_parts(table, part), 0, (note, *warnings))


def split_by_time(
    table: PlaceImages, *, calibration: float = 0.2, test: float = 0.2, gap: float | None = None
) -> Split:
    """The past is the map, then come calibration and test; given queries are cut in time among themselves.

    Images less than ``gap`` seconds before a cut are left out, and so are images without a time. A route
    without times is cut by its frame numbers, with a gap in frames that is at least its neighbourhood.
    """
    shares = checked_shares(calibration, test, rest=not len(table.query_rows))
    moment, gap, unit = _moments(table, gap)
    asked = table.query_rows if len(table.query_rows) else np.arange(len(table))
    time = moment[asked]
    if not np.isfinite(time).any():
        raise KappaPlaceError("No query has a time: split the table by session or by area instead.")
    cuts = np.nanquantile(time, np.cumsum(list(shares.values()))[:-1], method="higher")
    part = np.full(len(table), REFERENCES, dtype=np.int64)
    position = np.searchsorted(cuts, time, side="right")
    part[asked] = np.array(list(shares))[np.minimum(position, len(shares) - 1)]
    before = gap if unit == "s" else gap + 1  # frames are counted: so many lie between the two sides
    close = np.any((time[:, None] < cuts) & (time[:, None] > cuts - before), axis=1)
    part[asked[close | ~np.isfinite(time)]] = DROPPED
    for number in shares:
        if not (part == number).any():
            name = _NAMES.get(number, "references")
            raise KappaPlaceError(
                f"Nothing is left for {name} between the cuts, of which {gap:g} {unit} are left out each: "
                f"choose a smaller --gap, or a larger share of {name}."
            )
    where = ", ".join(f"{cut:.0f}" for cut in cuts)
    kind = "s since 1970" if unit == "s" else "frames"
    note = f"cut at {where} {kind}, {gap:g} {unit} left out before each cut"
    notes = (note, *_map_after_queries(moment, part, gap, unit))
    return Split(_query_parts(table, part), int((part == DROPPED).sum()), notes)


def split_by_area(
    table: PlaceImages,
    *,
    calibration: float = 0.2,
    test: float = 0.2,
    block: float | None = None,
    buffer: float | None = None,
    queries: float = QUERY_SHARE,
    source: Source = "auto",
    seed: int = 0,
) -> Split:
    """Square blocks of ground become train, calibration or test; between parts a buffer is left empty.

    ``buffer`` is at least the radius of positives (default), so no image lies within the radius of another
    part, and ``block`` at least twice the buffer. Each part keeps its own queries and references; a query
    whose positives all fell to the buffer or to another part is left out, for nothing could answer it. A
    table without queries first gets them by session.
    """
    shares = checked_shares(calibration, test, rest=True)
    if not table.posed.any():
        raise KappaPlaceError("The table has no positions: split it by session or by time instead.")
    table, note = _with_queries(table, queries, source, seed)
    part, sentence = split_blocks(table, shares, block=block, buffer=buffer, seed=seed)
    names = {REFERENCES: "train"} | _NAMES
    parts: dict[str, PlaceImages] = {}
    answerable = np.zeros(len(table), dtype=bool)
    answerable[table.query_rows] = table.positives().counts > 0
    unanswered = 0
    for number in shares:
        rows = np.flatnonzero(part == number)
        inside = table.select(rows)
        lost = answerable[rows[inside.query_rows]] & (inside.positives().counts == 0)
        unanswered += int(lost.sum())
        rows = np.delete(rows, inside.query_rows[lost])
        parts[names[number]] = _part(table, rows, names[number])
        note += _without_queries(table, parts[names[number]])
    dropped = len(table) - sum(map(len, parts.values()))
    if unanswered:
        note = (f"{unanswered:,} queries left out that lost all of their positives", *note)
    return Split(parts, dropped, (sentence, *note))


SPLITS: dict[str, Callable[..., Split]] = {
    "session": split_by_session,
    "time": split_by_time,
    "area": split_by_area,
}


def _moments(table: PlaceImages, gap: float | None) -> tuple[NDArray[np.float64], float, str]:
    """When every image was taken, the gap before a cut, and the unit of both: seconds, else frames."""
    if np.isfinite(table.timestamp).any():
        return table.timestamp, TIME_GAP if gap is None else gap, "s"
    routes = table.neighborhood.kind == "frames"
    if table.frame_number is None and not routes:
        raise KappaPlaceError(
            "The table has no timestamps and no frame numbers: split it by session or by area instead."
        )
    least = table.neighborhood.value if routes else 1.0
    if gap is not None and gap < least:
        raise KappaPlaceError(
            f"--gap {gap:g} frames is smaller than the neighbourhood {table.neighborhood} and would leak."
        )
    return table.frame_numbers().astype(np.float64), least if gap is None else gap, "frames"


def _map_after_queries(
    moment: NDArray[np.float64], part: NDArray[np.int64], gap: float, unit: str
) -> tuple[str, ...]:
    """Roles that came with the table may put the map beside or after the queries: then it is said."""
    if unit != "s" or not (part > 0).any():  # frames of two traverses share numbers, not moments
        return ()
    first = np.nanmin(moment[part > 0])
    late = int((moment[part == REFERENCES] > first - gap).sum())
    if not late:
        return ()
    return (
        f"warning: {late:,} references are not {gap:g} s older than the first query, as the table came: "
        "only the queries are cut in time, the map is not the past",
    )


def _query_parts(table: PlaceImages, part: NDArray[np.int64]) -> dict[str, PlaceImages]:
    """The same references, asked once by the calibration queries and once by the test queries."""
    whole = replace(table, is_query=part > 0) if not len(table.query_rows) else table
    parts = {}
    for number, name in _NAMES.items():
        rows = np.flatnonzero((part == REFERENCES) | (part == number))
        if (part == number).any():
            parts[name] = _part(whole, rows, name)
    return parts


def _part(table: PlaceImages, rows: NDArray[np.int64], name: str) -> PlaceImages:
    return replace(table.select(rows), name=f"{table.name or 'table'}-{name}", protocol="")


def _shared_sessions(sessions: Sessions, part: NDArray[np.int64]) -> tuple[str, ...]:
    """Given roles may put a session on both sides: that is the table's choice, but it must be known."""
    both = np.intersect1d(sessions.number[part > 0], sessions.number[part == REFERENCES])
    if not len(both):
        return ()
    return (f"warning: {len(both)} sessions hold both references and queries, as the table came",)


def _folder_leak(table: PlaceImages, sessions: Sessions, part: NDArray[np.int64]) -> tuple[str, ...]:
    """Folders are sessions only if the user is right: what speaks against it is measured and said."""
    if sessions.source != "folder":
        return ()
    rate = leak_rate(table, np.flatnonzero(part == CALIBRATION), np.flatnonzero(part == TEST))
    measured = (
        "without positions the leak cannot be measured"
        if np.isnan(rate)
        else f"{rate:.1%} of the test queries lie within {table.radius:g} m of a calibration query"
    )
    return (f"warning: folders were taken for sessions; {measured}",)


def _with_queries(
    table: PlaceImages, share: float, source: Source, seed: int
) -> tuple[PlaceImages, tuple[str, ...]]:
    if len(table.query_rows) or table.given_positives is not None:
        return table, ()
    try:
        sessions = find_sessions(table, source)
    except KappaPlaceError:
        if source != "auto":  # a source that is unknown must not pass for a table of one session
            raise
        return table, ("warning: one session only, so every part holds references and no queries",)
    shares = {0: 1.0 - share, 1: share}
    what, hint = f"sessions (told apart by {sessions.source})", "choose another --sessions"
    is_query = deal(sessions.number, shares, seed, what=what, hint=hint) == 1
    note = f"queries are whole sessions, told apart by {sessions.source}"
    return replace(table, is_query=is_query), (note,)


def _without_queries(table: PlaceImages, part: PlaceImages) -> tuple[str, ...]:
    if len(part.query_rows) or not len(table.query_rows):
        return ()
    return (f"warning: {part.name} holds no queries; another --seed or --block may give it some",)
