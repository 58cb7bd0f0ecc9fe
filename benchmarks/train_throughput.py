"""Images per second of joint training with augmentation, against a plain fp32 eager loop, in one run.

python benchmarks/train_throughput.py [--backbone resnet50] [--size 512] [--batch 128] [--csv FILE]
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from kappaplace.cli.bench import Row
from kappaplace.training.images import TrainingSet
from paper_cost import FAST, PLAIN, noise, step_seconds
from record import DEVICE, log_row, parse_options

BARE = [f"augment.{name}=0" for name in ("brightness", "contrast", "saturation", "hue")] + ["augment.scale=1"]


def step_rate(options: Sequence[str], data: TrainingSet, batch: int, steps: int) -> float:
    """Return images per second of joint training, after the first steps."""
    return batch / step_seconds("kappa-jt", list(options), data, batch, steps)


def measure_steps(device: torch.device, *, batch: int, steps: int) -> list[Row]:
    """Measure the gain of our settings: bf16, channels-last memory and compilation on a GPU."""
    on_gpu = device.type == "cuda"
    backbone, size = ("resnet50", 512) if on_gpu else ("resnet_tiny", 64)
    data = noise(4 * batch, size, device)
    model = f"model.backbone={backbone}"
    ours, plain = (
        step_rate([model, *options], data, batch, steps) for options in (FAST if on_gpu else [], PLAIN)
    )
    where = f"{backbone}, {size}², batch {batch}, {device.type}"
    what = "joint training, augmentation included"
    return [Row("training", where, what, ours, plain, "images/s", "eager float32", ours / plain, "higher")]


def main() -> None:
    arguments = parse_options(__doc__, backbone="resnet50", size=512, batch=128, steps=20, csv=Path)
    data = noise(4 * arguments.batch, arguments.size, DEVICE)
    model = f"model.backbone={arguments.backbone}"
    plain, bare, full = (
        step_rate([model, *options], data, arguments.batch, arguments.steps)
        for options in ([*PLAIN, *BARE], [*FAST, *BARE], FAST)
    )
    row: dict[str, float | int | str] = {
        "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu",
        "backbone": arguments.backbone,
        "size": arguments.size,
        "batch": arguments.batch,
        "fp32 eager, no augmentation (images/s)": plain,
        "bf16 compiled, no augmentation": bare,
        "bf16 compiled, with augmentation": full,
        "ratio": bare / plain,
        "ratio with augmentation": full / plain,
    }
    log_row(arguments.csv, row)


if __name__ == "__main__":
    main()
