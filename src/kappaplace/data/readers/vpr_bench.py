"""VPR-Bench folders: ``query/``, ``ref/`` and ``ground_truth_new.npy`` with rows [query, references]."""

from __future__ import annotations

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
from kappaplace.data.readers.npy_lists import load_rows
from kappaplace.errors import KappaPlaceError

_FILES = ("ground_truth_new.npy", "ground_truth.npy")


def read(folder: str | Path, *, ground_truth: str = "", neighbourhood: str = "") -> PlaceImages:
    """Images in natural order of their names (2 before 10), as the ground truth counts them.

    ``neighbourhood`` is ``self`` or ``frames:N``; by default it is read off the ground truth: the number of
    frames that positives reach to either side, or the image itself where every query has a single one.
    """
    root = existing_folder(folder)
    query, reference = query_and_reference_folders(root)
    references, queries = images_or_error(reference, natural=True), images_or_error(query, natural=True)
    names = (ground_truth,) if ground_truth else _FILES
    file = next((root / name for name in names if (root / name).is_file()), None)
    if file is None:
        raise KappaPlaceError(f"{root} holds no {' or '.join(names)}.")
    lists = _lists(load_rows(file), len(queries), file)
    widest = max((max(row) - min(row) for row in lists if row), default=0)
    near = Neighbourhood("frames", -(-widest // 2)) if widest else Neighbourhood("self")
    n = len(references)
    return PlaceImages.create(
        [f"{reference.name}/{name}" for name in references] + [f"{query.name}/{name}" for name in queries],
        is_query=[False] * n + [True] * len(queries),
        root=root,
        name=root.name,
        neighbourhood=Neighbourhood.parse(neighbourhood) if neighbourhood else near,
        given_positives=Positives.from_lists(lists, n),
    )


def _lists(rows: list[Any], queries: int, file: Path) -> list[list[int]]:
    lists: list[list[int]] = [[] for _ in range(queries)]
    try:
        for row in rows:
            query, right = int(row[0]), row[1]
            lists[query] = [int(r) for r in right] if isinstance(right, list) else [int(right)]
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise KappaPlaceError(
            f"{file} does not hold rows [query, references] for the {queries} queries ({error})."
        ) from None
    return lists


READER = Reader(
    "vpr-bench",
    "VPR-Bench: query/, ref/ and ground_truth_new.npy",
    read,
    {
        "ground_truth": "the .npy file (ground_truth_new.npy or ground_truth.npy)",
        "neighbourhood": "self or frames:N (default: as wide as the positives)",
    },
)
