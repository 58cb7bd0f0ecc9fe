"""Many small pieces of bytes in one file, and where each one starts in another: names, thumbnails.

Both files are memory-mapped, so that the name of one reference among ten million costs one page.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kappaplace.maps.files import save_array


def write_blobs(folder: Path, name: str, pieces: Sequence[bytes]) -> None:
    """Write ``NAME.bin`` and ``NAME.starts.npy`` (N+1 offsets)."""
    starts = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum([len(piece) for piece in pieces], out=starts[1:])
    with open(folder / f"{name}.bin", "wb") as stream:
        stream.writelines(pieces)
    save_array(folder / f"{name}.starts.npy", starts)


def blob_files(name: str) -> tuple[str, str]:
    """The two files of a column of blobs."""
    return f"{name}.bin", f"{name}.starts.npy"


class Blobs:
    """One piece of bytes a row."""

    def __init__(self, starts: NDArray[np.int64], data: NDArray[np.uint8]) -> None:
        self.starts, self.data = starts, data

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> bytes:
        return self.data[int(self.starts[row]) : int(self.starts[row + 1])].tobytes()

    def all(self) -> list[bytes]:
        """Every piece, for one pass over the whole file."""
        whole, ends = self.data.tobytes(), self.starts.tolist()
        return [whole[a:b] for a, b in pairwise(ends)]


def map_bytes(file: Path) -> NDArray[np.uint8]:
    """A file as bytes; an empty one cannot be mapped and need not be."""
    if file.stat().st_size == 0:
        return np.empty(0, np.uint8)
    return np.memmap(file, np.uint8, "r")
