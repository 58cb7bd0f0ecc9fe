"""A folder with ``query/``, ``ref/`` and ``gt.json``, whose ``positives`` list the right references."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kappaplace.data.neighbourhood import Neighbourhood
from kappaplace.data.place_images import PlaceImages
from kappaplace.data.positives import Positives
from kappaplace.data.readers.layout import (
    Reader,
    existing_folder,
    images_or_error,
    query_and_reference_folders,
)
from kappaplace.errors import KappaPlaceError


def read(folder: str | Path, *, gt: str = "gt.json", neighbourhood: str = "") -> PlaceImages:
    """``tolerance_frames`` in the file makes the neighbourhood; without it each image is only near itself."""
    root = existing_folder(folder)
    truth = _load(root / gt)
    query, reference = query_and_reference_folders(root)
    references, queries = images_or_error(reference, natural=True), images_or_error(query, natural=True)
    lists = truth["positives"]
    if len(lists) != len(queries):
        raise KappaPlaceError(
            f"{root / gt} lists positives of {len(lists)} queries but {query} holds {len(queries)}."
        )
    frames = truth.get("tolerance_frames")
    near = Neighbourhood("self") if frames is None else Neighbourhood("frames", float(frames))
    n = len(references)
    return PlaceImages.create(
        [f"{reference.name}/{name}" for name in references] + [f"{query.name}/{name}" for name in queries],
        is_query=[False] * n + [True] * len(queries),
        root=root,
        name=root.name,
        neighbourhood=Neighbourhood.parse(neighbourhood) if neighbourhood else near,
        given_positives=Positives.from_lists(lists, n),
    )


def _load(file: Path) -> dict[str, Any]:
    try:
        truth = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise KappaPlaceError(f"{file} is missing: it lists the positives of each query.") from None
    except json.JSONDecodeError as error:
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
    {"gt": "the JSON file (gt.json)", "neighbourhood": "self or frames:N (tolerance_frames of the file)"},
)
