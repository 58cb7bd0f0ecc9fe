"""Labels files: a random sample of queries with their best matches, which a person labels.

A labels file is a CSV file with a header:

    # kappaplace-labels: 2
    # model: 5b1c…           fingerprint of the map's model
    # sample: 90f2…          hash that detects added or removed rows
    # verify: 0              number of matches that were re-ranked by patch matching
    …
    order,query,match,label
    1,drive/0412.jpg,a/0031.jpg,yes

A label is yes, no, unknown or empty. A spreadsheet may append commas to the header lines.

A guarantee holds for queries sampled like the labelled ones. Therefore, queries are sampled at random, at
most one per place, and not chosen by a person or by the order of the files. Their order is random as well, so
a person who stops early has labelled a smaller random sample.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import get_type_hints

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.options import thin_to_places
from kappaplace.checks import checked_seed, within
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.files import write_file

SIZE = 300
"""Default number of queries. Half of the labels set the thresholds. A risk of 5% at 95% confidence needs 59
accepted answers."""
SECONDS = 10.0
"""Without positions, images that were taken within this time count as the same place."""


@dataclass(frozen=True)
class Sample:
    """Sampled queries, in the order in which a person labels them."""

    names: tuple[str, ...]
    """Paths relative to ``root``."""
    root: str
    seed: int
    """Random seed of the sampling."""
    of: int
    """Number of queries before sampling."""
    places: int
    """Number of queries after keeping one per place."""
    thinned: str
    """Smallest distance between two of them: "25 m", "10 s", both, or "nothing"."""


def draw_sample(
    table: PlaceImages, radius: float, *, size: int = SIZE, seed: int = 0, thin: bool = True
) -> Sample:
    """Sample queries at random.

    Args:
        table: Table of the queries. All rows of a table without queries are used as queries.
        radius: Distance in metres within which two images show the same place.
        size: Number of queries to sample.
        seed: Random seed of the sampling.
        thin: Whether to sample only one query per place.

    Returns:
        The sample.

    Raises:
        KappaPlaceError: If there are no queries, or the size or the seed is out of range.
    """
    queries = table.queries if len(table.query_rows) else table
    within(size, "size", 1)
    if not len(queries):
        raise KappaPlaceError("The table has no queries to sample. Pass a table with images.")
    # Shuffle before thinning, so that the frame of each place is random as well.
    order = np.random.default_rng(checked_seed(seed)).permutation(len(queries))
    mask, thinned = np.ones(len(order), bool), "nothing"
    if thin:
        mask, thinned = _thin(queries.select(order), radius)
    names = tuple(queries.paths[order[mask][:size]].tolist())
    return Sample(names, str(queries.root.absolute()), seed, len(queries), int(mask.sum()), thinned)


def _thin(queries: PlaceImages, radius: float) -> tuple[NDArray[np.bool_], str]:
    """Return which queries to use, one per place by position or time, and their smallest distance."""
    posed = queries.posed
    timed = ~posed & np.isfinite(queries.timestamp)
    mask = np.ones(len(queries), bool)
    distances = []
    for rows, values, spacing, unit in (
        (posed, queries.positions, radius, "m"),
        (timed, queries.timestamp, SECONDS, "s"),
    ):
        if rows.any():
            mask[rows] = False
            mask[np.flatnonzero(rows)[thin_to_places(values[rows], spacing)]] = True
            distances.append(f"{spacing:g} {unit}")
    if not (posed | timed).all() and distances:
        distances.append("nothing without position and time")
    return mask, " or ".join(distances) or "nothing"


FORMAT = "2"
FORMATS = ("1", FORMAT)
"""Supported formats. Files of format 1 have no ``verify``, which means 0."""
MARK = "kappaplace-labels"
COLUMNS = ("order", "query", "match", "label")
YES, NO, UNKNOWN = "yes", "no", "unknown"
LABELS = (YES, NO, UNKNOWN, "")


@dataclass(frozen=True)
class Sampling:
    """Record of how the queries of a labels file were sampled."""

    model: str
    """Fingerprint of the map's model."""
    map: str
    """Name of the map."""
    root: str
    """Folder of the query images."""
    seed: int
    drawn: int
    of: int
    places: int
    thinned: str
    sample: str
    """Hash of the sampled queries in their order; see `sample_id`."""
    verify: int = 0
    """Number of matches per query that were re-ranked by patch matching."""


@dataclass(frozen=True)
class Row:
    """A query with its best match."""

    order: int
    """Position in the sample, from 1."""
    query: str
    match: str
    label: str = ""


@dataclass(frozen=True)
class Sheet:
    """Content of a labels file."""

    rows: tuple[Row, ...]
    """The rows in their order."""
    sampling: Sampling | None = None
    """Record of the sampling; None for a file that was written by hand."""

    @property
    def labeled(self) -> tuple[Row, ...]:
        """Rows up to the last labelled one, including skipped rows."""
        last = max((i for i, row in enumerate(self.rows) if row.label), default=-1)
        return self.rows[: last + 1]

    @property
    def flaw(self) -> str:
        """Reason why the rows are not a random sample; empty if they are."""
        if self.sampling is None:
            return "The labels file does not record how its queries were sampled."
        sample = sample_id(self.sampling.model, self.sampling.seed, [row.query for row in self.rows])
        complete = [row.order for row in self.rows] == list(range(1, self.sampling.drawn + 1))
        if not complete or sample != self.sampling.sample:
            return "Rows of the labels file were removed or changed after its queries were sampled."
        return ""

    def with_label(self, position: int, label: str) -> Sheet:
        """Return the sheet with another label at a position, from 0."""
        rows = list(self.rows)
        rows[position] = replace(rows[position], label=label)
        return replace(self, rows=tuple(rows))


