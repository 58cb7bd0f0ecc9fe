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
    given = parse_options(
        __doc__,
        backbone="resnet50",
        size=512,
        images=2048 if DEVICE.type == "cuda" else 48,
        batch=64 if DEVICE.type == "cuda" else 16,
        rounds=3,
        csv=Path,
    )
    torch.manual_seed(0)
    preprocessing = Preprocessing(given.size, "exact")
    plain = PlaceModel.create(given.backbone, 512, "folded", preprocessing=preprocessing)
    size = {"images": given.images, "batch_size": given.batch, "rounds": given.rounds}
    rows = measure_embedding(plain, given.backbone, DEVICE, **size)
    rows += measure_embedding(plain.optimize(DEVICE), f"{given.backbone} optimised", DEVICE, **size)
    report(rows, given.csv)


if __name__ == "__main__":
    main()
