"""What the engines on faiss share: the module itself, samples to train on, and the index as one file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.files import replace_file
from kappaplace.retrieval.engines.rows import Rows

PROBES = 350  # of a thousand lists; 192 found .980 of the matches at 2.8 million references, 300 .990
FORMAT = "kappaplace faiss 1"


def faiss_module() -> Any:
    try:
        import faiss
    except ImportError:
        raise KappaPlaceError("This engine needs faiss: pip install 'kappaplace[faiss]'.") from None
    # faiss and torch each bring an OpenMP of their own: one setting, torch's, governs both.
    faiss.omp_set_num_threads(torch.get_num_threads())
    return faiss


def probes(lists: int) -> int:
    """How many lists are looked through.

    The same share of more lists, or recall falls as the map grows; never more lists than there are, to which
    faiss answers nonsense instead of an error.
    """
    return min(lists, max(PROBES, round(PROBES * lists / 1000)))


def sample_of(rows: Rows, size: int) -> NDArray[np.float32]:
    """A fixed random choice of rows, in order; all of them where they are no more."""
    if size >= len(rows):
        return np.ascontiguousarray(rows[:])
    return rows[np.sort(np.random.default_rng(0).choice(len(rows), size, replace=False))]


def save(index: Any, file: Path, fingerprint: str) -> None:
    """One file, complete or not there: a line that says what it was built from, then faiss's own format."""
    faiss = faiss_module()

    def write(part: Path) -> None:
        failed: list[OSError] = []
        with part.open("wb") as stream:
            stream.write(json.dumps({"format": FORMAT, "fingerprint": fingerprint}).encode() + b"\n")
            try:
                faiss.write_index(index, faiss.PyCallbackIOWriter(_noting(stream.write, failed)))
            except Exception:
                if failed:  # a full disk arrives here as faiss's own error
                    raise failed[0] from None
                raise

    replace_file(file, write)


def _noting(write: Callable[[bytes], int], failed: list[OSError]) -> Callable[[bytes], int]:
    def noted(data: bytes) -> int:
        try:
            return write(data)
        except OSError as error:
            failed.append(error)
            raise

    return noted


def built_from(file: Path) -> str | None:
    """Fingerprint of the descriptors that an index was built from; None of a file that is no such index."""
    with file.open("rb") as stream:
        return _header(stream)


def _header(stream: BinaryIO) -> str | None:
    try:
        header = json.loads(stream.readline(1 << 12))
        return str(header["fingerprint"]) if header["format"] == FORMAT else None
    except (ValueError, KeyError, TypeError):
        return None


def load(file: Path, fingerprint: str) -> Any:
    faiss = faiss_module()
    with file.open("rb") as stream:
        source = _header(stream)
        if source is None:
            raise KappaPlaceError(f"{file} is not an index of this version: remove it, or build it anew.")
        if source != fingerprint:
            raise KappaPlaceError(
                f"{file} was built from other descriptors than this map's: build it anew (rebuild)."
            )
        try:
            return faiss.read_index(faiss.PyCallbackIOReader(stream.read))
        except Exception:
            raise KappaPlaceError(f"{file} is cut off or damaged: remove it, or build it anew.") from None
