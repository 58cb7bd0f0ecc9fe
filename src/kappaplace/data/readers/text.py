"""CSV files and their cells: numbers, place names, and times in many formats.

Every error names its file, row and column.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError

T = TypeVar("T")
Row = dict[str, str]
"""A row of a CSV file: cells by column name."""


def read_rows(file: Path, columns: Iterable[str] = ()) -> list[Row]:
    """Read a CSV file.

    Args:
        file: The file, with a header; separated by commas, semicolons or tabs.
        columns: Columns that must exist.

    Returns:
        The rows.

    Raises:
        KappaPlaceError: If the file is missing, is not a CSV file or has no such column.
    """
    if not file.is_file():
        raise KappaPlaceError(f"{file} is missing. The layout requires it.")
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            header = stream.readline()
            stream.seek(0)
            table = list(csv.reader(stream, delimiter=max(",;\t", key=header.count)))
    except UnicodeDecodeError as error:
        raise KappaPlaceError(
            f"{file} is not UTF-8 text (byte {error.start} is {error.object[error.start]:#04x}). "
            "Save it as UTF-8."
        ) from None
    except csv.Error as error:
        raise KappaPlaceError(f"{file} cannot be read as CSV ({error}). Correct it.") from None
    names = table[0] if table else []
    missing = [name for name in columns if name not in names]
    if missing:
        raise KappaPlaceError(f"{file} has no column {missing[0]}, only {', '.join(names) or 'none'}.")
    rows = []
    for number_of_row, cells in enumerate(filter(None, table[1:]), start=1):  # blank lines do not count
        if any(cell.strip() for cell in cells[len(names) :]):  # empty: a trailing separator
            raise KappaPlaceError(
                f"{file} row {number_of_row} has {len(cells)} cells but the header has {len(names)}. "
                "Put text that contains the separator in quotes."
            )
        rows.append(dict(zip(names, cells + [""] * (len(names) - len(cells)), strict=False)))
    return rows


def parse_column(rows: Sequence[Row], column: str, parse: Callable[[str], T], file: Path) -> list[T]:
    """Convert every cell of a column.

    Args:
        rows: Rows of the file.
        column: Name of the column.
        parse: Converts a cell; it raises KappaPlaceError or ValueError for invalid text.
        file: The file, for messages.

    Returns:
        One value per row.

    Raises:
        KappaPlaceError: If a cell is invalid; the message has file, row and column.
    """
    values = []
    for row, cells in enumerate(rows, start=1):
        try:
            values.append(parse(cells[column].strip()))
        except (KappaPlaceError, ValueError) as error:
            message = str(error).rstrip(".")
            raise KappaPlaceError(f"{file} row {row}, column {column}: {message}.") from None
    return values


def number(text: str | None) -> float:
    """Return a cell as a number; an empty cell is NaN."""
    text = (text or "").strip()
    if not text:
        return float("nan")
    try:
        return float(text)
    except ValueError:
        raise KappaPlaceError(f"{text!r} is not a number.") from None


def integer(text: str) -> int:
    """Return a cell as an integer; an empty cell is invalid."""
    try:
        return int(text)
    except ValueError:
        raise KappaPlaceError(f"{text!r} is not an integer.") from None


def labels(names: Iterable[str]) -> NDArray[np.int64]:
    """Number place names 0, 1, 2 … in order of first appearance; an empty name is −1."""
    numbers: dict[str, int] = {"": -1}
    return np.array([numbers.setdefault(name, len(numbers) - 1) for name in names], dtype=np.int64)


_COMPACT = re.compile(r"(19|20)\d{2}(\d{2}){0,2}(_(\d{2}){1,3})?")
_UNITS = (1e9, 1e6, 1e3)  # nano-, micro- and milliseconds, detected by their size (after 1973)


@lru_cache(maxsize=4096)  # file names repeat the same few months
def unix_time(text: str) -> float:
    """Return one date or number as seconds since 1970; NaN if it is neither.

    Dates without a time zone are UTC. Formats: ISO 8601, EXIF's ``2020:05:31 12:00:00``, ``20200531_120000``
    and its beginnings (``202005``, ``2020``), and seconds, milliseconds, microseconds or nanoseconds since
    1970. For a whole column use :func:`unix_times`, which has more evidence.

    >>> unix_time("1970-01-02"), unix_time("197001"), unix_time("86400")
    (86400.0, 0.0, 86400.0)
    """
    text = text.strip()
    if _COMPACT.fullmatch(text):
        return _compact(text)
    value = _float(text)
    return _iso(text) if math.isnan(value) else value / _unit(abs(value))


def unix_times(cells: Sequence[str]) -> list[float]:
    """Return a column of dates or numbers as seconds since 1970; NaN for empty or invalid cells.

    The format of numbers is the same for the whole column. Digits are dates (``202005``, ``20200531_1200``)
    only if every cell is a date, and all numbers have the unit of the largest. Four digits are never a year
    here, because seconds since the start of a recording also pass through 1900 to 2099.

    >>> unix_times(["1898", "1999", "2000"]), unix_times(["197001", "", "197002"])
    ([1898.0, 1999.0, 2000.0], [0.0, nan, 2678400.0])
    """
    texts = [cell.strip() for cell in cells]
    dates = all(_COMPACT.fullmatch(t) and len(t) > 4 and math.isfinite(_compact(t)) for t in texts if t)
    if dates:
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
