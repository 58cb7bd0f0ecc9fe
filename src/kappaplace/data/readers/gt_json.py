"""A folder with ``query/``, ``ref/`` and ``gt.json``, whose ``positives`` list the right references."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kappaplace.data.near import Neighborhood
from kappaplace.data.readers.layout import (
    Reader,
    existing_folder,
    index_of,
    query_and_reference_images,
    query_reference_table,
)
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError


def read(folder: str | Path, *, gt: str = "gt.json", neighborhood: str = "") -> PlaceImages:
    """``tolerance_frames`` in the file makes the neighbourhood; without it each image is only near itself."""
    root = existing_folder(folder)
    truth = _load(root / gt)
    images = query_and_reference_images(root)
    lists = [_indices(row, query, root / gt) for query, row in enumerate(truth["positives"])]
    if len(lists) != len(images.queries):
        raise KappaPlaceError(
            f"{root / gt} lists positives of {len(lists)} queries but {images.query} holds "
            f"{len(images.queries)}."
        )
    near = Neighborhood.parse(neighborhood) if neighborhood else _near(truth, root / gt)
    return query_reference_table(images, lists, near)


def _indices(row: Any, query: int, file: Path) -> list[int]:
    try:
        if not isinstance(row, list):
            raise ValueError(f"{row!r} is no list")
        return [index_of(value) for value in row]
    except ValueError as error:
        raise KappaPlaceError(
            f"{file}: the positives of query {query} must be a list of reference indices ({error})."
        ) from None


def _near(truth: dict[str, Any], file: Path) -> Neighborhood:
    frames = truth.get("tolerance_frames")
    if frames is None:
        return Neighborhood("self")
    if isinstance(frames, bool) or not isinstance(frames, int | float):
        raise KappaPlaceError(f"{file}: tolerance_frames must be a number of frames, not {frames!r}.")
    return Neighborhood("frames", float(frames))


def _load(file: Path) -> dict[str, Any]:
    try:
        truth = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise KappaPlaceError(f"{file} is missing: it lists the positives of each query.") from None
    except OSError as error:
        raise KappaPlaceError(f"{file} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:  # bytes that are no UTF-8, text that is no JSON
        raise KappaPlaceError(f"{file} is not valid JSON ({error}).") from None
    if not isinstance(truth, dict) or not isinstance(truth.get("positives"), list):
        raise KappaPlaceError(
            f'{file} must be an object with "positives": one list of reference indices a query.'
        )
    return truth


READER = Reader(
    "gt-json",
    "query/, ref/ and gt.json with a list of reference indices a query",
    read,
    {"gt": "the JSON file (gt.json)", "neighborhood": "self or frames:N (tolerance_frames of the file)"},
)
