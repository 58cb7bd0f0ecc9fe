"""The content hash of a table: the same for the same content, whatever the file format or the folder."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kappaplace.data.place_images import PlaceImages

_ROWS = 65_536  # fixed: the block size is part of what is hashed


def content_hash(table: PlaceImages) -> str:
    """SHA-256 of name, columns, frame, radius, neighbourhood and given positives; not of root or protocol.

    The name counts because sets of numbered files (0000.jpg, …) may agree in everything else.
    """
    digest = hashlib.sha256()
    for part in _content(table):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _content(table: PlaceImages) -> Iterator[bytes]:
    """The table as canonical bytes: little-endian, one NaN, no negative zero, text joined by NUL."""
    yield f"kappaplace table 1|{table.name}|{table.frame}|{table.radius!r}|{table.neighbourhood}".encode()
    from kappaplace.data.place_images import COLUMNS, OPTIONAL_COLUMNS

    for column in COLUMNS | OPTIONAL_COLUMNS:
        value = getattr(table, column)
        if value is None:
            continue
        yield column.encode()
        for start in range(0, len(value), _ROWS):
            block = value[start : start + _ROWS]
            if isinstance(block.dtype, np.dtypes.StringDType):
                yield "\0".join(block.tolist()).encode("utf-8", "surrogateescape")
            elif block.dtype.kind == "f":
                plain = np.where(np.isnan(block), np.array(np.nan, block.dtype), block) + block.dtype.type(0)
                yield plain.astype(block.dtype.newbyteorder("<")).tobytes()
            else:
                yield block.astype(block.dtype.newbyteorder("<")).tobytes()
    if table.given_positives is not None:
        yield table.given_positives.indptr.astype("<i8").tobytes()
        yield table.given_positives.indices.astype("<i4").tobytes()
