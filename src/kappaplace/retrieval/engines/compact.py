"""The compact engine: at most 128 bytes of memory a reference, and no descriptor is ever read again.

References lie in lists around k-means centres, each as its number and the product-quantised difference to the
centre of its list, and a table says where. What is returned is a cosine as good as the codes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.retrieval.codes import CODE_BYTES as MOST_BYTES
from kappaplace.retrieval.codes import balanced_rotation
from kappaplace.retrieval.engines.base import BaseEngine, Circle, best_first
from kappaplace.retrieval.engines.exact import ExactEngine
from kappaplace.retrieval.engines.faiss_tools import faiss_module, probes, sample_of
from kappaplace.retrieval.engines.rows import Rows
from kappaplace.types import Matches

ROW_NUMBER = 8  # bytes
TABLE = 8  # bytes a reference, from row to code
BLOCK = 32  # codes that faiss packs together: of the last block of each list half is empty
LEAST_BYTES = 48  # of codes, where a small map has to share centres and rotation among few references
STEP = 64  # queries at a time: 3,200 decoded proposals
CANDIDATES = 50  # proposals a query that are decoded
SHORTEST = 0.3  # length of a code that still means something


class CompactEngine(BaseEngine):
    """IVF-PQ alone."""

    name = "compact"
    exact = False

    def __init__(self, index: Any, positions: NDArray[np.floating] | None = None) -> None:
        faiss = faiss_module()
        self.index, self.dim = index, index.d
        self._ivf = faiss.downcast_index(index.index)
        self._all = ExactEngine(Decoded(self._ivf), positions)
        turn = faiss.downcast_VectorTransform(index.chain.at(0))
        self._turn = faiss.vector_to_array(turn.A).reshape(turn.d_out, turn.d_in).T

    def __len__(self) -> int:
        return int(self.index.ntotal)

    def close(self) -> None:
        self.index = self._ivf = None

    def _search(self, queries: NDArray[np.float32], k: int, near: Circle | None) -> Matches:
        faiss = faiss_module()
        turned = np.ascontiguousarray(queries @ self._turn)
        if near is not None:
            return self._all._search(turned, k, near)
        parameters = faiss.SearchParametersIVF(nprobe=probes(self._ivf.nlist))
        parts = [self._best(turned[i : i + STEP], k, parameters) for i in range(0, len(turned), STEP)]
        found = Matches(*(np.concatenate(part) for part in zip(*parts, strict=True)))
        short = found.indices[:, k - 1] < 0  # the lists looked through held fewer than k
        if short.any():
            found.indices[short], found.similarities[short] = self._all._search(turned[short], k, None)
        return found

    def _best(self, turned: NDArray[np.float32], k: int, parameters: Any) -> Matches:
        """The k best of the proposals, by their codes at unit length.

        A code is shorter than the descriptor by what was rounded off, one more than the other; given its unit
        length back, it finds more of the matches than the bare product by which it was proposed.
        """
        wanted = min(len(self), max(CANDIDATES, 2 * k + 16))
        found = self._ivf.search(turned, wanted, params=parameters)[1]
        codes = self._all.rows[np.maximum(found, 0).ravel()].reshape(*found.shape, -1)
        cosines = np.einsum("nd,nkd->nk", turned, codes, optimize=True)
        return Matches(*best_first(found, np.where(found < 0, -np.inf, cosines).astype(np.float32), k))


class Decoded(Rows):
    """References as their codes tell them, in the space of the codes."""

    def __init__(self, ivf: Any) -> None:
        self.ivf, self.shape = ivf, (ivf.ntotal, ivf.d)
        ivf.make_direct_map(True)
        ivf.fine_quantizer = ivf.pq  # faiss forgets it when it reads a file, and decoding then crashes

    def in_code_space(self) -> None:
        """They are in it already, and so are the queries they are given."""

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        chosen = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows
        codes = self.ivf.reconstruct_batch(np.ascontiguousarray(chosen, np.int64))
        return codes / np.maximum(np.linalg.norm(codes, axis=1, keepdims=True), SHORTEST)


def build_compact(rows: Rows) -> Any:
    """An index to which nothing has been added yet; `made_searchable` once all has been."""
    faiss = faiss_module()
    count, dim = rows.shape
    lists = max(1, round(count**0.5))
    codes, together = code_size(count, dim, lists)
    sample = sample_of(rows, max(1 << 15, 40 * lists))
    rotation = faiss.LinearTransform(dim, codes * together, False)
    faiss.copy_array_to_vector(
        np.ascontiguousarray(balanced_rotation(sample, codes, together).T).ravel(), rotation.A
    )
    rotation.is_trained = rotation.is_orthonormal = True
    # Centres are means, and each reference goes to the nearest: the least is left to encode. Of its own,
    # faiss would take unit vectors here, and the error of the codes would be an eighth larger.
    centres = faiss.IndexFlatL2(codes * together)
    # 4 bits a piece, scanned in registers: ten times as fast as 8 bits for twice as many numbers, at the same
    # R@1 (of 200,000 references; recall@10 is .90 instead of .92).
    ivf = faiss.IndexIVFPQFastScan(centres, codes * together, lists, codes, 4, faiss.METRIC_INNER_PRODUCT)
    ivf.by_residual = True
    ivf.cp.niter, ivf.cp.min_points_per_centroid, ivf.cp.spherical = 8, 1, False
    ivf.pq.cp.niter, ivf.pq.cp.min_points_per_centroid, ivf.pq.cp.max_points_per_centroid = 12, 1, 512
    index = faiss.IndexPreTransform(rotation, ivf)
    index.train(sample)
    return index


def made_searchable(index: Any) -> Any:
    """Full of references, it is searched by inner products, of which those with the centres are a part."""
    faiss = faiss_module()
    ivf = faiss.downcast_index(index.index)
    centres = faiss.IndexFlatIP(ivf.d)
    centres.add(ivf.quantizer.reconstruct_n(0, ivf.nlist))
    centres.this.disown()  # the index frees them
    ivf.quantizer, ivf.own_fields = centres, True
    return index


def code_size(count: int, dim: int, lists: int) -> tuple[int, int]:
    """Pieces of 4 bits and numbers that may share one, so that all is at most 128 bytes a reference.

    Every number has its place: with the weakest tenth of the directions left out the error was larger. A
    place costs 4 bytes in every centre, in each of 16 values and in the rotation of ``dim`` rows.
    """

    def size(half: int) -> float:
        places = 2 * half * -(-dim // (2 * half))
        shared = 4 * places * (lists + 16 + dim) + half * lists * BLOCK / 2
        return ROW_NUMBER + TABLE + half + shared / count

    half = min(-(-dim // 2), MOST_BYTES - ROW_NUMBER - TABLE)
    while half > LEAST_BYTES and size(half) > MOST_BYTES:
        half -= 1
    return 2 * half, -(-dim // (2 * half))
