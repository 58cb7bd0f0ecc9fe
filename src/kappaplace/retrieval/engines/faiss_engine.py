"""faiss: flat, HNSW and IVF-PQ indices, built on demand and kept in one file beside the map.

An approximate index only proposes candidates; their cosines are then computed from the descriptors, so that
what is returned is as true as from the exact engine, and only a missed reference can differ.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder
from kappaplace.retrieval.codes import balanced_rotation
from kappaplace.retrieval.engines.base import BaseEngine, Circle, best_first
from kappaplace.retrieval.engines.compact import CompactEngine, build_compact, made_searchable
from kappaplace.retrieval.engines.deepen import EQUAL
from kappaplace.retrieval.engines.exact import ExactEngine
from kappaplace.retrieval.engines.faiss_tools import built_from, faiss_module, load, probes, sample_of, save
from kappaplace.retrieval.engines.rows import Descriptors, Rows
from kappaplace.types import Matches

Kind = Literal["faiss-flat", "hnsw", "ivf-pq", "compact"]
Rebuild: TypeAlias = bool | Literal["if stale"]

LINKS = 32  # neighbours of an HNSW node: 272 bytes; 16 loses recall from a million on
BUILD_DEPTH = 80
SEARCH_DEPTH = 512  # at 256 one query in a hundred loses its way among the clusters of a million
CODE_BYTES = 104  # with the row number 112; centres and rotation are 3 more at a million
CANDIDATES = 200  # proposals a query that are compared exactly; 100 lost .002 of the matches
FEWEST = 1000  # below this there is nothing to train codes on, and exact search takes no time
PAIRS = 3200  # of query and candidate in one step of re-ranking: 6.5 MB of 512 floats


class FaissEngine(BaseEngine):
    """A faiss index that proposes rows, and the rows themselves."""

    def __init__(
        self,
        kind: Kind,
        index: Any,
        rows: Rows,
        positions: NDArray[np.floating] | None = None,
    ) -> None:
        self.name, self.exact = kind, kind == "faiss-flat"
        self.kind, self.index, self.dim = kind, index, rows.shape[1]
        self._all = ExactEngine(rows, positions)

    def __len__(self) -> int:
        return int(self.index.ntotal)

    def close(self) -> None:
        self.index = None

    def _search(self, queries: NDArray[np.float32], k: int, near: Circle | None) -> Matches:
        if near is not None:
            # A graph walked under a filter loses recall; what lies in a circle is few enough to compare.
            return self._all._search(queries, k, near)
        wanted = min(len(self), max(CANDIDATES, 2 * k + 16))
        proposed = self._proposed(queries, wanted)
        rows, similarities = best_first(*self._compared(queries, proposed), wanted)
        # Too few proposals, or (where exactness is claimed) a tie that may run on beyond them: compare all.
        short = rows[:, k - 1] < 0
        if self.exact and wanted < len(self):
            short |= similarities[:, k - 1] <= similarities[:, -1] + EQUAL
        rows, similarities = rows[:, :k].copy(), similarities[:, :k].copy()
        if short.any():
            rows[short], similarities[short] = self._all._search(queries[short], k, None)
        return Matches(rows, similarities)

    def _proposed(self, queries: NDArray[np.float32], wanted: int) -> NDArray[np.int64]:
        faiss = faiss_module()
        parameters = None
        if self.kind == "hnsw":
            parameters = faiss.SearchParametersHNSW(efSearch=max(SEARCH_DEPTH, 2 * wanted))
        elif self.kind == "ivf-pq":
            lists = faiss.extract_index_ivf(self.index).nlist
            parameters = _through(faiss, faiss.SearchParametersIVF(nprobe=probes(lists)))
        return self.index.search(queries, wanted, params=parameters)[1]

    def _compared(
        self, queries: NDArray[np.float32], proposed: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Proposed rows with their true cosines; an empty place (−1) is worse than anything."""
        similarities = np.empty(proposed.shape, np.float32)
        for part in _steps(len(queries), proposed.shape[1]):
            found = self._all.rows[np.maximum(proposed[part], 0).ravel()].reshape(
                *proposed[part].shape, self.dim
            )
            similarities[part] = torch.bmm(
                torch.from_numpy(found), torch.from_numpy(queries[part])[:, :, None]
            )[..., 0].numpy()
        similarities[proposed < 0] = -np.inf
        return proposed, similarities


