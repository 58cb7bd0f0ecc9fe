"""Time and memory of the paper's tables of efficiency and training time, on this machine.

python benchmarks/paper_cost.py [--backbone resnet50] [--size 512] [--batch 32] [--budget 420] [--csv FILE]

Needs only torch and NumPy (with Pillow and safetensors), not the other dependencies of the package. Rows with
the way "paper" are eager float32 with the paper's backbone, size and batch; "fast" is bfloat16, channels last
and compiled; "trial" is anything else.
Hours of training are seconds per step, measured with images in memory, times the published number of steps.
After --budget seconds, no further measurement starts.
"""

from __future__ import annotations

import argparse
import copy
import csv
import importlib.util
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch

if importlib.util.find_spec("rich") is None:  # a bare GPU machine: only the progress bar needs it

    class _NoBar:
        def __init__(self, task: str, total: int) -> None: ...

        def __enter__(self) -> _NoBar:
            return self

        def __exit__(self, *error: object) -> None: ...

        def advance(self, count: int = 1) -> None: ...

    _progress = ModuleType("kappaplace.progress")
    _progress.track = _NoBar  # type: ignore[attr-defined]
    sys.modules["kappaplace.progress"] = _progress

from kappaplace.data.images import Preprocessing
from kappaplace.models.place_model import PlaceModel
from kappaplace.training.images import TrainingSet
from kappaplace.training.recipes import recipe_named, settings_for
from kappaplace.training.run import Assembly
from kappaplace.training.start import Engine, starting_model

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WARM_UP, RUNS = (20, 200) if DEVICE.type == "cuda" else (2, 5)
"""Runs before the measurement and in it; those of the paper on a GPU."""
HEADS = {"Baseline": "none", "KappaPlace": "mirrored", "KappaPlace folded": "folded"}
FAST = ["run.precision=bf16", "run.channels_last=true", "run.compile=true"]
PLAIN = ["run.precision=fp32", "run.channels_last=false", "run.compile=false"]
PAPER = ("resnet50", 512, 32)
EACH = 4  # images per place
EPOCH = 10_000  # steps
COSPLACE = 50 * EPOCH
RECIPES = {
    "retrieval": [],
    "stun": [],
    "kappa-jt": [],
    "kappa-pt": ["anchors.source=places", "anchors.cache=false"],
}


class Run(NamedTuple):
    """One row of the table of training times."""

    method: str
    steps: dict[str, int]
    about: str


RUNS_OF_THE_PAPER = (
    Run("CosPlace", {"retrieval": COSPLACE}, "50 epochs of 10,000 steps"),
    Run("STUN", {"retrieval": COSPLACE, "stun": 6 * 43_800}, "CosPlace, then 6 epochs of 43,800 steps"),
    Run(
        "KappaPlace-PT",
        {"retrieval": COSPLACE, "kappa-pt": COSPLACE},
        "CosPlace, then 50 epochs (not stated)",
    ),
    Run("KappaPlace-JT", {"kappa-jt": 138 * EPOCH}, "138 epochs of 10,000 steps"),
)


