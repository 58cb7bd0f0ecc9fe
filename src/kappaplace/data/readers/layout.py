"""Helpers of all readers: the record of a layout, listings of image folders, tables with given positives."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from kappaplace.data.near import Neighborhood
from kappaplace.data.positives import Positives
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.types import Json

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".heic", ".heif")


@dataclass(frozen=True)
class Reader:
    """One layout: its name, description, function and options."""

    name: str
    summary: str
    """The layout in one line, as a user recognizes it on disk."""
    read: Callable[..., PlaceImages]
    """``read(folder, **options) -> PlaceImages``."""
    options: dict[str, str] = field(default_factory=dict)
    """Help text of each option, with its default."""
    extra: str = ""
    """Extra that must be installed. Default: none."""


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
            raise KappaPlaceError(f"There is no {kind} {name} in the working directory or in {root}.")
        return file
    files = sorted(candidates)
    if len(files) != 1:
        names = ", ".join(f.name for f in files) or "none"
        raise KappaPlaceError(
            f"{root} must contain exactly one {kind}, got {names}. Select it with {option}=…."
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


@dataclass(frozen=True)
class QueryReferenceImages:
    """A dataset in two folders, with the images of each in natural order (2 before 10)."""

    root: Path
    query: Path
    reference: Path
    queries: list[str]
    references: list[str]


def query_and_reference_images(root: Path) -> QueryReferenceImages:
    """List the images of query/ and ref/ (or queries/ and database/)."""
    query = first_folder(root, ("query", "queries", "live"))
    reference = first_folder(root, ("ref", "reference", "references", "database", "gallery"))
    if query is None or reference is None:
        raise KappaPlaceError(f"{root} must have folders 'query' (or 'queries') and 'ref' (or 'database').")
    queries, references = images_or_error(query, natural=True), images_or_error(reference, natural=True)
    return QueryReferenceImages(root, query, reference, queries, references)


def query_reference_table(
    images: QueryReferenceImages, lists: list[list[int]], neighborhood: Neighborhood
) -> PlaceImages:
    """Build a table of references, then queries.

    Args:
        images: The images.
        lists: Reference numbers of the positives of each query.
        neighborhood: References of the same place.

    Returns:
        The table.
    """
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


def index_of(value: Json) -> int:
    """Return an index of a file; fail unless it is an integer from 0. Booleans and fractions are invalid.

    >>> index_of(3), index_of(3.0)
    (3, 3)
    """
    index = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise ValueError(f"{value!r} is not an index, which must be an integer from 0")
    return index