def _steps(queries: int, candidates: int) -> list[slice]:
    size = max(1, PAIRS // candidates)
    return [slice(start, start + size) for start in range(0, queries, size)]


def open_faiss(
    kind: Kind,
    descriptors: Descriptors | Rows,
    positions: NDArray[np.floating] | None = None,
    folder: str | Path | None = None,
    *,
    rebuild: Rebuild = False,
    fingerprint: str | None = None,
) -> FaissEngine | CompactEngine:
    """Load the index of these descriptors from ``folder``, or build it (and keep it there, where given).

    ``fingerprint`` identifies the descriptors, as a map's checksum does; without it they are all read once.
    A file built from other descriptors is refused, unless ``rebuild`` is "if stale"; True builds it in any
    case. A flat index is a copy of the
    descriptors and is never kept.
    """
    if kind not in get_args(Kind):
        raise KappaPlaceError(f"faiss has no index {kind!r} here; choose from {', '.join(get_args(Kind))}.")
    faiss_module()
    rows = descriptors if isinstance(descriptors, Rows) else Rows(descriptors)
    if kind in ("ivf-pq", "compact") and len(rows) < FEWEST:
        raise KappaPlaceError(
            f"{kind} needs at least {FEWEST} references to learn its codes from, got {len(rows)}."
        )
    if folder is None or kind == "faiss-flat":
        return _engine(kind, build(kind, rows), rows, positions)
    file = index_file(folder, kind)
    fingerprint = fingerprint or rows.fingerprint()
    there = file.is_file() and rebuild is not True
    if there and (not rebuild or built_from(file) == fingerprint):
        index = load(file, fingerprint)
    else:
        index = build(kind, rows)
        make_folder(folder)
        save(index, file, fingerprint)
    return _engine(kind, index, rows, positions)


def _engine(
    kind: Kind, index: Any, rows: Rows, positions: NDArray[np.floating] | None
) -> FaissEngine | CompactEngine:
    return CompactEngine(index, positions) if kind == "compact" else FaissEngine(kind, index, rows, positions)


def index_file(folder: str | Path, kind: Kind) -> Path:
    return Path(folder) / f"{kind}.index"


def build(kind: Kind, rows: Rows) -> Any:
    """An index over all rows, which are read block by block."""
    faiss = faiss_module()
    if kind == "faiss-flat":
        index = faiss.IndexFlatIP(rows.shape[1])
    elif kind == "hnsw":
        # 8 bits a number halve and quarter what a step of the walk reads; re-ranking undoes the rounding.
        index = faiss.IndexHNSWSQ(
            rows.shape[1], faiss.ScalarQuantizer.QT_8bit, LINKS, faiss.METRIC_INNER_PRODUCT
        )
        index.hnsw.efConstruction = BUILD_DEPTH
    else:
        index = _ivf_pq(faiss, rows) if kind == "ivf-pq" else build_compact(rows)
    if not index.is_trained:
        index.train(sample_of(rows, 100_000))
    for _, block in rows.blocks():
        if not np.isfinite(block).all():
            raise KappaPlaceError("Some descriptors are NaN or infinite; check the model and the images.")
        index.add(np.ascontiguousarray(block))
    return made_searchable(index) if kind == "compact" else index


def _ivf_pq(faiss: Any, rows: Rows) -> Any:
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


def _through(faiss: Any, parameters: Any) -> Any:
    """Search parameters for an index behind a rotation."""
    return faiss.SearchParametersPreTransform(index_params=parameters)
