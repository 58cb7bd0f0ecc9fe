"""Images per second from disk to descriptors against only the model, and the slowest stage.

python benchmarks/embedding_pipeline.py [--backbone resnet50] [--size 512] [--images N] [--csv FILE]
"""

from __future__ import annotations

from pathlib import Path

import torch

from kappaplace import PlaceModel, Preprocessing
from kappaplace.cli.bench import measure_embedding
from record import DEVICE, parse_options, report


def main() -> None:
    arguments = parse_options(
        __doc__,
        backbone="resnet50",
        size=512,
        images=2048 if DEVICE.type == "cuda" else 48,
        batch=64 if DEVICE.type == "cuda" else 16,
        rounds=3,
        csv=Path,
    )
    torch.manual_seed(0)
    preprocessing = Preprocessing(arguments.size, "exact")
    plain = PlaceModel.create(arguments.backbone, 512, "folded", preprocessing=preprocessing)
    size = {"images": arguments.images, "batch_size": arguments.batch, "rounds": arguments.rounds}
    rows = measure_embedding(plain, arguments.backbone, DEVICE, **size)
    rows += measure_embedding(plain.optimize(DEVICE), f"{arguments.backbone} optimised", DEVICE, **size)
    report(rows, arguments.csv)


if __name__ == "__main__":
    main()
