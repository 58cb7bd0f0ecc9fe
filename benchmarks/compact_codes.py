"""Codes of about 128 bytes per descriptor: loss of R@1, and recall@10 of exact search.

python benchmarks/compact_codes.py --synthetic 200000 --csv results/compact_codes.csv
python benchmarks/compact_codes.py --real real_lite0.npz --csv results/compact_codes.csv

Every code is fitted on the references. All references are encoded and decoded, and all queries are compared
with all of them, so that only the code differs. `real_descriptors.py` creates the second file.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray

from kappaplace.retrieval import exact
from kappaplace.retrieval.codes import learn_codebook
from kappaplace.retrieval.faiss import balanced_rotation
from record import log_row, timed
from search_engines import make

Array = NDArray[np.float32]
SAMPLE = 1 << 15


def sample_of(x: Array) -> Array:
    return x[np.random.default_rng(0).choice(len(x), min(SAMPLE, len(x)), replace=False)]


def by_index(index: faiss.Index, x: Array, rotation: Array | None = None) -> tuple[Array, float]:
    turned = x if rotation is None else x @ rotation
    index.train(sample_of(turned))
    back = index.sa_decode(index.sa_encode(turned))
    return (back if rotation is None else back @ rotation.T), float(index.sa_code_size())


def product(bits: int, pieces: int, together: int) -> Callable[[Array], tuple[Array, float]]:
    def code(x: Array) -> tuple[Array, float]:
        rotation = balanced_rotation(sample_of(x), pieces, together)
        index = faiss.IndexPQ(pieces * together, pieces, bits)
        index.pq.cp.niter, index.pq.cp.min_points_per_centroid = 12, 1
        return by_index(index, x, rotation)

    return code


def own(x: Array) -> tuple[Array, float]:
    book = learn_codebook(x)
    return book.decode(book.encode(x)), float(book.width)


def inverted(codes: int, together: int, means: bool = True) -> Callable[[Array], tuple[Array, float]]:
    """Encode the difference to a k-means centre, plus 8 bytes for the index of the centre."""

    def code(x: Array) -> tuple[Array, float]:
        rotation = balanced_rotation(sample_of(x), codes, together)
        dim = codes * together
        centres, lists = faiss.IndexFlatL2(dim) if means else faiss.IndexFlatIP(dim), round(len(x) ** 0.5)
        index = faiss.IndexIVFPQ(centres, dim, lists, codes, 8, faiss.METRIC_INNER_PRODUCT)
        index.by_residual = True
        index.cp.niter, index.cp.min_points_per_centroid, index.cp.spherical = 8, 1, not means
        index.pq.cp.niter, index.pq.cp.min_points_per_centroid = 12, 1
        turned = x @ rotation
        index.train(sample_of(turned))
        return index.sa_decode(index.sa_encode(turned)) @ rotation.T, codes + 8.0

    return code


def pca(dim: int, bits: int) -> Callable[[Array], tuple[Array, float]]:
    def code(x: Array) -> tuple[Array, float]:
        kind = {8: faiss.ScalarQuantizer.QT_8bit, 4: faiss.ScalarQuantizer.QT_4bit}[bits]
        return by_index(faiss.IndexScalarQuantizer(dim, kind), x, balanced_rotation(sample_of(x), dim, 1))

    return code


def opq(x: Array) -> tuple[Array, float]:
    turn = faiss.OPQMatrix(x.shape[1], 128)
    turn.niter, turn.niter_pq = 10, 4
    pq = faiss.IndexPQ(x.shape[1], 128, 8)
    pq.pq.cp.min_points_per_centroid = 1
    index = faiss.IndexPreTransform(turn, pq)
    return by_index(index, x)


def signs(x: Array) -> tuple[Array, float]:
    return by_index(faiss.index_factory(x.shape[1], "RaBitQ"), x)


def residual(x: Array) -> tuple[Array, float]:
    index = faiss.IndexProductResidualQuantizer(x.shape[1], 32, 4, 8)
    for i in range(32):
        part = faiss.downcast_AdditiveQuantizer(index.prq.subquantizer(i))
        part.max_beam_size, part.cp.niter, part.cp.min_points_per_centroid = 2, 8, 1
    return by_index(index, x, balanced_rotation(sample_of(x), 32, x.shape[1] // 32))


CODES: dict[str, Callable[[Array], tuple[Array, float]]] = {
    "weighted pq with a gain, 8 bits × 1 to 5 numbers (the map's)": own,
    "pq 8 bits × 4 numbers, balanced": product(8, 128, 4),
    "residuals to means, pq 8 bits × up to 5 numbers": inverted(116, 5),
    "residuals to unit centres, pq 8 bits × up to 5 numbers": inverted(116, 5, means=False),
    "residuals to unit centres, pq 8 bits × 4 numbers, 464 directions": inverted(116, 4, means=False),
    "pq 4 bits × 2 numbers, 416 directions": product(4, 208, 2),
    "pq 4 bits × 2 numbers, all directions": product(4, 256, 2),
    "pq 8 bits × 8 numbers, balanced": product(8, 64, 8),
    "opq 8 bits × 4 numbers (learnt rotation)": opq,
    "product-residual, 32 pieces × 4 levels": residual,
    "pca to 128, int8": pca(128, 8),
    "pca to 256, 4 bits": pca(256, 4),
    "signs (RaBitQ)": signs,
}
SCALES = ("none", "unit", "unbiased")


def scaled(back: Array, how: str) -> Array:
    """Scale decoded vectors: not at all, to unit length, or by 1/‖x̂‖², which makes similarities unbiased."""
    square = np.einsum("nd,nd->n", back, back)[:, None]
    return back / np.maximum(
        {"none": np.ones_like(square), "unit": np.sqrt(square), "unbiased": square}[how], 0.1
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--synthetic", type=int, metavar="REFERENCES")
    source.add_argument("--real", type=Path)
    parser.add_argument("--queries", type=int, default=1000, help="number of synthetic queries")
    parser.add_argument("--codes", nargs="+", default=list(CODES), help="first words of the names of codes")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    right: Callable[[NDArray[np.int64]], float]
    if options.real:
        stored = np.load(options.real)
        x, queries, ends = stored["references"], stored["queries"], np.cumsum(stored["counts"])
        truth = [set(rows) for rows in np.split(stored["positives"], ends[:-1])]
        right = lambda top: float(np.mean([row in rows for row, rows in zip(top, truth, strict=True)]))  # noqa: E731
    else:
        with tempfile.TemporaryDirectory() as scratch:
            make(Path(scratch), options.synthetic, query_count=options.queries)
            x = np.load(Path(scratch) / "descriptors.npy").astype(np.float32)
            queries, places, answers = (
                np.load(Path(scratch) / f"{what}.npy") for what in ("queries", "places", "answers")
            )
        right = lambda top: float(np.mean(places[top] == answers))  # noqa: E731
    best = exact.search(queries, x, 10).indices
    for name in (name for name in CODES if name.startswith(tuple(options.codes))):
        (back, size), seconds = timed(lambda name=name: CODES[name](x))
        for how in SCALES:
            matches = exact.search(queries, scaled(back, how), 10).indices
            row: dict[str, float | int | str] = {
                "descriptors": options.real.stem if options.real else f"synthetic {options.synthetic}",
                "references": len(x),
                "queries": len(queries),
                "code": name,
                "scale": how,
                "bytes": size,
                "R@1": right(matches[:, 0]),
                "exact R@1": right(best[:, 0]),
                "points lost": 100 * (right(best[:, 0]) - right(matches[:, 0])),
                "recall@10": float(
                    np.mean([len(set(a) & set(b)) / 10 for a, b in zip(matches, best, strict=True)])
                ),
                "error": float(1 - np.mean(np.einsum("nd,nd->n", scaled(back, "unit"), x))),
                "seconds": seconds,
            }
            log_row(options.csv, row)


if __name__ == "__main__":
    main()
