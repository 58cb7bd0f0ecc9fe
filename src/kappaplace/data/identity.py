"""Which image is this? A file is known by its size, its time of change and the hash of its content.

`same_file` compares a file with what was recorded of it; `image_digests` reads the content of many files once
and remembers it by path, size and time. A folder that was moved or copied is recognized without embedding
anything again; a file that was replaced is noticed.
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
from kappaplace.files import DAMAGED_ARRAYS, make_folder, replace_file
from kappaplace.progress import track

DIGEST = np.dtype("V16")  # 128 bits: no two of all images ever taken will share one by accident
SAVE_EVERY = 1 << 16  # files read between two savings: what a killed process may have to read again
CHUNK = 256
_THREADS = 8  # reading waits for the disk, not for a core


def file_stats(paths: Sequence[str]) -> NDArray[np.int64]:
    """Return size and time of change of each file, N×2; −1 if there is none."""
    stats = np.full((len(paths), 2), -1, np.int64)
    for i, path in enumerate(paths):
        try:
            found = os.stat(path)
        except OSError:
            continue
        stats[i] = found.st_size, found.st_mtime_ns
    return stats


def file_digest(path: str) -> NDArray[np.uint8]:
    """Return the hash of a file's content, 16 bytes; zeros if it cannot be read."""
    try:
        return np.frombuffer(_content_digest(path), np.uint8)
    except OSError:
        return np.zeros(DIGEST.itemsize, np.uint8)


def same_file(path: str, now: NDArray[np.int64], then: NDArray[np.int64], digest: NDArray[np.uint8]) -> bool:
    """Return whether a file is the one recorded: by size and time, or by content if only the time differs."""
    if bool((now == then).all()):
        return True
    return int(now[0]) == int(then[0]) >= 0 and bool((file_digest(path) == digest).all())


def image_digests(paths: Sequence[str], folder: Path) -> NDArray[np.void]:
    """A digest of each file's content, 16 bytes; ``folder`` keeps what was read before."""
    record = make_folder(folder) / f"{_list_digest(paths)}.npz"
    stats = file_stats(paths)
    for row in np.flatnonzero(stats[:, 0] < 0)[:1].tolist():
        raise KappaPlaceError(
            f"No image file at {paths[row]}; if the images have moved, import the table again or give --root."
        )
    digests, known = _recorded(record, stats)
    missing = np.flatnonzero(~known)
    with track("Reading image files", len(paths)) as bar, ThreadPoolExecutor(_THREADS) as pool:
        bar.advance(len(paths) - len(missing))
        for start in range(0, len(missing), SAVE_EVERY):
            rows = missing[start : start + SAVE_EVERY]
            parts = [rows[i : i + CHUNK] for i in range(0, len(rows), CHUNK)]
            for part, found in zip(parts, pool.map(lambda r: _read(paths, r), parts), strict=True):
                digests[part] = found
                bar.advance(len(part))
            known[rows] = True
            _save(record, stats, digests, known)
    return digests


def _list_digest(paths: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(os.path.abspath(path).encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()[:32]


def _recorded(record: Path, stats: NDArray[np.int64]) -> tuple[NDArray[np.void], NDArray[np.bool_]]:
    """What an earlier run read of files that have not changed since."""
    digests, known = np.zeros(len(stats), DIGEST), np.zeros(len(stats), bool)
    try:
        with np.load(record) as stored:
            same = (stored["stats"] == stats).all(axis=1) & stored["known"]
            digests[same] = stored["digests"][same]
            known = same
    except DAMAGED_ARRAYS:
        pass  # none yet, or not whole: read again
    return digests, known


def _save(
    record: Path, stats: NDArray[np.int64], digests: NDArray[np.void], known: NDArray[np.bool_]
) -> None:
    def write(part: Path) -> None:
        with open(part, "wb") as stream:
            np.savez(stream, stats=stats, digests=digests, known=known)

    replace_file(record, write)


def _read(paths: Sequence[str], rows: NDArray[np.int64]) -> NDArray[np.void]:
    return np.array([_digest(paths[int(row)]) for row in rows], DIGEST)


def _digest(path: str) -> bytes:
    try:
        return _content_digest(path)
    except OSError as error:
        raise KappaPlaceError(f"Cannot read {path}: {os.strerror(error.errno or 0)}.") from None


def _content_digest(path: str) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST.itemsize)
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.digest()
