"""Leakage-free splits of one collection: by session, by time (or frame number), or by area.

A split by session or by time gives two sets of queries, calibration and test, that search the same
references. A split by area gives separate places, each with its own queries and references. Groups of images
that were taken together (sessions, blocks of ground) are never divided between parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kappaplace.checks import checked_seed, choice
from kappaplace.data.near import FARTHEST
from kappaplace.data.table import PlaceImages
from kappaplace.data.table_io import TABLE_FORMATS
from kappaplace.errors import KappaPlaceError
from kappaplace.records import Help

Rows: TypeAlias = NDArray[np.int64]
Fractions: TypeAlias = dict[int, float]
"""Part → its fraction of the images."""
SplitBy = Literal["session", "time", "area"]
SessionSource = Literal["auto", "condition", "time", "folder"]

REFERENCES, CALIBRATION, TEST, DROPPED = 0, 1, 2, -1  # by area, 0 is train
TIME_GAP = 60.0  # seconds removed before a cut, so that neighboring frames are not on both sides
SESSION_GAP = 600.0  # seconds without an image after which a new session begins
BLOCK_RADII = 20.0  # first side of the blocks, in radii of positives; halved until there are enough blocks
QUERY_FRACTION = 0.3  # of the sessions, for a table without queries that is split by area
_NAMES = {CALIBRATION: "calibration", TEST: "test"}
_SPECIFIC = {
    "session": ("gap", "sessions", "seed"),
    "time": ("gap",),
    "area": ("block", "buffer", "sessions", "seed"),
}


@dataclass(frozen=True)
class SplitOptions:
    """Options of `split_table`. An option that has no effect on this kind of split must be None."""

    by: Annotated[SplitBy, Help("Unit that is never divided between parts.")] = "session"
    calibration: Annotated[float, Help("Fraction of the images for calibration.")] = 0.2
    test: Annotated[float, Help("Fraction of the images for test.")] = 0.2
    gap: Annotated[
        float | None,
        Help(
            "Time gap in seconds. With --by session: gap that starts a new session (default: 600). With --by "
            "time: time removed before each cut (default: 60), counted in frames if there are no times."
        ),
    ] = None
    block: Annotated[
        float | None, Help("With --by area: side of a block, in metres. Default: based on the radius.")
    ] = None
    buffer: Annotated[
        float | None,
        Help(
            "With --by area: width in metres of the unused strip between the parts. Default: the radius that "
            "defines positives."
        ),
    ] = None
    sessions: Annotated[
        SessionSource | None,
        Help("With --by session or area: how to detect sessions. Default: auto (condition, otherwise time)."),
    ] = None
    seed: Annotated[
        int | None, Help("With --by session or area: random seed for assigning groups to parts. Default: 0.")
    ] = None

    def __post_init__(self) -> None:
        choice(self.by, SplitBy, "kind of split")
        if self.sessions is not None:
            choice(self.sessions, SessionSource, "source of sessions")
        for name in ("gap", "block", "buffer", "sessions", "seed"):
            if getattr(self, name) is not None and name not in _SPECIFIC[self.by]:
                raise KappaPlaceError(f"{name} has no effect on a split by {self.by}. Omit --{name}.")
        checked_seed(self.seed or 0)
        fractions = (self.calibration, self.test)
        if not all(0 <= part <= 1 for part in fractions) or sum(fractions) > 1 + 1e-9:
            raise KappaPlaceError(
                "calibration and test must be fractions from 0 to 1 that sum to at most 1, "
                f"got {self.calibration:g} and {self.test:g}."
            )


@dataclass(frozen=True, eq=False)
class Split:
    """The result of `split_table`."""

    parts: dict[str, PlaceImages]
    """Table of each part: "calibration", "test" and, by area, "train"."""
    dropped: int
    """Number of images that are in no part."""
    notes: tuple[str, ...] = ()
    """Messages about the split; warnings begin with "warning:"."""

    def save(self, folder: Path, suffix: str = ".parquet") -> dict[str, Path]:
        """Write one table per part.

        Args:
            folder: Folder of the tables.
            suffix: ".parquet" or ".csv".

        Returns:
            The file of each part.

        Raises:
            KappaPlaceError: If the folder contains a part of an earlier split that would not be replaced.
        """
        files = {name: folder / f"{name}{suffix}" for name in self.parts}
        names = ("train", *_NAMES.values())
        for older in (folder / f"{name}{kind}" for name in names for kind in TABLE_FORMATS):
            if older not in files.values() and older.exists():
                raise KappaPlaceError(
                    f"{older} belongs to an earlier split, which may contain the same images. "
                    "Remove it, or choose another folder."
                )
        for name, part in self.parts.items():
            part.save(files[name])
        return files


def split_table(table: PlaceImages, options: SplitOptions | None = None) -> Split:
    """Split one collection into parts between which nothing leaks.

    By session, whole sessions become references, calibration queries or test queries. By time, the oldest
    images are the references, and calibration and test follow. By area, square blocks of ground become train,
    calibration or test, and the images between two parts are dropped. If the table has queries, a split by
    session or time divides them between calibration and test, in the proportion of the two fractions.

    Args:
        table: The collection.
        options: Options of the split. Default: by session, 20% each for calibration and test.

    Returns:
        The tables and notes about the split.

    Raises:
        KappaPlaceError: If the table lacks a column that the split needs, or a part would be empty.
    """
    options = options or SplitOptions()
    return {"session": _by_session, "time": _by_time, "area": _by_area}[options.by](table, options)


def leak_rate(table: PlaceImages, calibration: Rows, test: Rows) -> float:
    """Return the fraction of the test rows within the radius of a calibration row, NaN without positions.

    Two drives through the same street have a high rate too, so it is only a warning sign.
    """
    near, tested = (table.positions[rows[table.posed[rows]]] for rows in (calibration, test))
    if not len(near) or not len(tested):
        return float("nan")
    return float(np.mean(any_within(tested, near, table.radius)))


def _fractions(options: SplitOptions, *, rest: bool) -> Fractions:
    """Return the fraction of each part that is not empty, summing to 1.

    With ``rest``, references (or train) receive the remaining fraction. Otherwise, only the proportion of the
    two fractions counts, because every query of the table belongs to one of the two parts.
    """
    first = 1.0 - options.calibration - options.test if rest else 0.0
    fractions = {REFERENCES: first, CALIBRATION: options.calibration, TEST: options.test}
    fractions = {part: fraction for part, fraction in fractions.items() if fraction > 1e-9}
    if len(fractions) < 2:
        raise KappaPlaceError(
            "A split needs at least two parts with a fraction above 0. Pass larger fractions."
        )
    total = sum(fractions.values())
    return {part: fraction / total for part, fraction in fractions.items()}


def _by_session(table: PlaceImages, options: SplitOptions) -> Split:
    queries = table.query_rows
    fractions = _fractions(options, rest=not len(queries))
    sessions = find_sessions(table, options.sessions or "auto", options.gap)
    rows = queries if len(queries) else np.arange(len(table))
    part = np.full(len(table), REFERENCES, dtype=np.int64)
    part[rows] = assign_groups(
        sessions.number[rows],
        fractions,
        options.seed,
        kind=f"sessions{' of queries' * bool(len(queries))} (detected by {sessions.source})",
        hint="Choose another --sessions, or --by time or area",
    )
    notes = [f"{len(sessions)} sessions, detected by {sessions.source}"]
    mixed = np.intersect1d(sessions.number[part > 0], sessions.number[part == REFERENCES])
    if len(mixed):  # only if the table has queries
        notes.append(f"warning: {len(mixed)} sessions of the table contain both references and queries")
    if sessions.source == "folder":  # a folder may be a part of a session: measure the leak
        rate = leak_rate(table, np.flatnonzero(part == CALIBRATION), np.flatnonzero(part == TEST))
        leak = (
            "without positions the leak cannot be measured"
            if np.isnan(rate)
            else f"{rate:.1%} of the test queries are within {table.radius:g} m of a calibration query"
        )
        notes.append(f"warning: folders are used as sessions; {leak}")
    return Split(_query_parts(table, part), 0, tuple(notes))


def _by_time(table: PlaceImages, options: SplitOptions) -> Split:
    fractions = _fractions(options, rest=not len(table.query_rows))
    moment, gap, unit = _moments(table, options.gap)
    rows = table.query_rows if len(table.query_rows) else np.arange(len(table))
    time = moment[rows]
    if not np.isfinite(time).any():
        raise KappaPlaceError("No query has a time. Split the table by session or by area.")
    cuts = np.nanquantile(time, np.cumsum(list(fractions.values()))[:-1], method="higher")
    part = np.full(len(table), REFERENCES, dtype=np.int64)
    position = np.searchsorted(cuts, time, side="right")
    part[rows] = np.array(list(fractions))[np.minimum(position, len(fractions) - 1)]
    before = gap if unit == "s" else gap + 1  # frames are counted: this many are between the two sides
    close = np.any((time[:, None] < cuts) & (time[:, None] > cuts - before), axis=1)
    part[rows[close | ~np.isfinite(time)]] = DROPPED
    for number in fractions:
        if not (part == number).any():
            name = _NAMES.get(number, "references")
            raise KappaPlaceError(
                f"The {name} part is empty after removing {gap:g} {unit} before each cut. "
                f"Choose a smaller --gap, or a larger fraction of {name}."
            )
    kind = "s since 1970" if unit == "s" else "frames"
    notes = [
        f"cut at {', '.join(f'{cut:.0f}' for cut in cuts)} {kind}, {gap:g} {unit} removed before each cut"
    ]
    if unit == "s" and (part > 0).any():  # frames of two traverses share numbers, not moments
        late = int((moment[part == REFERENCES] > np.nanmin(moment[part > 0]) - gap).sum())
        if late:
            notes.append(
                f"warning: {late:,} references are not {gap:g} s older than the first query: only the "
                "queries of a table with queries are split by time"
            )
    return Split(_query_parts(table, part), int((part == DROPPED).sum()), tuple(notes))


def _moments(table: PlaceImages, gap: float | None) -> tuple[NDArray[np.float64], float, str]:
    """Return the time of every image, the gap before a cut, and their unit: s, or frames without times."""
    if np.isfinite(table.timestamp).any():
        return table.timestamp, TIME_GAP if gap is None else gap, "s"
    routes = table.neighborhood.kind == "frames"
    if table.frame_number is None and not routes:
        raise KappaPlaceError("The table has no times and no frame numbers. Split it by session or area.")
    least = table.neighborhood.value if routes else 1.0
    if gap is not None and gap < least:
        raise KappaPlaceError(
            f"gap must be at least the neighborhood {table.neighborhood}, got {gap:g} frames. "
            "Pass a larger --gap."
        )
    return table.frame_numbers().astype(np.float64), least if gap is None else gap, "frames"


def _by_area(table: PlaceImages, options: SplitOptions) -> Split:
    """Split by blocks of ground.

    The buffer is at least the radius of positives, so no image is within the radius of another part. A query
    whose positives are all in the buffer or in another part is dropped, because nothing could answer it. A
    table without queries first gets them by session.
    """
    fractions = _fractions(options, rest=True)
    if not table.posed.any():
        raise KappaPlaceError("The table has no positions. Split it by session or by time.")
    table, session_notes = _with_queries(table, options)
    part, note = _blocks(table, fractions, options)
    parts: dict[str, PlaceImages] = {}
    warnings = []
    answerable = np.zeros(len(table), dtype=bool)
    answerable[table.query_rows] = table.positives().counts > 0
    unanswered = 0
    for number in fractions:
        rows = np.flatnonzero(part == number)
        inside = table.select(rows)
        lost = answerable[rows[inside.query_rows]] & (inside.positives().counts == 0)
        unanswered += int(lost.sum())
        name = _NAMES.get(number, "train")
        parts[name] = _part(table, np.delete(rows, inside.query_rows[lost]), name)
        if len(table.query_rows) and not len(parts[name].query_rows):
            warnings.append(f"warning: {parts[name].name} has no queries. Pass another --seed or --block")
    removed = [f"{unanswered:,} queries without any remaining positive dropped"] if unanswered else []
    dropped = len(table) - sum(map(len, parts.values()))
    return Split(parts, dropped, (note, *removed, *session_notes, *warnings))


def _with_queries(table: PlaceImages, options: SplitOptions) -> tuple[PlaceImages, list[str]]:
    if len(table.query_rows) or table.given_positives is not None:
        return table, []
    try:
        sessions = find_sessions(table, options.sessions or "auto")
    except KappaPlaceError:
        return table, ["warning: the table has one session, so every part has references and no queries"]
    is_query = assign_groups(
        sessions.number,
        {0: 1.0 - QUERY_FRACTION, 1: QUERY_FRACTION},
        options.seed,
        kind=f"sessions (detected by {sessions.source})",
        hint="Choose another --sessions",
    )
    note = f"queries are whole sessions, detected by {sessions.source}"
    return replace(table, is_query=is_query == 1), [note]


def _blocks(table: PlaceImages, fractions: Fractions, options: SplitOptions) -> tuple[Rows, str]:
    """Return the part of every row (`DROPPED` in the buffer), and a note."""
    buffer = table.radius if options.buffer is None else options.buffer
    if not table.radius <= buffer <= FARTHEST:
        raise KappaPlaceError(
            f"buffer must be at least the radius of {table.radius:g} m, got {buffer:g} m. "
            "Pass a larger --buffer."
        )
    if options.block is not None and not options.block >= 2 * buffer:
        raise KappaPlaceError(
            f"block must be at least twice the buffer of {buffer:g} m, got {options.block:g}. "
            "Pass a larger --block."
        )
    side, cells = ground_blocks(table, options.block, buffer, len(fractions))
    part = np.full(len(table), DROPPED, dtype=np.int64)
    hint = "Choose a smaller --block, or --by session or time"
    part[table.posed] = assign_groups(cells, fractions, options.seed, kind=f"blocks of {side:g} m", hint=hint)
    reach = buffer + 2.0 * (0.0 if table.accuracy is None else float(np.nanmax(table.accuracy, initial=0.0)))
    for number in (TEST, CALIBRATION):  # test loses nothing, calibration only to test, train to both
        upper, lower = np.flatnonzero(part == number), np.flatnonzero((part >= 0) & (part < number))
        if len(upper) and len(lower):
            part[lower[any_within(table.positions[lower], table.positions[upper], reach)]] = DROPPED
    if not set(fractions) <= set(part.tolist()):
        raise KappaPlaceError(
            f"With blocks of {side:g} m and {reach:g} m between parts, one part is empty. "
            "Choose a larger --block, a smaller --buffer or another --seed."
        )
    return part, f"blocks of {side:g} m, {reach:g} m empty between parts"


def _query_parts(table: PlaceImages, part: Rows) -> dict[str, PlaceImages]:
    """Return two tables with the same references, one with calibration queries and one with test queries."""
    whole = table if len(table.query_rows) else replace(table, is_query=part > 0)
    return {
        name: _part(whole, np.flatnonzero((part == REFERENCES) | (part == number)), name)
        for number, name in _NAMES.items()
        if (part == number).any()
    }


def _part(table: PlaceImages, rows: Rows, name: str) -> PlaceImages:
    return replace(table.select(rows), name=f"{table.name or 'table'}-{name}", protocol="")


@dataclass(frozen=True, eq=False)
class Sessions:
    """Sessions of a table; ``len()`` returns their number."""

    number: Rows
    """Session of every row, from 0."""
    source: str
    """How the sessions were detected: "condition", "time" or "folder"."""

    def __len__(self) -> int:
        return int(self.number.max(initial=-1)) + 1


def find_sessions(table: PlaceImages, source: SessionSource = "auto", gap: float | None = None) -> Sessions:
    """Detect sessions by condition, by gaps in time or by folder.

    Folders are never used automatically. They often contain pieces of one drive (one folder per hour, or per
    thousand files), and a split between pieces would leak.

    Args:
        table: The table.
        source: How to detect sessions; "auto" tries the condition, then gaps in time.
        gap: Seconds without an image that begin a new session. Default: 600.

    Returns:
        The sessions.

    Raises:
        KappaPlaceError: If "auto" detects only one session.
    """
    gap = SESSION_GAP if gap is None else gap
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

    ``kind`` names the groups and ``hint`` gives advice in the message if there are fewer groups than parts.
    """
    numbers, inverse, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(numbers) < len(fractions):
        raise KappaPlaceError(f"{len(numbers)} {kind} are too few for {len(fractions)} parts. {hint}.")
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
    """Divide the ground into square blocks; return their side and the block of every image with a position.

    The default side is 20 radii, halved until there are four blocks per part, but at least four buffers.
    """
    side = max(BLOCK_RADII * table.radius, 4 * buffer) if block is None else block
    while True:
        corners = np.floor(table.positions[table.posed] / side).astype(np.int64)
        numbers = np.unique(corners, axis=0, return_inverse=True)[1].reshape(-1)
        if block is not None or numbers.max() + 1 >= 4 * parts or side / 2 < 4 * buffer:
            return side, numbers
        side /= 2


def any_within(points: NDArray[np.float64], others: NDArray[np.float64], reach: float) -> NDArray[np.bool_]:
    """Return whether each point (N×2) is at most ``reach`` metres from any of the others (M×2)."""
    from scipy.spatial import cKDTree

    distance, _ = cKDTree(others).query(points, distance_upper_bound=reach * (1 + 1e-9))
    return np.asarray(distance <= reach)
