"""Leakage-free splits of one collection: by session, by time (or frame number), or by area.

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
from kappaplace.data.sessions import SESSION_GAP, Sessions, Source, find_sessions, leak_rate
from kappaplace.data.split_area import split_blocks
from kappaplace.data.split_deal import CALIBRATION, DROPPED, REFERENCES, TEST, checked_shares, deal
from kappaplace.errors import KappaPlaceError

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
    routes = table.neighbourhood.kind == "frames"
    if table.frame_number is None and not routes:
        raise KappaPlaceError(
            "The table has no timestamps and no frame numbers: split it by session or by area instead."
        )
    least = table.neighbourhood.value if routes else 1.0
    if gap is not None and gap < least:
        raise KappaPlaceError(
            f"--gap {gap:g} frames is smaller than the neighbourhood {table.neighbourhood} and would leak."
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
