"""Post-training on the same views: cached features against the direct loop, in one run.

python benchmarks/cached_pt.py [--images 8192] [--epochs 30] [--batch 32] [--ways WAYS] [--csv FILE]

Both use every view in the same order and end with the same κ, which is printed. A short run of each kind
warms up compilers and memory pools.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from kappaplace import PlaceModel, train
from kappaplace.cli.bench import Row, wait
from kappaplace.training.images import TrainingSet
from kappaplace.training.recipes import settings_for
from kappaplace.training.run import Trained
from paper_cost import FAST, PLAIN
from record import DEVICE, log_row, parse_options, timed

DIRECT = ["anchors.cache=false", "anchors.learn_p=false"]
WAYS = {"cached": FAST, "direct": [*FAST, *DIRECT], "direct fp32 eager": [*PLAIN, *DIRECT]}
EACH = 8  # images per place
BRIEF = 20.0  # seconds; longer variants run once


def make_data(count: int, size: int, device: torch.device) -> TrainingSet:
    """Create smooth random images in memory; their content does not change the time."""
    coarse = torch.rand(count, 3, 16, 16, device=device)
    parts = [torch.nn.functional.interpolate(part, size, mode="bilinear") for part in coarse.split(256)]
    images = torch.cat([(part * 255).to(torch.uint8) for part in parts])
    positions = np.stack([np.arange(count) // EACH * 10.0 + 5, np.full(count, 5.0)], 1)
    return TrainingSet(images, positions)


def kappa_of(trained: Trained, data: TrainingSet) -> torch.Tensor:
    """Return κ of some images."""
    assert isinstance(data.images, torch.Tensor)
    model = trained.model.to(data.images.device)
    with torch.inference_mode():
        return model(model.preprocessing.normalize(data.images[:64])).kappa.cpu()


def timed_run(options: Sequence[str], data: TrainingSet, encoder: PlaceModel) -> tuple[float, Trained]:
    """Return the seconds of a whole run, from images to the saved model."""
    assert isinstance(data.images, torch.Tensor)
    with tempfile.TemporaryDirectory() as folder:
        settings, device = settings_for("kappa-pt", "", list(options)), data.images.device

        def run() -> Trained:
            trained = train(settings, data, folder, model=encoder)
            wait(device)
            return trained

        wait(device)
        trained, seconds = timed(run)
        return seconds, trained


def post_training(
    encoder: PlaceModel,
    ways: Mapping[str, Sequence[str]],
    device: torch.device,
    *,
    images: int,
    epochs: int,
    batch: int,
    size: int,
) -> dict[str, tuple[float, torch.Tensor]]:
    """Return seconds and κ of some images for every variant.

    A short run warms up compilers. Variants of a few seconds run three times, and the median is returned.
    """
    data, short = make_data(images, size, device), make_data(8 * max(batch, 64), size, device)
    common = [
        f"model.size={size}",
        f"optimizer.batch_size={batch}",
        "anchors.source=places",
        "classes.min_images=4",
        "run.trackers=[]",
        "run.checkpoint_every=100000",
    ]
    results = {}
    for name, options in ways.items():
        timed_run([*common, *options, "optimizer.epochs=1"], short, encoder)
        times: list[float] = []
        while len(times) < 3 and sum(times) < BRIEF:
            seconds, trained = timed_run([*common, *options, f"optimizer.epochs={epochs}"], data, encoder)
            times.append(seconds)
        results[name] = (statistics.median(times), kappa_of(trained, data))
    return results


def measure_training(device: torch.device, *, images: int = 512, epochs: int = 4) -> list[Row]:
    """Measure with a tiny encoder how many times faster cached features make a whole run."""
    torch.manual_seed(0)
    encoder = PlaceModel.create("resnet_tiny", 64, "none").eval()
    ways = {"cached": PLAIN, "direct": [*PLAIN, *DIRECT]}
    runs = post_training(encoder, ways, device, images=images, epochs=epochs, batch=32, size=64)
    cached, direct = (runs[name][0] for name in ways)
    where = f"{images} images of 64², {epochs} epochs, resnet_tiny, {device.type}"
    values = cached, direct, "s", "direct", direct / cached, "higher"
    return [Row("training", where, "post-training on cached features", *values)]


def main() -> None:
    arguments = parse_options(
        __doc__,
        images=8192,
        epochs=30,
        batch=32,
        size=512,
        backbone="resnet50",
        ways=",".join(WAYS),
        csv=Path,
    )
    torch.manual_seed(0)
    encoder = PlaceModel.create(arguments.backbone, 512, "none").eval()
    runs = post_training(
        encoder,
        {name: WAYS[name] for name in arguments.ways.split(",")},
        DEVICE,
        images=arguments.images,
        epochs=arguments.epochs,
        batch=arguments.batch,
        size=arguments.size,
    )
    for name, (seconds, kappa) in runs.items():
        print(f"{name:<18} {seconds:8.2f} s   mean κ {float(kappa.mean()):.4f}", flush=True)
    row: dict[str, float | int | str] = {
        "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu",
        "backbone": arguments.backbone,
        "images": arguments.images,
        "epochs": arguments.epochs,
        "batch": arguments.batch,
        "size": arguments.size,
        **{f"{name} (s)": seconds for name, (seconds, _) in runs.items()},
    }
    for name, title in (("direct", "direct / cached"), ("direct fp32 eager", "fp32 eager / cached")):
        if name in runs:
            (cached, ours), (seconds, theirs) = runs["cached"], runs[name]
            row[title] = seconds / cached
            apart = (ours - theirs).abs() / theirs
            row[f"largest difference of κ, cached and {name}"] = float(apart.max())
    log_row(arguments.csv, row)


if __name__ == "__main__":
    main()
