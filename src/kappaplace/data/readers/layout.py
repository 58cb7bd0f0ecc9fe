"""Helpers of all readers: the record of a layout, listings of image folders, CSV files and their cells."""

from __future__ import annotations

import csv
import inspect
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".heic", ".heif")


@dataclass(frozen=True)
class Reader:
    """One layout: its name, description and function. Keywords of the function are options of the layout."""

    name: str
    summary: str
    """The layout in one line, as a user recognizes it on disk."""
    read: Callable[..., PlaceImages]
    """Function that reads the layout: ``read(folder, **options) -> PlaceImages``."""
    extra: str = ""
    """Extra that must be installed. Default: none."""

    @property
    def options(self) -> dict[str, str]:
        """Help text of each option: its lines under ``Args:`` in the docstring of ``read``."""
        lines = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", inspect.getdoc(self.read) or "", re.MULTILINE)
        texts = {name: " ".join(text.split()) for name, text in lines}
        parameters = inspect.signature(self.read).parameters.values()
        names = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY and each.name != "ask"]
        return {name: texts.get(name, "") for name in names}


def check_folder(folder: str | Path) -> Path:
    """Return a folder as a path; fail if it does not exist."""
    path = Path(folder)
    if not path.is_dir():
        raise KappaPlaceError(f"There is no folder {path}. Pass the folder that contains the images.")
    return path


def select_file(root: Path, name: str, candidates: Iterable[Path], kind: str, option: str) -> Path:
    """Return the file with a name, or the only candidate.

    Args:
        root: Folder of the layout.
        name: Path of the file, relative to the working directory or to ``root``. Empty: the only candidate.
        candidates: Files that are suitable.
        kind: Kind of file, for messages.
        option: Option that selects the file, for messages.

    Returns:
        The file.

    Raises:
        KappaPlaceError: If it does not exist, or there is not exactly one candidate.
    """
    if name:
        file = Path(name) if Path(name).is_file() else root / name
        if not file.is_file():
            raise KappaPlaceError(
                f"There is no {kind} {name} in the working directory or in {root}. Check the path."
            )
        return file
    files = sorted(candidates)
    if len(files) != 1:
        names = ", ".join(f.name for f in files) or "none"
        raise KappaPlaceError(
            f"{root} must contain exactly one {kind}, got {names}. Pass its path with {option}=FILE."
        )
    return files[0]


def natural_key(text: str) -> list[int | str]:
    """Return a sort key that puts image2 before image10.

    >>> sorted(["b10", "b2", "a"], key=natural_key)
    ['a', 'b2', 'b10']
    """
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text)]


def list_images(folder: Path, *, natural: bool = False) -> list[str]:
    """List all images below a folder as sorted relative paths with forward slashes, without hidden files.

    Links to folders are followed, but no folder is listed twice: a link back into ``folder`` is ignored.
    """
    names = []
    top = os.path.realpath(folder)
    visited = {top}
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(
            f for f in folders if not f.startswith(".") and _is_new(os.path.join(parent, f), top, visited)
        )
        prefix = Path(os.path.relpath(parent, folder)).as_posix()
        head = "" if prefix == "." else prefix + "/"
        names += [head + f for f in files if f.lower().endswith(IMAGE_SUFFIXES) and not f.startswith(".")]
    for name in names:
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            raise KappaPlaceError(
                f"{folder} contains an image whose name is not UTF-8 ({os.fsencode(name)!r}). Rename it."
            ) from None
    return sorted(names, key=natural_key) if natural else sorted(names)


def _is_new(path: str, top: str, visited: set[str]) -> bool:
    real = os.path.realpath(path)
    leads_back = os.path.islink(path) and (real + os.sep).startswith(top.rstrip(os.sep) + os.sep)
    if leads_back or real in visited:
        return False
    visited.add(real)
    return True


def images_or_error(folder: Path, *, natural: bool = False) -> list[str]:
    """List all images below a folder, at least one.

    Args:
        folder: The folder.
        natural: Put image2 before image10. Default: sort by characters.

    Returns:
        Sorted relative paths with forward slashes.

    Raises:
        KappaPlaceError: If there is no image.
    """
    images = list_images(folder, natural=natural)
    if not images:
        raise KappaPlaceError(f"{folder} contains no images ({', '.join(IMAGE_SUFFIXES)}). Check the path.")
    return images


def first_folder(parent: Path, names: Iterable[str]) -> Path | None:
    """Return the first of these subfolders that exists."""
    return next((parent / name for name in names if (parent / name).is_dir()), None)


T = TypeVar("T")


class Row(dict[str, str]):
    """A row of a CSV file: cells by column name."""

    line: int
    """Number of the line in the file, from 1."""


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
            reader = csv.reader(stream, delimiter=max(",;\t", key=header.count))
            table = [(reader.line_num, cells) for cells in reader]
    except UnicodeDecodeError as error:
        raise KappaPlaceError(
            f"{file} is not UTF-8 text (byte {error.start} is {error.object[error.start]:#04x}). "
            "Save it as UTF-8."
        ) from None
    except csv.Error as error:
        raise KappaPlaceError(f"{file} cannot be read as CSV ({error}). Correct it.") from None
    names = table[0][1] if table else []
    missing = [name for name in columns if name not in names]
    if missing:
        raise KappaPlaceError(
            f"{file} has no column {missing[0]}, only {', '.join(names) or 'none'}. "
            f"Rename a column or download the file again."
        )
    rows = []
    for line, cells in table[1:]:
        if not cells:
            continue
        if any(cell.strip() for cell in cells[len(names) :]):  # empty: a trailing separator
            raise KappaPlaceError(
                f"{file} line {line}: expected {len(names)} cells as in the header, got {len(cells)}. "
                "Put text that contains the separator in quotes."
            )
        row = Row(zip(names, cells + [""] * (len(names) - len(cells)), strict=False))
        row.line = line
        rows.append(row)
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
        KappaPlaceError: If a cell is invalid; the message has file, line and column.
    """
    values = []
    for cells in rows:
        try:
            values.append(parse(cells[column].strip()))
        except (KappaPlaceError, ValueError) as error:
            message = str(error).rstrip(".")
            raise KappaPlaceError(f"{file} line {cells.line}, column {column}: {message}.") from None
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
