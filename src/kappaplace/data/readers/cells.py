"""CSV files of others: rows, and cells that are numbers or names; what is wrong is told with its place."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
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
