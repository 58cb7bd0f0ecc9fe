"""Folders ``query/`` and ``ref/`` with a list of correct references per query: gt.json, or .npy of VPR-Bench.

The .npy file contains a pickle, of which only numbers and lists are read (`pickles`).
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from kappaplace.data.near import Neighborhood
from kappaplace.data.positives import Positives
from kappaplace.data.readers.layout import Reader, check_folder, first_folder, images_or_error
from kappaplace.data.readers.pickles import pickled, plain
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.files import reason
from kappaplace.types import Json


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


def read_gt_json(folder: str | Path, *, gt: str = "gt.json", neighborhood: str = "") -> PlaceImages:
    """Read the images and their positives.

    Args:
        folder: Folder of the dataset.
        gt: Name of the JSON file. Default: gt.json.
        neighborhood: References of the same place: self or frames:N. Default: tolerance_frames
            of the file, or self if it has none.

    Returns:
        The table.
    """
    root = check_folder(folder)
    file = root / gt
    truth, rows = _load_gt(file)
    images = query_and_reference_images(root)
    lists = [_gt_indices(row, query, file) for query, row in enumerate(rows)]
    if len(lists) != len(images.queries):
        raise KappaPlaceError(
            f"{file} must have one list of positives for each of the {len(images.queries)} images in "
            f"{images.query}, got {len(lists)}."
        )
    frames = truth.get("tolerance_frames")
    near = Neighborhood.parse(neighborhood) if neighborhood else _gt_neighborhood(frames, file)
    return query_reference_table(images, lists, near)


def _gt_indices(row: Json, query: int, file: Path) -> list[int]:
    try:
        if not isinstance(row, list):
            raise ValueError(f"{row!r} is not a list")
        return [index_of(value) for value in row]
    except ValueError as error:
        raise KappaPlaceError(
            f"{file}: the positives of query {query} must be a list of reference indices ({error})."
        ) from None


def _gt_neighborhood(frames: Json, file: Path) -> Neighborhood:
    if frames is None:
        return Neighborhood("self")
    if isinstance(frames, bool) or not isinstance(frames, int | float):
        raise KappaPlaceError(f"{file}: tolerance_frames must be a number of frames, got {frames!r}.")
    return Neighborhood("frames", float(frames))


def _load_gt(file: Path) -> tuple[Mapping[str, Json], list[Json]]:
    try:
        truth = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise KappaPlaceError(f"{file} is missing. It lists the positives of each query.") from None
    except OSError as error:
        raise KappaPlaceError(f"{file} cannot be read ({error.strerror}). Check the file.") from None
    except (ValueError, RecursionError) as error:  # also for bytes that are not UTF-8
        raise KappaPlaceError(f"{file} is not valid JSON ({error}). Correct it.") from None
    if not isinstance(truth, dict) or not isinstance(truth.get("positives"), list):
        raise KappaPlaceError(f'{file} must be an object whose "positives" has one list per query.')
    return truth, truth["positives"]


GT_JSON = Reader(
    "gt-json", "query/, ref/ and gt.json with a list of reference indices per query", read_gt_json
)


def load_rows(file: Path) -> list[Json]:
    """Return the rows of an ``.npy`` file as numbers and lists."""
    try:
        # From memory: a damaged length then requests no more bytes than the file has.
        stream = io.BytesIO(file.read_bytes())
        if not _is_object(stream):
            stream.seek(0)
            return np.load(stream, allow_pickle=False).tolist()
        return plain(pickled(stream))
    except Exception as error:  # a damaged pickle can raise any error
        raise KappaPlaceError(
            f"{file} cannot be read safely ({reason(error)}). Convert it to gt.json with a list `positives` "
            "of reference indices per query."
        ) from None


def _is_object(stream: BinaryIO) -> bool:
    version = np.lib.format.read_magic(stream)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return bool(header(stream)[2].hasobject)


_FILES = ("ground_truth_new.npy", "ground_truth.npy")


def read_vpr_bench(folder: str | Path, *, ground_truth: str = "", neighborhood: str = "") -> PlaceImages:
    """Read the images in natural order of their names (2 before 10), which the ground truth refers to.

    Args:
        folder: Folder of the dataset.
        ground_truth: The .npy file. Default: ground_truth_new.npy or ground_truth.npy.
        neighborhood: References of the same place: self or frames:N. Default: half the longest run
            of consecutive positives, or self if there is no run.

    Returns:
        The table.
    """
    root = check_folder(folder)
    images = query_and_reference_images(root)
    names = (ground_truth,) if ground_truth else _FILES
    file = next((root / name for name in names if (root / name).is_file()), None)
    if file is None:
        raise KappaPlaceError(f"{root} contains no {' or '.join(names)}. Select a file with ground_truth=….")
    lists = _vpr_lists(load_rows(file), len(images.queries), file)
    near = Neighborhood.parse(neighborhood) if neighborhood else _vpr_neighborhood(lists)
    return query_reference_table(images, lists, near)


def _vpr_neighborhood(lists: list[list[int]]) -> Neighborhood:
    """Return half the longest run of consecutive positives; a later visit to a place is another run."""
    longest = max((_longest_run(row) for row in lists), default=0)
    return Neighborhood("frames", longest // 2) if longest > 1 else Neighborhood("self")


def _longest_run(indices: list[int]) -> int:
    """Count the longest run of consecutive indices.

    >>> _longest_run([7, 2, 3, 150, 4])
    3
    """
    ordered = np.unique(np.array(indices, dtype=np.int64))
    starts = np.flatnonzero(np.diff(ordered) != 1) + 1
    return int(np.diff(np.concatenate([[0], starts, [len(ordered)]])).max())


def _vpr_lists(rows: list[Json], queries: int, file: Path) -> list[list[int]]:
    """Return the positives of each query; every query must have exactly one row."""
    lists: dict[int, list[int]] = {}
    try:
        for row in rows:
            if not isinstance(row, list):
                raise TypeError(f"{row!r} is not a row")
            query, positives = index_of(row[0]), row[1]
            if query in lists:
                raise ValueError(f"query {query} appears more than once")
            positives = positives if isinstance(positives, list) else [positives]
            lists[query] = [index_of(value) for value in positives]
        absent = [query for query in range(queries) if query not in lists]
        if absent or len(lists) != queries:
            raise ValueError(f"query {absent[0]} has no row" if absent else f"it has {len(lists)} queries")
    except (TypeError, ValueError, LookupError) as error:
        raise KappaPlaceError(
            f"{file} must contain rows [query, references] for the {queries} queries ({error})."
        ) from None
    return [lists[query] for query in range(queries)]


VPR_BENCH = Reader("vpr-bench", "VPR-Bench: query/, ref/ and ground_truth_new.npy", read_vpr_bench)
