"""Columns of a table of images: their types, content hash, and paths that are joined on access."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kappaplace.data.positives import Positives
from kappaplace.errors import KappaPlaceError

Column: TypeAlias = NDArray[Any]
"""One value per row, of the type that `COLUMNS` lists. (NumPy has no scalar type for its strings.)"""
Columns: TypeAlias = Mapping[str, Column]

TEXT = np.dtypes.StringDType()  # 16 bytes per row plus the text itself: ten million paths remain usable
COLUMNS: dict[str, np.dtype] = {
    "paths": TEXT,
    "positions": np.dtype(np.float64),
    "heading": np.dtype(np.float32),
    "timestamp": np.dtype(np.float64),
    "place": np.dtype(np.int64),
    "condition": TEXT,
    "is_query": np.dtype(np.bool_),
}
"""Columns of a table in memory, and their types."""
OPTIONAL_COLUMNS: dict[str, np.dtype] = {
    "frame_number": np.dtype(np.int64),
    "accuracy": np.dtype(np.float32),
}
"""Columns that are None if they are unknown for every row."""
_HASHED_ROWS = 65_536  # fixed, because the hash depends on the block size


def as_column(name: str, values: ArrayLike) -> Column:
    """Convert values to a read-only column of its type; headings are normalized to [0, 360).

    Args:
        name: Name of the column.
        values: One value per row; two for positions.

    Returns:
        The column, a view if the values already have its type.

    Raises:
        KappaPlaceError: If a value does not have the type of the column.
    """
    dtype = (COLUMNS | OPTIONAL_COLUMNS)[name]
    try:
        column = np.asarray(values).astype(dtype, copy=False)
    except (TypeError, ValueError) as error:
        raise KappaPlaceError(
            f"Column {name} cannot be read as {dtype} ({error}). Correct its values."
        ) from None
    if name == "heading":
        column = np.where(np.isfinite(column), np.mod(column, np.float32(360)), np.float32(np.nan))
        column = np.where(column == 360, np.float32(0), column).astype(np.float32, copy=False)
    view = column.view()
    view.flags.writeable = False
    return view


def content_hash(facts: str, columns: Columns, positives: Positives | None) -> str:
    """Return the SHA-256 of a table's content, which does not depend on the file format or the folder.

    Args:
        facts: All other facts that affect the hash, as text.
        columns: The columns.
        positives: Positives that the dataset lists.

    Returns:
        64 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for part in _content(facts, columns, positives):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _content(facts: str, columns: Columns, positives: Positives | None) -> Iterator[bytes]:
    """Yield canonical bytes: little-endian, a single NaN, no negative zero, text joined by NUL."""
    yield facts.encode()
    for name in COLUMNS | OPTIONAL_COLUMNS:
        if name not in columns:
            continue
        yield name.encode()
        values = columns[name]
        for start in range(0, len(values), _HASHED_ROWS):
            block = values[start : start + _HASHED_ROWS]
            if isinstance(block.dtype, np.dtypes.StringDType):
                yield "\0".join(block.tolist()).encode("utf-8", "surrogateescape")
                continue
            if block.dtype.kind == "f":
                block = np.where(np.isnan(block), np.array(np.nan, block.dtype), block) + block.dtype.type(0)
            yield block.astype(block.dtype.newbyteorder("<")).tobytes()
    if positives is not None:
        yield positives.indptr.astype("<i8").tobytes()
        yield positives.indices.astype("<i4").tobytes()


class ImageNames(Sequence[str]):
    """Paths of many images, joined with their folder on access. The column of paths is shared.

    A Python string for each of 2.8 million paths would take half a gigabyte.

    Args:
        paths: Column of paths relative to the folder.
        root: The folder.
        rows: Rows of the column. Default: all.
    """

    def __init__(self, paths: Column, root: str, rows: NDArray[np.int64] | None = None) -> None:
        self.paths, self.root = paths, root
        self.rows = np.arange(len(paths)) if rows is None else rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return ImageNames(self.paths, self.root, self.rows[index])
        path = str(self.paths[self.rows[index]])
        return os.path.join(self.root, path) if path else ""

    def relative(self, indices: NDArray[np.int64] | None = None) -> list[str]:
        """Return paths without their folder.

        Args:
            indices: Indices of the paths. Default: all.

        Returns:
            The paths.
        """
        return self.paths[self.rows if indices is None else self.rows[indices]].tolist()

    def keeping(self, indices: NDArray[np.int64]) -> ImageNames:
        """Return the same number of paths, with all but a few replaced by "".

        A result of a very large map keeps only the paths that it mentions.

        Args:
            indices: Indices of the paths to keep.

        Returns:
            The paths.
        """
        paths = np.full(len(self), "", TEXT)
        paths[indices] = self.paths[self.rows[indices]]
        return ImageNames(paths, self.root)