def wait() -> None:
    """Wait for the device."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def efficiency(backbone: str, size: int) -> Iterator[tuple[str, str, float]]:
    """Yield method, metric and value of the table of efficiency: one image, eager float32."""
    torch.manual_seed(0)
    base = PlaceModel.create(
        backbone, 512, "none", pretrained=False, preprocessing=Preprocessing(size, "exact")
    )
    for method, head in HEADS.items():
        model = copy.copy(base)
        model._modules = dict(base._modules)
        if head != "none":
            model.head = base.new_head(head)
        model = copy.deepcopy(model).to(DEVICE).eval().requires_grad_(False)
        image = torch.rand(1, 3, size, size, device=DEVICE)
        yield method, "parameters M", sum(p.numel() for p in model.parameters()) / 1e6
        with torch.inference_mode():
            times = []
            for number in range(WARM_UP + RUNS):
                wait()
                start = time.perf_counter()
                model(image)
                wait()
                if number >= WARM_UP:
                    times.append(1e3 * (time.perf_counter() - start))
            yield method, "latency ms", statistics.fmean(times)
            if DEVICE.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
                model(image)
                yield method, "peak memory MB", torch.cuda.max_memory_allocated() / 2**20
        del model
        if DEVICE.type == "cuda":
            torch.cuda.empty_cache()


def noise(count: int, size: int, device: torch.device = DEVICE) -> TrainingSet:
    """Create places of four images each; their content does not change the time."""
    images = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, device=device)
    positions = np.stack([np.arange(count) // EACH * 10.0 + 5, np.full(count, 5.0)], 1)
    return TrainingSet(images, positions)


def step_seconds(recipe: str, options: list[str], data: TrainingSet, batch: int, steps: int) -> float:
    """Return seconds per step with augmentation, after the first steps.

    Args:
        recipe: Name of the recipe.
        options: Settings of the run.
        data: Images in memory.
        batch: Images per step.
        steps: Number of steps to time.
    """
    size, warm = data.images.shape[-1], 5
    common = [
        "model.pretrained=false",
        f"model.size={size}",
        f"optimizer.batch_size={batch}",
        f"optimizer.iterations={warm + steps}",
        f"classes.min_images={EACH}",
        "classes.groups_per_axis=1",
        "run.trackers=[]",
    ]
    settings = settings_for(recipe, "", [*common, *RECIPES.get(recipe, []), *options])
    how = recipe_named(recipe)
    torch.manual_seed(0)
    source = (
        PlaceModel.create(settings.model.backbone, 512, "none", pretrained=False) if how.needs_start else None
    )
    with tempfile.TemporaryDirectory() as folder:
        device = "" if data.images.device.type == "cuda" else "cpu"  # the engine selects the GPU
        engine = Engine.create(settings.run, device, Path(folder))
        model = starting_model(settings, how, source)
        loop = Assembly(settings, how, data, Path(folder), None, model, engine, lambda line: None).loop()
        model.train()
        loop.steps.run(0, 0, warm)
        wait()
        start = time.perf_counter()
        loop.steps.run(0, warm, warm + steps)
        wait()
        return (time.perf_counter() - start) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, default in {
        "backbone": "resnet50",
        "size": 512,
        "batch": 32,
        "steps": 40,
        "budget": 420,
    }.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    began = time.monotonic()
    device = (
        torch.cuda.get_device_name() if DEVICE.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    )
    facts = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "command": "python " + " ".join(["benchmarks/paper_cost.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()} with {os.cpu_count()} cores",
        "device": device,
    }
    rows: list[dict[str, str | float]] = []

    def add(way: str, table: str, method: str, metric: str, value: float, about: str) -> None:
        print(f"{way:<6} {method:<18} {metric:<16} {value:10.4g}  {about}", flush=True)
        row = {"way": way, "table": table, "method": method, "metric": metric, "value": round(value, 6)}
        rows.append({**facts, **row, "about": about})
        if options.csv is not None:  # after every measurement, so that an interrupted run keeps its rows
            options.csv.parent.mkdir(parents=True, exist_ok=True)
            with options.csv.open("w", encoding="utf-8", newline="") as stream:
                writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)

    where = f"{options.backbone}, {options.size}²"
    plain = "paper" if (options.backbone, options.size, options.batch) == PAPER else "trial"
    for method, metric, value in efficiency(options.backbone, options.size):
        add(plain, "tab:efficiency", method, metric, value, f"{where}, one image, float32")
    data = noise(4 * options.batch, options.size)
    for way, settings in {plain: PLAIN, "fast": FAST}.items():
        if way == "fast" and DEVICE.type != "cuda":
            continue
        seconds: dict[str, float] = {}
        about = f"{where}, batch {options.batch}, images in memory"
        for recipe in RECIPES:
            if time.monotonic() - began > options.budget:
                print(f"Skipped {way} {recipe}: more than {options.budget} s.", flush=True)
                continue
            model = [f"model.backbone={options.backbone}", *settings]
            seconds[recipe] = step_seconds(recipe, model, data, options.batch, options.steps)
            add(way, "steps", recipe, "ms per step", 1e3 * seconds[recipe], about)
        for run in RUNS_OF_THE_PAPER:
            if run.steps.keys() <= seconds.keys():
                hours = sum(seconds[recipe] * count for recipe, count in run.steps.items()) / 3600
                add(way, "tab:training_times", run.method, "training hours", hours, f"{run.about}; {about}")


if __name__ == "__main__":
    main()
