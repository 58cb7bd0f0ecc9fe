"""Arrays onto the disk, with the disk's own words where it refuses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class _Plain:
    """NumPy writes into real files past Python, and then a full disk has no error number."""

    def __init__(self, stream: Any) -> None:
        self.write = stream.write


def save_array(file: Path, values: NDArray[Any]) -> None:
    """``np.save`` that raises what the disk says."""
    with open(file, "wb") as stream:
        np.lib.format.write_array(_Plain(stream), np.ascontiguousarray(values), allow_pickle=False)


def why(error: OSError) -> str:
    """An error of the disk in words."""
    return os.strerror(error.errno) if error.errno else str(error)
