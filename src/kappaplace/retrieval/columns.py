"""Descriptors as they are stored, read as float32 a block at a time.

They are kept as they are (float32), in half the bytes (float16), in a quarter (int8 with one scale per row),
or as codes of at most 128 bytes (pq). A map has several segments; to a reader they are one array that is
never in memory as a whole, less the rows that were removed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.codes import Codebook

BLOCK = 1 << 16
COARSE = ("int8", "pq")
"""Storage that rounds so much that similarities are no longer those a calibration was fitted on."""


class Quantized(NamedTuple):
    """int8 descriptors with one scale a row: a quarter of float32."""

    codes: NDArray[np.int8]
    scale: NDArray[np.float32]


class Coded(NamedTuple):
    """Product-quantised descriptors: at most 128 bytes each."""

    codes: NDArray[np.uint8]
    codebook: Codebook


Segment: TypeAlias = NDArray | Quantized | Coded
Descriptors: TypeAlias = Segment | Sequence[Segment]
"""An N×d array (a memory map will do), a `Quantized` or `Coded` pair, or a list of these, one after the
other."""


def quantize(descriptors: NDArray[np.floating]) -> Quantized:
    """Unit vectors as int8; the scale gives each row its unit length back, so that products are cosines."""
    wide = np.asarray(descriptors, np.float32)
    if wide.ndim != 2 or not np.isfinite(wide).all():
        raise KappaPlaceError(
            f"Descriptors to round must be finite and N×d, got the shape {wide.shape}; check the model."
        )
    largest = np.abs(wide).max(axis=1, keepdims=True)
    codes = np.rint(wide / np.where(largest > 0, largest, 1) * 127).astype(np.int8)
    length = np.linalg.norm(codes.astype(np.float32), axis=1)
    return Quantized(codes, (1 / np.where(length > 0, length, 1)).astype(np.float32))


def encode(descriptors: NDArray[np.floating], storage: str, codebook: Codebook | None = None) -> Segment:
    """Descriptors as a map of this storage (float32, float16, int8, pq) keeps them."""
    values = np.ascontiguousarray(descriptors, np.float32)
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values).all(axis=1)))
        raise KappaPlaceError(
            f"The descriptor of row {row} is NaN or infinite; check the model and the image."
        )
    if storage == "int8":
        return quantize(values)
    if storage == "pq":
        assert codebook is not None  # a manifest without one is refused
        return Coded(codebook.encode(values), codebook)
    return values if storage == "float32" else values.astype(np.float16)


def decode(segment: Segment, rows: Any = slice(None), *, turned: bool = False) -> NDArray[np.float32]:
    """Some rows (a slice or their numbers) as float32; ``turned``: codes in the space of the codes."""
    if isinstance(segment, Quantized):
        return segment.codes[rows].astype(np.float32) * segment.scale[rows][:, None]
    if isinstance(segment, Coded):
        return segment.codebook.decode(segment.codes[rows], turned=turned)
    return np.asarray(segment[rows], np.float32)


class Columns:
    """Segments as one R×d array of float32, read by slices and by arrays of numbers.

    ``live`` says which rows count as references, in ascending order; the others, which were removed, are
    skipped. ``dim`` is needed only where there may be no segment at all. ``turned``: all are codes of one
    codebook, read in the space of the codes.
    """

    ndim = 2
    dtype = np.dtype(np.float32)

    def __init__(
        self,
        descriptors: Descriptors,
        live: NDArray[np.int64] | None = None,
        *,
        dim: int | None = None,
        turned: bool = False,
    ) -> None:
        if isinstance(descriptors, Quantized | Coded) or not isinstance(descriptors, Sequence):
            descriptors = [descriptors]
        self.segments = [_checked(segment) for segment in cast(Sequence[Segment], descriptors)]
        if not self.segments and dim is None:
            raise KappaPlaceError(
                "There are no references to search: the list of descriptor arrays is empty."
            )
        dims = {_dim(segment, turned) for segment in self.segments} or {cast(int, dim)}
        if len(dims) > 1:
            said = " and ".join(map(str, sorted(dims)))
            raise KappaPlaceError(f"Descriptors of {said} dimensions cannot be searched together.")
        self.starts = np.cumsum([0, *(len(_array(segment)) for segment in self.segments)]).astype(np.int64)
        self.live, self.turned, self.whole = live, turned, True
        self.shape = (int(self.starts[-1]) if live is None else len(live), dims.pop())

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: Any) -> NDArray[np.float32]:
        if self.live is not None:
            return self._take(self.live[chosen])
        if not isinstance(chosen, slice):
            return self._take(np.asarray(chosen, np.int64))
        start, stop, step = chosen.indices(len(self))
        return self._slice(start, stop) if step == 1 else self._take(np.arange(start, stop, step))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype)

    def only(self, chosen: NDArray[np.int64]) -> Columns:
        """Some of the references as an array of their own."""
        part = Columns(
            self.segments,
            chosen if self.live is None else self.live[chosen],
            dim=self.shape[1],
            turned=self.turned,
        )
        part.whole = False
        return part

    def with_removed(self) -> Columns:
        """All rows, those removed included."""
        return Columns(self.segments, dim=self.shape[1], turned=self.turned)

    def blocks(self, size: int = BLOCK) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """First row and rows of one block after the other."""
        for start in range(0, len(self), size):
            yield start, self[start : start + size]

    def beside(self, queries: NDArray[np.float32]) -> tuple[NDArray[np.float32], Columns]:
        """Queries and these, ready to be compared: codes in their own space, into which the few queries are
        turned instead of all references back. Similarities are the same."""
        if self._in_code_space is None:
            return queries, self
        book, columns = self._in_code_space
        return book.turn(queries), columns

    @cached_property
    def _in_code_space(self) -> tuple[Codebook, Columns] | None:
        books = [segment.codebook for segment in self.segments if isinstance(segment, Coded)]
        if (
            self.turned
            or not books
            or len(books) < len(self.segments)
            or any(b is not books[0] for b in books)
        ):
            return None
        columns = Columns(self.segments, self.live, turned=True)
        columns.whole = self.whole
        return books[0], columns

    def products(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """Of a few queries with all references, which are codes, both in the space of the codes; N×R.

        They are looked up instead of decoded.
        """
        assert self.turned
        coded = [segment for segment in self.segments if isinstance(segment, Coded)]
        parts = [[part.codebook.products(query, part.codes) for query in queries] for part in coded]
        whole = np.concatenate(parts, axis=1)
        return whole if self.live is None else whole[:, self.live]

    def fingerprint(self) -> str:
        """SHA-256 of the stored bytes, whatever the segments: another type or one changed bit differs."""
        digest = hashlib.sha256(f"{self.shape}".encode())
        for segment in self.segments:
            for array in _stored(segment):
                digest.update(f"{array.dtype}".encode())
                for start in range(0, len(array), BLOCK):
                    digest.update(np.ascontiguousarray(array[start : start + BLOCK]).data)
        return digest.hexdigest()

    def _slice(self, start: int, stop: int) -> NDArray[np.float32]:
        parts = []
        for segment, first, end in zip(self.segments, self.starts[:-1], self.starts[1:], strict=True):
            low, high = max(start, first), min(stop, end)
            if low < high:
                parts.append(decode(segment, slice(low - first, high - first), turned=self.turned))
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty((0, self.shape[1]), np.float32)

    def _take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        flat, shape = rows.reshape(-1), (*rows.shape, self.shape[1])
        if len(self.segments) == 1:
            return decode(self.segments[0], flat, turned=self.turned).reshape(shape)
        taken = np.empty((len(flat), self.shape[1]), np.float32)
        owner = np.searchsorted(self.starts, flat, side="right") - 1
        for number in np.unique(owner).tolist():
            mine = owner == number
            taken[mine] = decode(self.segments[number], flat[mine] - self.starts[number], turned=self.turned)
        return taken.reshape(shape)


def as_columns(descriptors: Descriptors | Columns) -> Columns:
    """Descriptors as `Columns`, if they are not yet."""
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
        raise KappaPlaceError("Descriptors must be an N×d array, one row a reference.")
    if isinstance(segment, Quantized):
        if array.dtype != np.int8 or segment.scale.shape != (len(array),):
            raise KappaPlaceError(
                f"Quantized descriptors are int8 with one scale a row, got {array.dtype} {array.shape} "
                f"and scales of shape {segment.scale.shape}."
            )
    elif isinstance(segment, Coded):
        if array.dtype != np.uint8 or array.shape[1] != segment.codebook.width:
            raise KappaPlaceError(
                f"Codes are {segment.codebook.width} bytes a row for this codebook, got {array.dtype} "
                f"{array.shape}."
            )
    elif not np.issubdtype(array.dtype, np.floating):
        raise KappaPlaceError(
            f"Descriptors must be float32 or float16, got {array.dtype}; int8 needs its scales (Quantized)."
        )
    return segment
