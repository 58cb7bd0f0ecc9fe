"""Overhead of κ in time, memory and parameters, against the same model without κ, in one run.

python benchmarks/overhead.py [--backbone resnet50] [--size 512] [--ways auto compiled] [--csv FILE]
"""

from __future__ import annotations

import copy
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from kappaplace import PlaceModel, Preprocessing
from kappaplace.cli.bench import Rounds, Row, interleaved, ratio
from record import DEVICE, parse_options, report

HEADS = {"tied p": "folded-tied", "own p": "folded"}
EAGER_LIMITS = {"tied p": 1.02, "own p": 1.04}
COMPILED_LIMIT, MEMORY_LIMIT = 1.02, 1.001


@dataclass(frozen=True)
class Setting:
    """Setting of all measurements of a table."""

    backbone: str = "resnet50"
    size: int = 512
    device: torch.device = torch.device("cpu")  # noqa: RUF009
    rounds: Rounds = Rounds()  # noqa: RUF009
    dim: int = 512


def models(setting: Setting) -> dict[str, PlaceModel]:
    """Create the base model and both heads on the same encoder."""
    torch.manual_seed(0)
    preprocessing = Preprocessing(setting.size, "exact")
    base = PlaceModel.create(setting.backbone, setting.dim, "none", preprocessing=preprocessing)
    forms = {"base": base.to(setting.device).eval().requires_grad_(False)}
    for name, head in HEADS.items():
        model = copy.copy(base)
        model._modules = dict(base._modules)
        model.head = model.new_head(head)
        forms[name] = model.to(setting.device).eval().requires_grad_(False)
    return forms


@torch.inference_mode()
def measure_overhead(setting: Setting, ways: Sequence[str] = ("auto",)) -> list[Row]:
    """Measure parameters, peak memory and latency at batch 1, eager and with `optimize`."""
    variants, device = models(setting), setting.device
    image = torch.randn(1, 3, setting.size, setting.size, device=device)
    where = f"{setting.backbone}, {setting.size}², {device.type}"
    rows: list[Row] = []

    def add(what: str, values: Mapping[str, float], unit: str, limit: float | None) -> None:
        for name in HEADS:
            sizes = values[name], values["base"]
            title = what.format(name, f"+{int(sizes[0] - sizes[1]):,}")
            over = sizes[0] / sizes[1]
            rows.append(Row("overhead of κ", where, title, *sizes, unit, "without κ", over, "lower", limit))

    def latency(forms: Mapping[str, nn.Module], title: str, limits: Mapping[str, float]) -> None:
        calls = {name: partial(form, image) for name, form in forms.items()}
        times = interleaved(calls, device, setting.rounds)
        ms = {name: 1e3 * statistics.median(values) for name, values in times.items()}
        for name in HEADS:
            over = ratio(times[name], times["base"])
            values = ms[name], ms["base"], "ms", "without κ", over, "lower", limits[name]
            rows.append(Row("overhead of κ", where, f"latency, {name}, {title}", *values))

    counts = {name: float(sum(p.numel() for p in model.parameters())) for name, model in variants.items()}
    add("parameters, {} ({})", counts, "", MEMORY_LIMIT)
    peaks = {name: _peak(model, image) / 2**20 for name, model in variants.items()}
    add("peak memory, {}", peaks, "MiB", MEMORY_LIMIT)
    if device.type == "cuda":
        starts = {name: float(kernels(partial(model, image))) for name, model in variants.items()}
        add("kernels, {}, eager float32", starts, "", None)
    latency(variants, "eager float32", EAGER_LIMITS)
    for way in ways:
        fast = {name: model.optimize(device, form=way) for name, model in variants.items()}
        latency(fast, f"optimised ({fast['base'].form})", dict.fromkeys(HEADS, COMPILED_LIMIT))
    return rows


def _peak(model: nn.Module, image: torch.Tensor) -> float:
    model(image)  # the first call allocates buffers that are not counted
    weights = sum(value.nbytes for value in model.state_dict().values())
    return weights + peak_bytes(lambda: model(image), image.device)


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """Return the peak memory of tensors within a call, as counted by the allocator."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with _quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    current = most = 0
    events = seen.profiler.kineto_results.events()
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        current += event.nbytes()
        most = max(most, current)
    return most


def kernels(call: Callable[[], object]) -> int:
    """Count the GPU kernels of a call; each takes a few microseconds to start."""
    with _quiet(), profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    return sum(event.device_type.name == "CUDA" for event in seen.events())


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the log lines of the profiler, which come from native code."""
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


def main() -> None:
    on_gpu = DEVICE.type == "cuda"
    arguments = parse_options(
        __doc__,
        backbone="resnet50" if on_gpu else "efficientnet_lite0",
        size=512,
        runs=200 if on_gpu else 40,
        rounds=5,
        warm_up=20 if on_gpu else 3,
        ways=["auto"],
        csv=Path,
    )
    rounds = Rounds(arguments.runs, arguments.rounds, arguments.warm_up)
    report(
        measure_overhead(Setting(arguments.backbone, arguments.size, DEVICE, rounds), arguments.ways),
        arguments.csv,
    )


if __name__ == "__main__":
    main()
