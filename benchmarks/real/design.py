"""Design choices of the encoder, made without test images: train without a route, evaluate on that route.

python benchmarks/real/design.py --data DATA --weights DIR --city city.npz --left-out st_lucia [--csv FILE]

The omitted route represents an unseen place; its first 70% (training and validation parts) are the queries.
Prints R@1 of the initial and the tuned encoder, and of interpolations between them. Needs
PYTHONPATH=benchmarks.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from encoders import SIZE, between, start_model, train_encoder
from sets import ROUTES, VALIDATION, load_images, part_of_route, read_set, training_images
from signals import embed

from kappaplace.retrieval.exact import search
from record import DEVICE, Option, log_row, parse_options

MILD = ["augment.brightness=0.4", "augment.contrast=0.4", "augment.saturation=0.4", "augment.hue=0.1"]
CONFIGURATIONS: dict[str, tuple[str, list[str]]] = {
    "contrastive": ("contrastive", []),
    "contrastive, mild colours": ("contrastive", MILD),
    "contrastive, mild colours, slow": ("contrastive", [*MILD, "optimizer.lr=1e-4"]),
    "retrieval, mild colours": ("retrieval", [*MILD, "classes.hold_out=0"]),
}
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def main() -> None:
    arguments = parse_options(
        __doc__,
        data=Option(Path, required=True),
        weights=Option(Path, required=True),
        city=Path,
        backbone="efficientnet_lite0",
        left_out=Option(str, required=True, choices=ROUTES),
        only=";".join(CONFIGURATIONS),
        csv=Path,
    )
    device = DEVICE.type
    seen = tuple(name for name in ROUTES if name != arguments.left_out)
    data = training_images(arguments.data, SIZE, arguments.city, seen)
    data = type(data)(data.images.to(device), data.positions, data.heading)
    table = part_of_route(read_set(arguments.data, arguments.left_out), 0.0, VALIDATION)
    query, reference = (
        load_images(table.image_paths(rows), SIZE).to(device)
        for rows in (table.query_rows, table.reference_rows)
    )
    start = start_model(
        arguments.backbone, arguments.weights / f"{arguments.backbone}.pt", data.images, device
    )
    for name in arguments.only.split(";"):
        recipe, options = CONFIGURATIONS[name]
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            tuned = train_encoder(recipe, start, data, Path(folder), 0, options)
        row: dict[str, float | int | str] = {
            "backbone": arguments.backbone,
            "left out": arguments.left_out,
            "configuration": name,
            "seconds": round(time.perf_counter() - began, 1),
        }
        for share in SHARES:
            model = between(start, tuned, share).to(device).eval()  # type: ignore[arg-type]
            matches = search(embed(model, query).descriptor, embed(model, reference).descriptor, 1)
            right = table.positives().hits(matches.indices)[:, 0]
            row[f"R@1 at {share:g}"] = round(float(right.mean()), 4)
        log_row(arguments.csv, row)


if __name__ == "__main__":
    main()
