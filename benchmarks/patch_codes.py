"""Patch matching by stored codes against exact feature maps: R@1, AUROC, bytes and milliseconds.

python benchmarks/patch_codes.py --data DATA --csv results/patch_codes.csv
python benchmarks/patch_codes.py --data DATA --speed --csv results/patch_codes_speed.csv
python benchmarks/patch_codes.py --csv results/patch_codes.csv --plot docs/assets/patch-candidates.png

The first command compares kinds of codes on the test parts of the public datasets
(benchmarks/real/README.md), with 10 to 50 candidates, and a decision per query whether to re-rank. The
second measures the time of a query with and without re-ranking in one run. The third draws the results of
the first. Codes, agreement and number of candidates were chosen on the validation parts (--validation).
"""

from __future__ import annotations

import csv
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
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
from record import DEVICE, Option, log_row, parse_options, stored_embeddings

DEPTHS = (10, 20, 50)
BYTES = {"compact": 4096, "2 KiB": 2048}
REACH = {"exact": 1, "compact": 3, "2 KiB": 1}
"""Number of depths that are measured for each kind."""
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


def read_part(name: str, table: PlaceImages, model: torch.nn.Module, cache: Path | None) -> Part:
    embed = partial(embed_images, model, model.preprocessing, progress=False, patches=True)
    query, reference = (
        stored_embeddings(cache, f"{name}.{kind}", partial(embed, table.image_paths(rows)))
        for kind, rows in (("query", table.query_rows), ("reference", table.reference_rows))
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
    """Return the agreement of each query with its matches, and processor milliseconds for ten of them."""
    own, seconds = part.query.within(features.basis), []
    values = np.empty((len(part.indices), min(depth, part.indices.shape[1])))
    for row, matches in enumerate(part.indices[:, :depth]):
        others = features.take(matches)
        cells = others.cells.to(DEVICE)
        values[row] = (
            others.scaled(cell_agreement(own.cells[row : row + 1], cells, others.size)).double().cpu().numpy()
        )
        if row < 50:
            start = time.process_time()  # other programs on this machine do not lengthen it
            cell_agreement(own.cells[row : row + 1], cells[:10], others.size)
            seconds.append(time.process_time() - start)
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
        depths = DEPTHS[: REACH[kind]]
        values, milliseconds = agreements(part, features, max(depths))
        truth = values if kind == "exact" else truth
        for depth in depths:
            first = values[:, :depth]
            recall, area = measure(part, first)
            both = min(first.shape[1], truth.shape[1])
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
                    "agreement_ratio": float(first[:, :both].max(1).mean() / truth[:, :both].max(1).mean()),
                    "agreement_difference": float(np.abs(first[:, :both] - truth[:, :both]).mean()),
                    "cpu_ms_of_ten": milliseconds,
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


def plot(file: Path, figure: Path) -> None:
    """Draw R@1 and AUROC against the number of candidates."""
    import matplotlib.pyplot as plt

    with file.open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["kind"] == "compact"]
    _, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, column, title in zip(axes, ("r1", "auroc"), ("R@1", "AUROC of the agreement"), strict=True):
        values = {(row["set"], int(row["candidates"])): float(row[column]) for row in rows}
        names = list(dict.fromkeys(row["set"] for row in rows))
        for name in names:
            axis.plot(DEPTHS, [values[name, depth] for depth in DEPTHS], marker=".", lw=1, label=name)
        mean = [float(np.nanmean([values[name, depth] for name in names])) for depth in DEPTHS]
        axis.plot(DEPTHS, mean, "k", marker="o", lw=2, label="mean")
        axis.set(xscale="log", xticks=DEPTHS, xticklabels=DEPTHS, xlabel="candidates", title=title)
        axis.minorticks_off()
    axes[1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    plt.savefig(figure, dpi=110)


def main() -> None:
    options = parse_options(
        __doc__,
        data=Option(Path, help="folder of the datasets"),
        csv=Option(Path, help="file to add the rows to"),
        sets=Option(list(FAMILY), help="names of the datasets"),
        cache=Option(Path, help="folder of embeddings"),
        validation=Option(False, help="measure the validation parts, to choose the kind of code"),
        plot=Option(Path, help="file of a figure to draw from --csv instead of measuring"),
        speed=Option(False, help="measure the time of a query with and without re-ranking"),
        margin=Option(0.15, help="a top match that leads every other place by this much is not re-ranked"),
        lead=Option(0.0, help="a match must agree better than the top match by this much to replace it"),
    )
    if options.plot:
        return plot(options.csv, options.plot)
    tables = (
        validation_sets(options.data) if options.validation else test_sets(options.data, tuple(options.sets))
    )
    model = load_model("kappaplace-lite0").to(DEVICE).eval()
    for name, table in tables.items():
        if options.speed:
            speed(name, table, options.csv)
        else:
            compare(
                name,
                read_part(f"{'val_' * options.validation}{name}", table, model, options.cache),
                options.csv,
                options.margin,
                options.lead,
            )


if __name__ == "__main__":
    main()
