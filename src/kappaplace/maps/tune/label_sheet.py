"""Labels of a person as one CSV file: what was drawn and how, which match was shown, what was said of it.

    # kappaplace-labels: 2
    # model: 5b1c…           the map's model when the matches were found
    # sample: 90f2…          tells whether rows were taken out or put in since
    # verify: 0              matches that were compared cell by cell to find them
    …
    order,query,match,label
    1,drive/0412.jpg,a/0031.jpg,yes

Labels are yes, no, unknown ("don't know") or nothing yet. Lines that start with # may have been through a
spreadsheet, which puts commas behind them.

Which queries a person shall label: a random sample, one a place, in random order.

The guarantee of a calibration is about queries drawn like the labelled ones, so nobody may choose them: not
the person who labels, and not the order of the files. As the order is random too, whoever stops early has
labelled a smaller random sample.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.splits import thin_to_places
from kappaplace.checks import checked_seed
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.files import replace_file

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


FORMAT = "2"
KNOWN = ("1", FORMAT)
"""Files of format 1 do not say how many matches were compared: none."""
MARK = "kappaplace-labels"
COLUMNS = ("order", "query", "match", "label")
YES, NO, UNKNOWN = "yes", "no", "unknown"
LABELS = (YES, NO, UNKNOWN, "")


@dataclass(frozen=True)
class Sampling:
    """How the queries of a file were chosen."""

    model: str
    """Fingerprint of the map's model."""
    map: str
    root: str
    """Where the queries' images lay."""
    seed: int
    drawn: int
    of: int
    places: int
    thinned: str
    sample: str
    """Hash of the drawn queries in their order; see `sample_id`."""
    verify: int = 0
    """Matches of a query that were compared cell by cell to find the one shown."""


@dataclass(frozen=True)
class Row:
    """One query with its best match."""

    order: int
    """From 1."""
    query: str
    match: str
    label: str = ""


@dataclass(frozen=True)
class Sheet:
    """A file of labels."""

    rows: tuple[Row, ...]
    """By their order."""
    sampling: Sampling | None = None
    """None for a file that somebody wrote by hand."""

    @property
    def labelled(self) -> tuple[Row, ...]:
        """The rows up to the last one with a label; one without among them was passed over."""
        last = max((i for i, row in enumerate(self.rows) if row.label), default=-1)
        return self.rows[: last + 1]

    @property
    def flaw(self) -> str:
        """Why these are not the labels of a random sample, in a sentence; empty where they are."""
        if self.sampling is None:
            return "The labels file does not say how its queries were chosen."
        found = sample_id(self.sampling.model, self.sampling.seed, [row.query for row in self.rows])
        whole = [row.order for row in self.rows] == list(range(1, self.sampling.drawn + 1))
        if not whole or found != self.sampling.sample:
            return "Rows of the labels file were removed or changed since its queries were drawn."
        return ""

    def with_label(self, position: int, label: str) -> Sheet:
        """The same with one label set, by its position from 0."""
        rows = list(self.rows)
        rows[position] = replace(rows[position], label=label)
        return replace(self, rows=tuple(rows))


def sample_id(model: str, seed: int, names: Sequence[str]) -> str:
    """Tells one sample from another."""
    text = json.dumps([model, seed, *names])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def new_sheet(sample: Sample, matches: Sequence[str], *, model: str, map_name: str, verify: int = 0) -> Sheet:
    """All rows of a sample, none of them labelled."""
    known = (model, map_name, sample.root, sample.seed, len(sample.names), sample.of, sample.places)
    sampling = Sampling(*known, sample.thinned, sample_id(model, sample.seed, sample.names), verify)
    pairs = zip(sample.names, matches, strict=True)
    return Sheet(tuple(Row(i, query, match) for i, (query, match) in enumerate(pairs, 1)), sampling)


def head_lines(sheet: Sheet) -> list[str]:
    """What a file says before its columns."""
    if sheet.sampling is None:
        return []
    values = {MARK: FORMAT, **asdict(sheet.sampling)}
    return [f"# {key}: {value}" for key, value in values.items()]


def write_labels(sheet: Sheet, file: str | Path) -> None:
    """Write the file; it is whole at any time."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    writer.writerows((row.order, row.query, row.match, row.label) for row in sheet.rows)
    whole = "".join(f"{line}\r\n" for line in head_lines(sheet)) + text.getvalue()  # as CSV ends its lines
    data = whole.encode("utf-8", "surrogateescape")
    replace_file(Path(file), lambda part: part.write_bytes(data))


def read_labels(file: str | Path) -> Sheet:
    """Read the file, whoever wrote it."""
    try:
        text = Path(file).read_bytes().decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise KappaPlaceError(f"The labels file {file} cannot be read ({error}).") from None
    lines = text.splitlines(keepends=True)
    body = next((i for i, line in enumerate(lines) if not line.lstrip('"').startswith("#")), len(lines))
    head = [line.strip().rstrip(",").strip('"').lstrip("# ") for line in lines[:body]]
    sampling = _sampling(dict(line.partition(": ")[::2] for line in head), file)
    reader = csv.DictReader(io.StringIO("".join(lines[body:]), newline=""))
    if not set(COLUMNS) <= set(reader.fieldnames or ()):
        raise KappaPlaceError(
            f"{file} is not a labels file: it needs the columns {', '.join(COLUMNS)}; make one with "
            "`kappaplace map label`."
        )
    try:
        rows = sorted((_row(values, file) for values in reader), key=lambda row: row.order)
    except csv.Error as error:
        raise KappaPlaceError(f"Line {reader.line_num + body} of {file} is not CSV ({error}).") from None
    for what in ("order", "query"):
        (double, count), *_ = Counter(getattr(row, what) for row in rows).most_common(1) or [("", 0)]
        if count > 1:
            raise KappaPlaceError(f"The {what} {double!r} comes twice in {file}; each query has one label.")
    return Sheet(tuple(rows), sampling)


def _sampling(head: dict[str, str], file: str | Path) -> Sampling | None:
    if MARK not in head:
        return None
    if head[MARK] not in KNOWN:
        raise KappaPlaceError(
            f"{file} is a labels file of format {head[MARK]}, this version knows {FORMAT}; upgrade it."
        )
    try:
        if head[MARK] == "1":
            head = head | {"verify": "0"}
        parts: dict[str, Any] = {part.name: head[part.name] for part in fields(Sampling)}
        counts = ("seed", "drawn", "of", "places", "verify")
        return Sampling(**(parts | {key: int(parts[key]) for key in counts}))
    except (KeyError, ValueError) as error:
        raise KappaPlaceError(
            f"The first lines of {file} are damaged ({error}); restore them, or draw anew."
        ) from None


def _row(values: dict[str, Any], file: str | Path) -> Row:
    label = (values["label"] or "").strip().lower()
    if label not in LABELS:
        raise KappaPlaceError(
            f"{file} labels {values['query']!r} as {label!r}; it must be {YES}, {NO}, {UNKNOWN} or empty."
        )
    try:
        order = int(values["order"])
    except (TypeError, ValueError):
        raise KappaPlaceError(
            f"{file} numbers {values['query']!r} with {values['order']!r}, which is not a whole number."
        ) from None
    return Row(order, values["query"] or "", values["match"] or "", label)
