"""Post-training over the same views: cached features against the direct loop, in one run.

python benchmarks/cached_pt.py [--images 8192] [--epochs 30] [--batch 32] [--ways WAYS] [--csv FILE]

Both see every view in the same order and end with the same κ, which is printed. A first short run of each
kind, not counted, lets compilers and memory pools warm up.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from kappaplace.models.place_model import PlaceModel
from kappaplace.training.assembly import TrainingSet
from kappaplace.training.recipes import settings_for
from kappaplace.training.run import Trained, train
from record import append_row

FAST = ["run.precision=bf16", "run.channels_last=true", "run.compile=true"]
PLAIN = ["run.precision=fp32", "run.channels_last=false", "run.compile=false"]
DIRECT = ["anchors.cache=false", "anchors.learn_p=false"]
EACH = 8  # images a place


def timed(options: list[str], data: TrainingSet, encoder: PlaceModel) -> tuple[float, Trained]:
    """Seconds of a whole run, from images to the model on disk."""
    with tempfile.TemporaryDirectory() as folder:
        wait()
        start = time.perf_counter()
        trained = train(settings_for("kappa-pt", "", options), data, folder, model=encoder)
        wait()
        return time.perf_counter() - start, trained


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def kappa(trained: Trained, data: TrainingSet) -> torch.Tensor:
    """κ of some images as they are."""
    assert isinstance(data.images, torch.Tensor)
    model = trained.model.to(data.images.device)
    with torch.inference_mode():
        return model(model.preprocessing.normalise(data.images[:64])).kappa.cpu()


def make_data(count: int, size: int, device: str) -> TrainingSet:
    """Smooth random images in memory: their content does not change the time."""
    coarse = torch.rand(count, 3, 16, 16, device=device)
    parts = [torch.nn.functional.interpolate(part, size, mode="bilinear") for part in coarse.split(256)]
    images = torch.cat([(part * 255).to(torch.uint8) for part in parts])
    positions = np.stack([np.arange(count) // EACH * 10.0 + 5, np.full(count, 5.0)], 1)
    return TrainingSet(images, positions)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=8192)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--ways", default="cached,direct,direct fp32 eager")
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    encoder = PlaceModel.create(arguments.backbone, 512, "none").eval()
    data = make_data(arguments.images, arguments.size, device)
    short = make_data(8 * max(arguments.batch, 64), arguments.size, device)
    common = [
        f"model.size={arguments.size}",
        f"optimiser.batch_size={arguments.batch}",
        "anchors.source=places",
        "classes.min_images=4",
        "run.trackers=[]",
        "run.checkpoint_every=100000",
    ]
    ways = {"cached": FAST, "direct": [*FAST, *DIRECT], "direct fp32 eager": [*PLAIN, *DIRECT]}
    seconds: dict[str, float] = {}
    results: dict[str, torch.Tensor] = {}
    for name, options in ((name, ways[name]) for name in arguments.ways.split(",")):
        timed([*common, *options, "optimiser.epochs=1"], short, encoder)
        took, trained = timed([*common, *options, f"optimiser.epochs={arguments.epochs}"], data, encoder)
        seconds[name], results[name] = took, kappa(trained, data)
        print(f"{name:<18} {seconds[name]:8.2f} s   mean κ {float(results[name].mean()):.4f}", flush=True)
    row: dict[str, float | int | str] = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "backbone": arguments.backbone,
        "images": arguments.images,
        "epochs": arguments.epochs,
        "batch": arguments.batch,
        "size": arguments.size,
        **{f"{name} (s)": value for name, value in seconds.items()},
    }
    for name, title in (("direct", "direct / cached"), ("direct fp32 eager", "fp32 eager / cached")):
        if name in seconds:
            row[title] = seconds[name] / seconds["cached"]
            apart = (results["cached"] - results[name]).abs() / results[name]
            row[f"largest difference of κ, cached and {name}"] = float(apart.max())
    print(row)
    if arguments.csv:
        append_row(arguments.csv, row)


if __name__ == "__main__":
    main()
