"""What κ costs: the model without a kappa head against the same with one, p tied or its own."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from kappaplace.bench.memory import kernels, peak_bytes
from kappaplace.bench.rows import Row
from kappaplace.bench.timing import interleaved, ratio
from kappaplace.data.images import Preprocessing
from kappaplace.models.fast import Way
from kappaplace.models.heads import HeadName
from kappaplace.models.place_model import PlaceModel

PART = "overhead of κ"
HEADS: dict[str, HeadName] = {"tied p": "folded-tied", "own p": "folded"}
EAGER_LIMITS = {"tied p": 1.02, "own p": 1.04}
COMPILED_LIMIT, MEMORY_LIMIT = 1.02, 1.001


@dataclass(frozen=True)
class Setting:
    """The same for every measurement of one table."""

    backbone: str = "resnet50"
    size: int = 512
    device: torch.device = torch.device("cpu")  # noqa: RUF009
    runs: int = 200
    rounds: int = 5
    warm_up: int = 20
    dim: int = 512


def models(setting: Setting) -> dict[str, PlaceModel]:
    """Base and both heads over one and the same encoder."""
    torch.manual_seed(0)
    preprocessing = Preprocessing(setting.size, "exact")
    base = PlaceModel.create(setting.backbone, setting.dim, "none", preprocessing=preprocessing)
    made = {"base": base.to(setting.device).eval().requires_grad_(False)}
    for name, head in HEADS.items():
        model = copy.copy(base)
        model._modules = dict(base._modules)
        model.head = model.new_head(head)
        made[name] = model.to(setting.device).eval().requires_grad_(False)
    return made


def measure_overhead(
    setting: Setting, ways: Sequence[Way] = ("auto",), say: Callable[[str], None] = lambda sentence: None
) -> list[Row]:
    """Parameters, peak memory and latency at batch 1: eager float32, then each way of `optimize`."""
    made = models(setting)
    image = torch.randn(1, 3, setting.size, setting.size, device=setting.device)
    where = f"{setting.backbone}, {setting.size}², {setting.device.type}"
    rows = [_parameters(made, name, where) for name in HEADS]
    rows += _memory(made, image, setting, where)
    if setting.device.type == "cuda":
        rows += _kernels(made, image, where)
    rows += _latency(made, image, setting, where, "eager float32", EAGER_LIMITS)
    for way in ways:
        start = time.perf_counter()
        fast: dict[str, nn.Module] = {
            name: model.optimize(setting.device, way=way) for name, model in made.items()
        }
        for model in fast.values():
            model(image)
        form = fast["base"]
        say(f"{way}: {form.way}, {form.dtype}, ready after {time.perf_counter() - start:.1f} s")
        limits = dict.fromkeys(HEADS, COMPILED_LIMIT)
        rows += _latency(fast, image, setting, where, f"optimised ({form.way})", limits)
    return rows


def _parameters(made: dict[str, PlaceModel], name: str, where: str) -> Row:
    count = {key: sum(p.numel() for p in made[key].parameters()) for key in ("base", name)}
    ours, peer = float(count[name]), float(count["base"])
    what = f"parameters, {name} (+{count[name] - count['base']:,})"
    return Row(PART, where, what, ours, peer, "", "without κ", ours / peer, "lower", MEMORY_LIMIT)


def _memory(made: dict[str, PlaceModel], image: Tensor, setting: Setting, where: str) -> list[Row]:
    def peak(model: PlaceModel) -> float:
        with torch.inference_mode():
            model(image)  # what a first call alone asks for is not counted
            weights = sum(value.nbytes for value in model.state_dict().values())
            return (weights + peak_bytes(lambda: model(image), setting.device)) / 2**20

    peer = peak(made["base"])
    rows = []
    for name in HEADS:
        ours = peak(made[name])
        what = f"peak memory, {name}"
        rows.append(
            Row(PART, where, what, ours, peer, "MiB", "without κ", ours / peer, "lower", MEMORY_LIMIT)
        )
    return rows


def _kernels(made: dict[str, PlaceModel], image: Tensor, where: str) -> list[Row]:
    """What an eager forward pass has the GPU do; each costs some microseconds to start."""
    counts = {}
    with torch.inference_mode():
        for name, model in made.items():
            model(image)
            counts[name] = float(kernels(partial(model, image)))
    return [
        Row(
            PART,
            where,
            f"kernels, {name}, eager float32",
            counts[name],
            counts["base"],
            "",
            "without κ",
            counts[name] / counts["base"],
            "lower",
        )
        for name in HEADS
    ]


def _latency(
    made: dict[str, PlaceModel] | dict[str, nn.Module],
    image: Tensor,
    setting: Setting,
    where: str,
    title: str,
    limits: dict[str, float],
) -> list[Row]:
    with torch.inference_mode():
        taken = interleaved(
            {name: partial(model, image) for name, model in made.items()},
            setting.device,
            runs=setting.runs,
            rounds=setting.rounds,
            warm_up=setting.warm_up,
        )
    ms = {name: 1e3 * sorted(values)[len(values) // 2] for name, values in taken.items()}
    return [
        Row(
            PART,
            where,
            f"latency, {name}, {title}",
            ms[name],
            ms["base"],
            "ms",
            "without κ",
            ratio(taken[name], taken["base"]),
            "lower",
            limits[name],
        )
        for name in HEADS
    ]
