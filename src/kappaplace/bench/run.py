"""Everything that this machine can measure within about two minutes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from kappaplace.bench.export import measure_export
from kappaplace.bench.growth import Curve, growth_curves
from kappaplace.bench.inference import Rounds, measure_fidelity, measure_speed
from kappaplace.bench.metrics import measure_metrics
from kappaplace.bench.overhead import Setting, measure_overhead
from kappaplace.bench.pipeline import measure_pipeline
from kappaplace.bench.plots import growth_figure
from kappaplace.bench.record import cores, dated, write_rows
from kappaplace.bench.rows import Row
from kappaplace.bench.search import measure_search
from kappaplace.bench.steps import measure_steps
from kappaplace.bench.training import measure_training
from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder
from kappaplace.models.embedding import usable_device
from kappaplace.models.place_model import PlaceModel

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is measured where."""

    device: torch.device
    quick: bool = False

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def backbone(self) -> str:
        """The paper's on a GPU; on a CPU the one that is made for it."""
        return "resnet50" if self.on_gpu else "efficientnet_lite0"

    @property
    def size(self) -> int:
        return 512 if self.on_gpu else 224 if self.quick else 320

    def model(self) -> PlaceModel:
        """Fresh weights: they do not change the time."""
        torch.manual_seed(0)
        return PlaceModel.create(
            self.backbone, 512, "folded", preprocessing=Preprocessing(self.size, "exact")
        ).eval()


@dataclass
class Bench:
    """What was found."""

    rows: list[Row] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def _overhead(plan: Plan, bench: Bench) -> None:
    runs = 200 if plan.on_gpu else 6 if plan.quick else 15
    rounds, warm_up = (3 if plan.quick else 5), (20 if plan.on_gpu else 2)
    setting = Setting(plan.backbone, plan.size, plan.device, runs, rounds, warm_up)
    bench.rows += measure_overhead(setting)


def _inference(plan: Plan, bench: Bench) -> None:
    batches = ([1, 64] if plan.quick else [1, 64, 128]) if plan.on_gpu else [1, 4]
    rounds = Rounds(200 if plan.on_gpu else 12, 3, 20 if plan.on_gpu else 2)
    bench.rows += measure_speed(plan.model(), plan.device, batches, ["auto"], rounds)
    queries, spacing = (20, 30.0) if plan.quick else (50, 20.0)  # `benchmarks/inference.py` asks more
    bench.rows += measure_fidelity(
        _trained(), plan.device, queries=queries, size=192, blocks=1, spacing=spacing
    )


def _export(plan: Plan, bench: Bench) -> None:
    bench.rows += measure_export(Plan(torch.device("cpu"), plan.quick).model())


def _embedding(plan: Plan, bench: Bench) -> None:
    model = replace(plan, quick=False).model()  # at its own size: decoding must be compared with that
    images = 2048 if plan.on_gpu else 32 if plan.quick else 64
    batch = 64 if plan.on_gpu else 16
    name, preprocessing = plan.backbone, model.preprocessing
    options = {"images": images, "batch_size": batch, "rounds": 2 if plan.quick else 3}
    bench.rows += measure_pipeline(model, preprocessing, name, plan.device, **options)
    if plan.on_gpu:
        fast = model.optimize(plan.device)
        bench.rows += measure_pipeline(fast, preprocessing, f"{name} optimised", plan.device, **options)


def _search(plan: Plan, bench: Bench) -> None:
    bench.rows += measure_search(10_000 if plan.quick else 50_000)


def _metrics(plan: Plan, bench: Bench) -> None:
    bench.rows += measure_metrics(*((10_000, 200) if plan.quick else (100_000, 500)))


def _training(plan: Plan, bench: Bench) -> None:
    bench.rows += measure_training(plan.device, images=256 if plan.quick else 512, epochs=4)
    steps = {"batch": 128, "steps": 20} if plan.on_gpu else {"batch": 32, "steps": 10 if plan.quick else 40}
    bench.rows += measure_steps(plan.device, **steps)


def _growth(plan: Plan, bench: Bench) -> None:
    bench.curves += growth_curves(plan.model(), plan.device, quick=plan.quick)


PARTS: dict[str, Callable[[Plan, Bench], None]] = {
    "overhead": _overhead,
    "inference": _inference,
    "export": _export,
    "embedding": _embedding,
    "search": _search,
    "metrics": _metrics,
    "training": _training,
    "growth": _growth,
}


def run_bench(
    device: str = "", *, quick: bool = False, only: Sequence[str] = (), say: Say = lambda sentence: None
) -> Bench:
    """Measure all parts, or those named; a part that fails is told of and does not stop the others."""
    unknown = [name for name in only if name not in PARTS]
    if unknown:
        raise KappaPlaceError(f"There is no part '{unknown[0]}'; choose from {', '.join(PARTS)}.")
    plan = Plan(usable_device(device or ("cuda" if torch.cuda.is_available() else "cpu")), quick)
    bench = Bench()
    for name, measure in PARTS.items():
        if only and name not in only:
            continue
        start = time.perf_counter()
        try:
            measure(plan, bench)
        except KappaPlaceError as error:
            bench.skipped[name] = str(error)
            say(f"{name}: left out. {error}")
        else:
            say(f"{name}: {time.perf_counter() - start:.0f} s")
    return bench


def machine_class(device: str = "") -> str:
    """The machine in words that fit many: ratios are comparable within such a class."""
    if torch.cuda.is_available() and device in ("", "cuda"):
        return f"{torch.cuda.get_device_name()}, {cores()} cores"
    return f"{cores()}-core CPU, threads: {torch.get_num_threads()}"


def save_bench(bench: Bench, folder: Path, device: str = "") -> list[Path]:
    """ratios.csv, growth.csv and growth.png; the files that were written."""
    make_folder(folder)
    written = []
    if bench.rows:
        written.append(folder / "ratios.csv")
        name = machine_class(device)
        write_rows(written[-1], [dated(row.record()) | {"machine": name} for row in bench.rows])
    if bench.curves:
        written.append(folder / "growth.csv")
        write_rows(written[-1], [record for curve in bench.curves for record in curve.records()])
        written.append(folder / "growth.png")
        growth_figure(bench.curves).savefig(written[-1], dpi=120)
    return written


def _trained() -> PlaceModel:
    from kappaplace.models.checkpoint import load_model

    model = load_model()
    assert isinstance(model, PlaceModel)
    return model
