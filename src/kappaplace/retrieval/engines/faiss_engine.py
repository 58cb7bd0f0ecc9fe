"""faiss: flat, HNSW and IVF-PQ indices, built on demand and kept in one file beside the map.

An approximate index only proposes candidates; their cosines are then computed from the descriptors, so that
what is returned is as true as from the exact engine, and only a missed reference can differ. Without
re-ranking IVF-PQ is the compact mode: the codes alone, and similarities as good as the codes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file
from kappaplace.retrieval.engines.base import BaseEngine, Circle, best_first
from kappaplace.retrieval.engines.deepen import EQUAL
from kappaplace.retrieval.engines.exact import ExactEngine
from kappaplace.retrieval.engines.rows import Descriptors, Rows
from kappaplace.types import Matches

Kind = Literal["faiss-flat", "hnsw", "ivf-pq"]

LINKS = 32  # neighbours of an HNSW node: 272 bytes; 16 loses recall from a million on
BUILD_DEPTH = 80
SEARCH_DEPTH = 512  # at 256 one query in a hundred loses its way among the clusters of a million
CODE_BYTES = 104  # with row number and, compact, its table 120; centres and rotation are 3 more at a million
PROBES = 192  # lists looked through, of a thousand at a million references; 128 gave .987 of the matches
CANDIDATES = 100  # proposals a query that are compared exactly
FEWEST = 1000  # below this there is nothing to train codes on, and exact search takes no time
PAIRS = 3200  # of query and candidate in one step of re-ranking: 6.5 MB of 512 floats
SHORTEST = 0.1  # squared length of a code that still means something
FORMAT = "kappaplace faiss 1"


class FaissEngine(BaseEngine):
    """A faiss index over `Rows`; ``rerank`` False never reads the descriptors (the compact mode)."""

    def __init__(
        self,
        kind: Kind,
        index: Any,
        rows: Rows,
        positions: NDArray[np.floating] | None = None,
        *,
        rerank: bool = True,
    ) -> None:
        compact = kind == "ivf-pq" and not rerank
        self.name = "ivf-pq compact" if compact else kind
        self.exact = kind == "faiss-flat"
        self.kind, self.index, self.dim = kind, index, rows.shape[1]
        self._all = ExactEngine(Decoded(index) if compact else rows, positions)

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
        faiss = _faiss()
        parameters = None
        if self.kind == "hnsw":
            parameters = faiss.SearchParametersHNSW(efSearch=max(SEARCH_DEPTH, 2 * wanted))
        elif self.kind == "ivf-pq":
            lists = faiss.extract_index_ivf(self.index).nlist
            # The same share of more lists, or recall falls as the map grows; never more lists than there are,
            # to which faiss answers nonsense instead of an error.
            probes = min(lists, max(PROBES, round(PROBES * lists / 1000)))
            parameters = _through(faiss, faiss.SearchParametersIVF(nprobe=probes))
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


class Decoded(Rows):
    """References as their codes tell them. Needs a table from row to code: 8 bytes a reference.

    A code x̂ lacks what was rounded off, which stands at right angles to it, so that qᵀx̂ is too small by the
    factor ‖x̂‖². The factor differs from code to code, so dividing by it is more than a matter of scale: it
    gives a point of R@1 back.
    """

    def __init__(self, index: Any) -> None:
        ivf = _faiss().downcast_index(index.index)
        ivf.make_direct_map(True)
        ivf.fine_quantizer = ivf.pq  # faiss forgets it when it reads a file, and decoding then crashes
        self.index, self.shape = index, (index.ntotal, index.d)

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        chosen = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows
        codes = self.index.reconstruct_batch(np.ascontiguousarray(chosen, np.int64))
        return codes / np.maximum(np.einsum("nd,nd->n", codes, codes), SHORTEST)[:, None]


def _steps(queries: int, candidates: int) -> list[slice]:
    size = max(1, PAIRS // candidates)
    return [slice(start, start + size) for start in range(0, queries, size)]


def open_faiss(
    kind: Kind,
    descriptors: Descriptors | Rows,
    positions: NDArray[np.floating] | None = None,
    folder: str | Path | None = None,
    *,
    rerank: bool = True,
    rebuild: bool = False,
    fingerprint: str | None = None,
) -> FaissEngine:
    """Load the index of these descriptors from ``folder``, or build it (and keep it there, where given).

    ``fingerprint`` identifies the descriptors, as a map's checksum does; without it they are all read once.
    A file built from other descriptors is refused unless ``rebuild`` is given. A flat index is a copy of the
    descriptors and is never kept.
    """
    if kind not in get_args(Kind):
        raise KappaPlaceError(f"faiss has no index {kind!r} here; choose from {', '.join(get_args(Kind))}.")
    _faiss()
    rows = descriptors if isinstance(descriptors, Rows) else Rows(descriptors)
    if kind == "ivf-pq" and len(rows) < FEWEST:
        raise KappaPlaceError(
            f"ivf-pq needs at least {FEWEST} references to learn its codes from, got {len(rows)}."
        )
    if folder is None or kind == "faiss-flat":
        return FaissEngine(kind, build(kind, rows), rows, positions, rerank=rerank)
    file = index_file(folder, kind)
    fingerprint = fingerprint or rows.fingerprint()
    if file.is_file() and not rebuild:
        index = load(file, fingerprint)
    else:
        index = build(kind, rows)
        make_folder(folder)
        save(index, file, fingerprint)
    return FaissEngine(kind, index, rows, positions, rerank=rerank)


def index_file(folder: str | Path, kind: Kind) -> Path:
    return Path(folder) / f"{kind}.index"


def build(kind: Kind, rows: Rows) -> Any:
    """An index over all rows, which are read block by block."""
    faiss = _faiss()
    if kind == "faiss-flat":
        index = faiss.IndexFlatIP(rows.shape[1])
    elif kind == "hnsw":
        # 8 bits a number halve and quarter what a step of the walk reads; re-ranking undoes the rounding.
        index = faiss.IndexHNSWSQ(
            rows.shape[1], faiss.ScalarQuantizer.QT_8bit, LINKS, faiss.METRIC_INNER_PRODUCT
        )
        index.hnsw.efConstruction = BUILD_DEPTH
    else:
        index = _ivf_pq(faiss, rows)
    if not index.is_trained:
        index.train(_sample(rows, 100_000))
    for _, block in rows.blocks():
        if not np.isfinite(block).all():
            raise KappaPlaceError("Some descriptors are NaN or infinite; check the model and the images.")
        index.add(np.ascontiguousarray(block))
    return index


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
    sample = _sample(rows, max(10_000, 40 * lists))
    rotation = faiss.LinearTransform(dim, kept, False)
    faiss.copy_array_to_vector(_rotation(sample, codes, together).ravel(), rotation.A)
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


def _rotation(sample: NDArray[np.float32], codes: int, together: int) -> NDArray[np.float32]:
    """The directions with the most energy, dealt out so that every byte has the same product of energies.

    That is the best allocation for Gaussian data (parametric OPQ). Not centred, unlike PCA: inner products
    must survive.
    """
    energy, directions = np.linalg.eigh(sample.T @ sample)
    strongest = np.argsort(-energy)[: codes * together]
    weight = np.log(np.maximum(energy[strongest], 1e-9 * energy.max()))
    weight -= weight[-1]
    dealt: list[list[int]] = [[] for _ in range(codes)]
    load = np.zeros(codes)
    for direction, share in zip(strongest, weight, strict=True):
        lightest = int(load.argmin())
        dealt[lightest].append(int(direction))
        load[lightest] = load[lightest] + share if len(dealt[lightest]) < together else np.inf
    return np.ascontiguousarray(directions[:, np.concatenate(dealt)].T, np.float32)


def _sample(rows: Rows, size: int) -> NDArray[np.float32]:
    if size >= len(rows):
        return np.ascontiguousarray(rows[:])
    return rows[np.sort(np.random.default_rng(0).choice(len(rows), size, replace=False))]


def save(index: Any, file: Path, fingerprint: str) -> None:
    """One file, complete or not there: a line that says what it was built from, then faiss's own format."""
    faiss = _faiss()

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


def load(file: Path, fingerprint: str) -> Any:
    faiss = _faiss()
    with file.open("rb") as stream:
        try:
            header = json.loads(stream.readline(1 << 12))
            known = header["format"] == FORMAT
        except (ValueError, KeyError, TypeError):
            known = False
        if not known:
            raise KappaPlaceError(f"{file} is not an index of this version: remove it, or build it anew.")
        if header["fingerprint"] != fingerprint:
            raise KappaPlaceError(
                f"{file} was built from other descriptors than this map's: build it anew (rebuild)."
            )
        try:
            return faiss.read_index(faiss.PyCallbackIOReader(stream.read))
        except Exception:
            raise KappaPlaceError(f"{file} is cut off or damaged: remove it, or build it anew.") from None


def _through(faiss: Any, parameters: Any) -> Any:
    """Search parameters for an index behind a rotation."""
    return faiss.SearchParametersPreTransform(index_params=parameters)


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise KappaPlaceError("This engine needs faiss: pip install 'kappaplace[faiss]'.") from None
    # faiss and torch each bring an OpenMP of their own: one setting, torch's, governs both.
    faiss.omp_set_num_threads(torch.get_num_threads())
    return faiss
