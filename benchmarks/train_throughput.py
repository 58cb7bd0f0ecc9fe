"""Images per second of a JT step, augmentation included: ours against a plain fp32 eager loop, in one run.

python benchmarks/train_throughput.py [--backbone resnet50] [--size 512] [--batch 128] [--csv FILE]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from kappaplace.bench.steps import noise, step_rate
from kappaplace.bench.training import FAST, PLAIN
from record import append_row

BARE = [
    "augment.brightness=0",
    "augment.contrast=0",
    "augment.saturation=0",
    "augment.hue=0",
    "augment.scale=1",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = noise(4 * arguments.batch, arguments.size, device)
    model = f"model.backbone={arguments.backbone}"
    plain, bare, full = (
        step_rate([model, *options], data, arguments.batch, arguments.steps)
        for options in ([*PLAIN, *BARE], [*FAST, *BARE], FAST)
    )
    row: dict[str, float | int | str] = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "backbone": arguments.backbone,
        "size": arguments.size,
        "batch": arguments.batch,
        "fp32 eager, no augmentation (images/s)": plain,
        "bf16 compiled, no augmentation": bare,
        "bf16 compiled, with augmentation": full,
        "ratio": bare / plain,
        "ratio with augmentation": full / plain,
    }
    for name, value in row.items():
        print(f"{name:<42} {value:.4g}" if isinstance(value, float) else f"{name:<42} {value}", flush=True)
    if arguments.csv:
        append_row(arguments.csv, row)


if __name__ == "__main__":
    main()
