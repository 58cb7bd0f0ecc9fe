"""Images a second from disk to descriptors against the model alone, and the stage that holds the rest up.

python benchmarks/embedding_pipeline.py [--backbone resnet50] [--size 512] [--images N] [--csv FILE]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from kappaplace import PlaceModel, Preprocessing
from kappaplace.cli.bench import measure_embedding
from record import report


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--images", type=int, default=2048 if device.type == "cuda" else 48)
    parser.add_argument("--batch", type=int, default=64 if device.type == "cuda" else 16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    torch.manual_seed(0)
    preprocessing = Preprocessing(given.size, "exact")
    plain = PlaceModel.create(given.backbone, 512, "folded", preprocessing=preprocessing)
    size = {"images": given.images, "batch_size": given.batch, "rounds": given.rounds}
    rows = measure_embedding(plain, given.backbone, device, **size)
    rows += measure_embedding(plain.optimize(device), f"{given.backbone} optimised", device, **size)
    report(rows, given.csv)


if __name__ == "__main__":
    main()
