"""VPR-Bench folders: ``query/``, ``ref/`` and ``ground_truth_new.npy`` with rows [query, references]."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kappaplace.data.near import Neighbourhood
from kappaplace.data.place_images import PlaceImages
from kappaplace.data.readers.layout import (
    Reader,
    existing_folder,
    index_of,
    query_and_reference_images,
    query_reference_table,
)
from kappaplace.data.readers.npy_lists import load_rows
from kappaplace.errors import KappaPlaceError

_FILES = ("ground_truth_new.npy", "ground_truth.npy")


def read(folder: str | Path, *, ground_truth: str = "", neighbourhood: str = "") -> PlaceImages:
    """Images in natural order of their names (2 before 10), as the ground truth counts them.

    ``neighbourhood`` is ``self`` or ``frames:N``; by default it is read off the ground truth: the number of
    frames that an unbroken run of positives reaches to either side, or the image itself where none has two.
    """
    root = existing_folder(folder)
    images = query_and_reference_images(root)
    names = (ground_truth,) if ground_truth else _FILES
    file = next((root / name for name in names if (root / name).is_file()), None)
    if file is None:
        raise KappaPlaceError(f"{root} holds no {' or '.join(names)}.")
    lists = _lists(load_rows(file), len(images.queries), file)
    near = Neighbourhood.parse(neighbourhood) if neighbourhood else _near(lists)
    return query_reference_table(images, lists, near)


def _near(lists: list[list[int]]) -> Neighbourhood:
    """Positives of one place follow each other; a second visit, far off in the order, widens none."""
    longest = max((_longest_run(row) for row in lists), default=0)
    return Neighbourhood("frames", longest // 2) if longest > 1 else Neighbourhood("self")


def _longest_run(indices: list[int]) -> int:
    """How many of the indices follow each other without a gap.

    >>> _longest_run([7, 2, 3, 150, 4])
    3
    """
    ordered = np.unique(np.array(indices, dtype=np.int64))
    starts = np.flatnonzero(np.diff(ordered) != 1) + 1
    return int(np.diff(np.concatenate([[0], starts, [len(ordered)]])).max())


def _lists(rows: list[Any], queries: int, file: Path) -> list[list[int]]:
    """The positives of each query; every query must have its row, once."""
    lists: dict[int, list[int]] = {}
    try:
        for row in rows:
            query, right = index_of(row[0]), row[1]
            if query in lists:
                raise ValueError(f"query {query} comes twice")
            lists[query] = [index_of(r) for r in right] if isinstance(right, list) else [index_of(right)]
        absent = [query for query in range(queries) if query not in lists]
        if absent or len(lists) != queries:
            raise ValueError(f"query {absent[0]} has no row" if absent else f"it has {len(lists)} queries")
    except (TypeError, ValueError, LookupError) as error:
        raise KappaPlaceError(
            f"{file} does not hold rows [query, references] for the {queries} queries ({error})."
        ) from None
    return [lists[query] for query in range(queries)]


READER = Reader(
    "vpr-bench",
    "VPR-Bench: query/, ref/ and ground_truth_new.npy",
    read,
    {
        "ground_truth": "the .npy file (ground_truth_new.npy or ground_truth.npy)",
        "neighbourhood": "self or frames:N (default: as wide as the positives)",
    },
)
