"""Descriptors as they lie on disk, read as float32 a block at a time.

A map holds several segments, in float32, float16, int8 or codes; to a search they are one array that is
never in memory as a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.codes import Codebook

BLOCK = 1 << 16


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


class Rows:
    """Segments as one N×d array of float32: `len`, `shape`, slices and index arrays, nothing else."""

    ndim = 2

    def __init__(self, descriptors: Descriptors, *, turned: bool = False) -> None:
        """``turned``: all are codes of one codebook, read in the space of the codes."""
        if isinstance(descriptors, Quantized | Coded) or not isinstance(descriptors, Sequence):
            descriptors = [descriptors]
        parts = cast(Sequence[Segment], descriptors)
        self.segments: list[Segment] = [_checked(segment) for segment in parts]
        if not self.segments:
            raise KappaPlaceError(
                "There are no references to search: the list of descriptor arrays is empty."
            )
        self._turned = turned
        dims = {_dim(segment, turned) for segment in self.segments}
        if len(dims) > 1:
            said = " and ".join(map(str, sorted(dims)))
            raise KappaPlaceError(f"Descriptors of {said} dimensions cannot be searched together.")
        self.starts = np.cumsum([0, *(len(_array(segment)) for segment in self.segments)])
        self.shape = (int(self.starts[-1]), dims.pop())

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step != 1:
                raise ValueError("Rows are read in order: a slice with a step is not supported")
            return self._slice(start, stop)
        return self._take(np.asarray(rows, np.int64))

    def _slice(self, start: int, stop: int) -> NDArray[np.float32]:
        parts = []
        for segment, first, end in zip(self.segments, self.starts[:-1], self.starts[1:], strict=True):
            low, high = max(start, first), min(stop, end)
            if low < high:
                parts.append(_decode(segment, slice(low - first, high - first), self._turned))
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty((0, self.shape[1]), np.float32)

    def _take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        if len(self.segments) == 1:
            return _decode(self.segments[0], rows, self._turned)
        taken = np.empty((len(rows), self.shape[1]), np.float32)
        owner = np.searchsorted(self.starts, rows, side="right") - 1
        for number in np.unique(owner):
            mine = owner == number
            taken[mine] = _decode(self.segments[number], rows[mine] - self.starts[number], self._turned)
        return taken

    def blocks(self, size: int = BLOCK) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """First row and rows of one block after the other."""
        for start in range(0, len(self), size):
            yield start, self[start : start + size]

    def products(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """Of a few queries with all rows, which are codes, both in the space of the codes; N×R."""
        assert self._turned
        coded = [segment for segment in self.segments if isinstance(segment, Coded)]
        parts = [[part.codebook.products(query, part.codes) for query in queries] for part in coded]
        return np.concatenate(parts, axis=1)

    def in_code_space(self) -> tuple[Codebook, Rows] | None:
        """Where all are codes of one codebook: it, and the rows in the space of the codes, read sooner."""
        books = [segment.codebook for segment in self.segments if isinstance(segment, Coded)]
        if len(books) < len(self.segments) or any(book is not books[0] for book in books):
            return None
        return books[0], Rows(self.segments, turned=True)

    def fingerprint(self) -> str:
        """SHA-256 of the stored bytes, whatever the segments: another type or one changed bit differs."""
        digest = hashlib.sha256(f"{self.shape}".encode())
        for segment in self.segments:
            for array in _stored(segment):
                digest.update(f"{array.dtype}".encode())
                for start in range(0, len(array), BLOCK):
                    digest.update(np.ascontiguousarray(array[start : start + BLOCK]).data)
        return digest.hexdigest()


class Subset:
    """Some rows of `Rows`, in ascending order, as an array of their own."""

    ndim = 2

    def __init__(self, rows: Rows, chosen: NDArray[np.int64]) -> None:
        self.rows, self.chosen = rows, chosen
        self.shape = (len(chosen), rows.shape[1])

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, part: slice) -> NDArray[np.float32]:
        return self.rows[self.chosen[part]]


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


def _decode(segment: Segment, rows: slice | NDArray[np.int64], turned: bool) -> NDArray[np.float32]:
    if isinstance(segment, Quantized):
        return segment.codes[rows].astype(np.float32) * segment.scale[rows][:, None]
    if isinstance(segment, Coded):
        return segment.codebook.decode(segment.codes[rows], turned=turned)
    return np.asarray(segment[rows], np.float32)
