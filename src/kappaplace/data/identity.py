"""Identify image files by size, modification time and a hash of their content.

`same_file` compares a file with its record. `image_digests` reads the content of many files once and records
it by path, size and time. A folder that was moved or copied is therefore recognized without embedding its
images again, and a replaced file is detected.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.files import DAMAGED_ARRAYS, make_folder, replace_file, why
from kappaplace.progress import track

DIGEST = np.dtype("V16")  # 128 bits: no two images have the same digest by accident
SAVE_EVERY = 1 << 16  # files between two saves: at most this many are read again after a process is killed
CHUNK = 256
_THREADS = 8  # reading is limited by the disk, not by cores


def file_stats(paths: Sequence[str]) -> NDArray[np.int64]:
    """Return size and modification time of each file, N×2; −1 for a missing file."""
    stats = np.full((len(paths), 2), -1, np.int64)
    for i, path in enumerate(paths):
        try:
            stat = os.stat(path)
        except OSError:
            continue
        stats[i] = stat.st_size, stat.st_mtime_ns
    return stats


def file_digest(path: str) -> NDArray[np.uint8]:
    """Return the hash of a file's content, 16 bytes; zeros if it cannot be read."""
    try:
        return np.frombuffer(_content_digest(path), np.uint8)
    except OSError:
        return np.zeros(DIGEST.itemsize, np.uint8)


def same_file(
    path: str, current: NDArray[np.int64], recorded: NDArray[np.int64], digest: NDArray[np.uint8]
) -> bool:
    """Return whether a file is unchanged: by size and time, or by its content if only the time differs.

    Args:
        path: The file.
        current: Current size and modification time of the file, from `file_stats`.
        recorded: Recorded size and modification time of the file.
        digest: Recorded digest of the content of the file.

    Returns:
        Whether the file is unchanged.
    """
    if bool((current == recorded).all()):
        return True
    return int(current[0]) == int(recorded[0]) >= 0 and bool((file_digest(path) == digest).all())


def image_digests(paths: Sequence[str], folder: Path) -> NDArray[np.void]:
    """Return a digest of the content of each file.

    Args:
        paths: The files.
        folder: Folder that stores the digests for the next call.

    Returns:
        16 bytes per file.

    Raises:
        KappaPlaceError: If a file does not exist or cannot be read.
    """
    record = make_folder(folder) / f"{_list_digest(paths)}.npz"
    stats = file_stats(paths)
    for row in np.flatnonzero(stats[:, 0] < 0)[:1].tolist():
        raise KappaPlaceError(
            f"No image file at {paths[row]}. If the images have moved, import the table again or pass --root."
        )
    digests, valid = _load(record, stats)
    missing = np.flatnonzero(~valid)
    with track("Reading image files", len(paths)) as bar, ThreadPoolExecutor(_THREADS) as pool:
        bar.advance(len(paths) - len(missing))
        for start in range(0, len(missing), SAVE_EVERY):
            rows = missing[start : start + SAVE_EVERY]
            parts = [rows[i : i + CHUNK] for i in range(0, len(rows), CHUNK)]
            for part, values in zip(parts, pool.map(lambda r: _read(paths, r), parts), strict=True):
                digests[part] = values
                bar.advance(len(part))
            valid[rows] = True
            _save(record, stats, digests, valid)
    return digests


def _list_digest(paths: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(os.path.abspath(path).encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()[:32]


def _load(record: Path, stats: NDArray[np.int64]) -> tuple[NDArray[np.void], NDArray[np.bool_]]:
    """Return the stored digests, and which of them are still valid."""
    digests, valid = np.zeros(len(stats), DIGEST), np.zeros(len(stats), bool)
    try:
        with np.load(record) as stored:
            same = (stored["stats"] == stats).all(axis=1) & stored["known"]
            digests[same] = stored["digests"][same]
            valid = same
    except DAMAGED_ARRAYS:
        pass  # missing or damaged: read all files again
    return digests, valid


def _save(
    record: Path, stats: NDArray[np.int64], digests: NDArray[np.void], valid: NDArray[np.bool_]
) -> None:
    def write(part: Path) -> None:
        with open(part, "wb") as stream:
            np.savez(stream, stats=stats, digests=digests, known=valid)

    replace_file(record, write)


def _read(paths: Sequence[str], rows: NDArray[np.int64]) -> NDArray[np.void]:
    digests = np.zeros(len(rows), DIGEST)
    for i, path in enumerate(paths[row] for row in rows.tolist()):
        try:
            digests[i] = _content_digest(path)
        except OSError as error:
            raise KappaPlaceError(f"Cannot read {path} ({why(error)}). Check the file.") from None
    return digests


def _content_digest(path: str) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST.itemsize)
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.digest()