def sample_id(model: str, seed: int, names: Sequence[str]) -> str:
    """Return a hash of a sample.

    Args:
        model: Fingerprint of the map's model.
        seed: Random seed of the sampling.
        names: Names of the queries in their order.

    Returns:
        The hash.
    """
    text = json.dumps([model, seed, *names])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def new_sheet(sample: Sample, matches: Sequence[str], *, model: str, map_name: str, verify: int = 0) -> Sheet:
    """Return the sheet of a sample without labels.

    Args:
        sample: The queries.
        matches: Name of the best match of each query.
        model: Fingerprint of the map's model.
        map_name: Name of the map.
        verify: Number of matches that were re-ranked by patch matching.

    Returns:
        The sheet.
    """
    facts = (model, map_name, sample.root, sample.seed, len(sample.names), sample.of, sample.places)
    sampling = Sampling(*facts, sample.thinned, sample_id(model, sample.seed, sample.names), verify)
    pairs = zip(sample.names, matches, strict=True)
    return Sheet(tuple(Row(i, query, match) for i, (query, match) in enumerate(pairs, 1)), sampling)


def head_lines(sheet: Sheet) -> list[str]:
    """Return the header lines of a file."""
    if sheet.sampling is None:
        return []
    values = {MARK: FORMAT, **asdict(sheet.sampling)}
    return [f"# {key}: {value}" for key, value in values.items()]


def write_labels(sheet: Sheet, file: str | Path) -> None:
    """Write a labels file in one step, so that it is never incomplete."""
    text = io.StringIO(newline="")
    text.writelines(f"{line}\r\n" for line in head_lines(sheet))  # the line end of CSV
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    writer.writerows((row.order, row.query, row.match, row.label) for row in sheet.rows)
    write_file(Path(file), text.getvalue().encode("utf-8", "surrogateescape"))


def read_labels(file: str | Path) -> Sheet:
    """Read a labels file, also one that was written by hand or by a spreadsheet.

    Args:
        file: Labels file.

    Returns:
        The content of the file.

    Raises:
        KappaPlaceError: If the file cannot be read, or a row is invalid.
    """
    try:
        text = Path(file).read_bytes().decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise KappaPlaceError(f"The labels file {file} cannot be read ({error}). Check the path.") from None
    lines = text.splitlines(keepends=True)
    body = next((i for i, line in enumerate(lines) if not line.lstrip('"').startswith("#")), len(lines))
    head = [line.strip().rstrip(",").strip('"').lstrip("# ") for line in lines[:body]]
    sampling = _sampling(dict(line.partition(": ")[::2] for line in head), file)
    reader = csv.DictReader(io.StringIO("".join(lines[body:]), newline=""))
    if not set(COLUMNS) <= set(reader.fieldnames or ()):
        raise KappaPlaceError(
            f"{file} is not a labels file: it needs the columns {', '.join(COLUMNS)}. Create one with "
            "`kappaplace map label`."
        )
    try:
        rows = [_row(values, f"{file} line {reader.line_num + body}") for values in reader]
    except csv.Error as error:
        raise KappaPlaceError(f"{file} line {reader.line_num + body} is not CSV ({error}). Fix it.") from None
    rows.sort(key=lambda row: row.order)
    for column in ("order", "query"):
        (value, count), *_ = Counter(getattr(row, column) for row in rows).most_common(1) or [("", 0)]
        if count > 1:
            raise KappaPlaceError(
                f"{file}: the {column} {value!r} appears more than once. Each query must have one label."
            )
    return Sheet(tuple(rows), sampling)


def _sampling(head: dict[str, str], file: str | Path) -> Sampling | None:
    if MARK not in head:
        return None
    if head[MARK] not in FORMATS:
        raise KappaPlaceError(
            f"{file} is a labels file of format {head[MARK]}, and this version supports {FORMAT}. Please "
            "upgrade kappaplace."
        )
    try:
        if head[MARK] == "1":
            head = head | {"verify": "0"}
        types = get_type_hints(Sampling)
        return Sampling(**{name: types[name](head[name]) for name in types})
    except (KeyError, ValueError) as error:
        raise KappaPlaceError(
            f"The header of {file} is damaged ({error}). Restore it, or sample again."
        ) from None


def _row(values: dict[str, str], line: str) -> Row:
    label = (values["label"] or "").strip().lower()
    if label not in LABELS:
        raise KappaPlaceError(f"{line}: the label must be {YES}, {NO}, {UNKNOWN} or empty, got {label!r}.")
    try:
        order = int(values["order"])
    except (TypeError, ValueError):
        raise KappaPlaceError(f"{line}: the order must be a whole number, got {values['order']!r}.") from None
    return Row(order, values["query"] or "", values["match"] or "", label)
