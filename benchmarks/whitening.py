"""Recall against the dimension of whitened descriptors (`map build --dim`) on public datasets.

python benchmarks/whitening.py --data DATA --weights RESNET50 --csv results/whitening.csv

The encoder is an ImageNet ResNet-50 without training on places: GeM of its last feature map (2,048
dimensions), and GeM of the map and of its four quarters (10,240). The whitening is fitted on the references
of each dataset, as in a map. Its shrinkage was chosen on the rows with part=validation: TMBuD, every second
photo of a building as a query, and the first 70% of the two routes.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent / "real"))
from sets import ROUTES, UNSEEN, VALIDATION, part_of_route, read_set, test_sets

from kappaplace import FrozenEncoder, Preprocessing
from kappaplace.data.table import PlaceImages
from kappaplace.models.aggregation import SHRINKAGE, gem, learn_whitening
from kappaplace.models.embedding import embed_images
from kappaplace.models.published import load_foreign
from kappaplace.retrieval.exact import search
from record import DEVICE, Option, log_row, parse_options

DIMS = (32, 64, 128, 256, 512, 1024)
SHRINKAGES = {"whitened": SHRINKAGE, "without shrinkage": 0.0, "pca": 1e9}
Descriptors = NDArray[np.float32]


class PlainResNet(nn.Module):
    """GeM of the last feature map of a ResNet, and of its quarters if there are ``regions``."""

    def __init__(self, backbone: nn.Module, regions: bool) -> None:
        super().__init__()
        self.backbone, self.regions = backbone, regions

    def forward(self, images: Tensor) -> Tensor:
        features = self.backbone(images)
        parts = [features]
        if self.regions:
            parts += [part for half in features.chunk(2, 2) for part in half.chunk(2, 3)]
        return torch.cat([F.normalize(gem(part, 3.0), dim=1) for part in parts], dim=1)


@dataclass(frozen=True, eq=False)
class Part:
    """Images of one dataset, and a function from matches to whether they are correct."""

    name: str
    part: str
    queries: Sequence[str]
    references: Sequence[str]
    hits: Callable[[NDArray[np.int64]], NDArray[np.bool_]]


def of_table(name: str, part: str, table: PlaceImages) -> Part:
    query, reference = (table.image_paths(rows) for rows in (table.query_rows, table.reference_rows))
    return Part(name, part, query, reference, table.positives().hits)


def buildings(data: Path) -> Part:
    with open(data / "tmbud" / "tmbud.csv", encoding="utf-8") as stream:
        rows = [(data / "tmbud/images" / row["file"], row["Building Name"]) for row in csv.DictReader(stream)]
    files = [(str(path), name) for path, name in rows if path.is_file()]
    query, reference = files[1::2], files[::2]
    wanted, names = (np.array([name for _, name in part]) for part in (query, reference))
    known = np.isin(wanted, names)
    return Part(
        "tmbud",
        "validation",
        [path for (path, _), is_known in zip(query, known, strict=True) if is_known],
        [path for path, _ in reference],
        lambda indices: names[indices] == wanted[known][:, None],
    )


def parts(data: Path, names: Sequence[str]) -> list[Part]:
    found = []
    if "tmbud" in names:
        found.append(buildings(data))
    for name in names:
        if name in ROUTES:
            found.append(of_table(name, "validation", part_of_route(read_set(data, name), 0.0, VALIDATION)))
    for name, table in test_sets(data, tuple(name for name in names if name != "tmbud")).items():
        found.append(of_table(name, "test", table))
    return found + [of_table(name, "whole route", read_set(data, name)) for name in names if name in ROUTES]


def measure(part: Part, query: Descriptors, reference: Descriptors, file: Path | None, encoder: str) -> None:
    def log(method: str, dim: int, query: Descriptors, reference: Descriptors) -> None:
        correct = part.hits(search(query, reference, min(10, len(reference))).indices)
        log_row(
            file,
            {
                "set": part.name,
                "part": part.part,
                "queries": len(query),
                "references": len(reference),
                "encoder": encoder,
                "method": method,
                "dim": dim,
                "bytes": 2 * dim,
                "r1": float(correct[:, 0].mean()),
                "r10": float(correct.any(axis=1).mean()),
            },
        )

    log("none", reference.shape[1], query, reference)
    for dim in DIMS:
        if dim < min(len(reference), reference.shape[1]):
            for method, shrinkage in SHRINKAGES.items():
                whitening = learn_whitening(reference, dim, shrinkage=shrinkage)
                log(method, dim, whitening.of(query), whitening.of(reference))


def main() -> None:
    args = parse_options(
        __doc__,
        data=Option(Path, "folder of the public datasets (benchmarks/real/README.md)", required=True),
        weights=Option(Path, "weights file of an ImageNet ResNet-50", required=True),
        backbone=Option("resnet50_v1", "resnet50 if the stride is in the second convolution"),
        sets=Option(["tmbud", *ROUTES, *UNSEEN], "datasets"),
        csv=Option(Path, "file to append the rows to"),
    )
    backbone = load_foreign(args.weights, backbone=args.backbone).backbone
    for regions, name in ((False, "ResNet-50 GeM"), (True, "ResNet-50 GeM of five regions")):
        encoder = FrozenEncoder(PlainResNet(backbone, regions), preprocessing=Preprocessing(320, "exact"))
        for part in parts(args.data, args.sets):
            query, reference = (
                embed_images(encoder, encoder.preprocessing, images, device=DEVICE, progress=False).descriptor
                for images in (part.queries, part.references)
            )
            measure(part, query, reference, args.csv, name)


if __name__ == "__main__":
    main()
