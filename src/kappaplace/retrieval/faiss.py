"""faiss: an IVF-PQ index, built when it is first needed and stored as one file in the map.

The index only proposes candidates. Their cosines are computed from the descriptors, so they equal those of
the exact engine; the index can only miss references.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.data.near import Circle
from kappaplace.errors import KappaPlaceError, import_extra
from kappaplace.files import make_folder, replace_file
from kappaplace.retrieval.codes import FEWEST, check_finite
from kappaplace.retrieval.columns import Columns, Descriptors, as_columns
from kappaplace.retrieval.engine import Engine, ExactEngine, best_first
from kappaplace.retrieval.references import draw
from kappaplace.types import Matches

if TYPE_CHECKING:
    from faiss import Index

Rebuild: TypeAlias = bool | Literal["if stale"]

INDEX_FILE = "ivf-pq.index"
CODE_BYTES = (
    104  # bytes per reference, 112 with its number; a million references need 3 more for centers and rotation
)
CANDIDATES = 200  # proposals per query that are compared exactly; with 100, 0.2% of the matches were lost
PAIRS = 3200  # pairs of query and candidate per step of the exact comparison: 6.5 MB of 512 floats
PROBES = 350  # lists to probe per 1,000; with 192, recall was 0.980 at 2.8 million references, with 300 0.990
FORMAT = "kappaplace faiss 2"


class FaissEngine(Engine):
    """A faiss index that proposes rows, and the descriptors that they are compared by."""

    name = "ivf-pq"
    exact = False

    def __init__(self, index: Index, rows: Columns, positions: NDArray[np.floating] | None = None) -> None:
        self.index: Index | None = index
        self.dim, self.count = rows.shape[1], int(index.ntotal)
        self._all = ExactEngine(rows, positions)

    def __len__(self) -> int:
        return self.count

    def close(self) -> None:
        self.index = None

    def _search(self, queries: NDArray[np.float32], k: int, area: Circle | None) -> Matches:
        if area is not None:  # so few references are compared without the index
            return self._all._search(queries, k, area)
        candidates = self._candidates(queries, min(len(self), max(CANDIDATES, 2 * k + 16)))
        rows, similarities = best_first(candidates, self._cosines(queries, candidates), k)
        short = rows[:, k - 1] < 0  # fewer than k references in the probed lists: compare all
        if short.any():
            rows[short], similarities[short] = self._all._search(queries[short], k, None)
        return Matches(rows, similarities)

    def _candidates(self, queries: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        faiss = faiss_module()
        lists = faiss.SearchParametersIVF(nprobe=probes(faiss.extract_index_ivf(self.index).nlist))
        behind_rotation = faiss.SearchParametersPreTransform(index_params=lists)
        assert self.index is not None
        return self.index.search(queries, count, params=behind_rotation)[1]

    def _cosines(self, queries: NDArray[np.float32], candidates: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the exact cosines of the candidates; an empty candidate (−1) is worse than any other."""
        similarities = np.empty(candidates.shape, np.float32)
        step = max(1, PAIRS // candidates.shape[1])
        for start in range(0, len(queries), step):
            part = slice(start, start + step)
            rows = self._all.columns[np.maximum(candidates[part], 0)]
            product = torch.bmm(torch.from_numpy(rows), torch.from_numpy(queries[part])[:, :, None])
            similarities[part] = product[..., 0].numpy()
        similarities[candidates < 0] = -np.inf
        return similarities


def open_faiss(
    descriptors: Descriptors | Columns,
    positions: NDArray[np.floating] | None = None,
    folder: str | Path | None = None,
    *,
    rebuild: Rebuild = False,
    fingerprint: str | None = None,
) -> FaissEngine:
    """Load the index of these descriptors, or build it.

    Args:
        descriptors: Unit descriptors N×d.
        positions: x and y of each reference in metres, N×2.
        folder: Folder of the index file. Default: build the index in memory.
        rebuild: Whether to build the index if the file exists: always, never, or "if stale" (built from other
            descriptors).
        fingerprint: Checksum of the descriptors. Default: computed from all of them.

    Returns:
        The engine.

    Raises:
        KappaPlaceError: If faiss is not installed, if there are too few references, or if the file is damaged
            or was built from other descriptors.
    """
    faiss_module()
    rows = as_columns(descriptors)
    if len(rows) < FEWEST:
        raise KappaPlaceError(
            f"ivf-pq needs at least {FEWEST} references, got {len(rows)}. Use the exact engine."
        )
    if folder is None:
        return FaissEngine(build(rows), rows, positions)
    file = Path(folder) / INDEX_FILE
    fingerprint = fingerprint or rows.fingerprint()
    if file.is_file() and rebuild is not True and (not rebuild or built_from(file) == fingerprint):
        index = load(file, fingerprint)
    else:
        index = build(rows)
        make_folder(folder)
        save(index, file, fingerprint)
    return FaissEngine(index, rows, positions)


def build(rows: Columns) -> Index:
    """Build an index of all rows, which are read block by block."""
    index = _trained(faiss_module(), rows)
    for _, block in rows.blocks():
        check_finite(block)
        index.add(np.ascontiguousarray(block))
    return index


def _trained(faiss: ModuleType, rows: Columns) -> Index:
    """Return an empty index: lists around k-means centers, with product-quantized residuals.

    4-bit codes are compared in CPU registers (fast scan), several times as fast as 8-bit codes. This pays for
    the many lists that a recall of 0.99 requires.
    """
    count, dim = rows.shape
    together = 1  # numbers per 4 bits
    while dim > 2.5 * CODE_BYTES * together:
        together *= 2
    codes = min(2 * CODE_BYTES, dim // together)
    directions = codes * together  # 416 of 512; the others have the least energy
    lists = max(1, round(count**0.5))
    sample = np.ascontiguousarray(rows[draw(count, max(10_000, 40 * lists))])
    rotation = faiss.LinearTransform(dim, directions, False)
    faiss.copy_array_to_vector(
        np.ascontiguousarray(balanced_rotation(sample, codes, together).T).ravel(), rotation.A
    )
    rotation.is_trained = rotation.is_orthonormal = True
    centers = faiss.IndexFlatIP(directions)
    ivf = faiss.IndexIVFPQFastScan(centers, directions, lists, codes, 4, faiss.METRIC_INNER_PRODUCT)
    ivf.by_residual = True
    # Few rounds on a sample: more rounds take minutes and do not improve the result of the exact comparison.
    ivf.cp.niter, ivf.cp.min_points_per_centroid = 8, 1
    ivf.pq.cp.niter, ivf.pq.cp.min_points_per_centroid, ivf.pq.cp.max_points_per_centroid = 8, 1, 512
    index = faiss.IndexPreTransform(rotation, ivf)
    index.train(sample)
    return index


def balanced_rotation(sample: NDArray[np.float32], pieces: int, together: int) -> NDArray[np.float32]:
    """Return the strongest directions, distributed so that every piece has the same product of energies.

    This is optimal for Gaussian data (parametric OPQ). Unlike in PCA, nothing is centered, to preserve inner
    products.

    Args:
        sample: Descriptors, N×d.
        pieces: Number of pieces.
        together: Directions per piece.

    Returns:
        The rotation, d×(pieces·together); unused columns are zero.
    """
    energy, directions = np.linalg.eigh(sample.T @ sample)
    strongest = np.argsort(-energy)[: pieces * together]
    weight = np.log(np.maximum(energy[strongest], 1e-9 * energy.max()))
    weight -= weight[-1]
    groups: list[list[int]] = [[] for _ in range(pieces)]
    load = np.zeros(pieces)
    for direction, own in zip(strongest, weight, strict=True):
        lightest = int(load.argmin())
        groups[lightest].append(int(direction))
        load[lightest] = load[lightest] + own if len(groups[lightest]) < together else np.inf
    rotation = np.zeros((sample.shape[1], pieces, together), np.float32)
    for piece, group in enumerate(groups):
        rotation[:, piece, : len(group)] = directions[:, group]
    return rotation.reshape(len(rotation), -1)


def faiss_module() -> ModuleType:
    """Import faiss, with as many threads as torch."""
    faiss = import_extra("faiss", "This search engine", "faiss")
    # faiss and torch each have their own OpenMP: torch's setting applies to both.
    faiss.omp_set_num_threads(torch.get_num_threads())
    return faiss


def probes(lists: int) -> int:
    """Return the number of lists to probe.

    It is a constant fraction of the lists, so that recall does not fall as the map grows. With more probes
    than lists, faiss would return invalid results.
    """
    return min(lists, max(PROBES, round(PROBES * lists / 1000)))


def save(index: Index, file: Path, fingerprint: str) -> None:
    """Write a header line and the index in the format of faiss; an interrupted write leaves the old file.

    Args:
        index: The index.
        file: The file to write.
        fingerprint: Checksum of the descriptors.
    """
    faiss = faiss_module()

    def write(part: Path) -> None:
        failures: list[OSError] = []
        with part.open("w+b") as stream:
            start = stream.write(_header_line(fingerprint, 0))
            try:
                faiss.write_index(index, faiss.PyCallbackIOWriter(_recorder(stream.write, failures)))
            except Exception:
                if failures:  # faiss replaces the error of a full disk with its own
                    raise failures[0] from None
                raise
            stream.seek(start)
            checksum = _checksum(stream)
            stream.seek(0)
            stream.write(_header_line(fingerprint, checksum))

    replace_file(file, write)


def _header_line(fingerprint: str, checksum: int) -> bytes:
    header = {"format": FORMAT, "fingerprint": fingerprint, "crc32": f"{checksum:08x}"}
    return json.dumps(header).encode() + b"\n"


def _checksum(stream: BinaryIO) -> int:
    """Return the CRC-32 of the remaining bytes of a file."""
    checksum = 0
    while block := stream.read(1 << 20):
        checksum = zlib.crc32(block, checksum)
    return checksum


def _recorder(write: Callable[[bytes], int], failures: list[OSError]) -> Callable[[bytes], int]:
    """Return a ``write`` that also adds its failures to a list."""

    def recorded(data: bytes) -> int:
        try:
            return write(data)
        except OSError as error:
            failures.append(error)
            raise

    return recorded


def built_from(file: Path) -> str | None:
    """Return the checksum of the descriptors that an index was built from; None if it is not an index."""
    with file.open("rb") as stream:
        return _header(stream)[0]


def _header(stream: BinaryIO) -> tuple[str | None, str]:
    """Return the checksums of the descriptors and of the index itself; None if the file is not an index."""
    try:
        header = json.loads(stream.readline(1 << 12))
        if header["format"] == FORMAT:
            return str(header["fingerprint"]), str(header["crc32"])
    except (ValueError, KeyError, TypeError):
        pass
    return None, ""


def load(file: Path, fingerprint: str) -> Index:
    """Read an index.

    Args:
        file: The file.
        fingerprint: Checksum of the descriptors it must be built from.

    Returns:
        The index.
    """
    faiss = faiss_module()
    with file.open("rb") as stream:
        source, checksum = _header(stream)
        if source is None:
            raise KappaPlaceError(f"{file} is not an index of this version. Delete or rebuild it.")
        if source != fingerprint:
            raise KappaPlaceError(f"{file} was built from other descriptors. Rebuild it (rebuild=True).")
        start = stream.tell()
        try:
            # Compared first, because faiss does not check the bytes that it reads.
            if f"{_checksum(stream):08x}" != checksum:
                raise ValueError
            stream.seek(start)
            return faiss.read_index(faiss.PyCallbackIOReader(stream.read))
        except Exception:
            raise KappaPlaceError(f"{file} is truncated or damaged. Delete or rebuild it.") from None
