"""What the readers share: the record of a layout, the listing of image folders, the reading of CSV files."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from kappaplace.data.place_images import PlaceImages
from kappaplace.errors import KappaPlaceError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".heic", ".heif")


@dataclass(frozen=True)
class Reader:
    """One layout: how it is called, what it looks like, how it is read."""

    name: str
    summary: str
    """The layout in one line, as a user would recognise it on disk."""
    read: Callable[..., PlaceImages]
    """``read(folder, **options) -> PlaceImages``."""
    options: dict[str, str] = field(default_factory=dict)
    """Option → what it means, with its default."""
    extra: str = ""
    """Optional dependency group that it needs, if any."""


def existing_folder(folder: str | Path) -> Path:
    path = Path(folder)
    if not path.is_dir():
        raise KappaPlaceError(f"There is no folder {path}: give the folder that holds the images.")
    return path


def natural_key(text: str) -> list[Any]:
    """Sort key by which image2 comes before image10.

    >>> sorted(["b10", "b2", "a"], key=natural_key)
    ['a', 'b2', 'b10']
    """
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text)]


def list_images(folder: Path, *, natural: bool = False) -> list[str]:
    """All images below a folder as sorted relative paths with forward slashes; hidden files are left out."""
    found = []
    for where, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        prefix = Path(os.path.relpath(where, folder)).as_posix()
        head = "" if prefix == "." else prefix + "/"
        found += [head + f for f in files if f.lower().endswith(IMAGE_SUFFIXES) and not f.startswith(".")]
    return sorted(found, key=natural_key) if natural else sorted(found)


def images_or_error(folder: Path, *, natural: bool = False) -> list[str]:
    images = list_images(folder, natural=natural)
    if not images:
        raise KappaPlaceError(f"{folder} holds no image ({', '.join(IMAGE_SUFFIXES)}).")
    return images


def first_folder(parent: Path, names: Iterable[str]) -> Path | None:
    """The first of these subfolders that exists."""
    return next((parent / name for name in names if (parent / name).is_dir()), None)


def query_and_reference_folders(folder: Path) -> tuple[Path, Path]:
    """The two folders of a set that comes as query/ and ref/ (or queries/ and database/)."""
    query = first_folder(folder, ("query", "queries", "live"))
    reference = first_folder(folder, ("ref", "reference", "references", "database", "gallery"))
    if query is None or reference is None:
        raise KappaPlaceError(f"{folder} needs a folder query (or queries) and a folder ref (or database).")
    return query, reference


def read_rows(file: Path, needed: Iterable[str] = ()) -> list[dict[str, str]]:
    """Rows of a CSV file as dictionaries; an absent file or column is told in one sentence."""
    if not file.is_file():
        raise KappaPlaceError(f"{file} is missing: the layout needs it.")
    with file.open(encoding="utf-8-sig", newline="") as stream:
        sample = stream.read(65_536)
        stream.seek(0)
        header = sample.partition("\n")[0]
        delimiter = max(",;\t", key=header.count)
        rows = list(csv.DictReader(stream, delimiter=delimiter))
    missing = [name for name in needed if rows and name not in rows[0]]
    if missing:
        raise KappaPlaceError(f"{file} lacks the column {missing[0]}; it has {', '.join(rows[0])}.")
    return rows


def number(text: str | None) -> float:
    """A cell as a number; empty is NaN."""
    text = (text or "").strip()
    if not text:
        return float("nan")
    try:
        return float(text)
    except ValueError:
        raise KappaPlaceError(f"{text!r} is not a number.") from None


def labels(names: Iterable[str]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Place names → 0, 1, 2 … in order of first appearance; an empty name is −1."""
    seen: dict[str, int] = {"": -1}
    return np.array([seen.setdefault(name, len(seen) - 1) for name in names], dtype=np.int64)


@lru_cache(maxsize=4096)  # file names repeat the same few months
def unix_time(text: str) -> float:
    """Seconds since 1970 of a date or a number; NaN if there is none.

    Dates without a zone are taken as UTC. Known forms: ISO 8601, EXIF's ``2020:05:31 12:00:00``,
    ``20200531_120000`` and its beginnings (``202005``), seconds, milliseconds or nanoseconds since 1970.

    >>> unix_time("1970-01-02"), unix_time("197001"), unix_time("86400")
    (86400.0, 0.0, 86400.0)
    """
    text = text.strip()
    if not text:
        return float("nan")
    compact = re.fullmatch(r"(19|20)\d{2}(\d{2}){0,2}(_(\d{2}){1,3})?", text)
    if compact:
        digits = text.replace("_", "")
        padded = digits + "00000101000000"[len(digits) :]
        return _utc(padded, "%Y%m%d%H%M%S")
    try:
        value = float(text)
    except ValueError:
        return _utc_iso(text)
    for unit in (1e9, 1e6, 1e3):  # nano-, micro- and milliseconds are told by their size (after 1973)
        if abs(value) > 1e8 * unit:
            return value / unit
    return value


def _utc(text: str, form: str) -> float:
    try:
        return datetime.strptime(text, form).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return float("nan")


def _utc_iso(text: str) -> float:
    exif = re.fullmatch(r"(\d{4}):(\d{2}):(\d{2})([ T].*)?", text)
    if exif:
        text = "-".join(exif.group(1, 2, 3)) + (exif.group(4) or "")
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return float("nan")
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
