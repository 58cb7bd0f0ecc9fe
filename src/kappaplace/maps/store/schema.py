"""Schema of a map's files: types, shapes and ranges, checked when the map is opened, read and verified."""

from __future__ import annotations

import hashlib
import math
import zlib
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kappaplace.files import BLOCK
from kappaplace.maps.store.manifest import FileRecord, Manifest, SegmentRecord

Column: TypeAlias = NDArray[Any]
"""Type and width of a column of numbers, which has one row per reference."""
TYPES: dict[str, tuple[str, tuple[int, ...]]] = {
    "kappa": ("float32", ()),
    "poses": ("float64", (4,)),
    "routes": ("int64", (2,)),
    "stats": ("int64", (2,)),
    "digests": ("uint8", (16,)),
    "keys": ("uint64", ()),
    "scale": ("float32", ()),
    "names.starts": ("int64", ()),
    "thumbnails.starts": ("int64", ()),
}
"""Type and width of each column, apart from descriptors, which depend on the map."""
PATCH_TYPES = {"none": "uint8", "compact": "uint8", "full": "float16"}
DESCRIPTORS = {"float32": "float32", "float16": "float16", "int8": "int8", "pq": "uint8"}
_HEADER = (64, 4096)
"""Smallest and largest header of an .npy file in bytes."""


def expected(column: str, manifest: Manifest, count: int) -> tuple[str, tuple[int, ...]]:
    """Return type and shape of a column; a width of −1 depends on another file."""
    if column == "descriptors":
        width = -1 if manifest.storage == "pq" else manifest.model.dim
        return DESCRIPTORS[manifest.storage], (count, width)
    if column == "patches":
        return PATCH_TYPES[manifest.patches], (count, *[-1] * (3 if manifest.patches == "full" else 1))
    dtype, others = TYPES[column]
    return dtype, (count + column.endswith(".starts"), *others)


def wrong_file(record: SegmentRecord, manifest: Manifest) -> str:
    """Return a message about a file that a segment does not have, or whose size does not fit its rows."""
    absent = set() if manifest.storage == "int8" else {"scale.npy"}
    small = {"thumbnails.starts.npy", "thumbnails.bin"}
    absent |= set() if small & set(record.files) else small
    names = {"descriptors.npy", "names.bin", "thumbnails.bin", *(f"{column}.npy" for column in TYPES)}
    for name in sorted(names - absent):
        if name not in record.files:
            return f"The segment {record.name} has no {name}"
        if name.endswith(".npy"):
            dtype, shape = expected(name.removesuffix(".npy"), manifest, record.count)
            header = record.files[name].size - np.dtype(dtype).itemsize * math.prod(shape)
            if -1 not in shape and not _HEADER[0] <= header <= _HEADER[1]:
                return f"{name} of the segment {record.name} cannot have {record.count:,} references"
    return ""


def columns_of(record: SegmentRecord) -> list[str]:
    """Return the names of the numeric columns of a segment."""
    return [column for column in ("descriptors", "patches", *TYPES) if f"{column}.npy" in record.files]


def check_column(column: str, array: Column, manifest: Manifest, count: int, data_size: int = 0) -> None:
    """Check a column of a segment.

    Args:
        column: Name of the column.
        array: Values of the column.
        manifest: Manifest of the map.
        count: Number of references of the segment.
        data_size: Size of the file that offsets refer to.

    Raises:
        ValueError: If type, shape or range differ from what the manifest implies.
    """
    dtype, shape = expected(column, manifest, count)
    fits = array.ndim == len(shape) and all(n in (-1, m) for n, m in zip(shape, array.shape, strict=True))
    if array.dtype != np.dtype(dtype) or not fits:
        text = "×".join("any" if n < 0 else str(n) for n in shape)
        raise ValueError(f"it has {array.dtype} of shape {array.shape} instead of {dtype} of {text}")
    if not array.flags.c_contiguous:
        raise ValueError("its rows are not stored one after the other")
    if column.endswith(".starts") and (array[0] != 0 or array[-1] != data_size or (np.diff(array) < 0).any()):
        raise ValueError("its offsets do not fit the file that they refer to")
    if column in ("kappa", "scale") and (array <= 0).any():
        raise ValueError("it has values that are zero or below")
    if column == "scale" and not np.isfinite(array).all():
        raise ValueError("it has values that are not finite")
    if column == "poses":
        if np.isinf(array).any():
            raise ValueError("it has infinite values")
        if has_half_positions(array):
            raise ValueError("it has positions with one coordinate only")


def has_half_positions(poses: NDArray[np.float64]) -> bool:
    """Return whether a position has only one of its two coordinates."""
    finite = np.isfinite(poses[:, :2])
    return bool((finite[:, 0] != finite[:, 1]).any())


def check_extra(kind: str, array: Column, manifest: Manifest) -> None:
    """Check an array next to the segments: ``removed``, ``sample`` or ``distinctiveness``.

    Raises:
        ValueError: If type, shape or range differ from what the manifest implies.
    """
    extra = getattr(manifest, kind)
    dtype = np.dtype(np.float32 if kind == "distinctiveness" else np.int64)
    if array.dtype != dtype or array.ndim != 1:
        raise ValueError(f"it has {array.dtype} of shape {array.shape} instead of a list of {dtype}")
    if kind == "distinctiveness":
        if len(array) < extra.rows or np.isposinf(array).any():
            raise ValueError(f"it does not have a similarity for each of {extra.rows:,} references")
        return
    if not len(array) or (kind == "removed" and len(array) != extra.rows):
        raise ValueError(f"it lists {len(array):,} references")
    ascending = not (np.diff(array) <= 0).any()
    if not (ascending and array[0] >= 0 and array[-1] < manifest.rows):
        raise ValueError("it lists rows that the map does not have, or its rows are not in ascending order")


class Guard:
    """Checksums of a file's blocks, which are compared when a block is first read.

    Args:
        data: Bytes of the file.
        record: Record of the file. A file of format 2 has no block checksums: a small file is checked as a
            whole, a large file only by `verify`.
    """

    def __init__(self, data: NDArray[np.uint8], record: FileRecord) -> None:
        self.data, self.record = data, record
        self.new = np.ones(len(record.blocks) or int(0 < record.size <= BLOCK), bool)
        """Blocks that were not read yet."""
        self.is_done = not self.new.any()

    def check(self, first: NDArray[np.int64] | None = None, last: NDArray[np.int64] | None = None) -> None:
        """Check the blocks of some bytes.

        Args:
            first: First bytes of pieces that are shorter than a block. Default: check the whole file.
            last: Last bytes of the pieces.

        Raises:
            ValueError: If a block has changed.
        """
        if self.is_done:
            return
        blocks = np.flatnonzero(self.new)
        if first is not None and last is not None:
            blocks = np.unique(np.concatenate([first // BLOCK, last // BLOCK]))
            blocks = blocks[self.new[blocks]]
        for block in blocks.tolist():
            part = self.data[block * BLOCK : (block + 1) * BLOCK].data
            if self.record.blocks:
                same = zlib.crc32(part) == self.record.blocks[block]
            else:
                same = hashlib.sha256(part).hexdigest() == self.record.sha256
            if not same:
                raise ValueError("wrong checksum: some of its bytes have changed")
            self.new[block] = False
        self.is_done = not self.new.any()
