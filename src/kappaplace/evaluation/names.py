"""Paths of many images without a Python string for each: 2.8 million of them would take half a gigabyte."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray


class ImageNames(Sequence[str]):
    """Some rows of a column of paths, joined with their folder on demand; the column itself is shared."""

    def __init__(self, paths: NDArray[Any], root: str, rows: NDArray[np.int64] | None = None) -> None:
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

    def relative(self, chosen: NDArray[np.int64] | None = None) -> list[str]:
        """Paths without their folder, of all or of some."""
        return self.paths[self.rows if chosen is None else self.rows[chosen]].tolist()

    def keeping(self, chosen: NDArray[np.int64]) -> ImageNames:
        """As many names, but only the chosen ones are known: what a result keeps of a very large map."""
        paths = np.full(len(self), "", np.dtypes.StringDType())
        paths[chosen] = self.paths[self.rows[chosen]]
        return ImageNames(paths, self.root)
