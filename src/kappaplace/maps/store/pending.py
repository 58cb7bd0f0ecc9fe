"""Embeddings that wait until they fill a segment, so that a killed build embeds at most one block again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from kappaplace.files import DAMAGED_ARRAYS, make_folder, replace_file
from kappaplace.maps.store.segments import COLUMNS, Blobs, Rows


class Pending:
    """Blocks of embeddings on disk, told by the name of the image and by what its file was."""

    def __init__(self, folder: Path, key: str) -> None:
        """``key`` stands for the model and its preprocessing: blocks of another one are of no use."""
        self.folder, self.key = folder, key
        self._known: dict[str, tuple[Rows, int]] = {}
        self._next = 0
        for file in sorted(folder.glob("*.npz")) if folder.is_dir() else []:
            self._next = max(self._next, int(file.stem) + 1 if file.stem.isdigit() else 0)
            rows = _read(file, key)
            if rows is not None:
                self._known |= {name: (rows, i) for i, name in enumerate(rows.names)}

    def find(self, name: str) -> tuple[Rows, int] | None:
        """The block that holds an image, and its row there."""
        return self._known.get(name)

    def keep(self, rows: Rows) -> None:
        """Write a block; it need not wait for the disk, for it can be made again."""
        make_folder(self.folder)
        pieces = list(rows.thumbnails or [])
        packed: dict[str, Any] = {
            "names": np.frombuffer("\0".join(rows.names).encode("utf-8", "surrogateescape"), np.uint8),
            "thumbnails": np.frombuffer(b"".join(pieces), np.uint8),
            "starts": np.concatenate([[0], np.cumsum([len(p) for p in pieces])]).astype(np.int64),
            "has_thumbnails": np.array(rows.thumbnails is not None),
            "key": np.array(self.key),
        }
        arrays = {c: getattr(rows, c) for c in COLUMNS}

        def write(part: Path) -> None:
            with open(part, "wb") as stream:
                np.savez(stream, **packed, **arrays)

        replace_file(self.folder / f"{self._next:06d}.npz", write, sync=False)
        self._next += 1

    def clear(self) -> None:
        """What waited is in a segment now."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._known, self._next = {}, 0


def _read(file: Path, key: str) -> Rows | None:
    """A block that is whole and of the same model, else nothing: it is made again."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            if str(stored["key"]) != key:
                return None
            names = stored["names"].tobytes().decode("utf-8", "surrogateescape").split("\0")
            small = Blobs(stored["starts"], stored["thumbnails"]) if bool(stored["has_thumbnails"]) else None
            columns = {column: stored[column] for column in COLUMNS}
            rows = Rows(names, **columns, thumbnails=None if small is None else small.all())
    except DAMAGED_ARRAYS:
        return None
    whole = all(len(getattr(rows, c)) == len(names) for c in COLUMNS)
    return rows if whole else None


def picked(found: list[tuple[Rows, int]]) -> Rows:
    """Some rows of some blocks, in this order."""
    return Rows.join([rows.take(np.array([i], np.int64)) for rows, i in found])
