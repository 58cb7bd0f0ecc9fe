"""Images per second of joint training with augmentation, against a plain fp32 eager loop, in one run.

python benchmarks/train_throughput.py [--backbone resnet50] [--size 512] [--batch 128] [--csv FILE]
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from cached_pt import FAST, PLAIN
from kappaplace.cli.bench import Row, wait
from kappaplace.training.assembly import Assembly
from kappaplace.training.images import TrainingSet
from kappaplace.training.recipes import recipe_named, settings_for
from kappaplace.training.start import Engine, starting_model
from record import DEVICE, log_row, parse_options

BARE = [
    "augment.brightness=0",
    "augment.contrast=0",
    "augment.saturation=0",
    "augment.hue=0",
    "augment.scale=1",
]


WARM_UP = 5
EACH = 4  # images per place


def step_rate(options: Sequence[str], data: TrainingSet, batch: int, steps: int) -> float:
    """Return images per second with augmentation, after the first steps."""
    assert isinstance(data.images, torch.Tensor)
    device = data.images.device
    settings = settings_for(
        "kappa-jt",
        "",
        [
            "model.pretrained=false",
            f"model.size={data.images.shape[-1]}",
            f"optimizer.batch_size={batch}",
            f"optimizer.iterations={WARM_UP + steps}",
            f"classes.min_images={EACH}",
            "classes.groups_per_axis=1",
            "run.trackers=[]",
            *options,
        ],
    )
    recipe = recipe_named("kappa-jt")
    with tempfile.TemporaryDirectory() as folder:
        # The engine selects a GPU on its own.
        engine = Engine.create(settings.run, "cpu" if device.type == "cpu" else "", Path(folder))
        model = starting_model(settings, recipe)
        loop = Assembly(settings, recipe, data, Path(folder), None, model, engine, lambda line: None).loop()
        model.train()
        loop.steps.run(0, 0, WARM_UP)
        wait(device)
        start = time.perf_counter()
        loop.steps.run(0, WARM_UP, WARM_UP + steps)
        wait(device)
        return steps * batch / (time.perf_counter() - start)


def noise(count: int, size: int, device: torch.device) -> TrainingSet:
    """Create places of four images each; their content does not change the time."""
    images = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, device=device)
    positions = np.stack([np.arange(count) // EACH * 10.0 + 5, np.full(count, 5.0)], 1)
    return TrainingSet(images, positions)


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
