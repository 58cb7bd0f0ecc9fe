"""faiss: an IVF-PQ index, built on demand and kept in one file beside the map.

The index only proposes candidates; their cosines are then computed from the descriptors, so that what is
returned is as true as from the exact engine, and only a missed reference can differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.data.near import Circle
from kappaplace.errors import KappaPlaceError, MissingExtra
from kappaplace.files import make_folder, replace_file
from kappaplace.retrieval.codes import balanced_rotation
from kappaplace.retrieval.columns import Columns, Descriptors, as_columns
from kappaplace.retrieval.exact import BaseEngine, ExactEngine, best_first
from kappaplace.types import Matches

Rebuild: TypeAlias = bool | Literal["if stale"]

INDEX_FILE = "ivf-pq.index"
CODE_BYTES = 104  # with the row number 112; centres and rotation are 3 more at a million
CANDIDATES = 200  # proposals a query that are compared exactly; 100 lost .002 of the matches
FEWEST = 1000  # below this there is nothing to train codes on, and exact search takes no time
PAIRS = 3200  # of query and candidate in one step of re-ranking: 6.5 MB of 512 floats
PROBES = 350  # of a thousand lists; 192 found .980 of the matches at 2.8 million references, 300 .990
FORMAT = "kappaplace faiss 1"


class FaissEngine(BaseEngine):
    """A faiss index that proposes rows, and the rows themselves."""

    name = "ivf-pq"
    exact = False

    def __init__(self, index: Any, rows: Columns, positions: NDArray[np.floating] | None = None) -> None:
        self.index, self.dim = index, rows.shape[1]
        self._all = ExactEngine(rows, positions)

    def __len__(self) -> int:
        return int(self.index.ntotal)

    def close(self) -> None:
        self.index = None

    def _search(self, queries: NDArray[np.float32], k: int, area: Circle | None) -> Matches:
        if area is not None:
            # What lies in a circle is few enough to compare.
            return self._all._search(queries, k, area)
        wanted = min(len(self), max(CANDIDATES, 2 * k + 16))
        proposed = self._proposed(queries, wanted)
        rows, similarities = best_first(proposed, self._cosines(queries, proposed), k)
        short = rows[:, k - 1] < 0  # the lists looked through held fewer than k: compare all
        if short.any():
            rows[short], similarities[short] = self._all._search(queries[short], k, None)
        return Matches(rows, similarities)

    def _proposed(self, queries: NDArray[np.float32], wanted: int) -> NDArray[np.int64]:
        faiss = faiss_module()
        lists = faiss.SearchParametersIVF(nprobe=probes(faiss.extract_index_ivf(self.index).nlist))
        behind_rotation = faiss.SearchParametersPreTransform(index_params=lists)
        return self.index.search(queries, wanted, params=behind_rotation)[1]

    def _cosines(self, queries: NDArray[np.float32], proposed: NDArray[np.int64]) -> NDArray[np.float32]:
        """True cosines of proposed rows; an empty place (−1) is worse than anything."""
        similarities = np.empty(proposed.shape, np.float32)
        step = max(1, PAIRS // proposed.shape[1])
        for start in range(0, len(queries), step):
            part = slice(start, start + step)
            found = self._all.columns[np.maximum(proposed[part], 0)]
            similarities[part] = torch.bmm(
                torch.from_numpy(found), torch.from_numpy(queries[part])[:, :, None]
            )[..., 0].numpy()
        similarities[proposed < 0] = -np.inf
        return similarities


def open_faiss(
    descriptors: Descriptors | Columns,
    positions: NDArray[np.floating] | None = None,
    folder: str | Path | None = None,
    *,
    rebuild: Rebuild = False,
    fingerprint: str | None = None,
) -> FaissEngine:
    """Load the index of these descriptors from ``folder``, or build it (and keep it there, where given).

    ``fingerprint`` identifies the descriptors, as a map's checksum does; without it they are all read once.
    A file built from other descriptors is refused, unless ``rebuild`` is "if stale"; True builds it in any
    case.
    """
    faiss_module()
    rows = as_columns(descriptors)
    if len(rows) < FEWEST:
        raise KappaPlaceError(
            f"ivf-pq needs at least {FEWEST} references to learn its codes from, got {len(rows)}."
        )
    if folder is None:
        return FaissEngine(build(rows), rows, positions)
    file = Path(folder) / INDEX_FILE
    fingerprint = fingerprint or rows.fingerprint()
    there = file.is_file() and rebuild is not True
    if there and (not rebuild or built_from(file) == fingerprint):
        index = load(file, fingerprint)
    else:
        index = build(rows)
        make_folder(folder)
        save(index, file, fingerprint)
    return FaissEngine(index, rows, positions)


def build(rows: Columns) -> Any:
    """An index over all rows, which are read block by block."""
    index = _trained(faiss_module(), rows)
    for _, block in rows.blocks():
        if not np.isfinite(block).all():
            raise KappaPlaceError("Some descriptors are NaN or infinite; check the model and the images.")
        index.add(np.ascontiguousarray(block))
    return index


def _trained(faiss: Any, rows: Columns) -> Any:
    """Lists around k-means centres, and in them product-quantised residuals of a rotated descriptor.

    Codes of 4 bits are compared in registers (fast scan): several times as many as with 8 bits a code, which
    pays for the lists that have to be looked through at a recall of .99.
    """
    count, dim = rows.shape
    together = 1  # numbers that share 4 bits
    while dim > 2.5 * CODE_BYTES * together:
        together *= 2
    codes = min(2 * CODE_BYTES, dim // together)
    kept = codes * together  # 416 of 512: the directions left out hold the least energy
    lists = max(1, round(count**0.5))
    sample = sample_of(rows, max(10_000, 40 * lists))
    rotation = faiss.LinearTransform(dim, kept, False)
    faiss.copy_array_to_vector(
        np.ascontiguousarray(balanced_rotation(sample, codes, together).T).ravel(), rotation.A
    )
    rotation.is_trained = rotation.is_orthonormal = True
    centres = faiss.IndexFlatIP(kept)
    ivf = faiss.IndexIVFPQFastScan(centres, kept, lists, codes, 4, faiss.METRIC_INNER_PRODUCT)
    ivf.by_residual = True
    # A few rounds on a sample: more cost minutes and gain nothing that re-ranking does not.
    ivf.cp.niter, ivf.cp.min_points_per_centroid = 8, 1
    ivf.pq.cp.niter, ivf.pq.cp.min_points_per_centroid, ivf.pq.cp.max_points_per_centroid = 8, 1, 512
    index = faiss.IndexPreTransform(rotation, ivf)
    index.train(sample)
    return index


def faiss_module() -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingExtra("This search engine", "faiss") from None
    # faiss and torch each bring an OpenMP of their own: one setting, torch's, governs both.
    faiss.omp_set_num_threads(torch.get_num_threads())
    return faiss


def probes(lists: int) -> int:
    """How many lists are looked through.

    The same share of more lists, or recall falls as the map grows; never more lists than there are, to which
    faiss answers nonsense instead of an error.
    """
    return min(lists, max(PROBES, round(PROBES * lists / 1000)))


def sample_of(rows: Columns, size: int) -> NDArray[np.float32]:
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
