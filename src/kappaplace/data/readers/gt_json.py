"""A folder with ``query/``, ``ref/`` and ``gt.json``, whose ``positives`` list the correct references."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from kappaplace.data.near import Neighborhood
from kappaplace.data.readers.layout import (
    Reader,
    check_folder,
    index_of,
    query_and_reference_images,
    query_reference_table,
)
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.types import Json


def read(folder: str | Path, *, gt: str = "gt.json", neighborhood: str = "") -> PlaceImages:
    """Read the images and their positives.

    Args:
        folder: Folder of the dataset.
        gt: Name of the JSON file.
        neighborhood: References of the same place: ``self`` or ``frames:N``. Default: ``tolerance_frames``
            of the file; if it has none, each image is near only itself.

    Returns:
        The table.
    """
    root = check_folder(folder)
    file = root / gt
    truth, rows = _load(file)
    images = query_and_reference_images(root)
    lists = [_indices(row, query, file) for query, row in enumerate(rows)]
    if len(lists) != len(images.queries):
        raise KappaPlaceError(
            f"{file} lists positives of {len(lists)} queries but {images.query} contains "
            f"{len(images.queries)} images."
        )
    near = Neighborhood.parse(neighborhood) if neighborhood else _near(truth.get("tolerance_frames"), file)
    return query_reference_table(images, lists, near)


def _indices(row: Json, query: int, file: Path) -> list[int]:
    try:
        if not isinstance(row, list):
            raise ValueError(f"{row!r} is not a list")
        return [index_of(value) for value in row]
    except ValueError as error:
        raise KappaPlaceError(
            f"{file}: the positives of query {query} must be a list of reference indices ({error})."
        ) from None


def _near(frames: Json, file: Path) -> Neighborhood:
    if frames is None:
        return Neighborhood("self")
    if isinstance(frames, bool) or not isinstance(frames, int | float):
        raise KappaPlaceError(f"{file}: tolerance_frames must be a number of frames, got {frames!r}.")
    return Neighborhood("frames", float(frames))


def _load(file: Path) -> tuple[Mapping[str, Json], list[Json]]:
    try:
        truth = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise KappaPlaceError(f"{file} is missing. It lists the positives of each query.") from None
    except OSError as error:
        raise KappaPlaceError(f"{file} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:  # also for bytes that are not UTF-8
        raise KappaPlaceError(f"{file} is not valid JSON ({error}). Correct it.") from None
    if not isinstance(truth, dict) or not isinstance(truth.get("positives"), list):
        raise KappaPlaceError(f'{file} must be an object whose "positives" has one list per query.')
    return truth, truth["positives"]


READER = Reader(
    "gt-json",
    "query/, ref/ and gt.json with a list of reference indices per query",
    read,
    {
        "gt": "the JSON file (default: gt.json)",
        "neighborhood": "self or frames:N (default: tolerance_frames of the file)",
    },
)
