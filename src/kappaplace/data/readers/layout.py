"""What the readers share: the record of a layout, the listing of image folders, tables of given positives."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kappaplace.data.near import Neighborhood
from kappaplace.data.positives import Positives
from kappaplace.data.table import PlaceImages
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
    """Optional dependency group without which it reads nothing, if any."""


def existing_folder(folder: str | Path) -> Path:
    path = Path(folder)
    if not path.is_dir():
        raise KappaPlaceError(f"There is no folder {path}: give the folder that holds the images.")
    return path


def chosen_file(root: Path, name: str, candidates: Iterable[Path], what: str, option: str) -> Path:
    """The file named, from here or in ``root``; without a name the only candidate."""
    if name:
        file = Path(name) if Path(name).is_file() else root / name
        if not file.is_file():
            raise KappaPlaceError(f"There is no {what} {name}, neither here nor in {root}.")
        return file
    found = sorted(candidates)
    if len(found) != 1:
        names = ", ".join(f.name for f in found) or "none"
        raise KappaPlaceError(
            f"{root} must hold exactly one {what} but holds {names}: choose with {option}=…."
        )
    return found[0]


def natural_key(text: str) -> list[Any]:
    """Sort key by which image2 comes before image10.

    >>> sorted(["b10", "b2", "a"], key=natural_key)
    ['a', 'b2', 'b10']
    """
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text)]


def list_images(folder: Path, *, natural: bool = False) -> list[str]:
    """All images below a folder as sorted relative paths with forward slashes; hidden files are left out.

    Links to folders are followed, but no folder is listed twice: a link that leads back into ``folder`` is
    passed over, since what it shows is found at its own place.
    """
    found = []
    top = os.path.realpath(folder)
    seen = {top}
    for where, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(
            f for f in folders if not f.startswith(".") and _is_new(os.path.join(where, f), top, seen)
        )
        prefix = Path(os.path.relpath(where, folder)).as_posix()
        head = "" if prefix == "." else prefix + "/"
        found += [head + f for f in files if f.lower().endswith(IMAGE_SUFFIXES) and not f.startswith(".")]
    for name in found:
        if not name.isascii():
            _check_utf8(folder, name)
    return sorted(found, key=natural_key) if natural else sorted(found)


def _is_new(path: str, top: str, seen: set[str]) -> bool:
    real = os.path.realpath(path)
    leads_back = os.path.islink(path) and (real + os.sep).startswith(top.rstrip(os.sep) + os.sep)
    if leads_back or real in seen:
        return False
    seen.add(real)
    return True


def _check_utf8(folder: Path, name: str) -> None:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise KappaPlaceError(
            f"{folder} holds an image whose name is not UTF-8 ({os.fsencode(name)!r}): rename it."
        ) from None


def images_or_error(folder: Path, *, natural: bool = False) -> list[str]:
    images = list_images(folder, natural=natural)
    if not images:
        raise KappaPlaceError(f"{folder} holds no image ({', '.join(IMAGE_SUFFIXES)}).")
    return images


def first_folder(parent: Path, names: Iterable[str]) -> Path | None:
    """The first of these subfolders that exists."""
    return next((parent / name for name in names if (parent / name).is_dir()), None)


@dataclass(frozen=True)
class QueryReferenceImages:
    """A set that comes as two folders, images of each in natural order (2 before 10)."""

    root: Path
    query: Path
    reference: Path
    queries: list[str]
    references: list[str]


def query_and_reference_images(root: Path) -> QueryReferenceImages:
    """The images of query/ and ref/ (or queries/ and database/)."""
    query = first_folder(root, ("query", "queries", "live"))
    reference = first_folder(root, ("ref", "reference", "references", "database", "gallery"))
    if query is None or reference is None:
        raise KappaPlaceError(f"{root} needs a folder query (or queries) and a folder ref (or database).")
    queries, references = images_or_error(query, natural=True), images_or_error(reference, natural=True)
    return QueryReferenceImages(root, query, reference, queries, references)


def query_reference_table(
    images: QueryReferenceImages, lists: list[list[int]], neighborhood: Neighborhood
) -> PlaceImages:
    """References, then queries, with one list of positives a query."""
    n = len(images.references)
    return PlaceImages.create(
        [f"{images.reference.name}/{name}" for name in images.references]
        + [f"{images.query.name}/{name}" for name in images.queries],
        is_query=[False] * n + [True] * len(images.queries),
        root=images.root,
        name=images.root.name,
        neighborhood=neighborhood,
        given_positives=Positives.from_lists(lists, n),
    )


def index_of(value: Any) -> int:
    """An index as a file states it: an integer from 0. Truth values and fractions are refused, not rounded.

    >>> index_of(3), index_of(3.0)
    (3, 3)
    """
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole or value < 0:
        raise ValueError(f"{value!r} is no index: integers from 0 are needed")
    return int(value)
