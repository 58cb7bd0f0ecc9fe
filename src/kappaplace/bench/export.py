"""Exported files in the runtimes that are installed, against the plain eager model."""

from __future__ import annotations

import importlib.util
import tempfile
from functools import partial
from pathlib import Path

import torch
from torch import nn

from kappaplace.bench.rows import Row
from kappaplace.bench.timing import interleaved, ratio
from kappaplace.models.checkpoint import load_model
from kappaplace.models.export import SUFFIXES, Format, export_model
from kappaplace.models.place_model import PlaceModel

PART = "export"
NEEDED: dict[Format, tuple[str, ...]] = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("onnx", "onnxscript", "openvino"),
    "torchscript": (),
}


def installed() -> list[Format]:
    """Formats that can be written and run here."""
    return [
        name
        for name, packages in NEEDED.items()
        if all(importlib.util.find_spec(package) is not None for package in packages)
    ]


def measure_export(model: PlaceModel, *, runs: int = 5, rounds: int = 3) -> list[Row]:
    """Latency at batch 1 on the CPU."""
    cpu = torch.device("cpu")
    plain = model.to(cpu).eval()
    height, width = model.preprocessing.fixed_size or (512, 512)
    forms: dict[str, nn.Module] = {"plain": plain}
    with tempfile.TemporaryDirectory() as folder:
        for name in installed():
            file = Path(folder) / f"model{SUFFIXES[name]}"
            export_model(plain, file, name, patches=False)
            forms[name] = load_model(file)
        image = torch.randn(1, 3, height, width)
        with torch.inference_mode():
            calls = {name: partial(form, image) for name, form in forms.items()}
            taken = interleaved(calls, runs=runs, rounds=rounds, warm_up=2)
    ms = {name: 1e3 * sorted(values)[len(values) // 2] for name, values in taken.items()}
    where = f"{model.architecture.backbone}, {height}×{width}, cpu"
    return [
        Row(
            PART,
            where,
            f"latency, {name}, batch 1",
            ms[name],
            ms["plain"],
            "ms",
            "eager float32",
            ratio(taken["plain"], taken[name]),
            "higher",
        )
        for name in forms
        if name != "plain"
    ]
