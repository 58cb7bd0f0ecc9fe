"""VPR-Bench folders: ``query/``, ``ref/`` and ``ground_truth_new.npy`` with rows [query, references].

Lists of indices out of an ``.npy`` file of dtype object, without running the pickle inside it.

Such files hold a pickle, and unpickling runs whatever the file says. Here nothing of NumPy or Python is
called: every name in the pickle is answered by an inert stand-in that only remembers its arguments, and the
few shapes that an array of lists can take are read from those memories.
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
    existing_folder,
    index_of,
    query_and_reference_images,
    query_reference_table,
)
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.files import reason

_NUMBERS = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)} | {"f4", "f8"}
_LONGEST_RANGE = 10_000_000  # more references than any such set has; a damaged file may claim any number


class _Standin:
    """Answers for numpy.ndarray, numpy.dtype, their makers and range: remembers, does nothing."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Encode(_Standin):
    """Answers for _codecs.encode, by which protocol 2 pickles write bytes."""


class _Unpickler(pickle._Unpickler):
    """The unpickler written in Python: the one in C makes room for as many memories as the file claims.

    A damaged byte can claim four billion, for which it fills 64 GB; here a memory costs what it holds.
    """

    def find_class(self, module: str, name: str) -> Any:
        known = {"_reconstruct", "scalar", "ndarray", "dtype", "_frombuffer"}
        if module.startswith("numpy") and name in known:
            return type(name, (_Standin,), {})
        if (module, name) == ("_codecs", "encode"):
            return _Encode
        if module in ("builtins", "__builtin__") and name in ("range", "xrange"):
            return type("range", (_Standin,), {})
        raise KappaPlaceError(f"the file asks for {module}.{name}, which no list of indices needs")


def load_rows(file: Path) -> list[Any]:
    """The rows of an ``.npy`` file as plain numbers and lists."""
    try:
        # From memory: a damaged length then asks for no more bytes than the file has.
        stream = io.BytesIO(file.read_bytes())
        if not _is_object(stream):
            stream.seek(0)
            return np.load(stream, allow_pickle=False).tolist()
        return _plain(_Unpickler(stream, encoding="latin1").load())
    except Exception as error:  # a damaged pickle raises whatever its bytes happen to ask for
        raise KappaPlaceError(
            f"{file} cannot be read safely ({reason(error)}): convert it to gt.json with a list `positives` "
            "of reference indices a query."
        ) from None


def _is_object(stream: BinaryIO) -> bool:
    version = np.lib.format.read_magic(stream)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return bool(header(stream)[2].hasobject)


def _plain(value: Any) -> Any:
    """A remembered object as numbers and lists."""
    if isinstance(value, (list, tuple)):
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


def _numbers(kind: _Standin, data: Any) -> list[Any]:
    code = str(kind.arguments[0])
    order = str(kind.state[1]) if kind.state else "|"
    if code not in _NUMBERS:
        raise ValueError(f"numbers of kind {code}")
    if isinstance(data, _Encode):
        data = str(data.arguments[0]).encode(str(data.arguments[1]))
    if isinstance(data, str):
        data = data.encode("latin1")
    return np.frombuffer(data, dtype=("<" if order in "|=" else order) + code).tolist()


def _shaped(flat: list[Any], shape: list[int], fortran: bool) -> list[Any]:
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
    """Images in natural order of their names (2 before 10), as the ground truth counts them.

    ``neighborhood`` is ``self`` or ``frames:N``; by default it is read off the ground truth: the number of
    frames that an unbroken run of positives reaches to either side, or the image itself where none has two.
    """
    root = existing_folder(folder)
    images = query_and_reference_images(root)
    names = (ground_truth,) if ground_truth else _FILES
    file = next((root / name for name in names if (root / name).is_file()), None)
    if file is None:
        raise KappaPlaceError(f"{root} holds no {' or '.join(names)}.")
    lists = _lists(load_rows(file), len(images.queries), file)
    near = Neighborhood.parse(neighborhood) if neighborhood else _near(lists)
    return query_reference_table(images, lists, near)


def _near(lists: list[list[int]]) -> Neighborhood:
    """Positives of one place follow each other; a second visit, far off in the order, widens none."""
    longest = max((_longest_run(row) for row in lists), default=0)
    return Neighborhood("frames", longest // 2) if longest > 1 else Neighborhood("self")


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
        "neighborhood": "self or frames:N (default: as wide as the positives)",
    },
)
