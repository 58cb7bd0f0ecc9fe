"""VPR-Bench folders: ``query/``, ``ref/`` and ``ground_truth_new.npy`` with rows [query, references].

The .npy file contains a pickle, and unpickling can run any code. This reader calls no function of the pickle:
every name in it becomes a `_Standin` that only stores its arguments, and the few forms of an array of lists
are read from these arguments.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

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
from kappaplace.files import reason
from kappaplace.types import Json

_NUMBERS = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)} | {"f4", "f8"}
_LONGEST_RANGE = 10_000_000  # more references than any such dataset has; a damaged file may claim any number


class _Standin:
    """Replaces numpy.ndarray, numpy.dtype, their constructors and range: it only stores its arguments."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Encode(_Standin):
    """Replaces _codecs.encode, which protocol 2 pickles use for bytes."""


class _Unpickler(pickle._Unpickler):
    """Pure-Python unpickler: the C version preallocates a memo of whatever size the file claims.

    A damaged byte can claim four billion entries, which would take 64 GB.
    """

    def find_class(self, module: str, name: str) -> type[_Standin]:
        if module.startswith("numpy") and name in (
            "_reconstruct",
            "scalar",
            "ndarray",
            "dtype",
            "_frombuffer",
        ):
            return type(name, (_Standin,), {})
        if (module, name) == ("_codecs", "encode"):
            return _Encode
        if module in ("builtins", "__builtin__") and name in ("range", "xrange"):
            return type("range", (_Standin,), {})
        raise KappaPlaceError(f"the file requires {module}.{name}, which lists of indices do not need")


def load_rows(file: Path) -> list[Json]:
    """Return the rows of an ``.npy`` file as numbers and lists."""
    try:
        # From memory: a damaged length then requests no more bytes than the file has.
        stream = io.BytesIO(file.read_bytes())
        if not _is_object(stream):
            stream.seek(0)
            return np.load(stream, allow_pickle=False).tolist()
        return _plain(_Unpickler(stream, encoding="latin1").load())
    except Exception as error:  # a damaged pickle can raise any error
        raise KappaPlaceError(
            f"{file} cannot be read safely ({reason(error)}). Convert it to gt.json with a list `positives` "
            "of reference indices per query."
        ) from None


def _is_object(stream: BinaryIO) -> bool:
    version = np.lib.format.read_magic(stream)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return bool(header(stream)[2].hasobject)


def _plain(value: Any) -> Any:
    """Return an unpickled value as numbers and lists."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if not isinstance(value, _Standin):
        return value
    name = type(value).__name__
    if name == "range":
        numbers = range(*(int(a) for a in value.arguments))
        if len(numbers) > _LONGEST_RANGE:
            raise ValueError(f"a range of {len(numbers):,} indices")
        return list(numbers)
    if name == "scalar":
        return _numbers(value.arguments[0], value.arguments[1])[0]
    if name == "_frombuffer":  # protocol 5
        data, kind, shape, order = value.arguments
        return _shaped(_numbers(kind, bytes(data)), [int(n) for n in shape], order == "F")
    if name == "_reconstruct" and value.state is not None:
        _, shape, kind, fortran, data = value.state
        flat = [_plain(item) for item in data] if isinstance(data, list) else _numbers(kind, data)
        return _shaped(flat, [int(n) for n in shape], bool(fortran))
    raise ValueError(f"unexpected {name} in the pickle")


def _numbers(kind: _Standin, data: _Encode | str | bytes) -> list[Json]:
    code = str(kind.arguments[0])
    order = str(kind.state[1]) if kind.state else "|"
    if code not in _NUMBERS:
        raise ValueError(f"numbers of type {code}")
    if isinstance(data, _Encode):
        data = str(data.arguments[0]).encode(str(data.arguments[1]))
    if isinstance(data, str):
        data = data.encode("latin1")
    return np.frombuffer(data, dtype=("<" if order in "|=" else order) + code).tolist()


def _shaped(flat: list[Json], shape: list[int], fortran: bool) -> list[Json]:
    if len(shape) == 1:
        return flat
    if len(shape) != 2 or shape[0] * shape[1] != len(flat):
        raise ValueError(f"an array of shape {tuple(shape)}")
    rows, columns = shape
    if fortran:
        return [[flat[c * rows + r] for c in range(columns)] for r in range(rows)]
    return [flat[r * columns : (r + 1) * columns] for r in range(rows)]


_FILES = ("ground_truth_new.npy", "ground_truth.npy")


def read(folder: str | Path, *, ground_truth: str = "", neighborhood: str = "") -> PlaceImages:
    """Read the images in natural order of their names (2 before 10), which the ground truth refers to.

    Args:
        folder: Folder of the dataset.
        ground_truth: The .npy file. Default: ground_truth_new.npy or ground_truth.npy.
        neighborhood: References of the same place: ``self`` or ``frames:N``. Default: half the longest run
            of consecutive positives, or ``self`` if there is no run.

    Returns:
        The table.
    """
    root = check_folder(folder)
    images = query_and_reference_images(root)
    names = (ground_truth,) if ground_truth else _FILES
    file = next((root / name for name in names if (root / name).is_file()), None)
    if file is None:
        raise KappaPlaceError(f"{root} contains no {' or '.join(names)}.")
    lists = _lists(load_rows(file), len(images.queries), file)
    near = Neighborhood.parse(neighborhood) if neighborhood else _near(lists)
    return query_reference_table(images, lists, near)


def _near(lists: list[list[int]]) -> Neighborhood:
    """Return half the longest run: positives of a place are consecutive, and a later visit is another run."""
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


def _lists(rows: list[Json], queries: int, file: Path) -> list[list[int]]:
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
            f"{file} does not contain rows [query, references] for the {queries} queries ({error})."
        ) from None
    return [lists[query] for query in range(queries)]


READER = Reader(
    "vpr-bench",
    "VPR-Bench: query/, ref/ and ground_truth_new.npy",
    read,
    {
        "ground_truth": "the .npy file (default: ground_truth_new.npy or ground_truth.npy)",
        "neighborhood": "self or frames:N (default: as wide as the positives)",
    },
)
