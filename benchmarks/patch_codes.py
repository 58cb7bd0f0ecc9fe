"""Patch matching by stored codes against exact feature maps: R@1, AUROC, bytes and milliseconds.

python benchmarks/patch_codes.py --data DATA --csv results/patch_codes.csv
python benchmarks/patch_codes.py --data DATA --speed --csv results/patch_codes_speed.csv

The first command compares kinds of codes on the test parts of the public datasets (docs/real_images.md), with
10 to 100 candidates, and a decision per query whether to re-rank. The second measures the time of a query
with and without re-ranking in one run. Codes were chosen on the validation parts (--validation).
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent / "real"))
from sets import FAMILY, test_sets, validation_sets

from kappaplace.data.table import PlaceImages
from kappaplace.maps import BuildOptions, PlaceMap
from kappaplace.metrics import auroc
from kappaplace.models import load_model
from kappaplace.models.embedding import embed_images
from kappaplace.retrieval.exact import search
from kappaplace.retrieval.patch_codes import SAMPLE_IMAGES, LocalFeatures, PatchCodebook
from kappaplace.retrieval.patches import cell_agreement, learn_codes
from record import DEVICE, Option, log_row, parse_options

DEPTHS = (10, 20, 50, 100)
BYTES = {"compact": 4096, "2 KiB": 2048}
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Part:
    """One dataset: matches of the descriptors, and the features of all images."""

    hits: NDArray[np.bool_]
    """N×100: whether a match is correct."""
    indices: NDArray[np.int64]
    similarities: Floats
    near: NDArray[np.bool_]
    """N×100: whether a match shows the place of the top match."""
    query: LocalFeatures
    reference: torch.Tensor
    """Feature maps of the references."""


def read_part(table: PlaceImages, model: torch.nn.Module) -> Part:
    query, reference = (
        embed_images(model, model.preprocessing, table.image_paths(rows), progress=False, patches=True)
        for rows in (table.query_rows, table.reference_rows)
    )
    matches = search(query.descriptor, reference.descriptor, min(100, len(reference.descriptor)))
    own = LocalFeatures.of(torch.from_numpy(query.patches).to(DEVICE))
    return Part(
        table.positives().hits(matches.indices),
        matches.indices,
        matches.similarities.astype(np.float64),
        np.asarray(table.is_near(matches.indices[:, :1], matches.indices)),
        own,
        torch.from_numpy(reference.patches),
    )


def codebook(part: Part, code_bytes: int) -> PatchCodebook:
    rows = np.linspace(0, len(part.reference) - 1, min(SAMPLE_IMAGES, len(part.reference))).round()
    return learn_codes(part.reference[np.unique(rows.astype(np.int64))], code_bytes=code_bytes)


@torch.inference_mode()
def agreements(part: Part, features: LocalFeatures, depth: int) -> tuple[Floats, float]:
    """Return the agreement of each query with its matches, and milliseconds per query for the first ten."""
    own, seconds = part.query.within(features.basis), []
    values = np.empty((len(part.indices), min(depth, part.indices.shape[1])))
    for row, matches in enumerate(part.indices[:, :depth]):
        others = features.take(matches)
        cells = others.cells.to(DEVICE)
        values[row] = (
            others.scaled(cell_agreement(own.cells[row : row + 1], cells, others.size)).double().cpu().numpy()
        )
        if row < 50:
            start = time.perf_counter()
            cell_agreement(own.cells[row : row + 1], cells[:10], others.size).cpu()
            seconds.append(time.perf_counter() - start)
    return values, 1000 * float(np.median(seconds))


def measure(part: Part, agreement: Floats) -> tuple[float, float]:
    """Return R@1, and how well the agreement of the first match separates correct from incorrect answers."""
    best = agreement.argmax(axis=1)
    right = part.hits[np.arange(len(best)), best]
    return float(right.mean()), float(auroc(1 - agreement.max(axis=1), right))


def decided(part: Part, agreement: Floats, margin: float, lead: float) -> float:
    """Return R@1 if matches are re-ranked only where the descriptor is in doubt and the agreement is clear.

    The top match stays if it leads every other place by ``margin``, or if no match agrees better by ``lead``.
    """
    outside = np.where(part.near, -np.inf, part.similarities).max(axis=1)
    sure = part.similarities[:, 0] - outside >= margin
    clear = agreement.max(axis=1) - agreement[:, 0] >= lead
    best = np.where(~sure & clear, agreement.argmax(axis=1), 0)
    return float(part.hits[np.arange(len(best)), best].mean())


def compare(name: str, part: Part, file: Path | None, margin: float, lead: float) -> None:
    exact = LocalFeatures.of(part.reference)
    kinds = {"exact": (exact, part.reference[0].numel() * 2)}
    for kind, size in BYTES.items():
        book = codebook(part, size)
        kinds[kind] = (book.decode(book.encode(part.reference)), book.width)
    truth = np.empty(0)
    top = float(part.hits[:, 0].mean())
    for kind, (features, size) in kinds.items():
        depths = DEPTHS if kind in ("exact", "compact") else DEPTHS[:1]
        values, milliseconds = agreements(part, features, max(depths))
        truth = values if kind == "exact" else truth
        for depth in depths:
            first = values[:, :depth]
            recall, area = measure(part, first)
            log_row(
                file,
                {
                    "set": name,
                    "queries": len(values),
                    "kind": kind,
                    "bytes": size,
                    "candidates": depth,
                    "r1_descriptor": top,
                    "r1": recall,
                    "auroc": area,
                    "r1_decided": decided(part, first, margin, lead),
                    "agreement_ratio": float(first.max(axis=1).mean() / truth[:, :depth].max(axis=1).mean()),
                    "agreement_difference": float(np.abs(first - truth[:, :depth]).mean()),
                    "ms_of_ten": milliseconds,
                },
            )


def speed(name: str, table: PlaceImages, file: Path | None) -> None:
    """Measure queries one at a time, with and without re-ranking in turn."""
    with tempfile.TemporaryDirectory() as folder:
        # No shipped calibration applies to int8, so that only the comparison of patches differs.
        options = BuildOptions(device=DEVICE.type, neighborhood="frames:10", storage="int8")
        town = PlaceMap.build(table, Path(folder) / "town.map", "kappaplace-lite0", options)
        images = table.image_paths(table.query_rows)[:60]
        seconds: dict[int, list[tuple[float, float]]] = {0: [], 10: []}
        for number, image in enumerate([*images[:10], *images]):
            for rerank, values in seconds.items():
                start = time.perf_counter(), time.process_time()
                town.localize(image, rerank=rerank)
                if number >= 10:  # the first ones warm up
                    values.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    wall, cpu = (
        {rerank: float(np.median([pair[i] for pair in values])) for rerank, values in seconds.items()}
        for i in (0, 1)
    )
    row = {"set": name, "device": DEVICE.type, "threads": torch.get_num_threads()}
    row |= {"ms": 1000 * wall[0], "ms_reranked": 1000 * wall[10], "ratio": wall[10] / wall[0]}
    # Other programs lengthen the time on the wall, but not the time of the processor.
    log_row(
        file,
        row | {"cpu_ms": 1000 * cpu[0], "cpu_ms_reranked": 1000 * cpu[10], "cpu_ratio": cpu[10] / cpu[0]},
    )


def main() -> None:
    options = parse_options(
        __doc__,
        data=Option(Path, required=True),
        csv=Option(Path, help="file to add the rows to"),
        sets=Option(list(FAMILY), help="names of the datasets"),
        validation=Option(False, help="measure the validation parts, to choose the kind of code"),
        speed=Option(False, help="measure the time of a query with and without re-ranking"),
        margin=Option(0.15, help="a top match that leads every other place by this much is not re-ranked"),
        lead=Option(0.0, help="a match must agree better than the top match by this much to replace it"),
    )
    tables = (
        validation_sets(options.data) if options.validation else test_sets(options.data, tuple(options.sets))
    )
    model = load_model("kappaplace-lite0").to(DEVICE).eval()
    for name, table in tables.items():
        if options.speed:
            speed(name, table, options.csv)
        else:
            compare(name, read_part(table, model), options.csv, options.margin, options.lead)


if __name__ == "__main__":
    main()
