"""CSV files of others: rows, and cells that are numbers or names; what is wrong is told with its place.

Times in the many forms that cameras, robots and spreadsheets write, as seconds since 1970.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from kappaplace.errors import KappaPlaceError

T = TypeVar("T")


def read_rows(file: Path, needed: Iterable[str] = ()) -> list[dict[str, str]]:
    """Rows of a CSV file as dictionaries; an absent file or column is told in one sentence."""
    if not file.is_file():
        raise KappaPlaceError(f"{file} is missing: the layout needs it.")
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            header = stream.readline()
            stream.seek(0)
            delimiter = max(",;\t", key=header.count)
            reader = csv.DictReader(stream, delimiter=delimiter, restval="")
            rows: list[dict[Any, Any]] = list(reader)
    except UnicodeDecodeError as error:
        raise KappaPlaceError(
            f"{file} is not UTF-8 text (byte {error.start} is {error.object[error.start]:#04x}): "
            "save it as UTF-8."
        ) from None
    except csv.Error as error:
        raise KappaPlaceError(f"{file} cannot be read as CSV ({error}).") from None
    names = [name or "" for name in reader.fieldnames or ()]
    missing = [name for name in needed if name not in names]
    if missing:
        raise KappaPlaceError(f"{file} lacks the column {missing[0]}; it has {', '.join(names) or 'none'}.")
    for row, cells in enumerate(rows, start=1):
        surplus = cells.pop(None, [])
        if any(cell.strip() for cell in surplus):  # empty ones are only a separator at the end of the line
            raise KappaPlaceError(
                f"{file} row {row} has {len(names) + len(surplus)} cells but the header has {len(names)}: "
                "put text that holds the separator in quotes."
            )
    return rows


def parsed(rows: Sequence[dict[str, str]], column: str, parse: Callable[[str], T], file: Path) -> list[T]:
    """Every cell of a column through ``parse``; one that it refuses is told with file, row and column."""
    values = []
    for row, cells in enumerate(rows, start=1):
        try:
            values.append(parse(cells[column].strip()))
        except (KappaPlaceError, ValueError) as error:
            words = str(error).rstrip(".")
            raise KappaPlaceError(f"{file} row {row}, column {column}: {words}.") from None
    return values


def number(text: str | None) -> float:
    """A cell as a number; empty is NaN."""
    text = (text or "").strip()
    if not text:
        return float("nan")
    try:
        return float(text)
    except ValueError:
        raise KappaPlaceError(f"{text!r} is not a number.") from None


def integer(text: str) -> int:
    """A cell as an integer; empty is none."""
    try:
        return int(text)
    except ValueError:
        raise KappaPlaceError(f"{text!r} is not an integer.") from None


def labels(names: Iterable[str]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Place names → 0, 1, 2 … in order of first appearance; an empty name is −1."""
    seen: dict[str, int] = {"": -1}
    return np.array([seen.setdefault(name, len(seen) - 1) for name in names], dtype=np.int64)


_COMPACT = re.compile(r"(19|20)\d{2}(\d{2}){0,2}(_(\d{2}){1,3})?")
_UNITS = (1e9, 1e6, 1e3)  # nano-, micro- and milliseconds are told by their size (after 1973)


@lru_cache(maxsize=4096)  # file names repeat the same few months
def unix_time(text: str) -> float:
    """Seconds since 1970 of one date or number that stands alone; NaN if there is none.

    Dates without a zone are taken as UTC. Known forms: ISO 8601, EXIF's ``2020:05:31 12:00:00``,
    ``20200531_120000`` and its beginnings (``202005``, ``2020``), seconds, milliseconds or nanoseconds since
    1970. A column of cells says more than one of them: see :func:`unix_times`.

    >>> unix_time("1970-01-02"), unix_time("197001"), unix_time("86400")
    (86400.0, 0.0, 86400.0)
    """
    text = text.strip()
    if _COMPACT.fullmatch(text):
        return _compact(text)
    try:
        value = float(text)
    except ValueError:
        return _iso(text)
    return value / _unit(abs(value))


def unix_times(cells: Sequence[str]) -> list[float]:
    """Seconds since 1970 of a column; NaN where a cell says nothing.

    What the numbers are is decided once for the column: digits are dates (``202005``, ``20200531_1200``) only
    where every cell is one, and all numbers have the unit of the largest. Four digits alone are never a
    year here: seconds since the start of a recording pass through 1900 to 2099, too.

    >>> unix_times(["1898", "1999", "2000"]), unix_times(["197001", "", "197002"])
    ([1898.0, 1999.0, 2000.0], [0.0, nan, 2678400.0])
    """
    texts = [cell.strip() for cell in cells]
    told = [text for text in texts if text]
    if all(len(text) > 4 and _COMPACT.fullmatch(text) and math.isfinite(_compact(text)) for text in told):
        return [_compact(text) if text else float("nan") for text in texts]
    values = [_float(text) for text in texts]
    unit = _unit(max((abs(value) for value in values if math.isfinite(value)), default=0.0))
    return [v / unit if math.isfinite(v) else _iso(text) for text, v in zip(texts, values, strict=True)]


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _unit(largest: float) -> float:
    return next((unit for unit in _UNITS if largest > 1e8 * unit), 1.0)


def _compact(text: str) -> float:
    digits = text.replace("_", "")
    padded = digits + "00000101000000"[len(digits) :]
    try:
        return datetime.strptime(padded, "%Y%m%d%H%M%S").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return float("nan")


def _iso(text: str) -> float:
    exif = re.fullmatch(r"(\d{4}):(\d{2}):(\d{2})([ T].*)?", text)
    if exif:
        text = "-".join(exif.group(1, 2, 3)) + (exif.group(4) or "")
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return float("nan")
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
