"""Stored descriptors, read as float32 block by block.

Storage formats are float32, float16, int8 with one scale per row, and codes of at most 128 bytes (pq). The
segments of a map are read as one array without removed rows, which is never in memory as a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.codes import Codebook

BLOCK = 1 << 16
COARSE = ("int8", "pq")
"""Storage formats that change similarities so much that a calibration for exact descriptors does not apply.
"""


class Quantized(NamedTuple):
    """int8 descriptors with one scale per row: a quarter of the size of float32."""

    codes: NDArray[np.int8]
    """N×d."""
    scale: NDArray[np.float32]
    """Factor for each row (N)."""


class Coded(NamedTuple):
    """Product-quantized descriptors: at most 128 bytes each."""

    codes: NDArray[np.uint8]
    """N×width of the codebook."""
    codebook: Codebook
    """Codebook that the codes belong to."""


Segment: TypeAlias = NDArray | Quantized | Coded
Descriptors: TypeAlias = Segment | Sequence[Segment]
"""An N×d array (possibly a memory map), a `Quantized` or `Coded` pair, or a list of these in order."""
Rows: TypeAlias = NDArray[np.int64] | slice
"""Row numbers, or a slice."""


def quantize(descriptors: NDArray[np.floating]) -> Quantized:
    """Round unit vectors to int8; the scale of each row restores unit length, so that products are cosines.

    Args:
        descriptors: Unit vectors N×d.

    Returns:
        Codes and scales.

    Raises:
        KappaPlaceError: If the descriptors are not a finite N×d array.
    """
    wide = np.asarray(descriptors, np.float32)
    if wide.ndim != 2 or not np.isfinite(wide).all():
        raise KappaPlaceError(f"Descriptors must be finite and N×d, got shape {wide.shape}. Check the model.")
    largest = np.abs(wide).max(axis=1, keepdims=True)
    codes = np.rint(wide / np.where(largest > 0, largest, 1) * 127).astype(np.int8)
    length = np.linalg.norm(codes.astype(np.float32), axis=1)
    return Quantized(codes, (1 / np.where(length > 0, length, 1)).astype(np.float32))


def encode(descriptors: NDArray[np.floating], storage: str, codebook: Codebook | None = None) -> Segment:
    """Convert descriptors to a storage format.

    Args:
        descriptors: Unit vectors N×d.
        storage: float32, float16, int8 or pq.
        codebook: Codebook for pq.

    Returns:
        The segment to store.

    Raises:
        KappaPlaceError: If a descriptor is not finite.
    """
    values = np.ascontiguousarray(descriptors, np.float32)
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values).all(axis=1)))
        raise KappaPlaceError(
            f"The descriptor of row {row} is NaN or infinite. Check the model and the image."
        )
    if storage == "int8":
        return quantize(values)
    if storage == "pq":
        assert codebook is not None  # a manifest without a codebook is rejected
        return Coded(codebook.encode(values), codebook)
    return values if storage == "float32" else values.astype(np.float16)


def decode(segment: Segment, rows: Rows = slice(None), *, turned: bool = False) -> NDArray[np.float32]:
    """Return rows of a segment as float32.

    Args:
        segment: Stored descriptors.
        rows: Row numbers or a slice. Default: all.
        turned: Return codes in the space of the codes.

    Returns:
        Descriptors, one per row.
    """
    if isinstance(segment, Quantized):
        return segment.codes[rows].astype(np.float32) * segment.scale[rows][:, None]
    if isinstance(segment, Coded):
        return segment.codebook.decode(segment.codes[rows], turned=turned)
    return np.asarray(segment[rows], np.float32)


class Columns:
    """Segments as one R×d array of float32, read by slices and by arrays of row numbers.

    Args:
        descriptors: Segments in order.
        live: Rows that are references, ascending; the others were removed and are skipped. Default: all.
        dim: Dimension of the descriptors, if there may be no segment.
        checks: Function per segment that is called with its rows before they are read. Default: none.
        turned: Whether to read in the space of the codes. All segments must then be codes of the same
            codebook.

    Raises:
        KappaPlaceError: If a segment is not an array of descriptors, or if dimensions differ.
    """

    ndim = 2
    dtype = np.dtype(np.float32)

    def __init__(
        self,
        descriptors: Descriptors,
        live: NDArray[np.int64] | None = None,
        *,
        dim: int | None = None,
        checks: Sequence[Callable[[Rows], None]] | None = None,
        turned: bool = False,
    ) -> None:
        if isinstance(descriptors, Quantized | Coded) or not isinstance(descriptors, Sequence):
            descriptors = [descriptors]
        self.segments = [_checked(segment) for segment in cast(Sequence[Segment], descriptors)]
        if not self.segments and dim is None:
            raise KappaPlaceError(
                "There are no references to search, because the list of arrays is empty. Pass at least one "
                "array."
            )
        dims = {_dim(segment, turned) for segment in self.segments} or {cast(int, dim)}
        if len(dims) > 1:
            numbers = " and ".join(map(str, sorted(dims)))
            raise KappaPlaceError(f"All descriptors must have the same dimension, got {numbers}.")
        self.starts = np.cumsum([0, *(len(_array(segment)) for segment in self.segments)]).astype(np.int64)
        self.live, self.turned, self.whole, self.checks = live, turned, True, checks
        self.shape = (int(self.starts[-1]) if live is None else len(live), dims.pop())

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Rows) -> NDArray[np.float32]:
        if self.live is not None:
            return self._take(self.live[rows])
        if not isinstance(rows, slice):
            return self._take(np.asarray(rows, np.int64))
        start, stop, step = rows.indices(len(self))
        return self._slice(start, stop) if step == 1 else self._take(np.arange(start, stop, step))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray:
        return np.asarray(self[:], dtype)

    def only(self, rows: NDArray[np.int64]) -> Columns:
        """Select references.

        Args:
            rows: Numbers of the references.

        Returns:
            These references as a separate array.
        """
        live = rows if self.live is None else self.live[rows]
        part = self._with(live, self.turned)
        part.whole = False
        return part

    def with_removed(self) -> Columns:
        """Return all rows, including removed references.

        Returns:
            All rows as a separate array.
        """
        return self._with(None, self.turned)

    def _with(self, live: NDArray[np.int64] | None, turned: bool) -> Columns:
        return Columns(self.segments, live, dim=self.shape[1], checks=self.checks, turned=turned)

    def blocks(self, size: int = BLOCK) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Iterate over blocks of rows.

        Args:
            size: Rows per block.

        Yields:
            First row number and rows of each block.
        """
        for start in range(0, len(self), size):
            yield start, self[start : start + size]

    def beside(self, queries: NDArray[np.float32]) -> tuple[NDArray[np.float32], Columns]:
        """Return queries and references in a common space.

        If all references are codes, the few queries are rotated into the space of the codes instead of all
        references out of it. Similarities do not change.

        Args:
            queries: Descriptors of queries, N×d.

        Returns:
            Queries and references, ready to be compared.
        """
        if self._in_code_space is None:
            return queries, self
        book, columns = self._in_code_space
        return book.turn(queries), columns

    @cached_property
    def _in_code_space(self) -> tuple[Codebook, Columns] | None:
        books = [segment.codebook for segment in self.segments if isinstance(segment, Coded)]
        mixed = len(books) < len(self.segments) or any(book is not books[0] for book in books)
        if self.turned or not books or mixed:
            return None
        columns = self._with(self.live, True)
        columns.whole = self.whole
        return books[0], columns

    def products(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the inner products of a few queries with all references by table lookup.

        Args:
            queries: Queries in the space of the codes, N×m. The references must be in this space, too.

        Returns:
            Products, N×R.
        """
        assert self.turned
        for check in self.checks or ():
            check(slice(None))
        segments = [segment for segment in self.segments if isinstance(segment, Coded)]
        parts = [[part.codebook.products(query, part.codes) for query in queries] for part in segments]
        whole = np.concatenate(parts, axis=1)
        return whole if self.live is None else whole[:, self.live]

    def fingerprint(self) -> str:
        """Return the SHA-256 of the stored bytes; it does not depend on the division into segments.

        Returns:
            64 hexadecimal digits.
        """
        digest = hashlib.sha256(f"{self.shape}".encode())
        for segment in self.segments:
            for array in _stored(segment):
                digest.update(f"{array.dtype}".encode())
                for start in range(0, len(array), BLOCK):
                    digest.update(np.ascontiguousarray(array[start : start + BLOCK]).data)
        return digest.hexdigest()

    def _slice(self, start: int, stop: int) -> NDArray[np.float32]:
        parts = []
        for number, (first, end) in enumerate(pairwise(self.starts)):
            low, high = max(start, first), min(stop, end)
            if low < high:
                parts.append(self._decode(number, slice(low - first, high - first)))
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty((0, self.shape[1]), np.float32)

    def _take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        flat, shape = rows.reshape(-1), (*rows.shape, self.shape[1])
        if len(self.segments) == 1:
            return self._decode(0, flat).reshape(shape)
        values = np.empty((len(flat), self.shape[1]), np.float32)
        owner = np.searchsorted(self.starts, flat, side="right") - 1
        for number in np.unique(owner).tolist():
            mine = owner == number
            values[mine] = self._decode(number, flat[mine] - self.starts[number])
        return values.reshape(shape)

    def _decode(self, number: int, rows: Rows) -> NDArray[np.float32]:
        if self.checks is not None:
            self.checks[number](rows)
        return decode(self.segments[number], rows, turned=self.turned)


def as_columns(descriptors: Descriptors | Columns) -> Columns:
    """Return descriptors as `Columns`."""
    return descriptors if isinstance(descriptors, Columns) else Columns(descriptors)


def _array(segment: Segment) -> NDArray:
    return segment.codes if isinstance(segment, Quantized | Coded) else segment


def _dim(segment: Segment, turned: bool) -> int:
    if isinstance(segment, Coded):
        return int(segment.codebook.rotation.shape[1 if turned else 0])
    return int(_array(segment).shape[1])


def _stored(segment: Segment) -> tuple[NDArray, ...]:
    if isinstance(segment, Coded):
        return segment.codes, segment.codebook.to_array()
    return segment if isinstance(segment, Quantized) else (segment,)


def _checked(segment: Segment) -> Segment:
    array = _array(segment)
    if not isinstance(array, np.ndarray) or array.ndim != 2:
        raise KappaPlaceError("Descriptors must be an N×d array with one row per reference.")
    if isinstance(segment, Quantized):
        if array.dtype != np.int8 or segment.scale.shape != (len(array),):
            raise KappaPlaceError(
                f"Quantized descriptors must be int8 with one scale per row, got {array.dtype} {array.shape} "
                f"and scales of shape {segment.scale.shape}."
            )
    elif isinstance(segment, Coded):
        if array.dtype != np.uint8 or array.shape[1] != segment.codebook.width:
            raise KappaPlaceError(
                f"Codes of this codebook must have {segment.codebook.width} bytes per row (uint8), got "
                f"{array.dtype} {array.shape}."
            )
    elif not np.issubdtype(array.dtype, np.floating):
        raise KappaPlaceError(
            f"Descriptors must be float32 or float16, got {array.dtype}. For int8, pass Quantized."
        )
    return segment
