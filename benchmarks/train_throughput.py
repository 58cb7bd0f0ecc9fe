"""Images per second of a JT step, augmentation included: ours against a plain fp32 eager loop, in one run.

python benchmarks/train_throughput.py [--backbone resnet50] [--size 512] [--batch 128] [--csv FILE]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from kappaplace.training.assembly import Assembly
from kappaplace.training.engine import Engine
from kappaplace.training.recipes import recipe_named, settings_for
from kappaplace.training.start import starting_model
from kappaplace.training.training_set import TrainingSet
from record import append_row

PLAIN = ["run.precision=fp32", "run.channels_last=false", "run.compile=false"]
OURS = ["run.precision=bf16", "run.channels_last=true", "run.compile=true"]
BARE = [
    "augment.brightness=0",
    "augment.contrast=0",
    "augment.saturation=0",
    "augment.hue=0",
    "augment.scale=1",
]
WARM_UP = 5


def rate(options: list[str], data: TrainingSet, batch: int, steps: int) -> float:
    """Images per second of the training steps that `kappaplace train kappa-jt` makes."""
    settings = settings_for("kappa-jt", "", options)
    recipe = recipe_named("kappa-jt")
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine.create(settings.run, "", Path(folder))
        model = starting_model(settings, recipe)
        loop = Assembly(settings, recipe, data, Path(folder), None, model, engine, print).loop()
        model.train()
        loop.steps.run(0, 0, WARM_UP)
        wait()
        start = time.perf_counter()
        loop.steps.run(0, WARM_UP, WARM_UP + steps)
        wait()
        return steps * batch / (time.perf_counter() - start)


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    count = 4 * arguments.batch
    images = torch.randint(
        0, 256, (count, 3, arguments.size, arguments.size), dtype=torch.uint8, device=device
    )
    positions = np.stack([np.arange(count) // 4 * 10.0 + 5, np.full(count, 5.0)], 1)
    data = TrainingSet(images, positions)
    common = [
        f"model.backbone={arguments.backbone}",
        "model.pretrained=false",
        f"model.size={arguments.size}",
        f"optimiser.batch_size={arguments.batch}",
        f"optimiser.iterations={WARM_UP + arguments.steps}",
        "classes.min_images=4",
        "classes.groups_per_axis=1",
        "run.trackers=[]",
    ]
    plain = rate([*common, *PLAIN, *BARE], data, arguments.batch, arguments.steps)
    bare = rate([*common, *OURS, *BARE], data, arguments.batch, arguments.steps)
    full = rate([*common, *OURS], data, arguments.batch, arguments.steps)
    row: dict[str, float | int | str] = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
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
