"""``kappaplace bench``: speed of a model on this machine, as ratios to a peer in the same run."""

from __future__ import annotations

import csv
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kappaplace.cli.options import Device
from kappaplace.files import make_folder

if TYPE_CHECKING:
    import torch
    from torch import nn

    from kappaplace.data import Preprocessing
    from kappaplace.models import Form, PlaceModel

Call: TypeAlias = Callable[[], object]
Values: TypeAlias = dict[str, float | int | str]
LEAST_LATENCY, LEAST_THROUGHPUT = 8.0, 3.0  # smallest speedup of `optimize` on a GPU
LEAST_CPU, LEAST_GPU = 0.9, 0.8  # required speed of embedding files, relative to the model alone


class Part(str, Enum):
    """Kind of speed to measure."""

    inference = "inference"
    embedding = "embedding"


@dataclass(frozen=True)
class Row:
    """One comparison: our value, a peer or limit, and their ratio, which is comparable between machines."""

    part: str
    where: str
    """Model, size and device, or the amount of work."""
    what: str
    ours: float
    peer: float
    unit: str
    peer_name: str
    ratio: float
    better: Literal["higher", "lower"]
    """The good direction of the ratio."""
    limit: float | None = None
    """Smallest allowed ratio, or the largest one if lower is better. None without a limit."""

    @property
    def met(self) -> bool | None:
        """Whether the ratio is within its limit; None without a limit."""
        if self.limit is None:
            return None
        return self.ratio >= self.limit if self.better == "higher" else self.ratio <= self.limit

    def record(self) -> Values:
        """Return the values of the row for a CSV file."""
        met = {None: "", True: "yes", False: "no"}[self.met]
        return {**asdict(self), "limit": "" if self.limit is None else self.limit, "met": met}

    def cells(self) -> tuple[str, ...]:
        """Return the row as text: name, our value, the peer's value, ratio and limit."""
        sign, unit = "≥" if self.better == "higher" else "≤", f" {self.unit}" if self.unit else ""
        ratio = f"{self.ratio:.4f}" if 0.9 < self.ratio < 1.1 else f"{self.ratio:.4g}"
        limit = "" if self.limit is None else f"{sign} {self.limit:g}{'' if self.met else ', missed'}"
        return (
            self.what,
            _number(self.ours) + unit,
            f"{_number(self.peer)}{unit} ({self.peer_name})",
            ratio,
            limit,
        )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def show(rows: Sequence[Row]) -> None:
    """Print one table per part and model."""
    for part, where in dict.fromkeys((row.part, row.where) for row in rows):
        title = f"{part}: {where}"
        table = Table("what", "ours", "peer or limit", "ratio", "limit", title=title, box=SIMPLE_HEAD)
        for row in rows:
            if (row.part, row.where) == (part, where):
                table.add_row(*row.cells())
        Console(width=None if sys.stdout.isatty() else 160).print(table)


def wait(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def seconds(call: Call, device: torch.device) -> float:
    """Return the seconds of one call, which starts and ends with an idle device."""
    wait(device)
    start = time.perf_counter()
    call()
    wait(device)
    return time.perf_counter() - start


@dataclass(frozen=True)
class Rounds:
    """Number of timed calls: in each of ``rounds``, every call runs ``runs`` times."""

    runs: int = 200
    rounds: int = 5
    warm_up: int = 20


def interleaved(calls: Mapping[str, Call], device: torch.device, how: Rounds) -> dict[str, list[float]]:
    """Return the median seconds of each round for every call.

    The calls take turns, and each round starts with another call, so that a busy machine slows all of them
    alike.
    """
    names = list(calls)
    for name in names:
        for _ in range(how.warm_up):
            calls[name]()
    medians: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(how.rounds):
        times: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(how.runs):
            for i in range(len(names)):
                name = names[(i + turn) % len(names)]
                times[name].append(seconds(calls[name], device))
        for name in names:
            medians[name].append(statistics.median(times[name]))
    return medians


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Return the median over all rounds of the ratio of two calls."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def measure_speed(
    model: PlaceModel,
    device: torch.device,
    batches: Sequence[int],
    rounds: Rounds,
    *,
    ways: Sequence[Form] = ("auto",),
) -> list[Row]:
    """Compare `optimize` with the plain model: latency at batch 1, throughput at larger batches."""
    import torch

    plain = model.to(device).eval()
    height, width = plain.preprocessing.fixed_size or (512, 512)
    where = f"{plain.architecture.backbone}, {height}×{width}, {device.type}"
    fast = [plain.optimize(device, form=form) for form in ways]
    forms: dict[str, nn.Module] = {"plain": plain, **{each.form: each for each in fast}}
    rows = []
    for batch in batches:
        images = torch.randn(batch, 3, height, width, device=device)
        how = rounds if batch == 1 else Rounds(max(3, rounds.runs // batch), rounds.rounds, 3)
        with torch.inference_mode():
            calls = {name: partial(form, images) for name, form in forms.items()}
            times = interleaved(calls, device, how)
        limit = None if device.type != "cuda" else LEAST_LATENCY if batch == 1 else LEAST_THROUGHPUT
        median = {name: statistics.median(values) for name, values in times.items()}
        for name in forms.keys() - {"plain"}:
            ours, peer = (1e3 * t if batch == 1 else batch / t for t in (median[name], median["plain"]))
            kind, unit = ("latency", "ms") if batch == 1 else ("throughput", "images/s")
            gain = ratio(times["plain"], times[name])
            what = f"{kind}, {name}, batch {batch}"
            row = partial(Row, "inference", where, what, ours, peer, unit, "eager float32")
            rows.append(row(gain, "higher", limit))
    return rows


def measure_embedding(
    model: nn.Module,
    name: str,
    device: torch.device,
    *,
    images: int = 64,
    batch_size: int = 32,
    rounds: int = 3,
) -> list[Row]:
    """Compare the speed of embedding files, and of its stages decode and transfer, with the model alone."""
    import torch

    from kappaplace.data import resized
    from kappaplace.models import Upload, embed_images, loader_for

    model = model.to(device).eval()
    preprocessing: Preprocessing = model.preprocessing  # type: ignore[assignment]
    height, width = preprocessing.fixed_size or (512, 512)
    batches = [batch_size] * (images // batch_size) + [images % batch_size] * (images % batch_size > 0)
    input = preprocessing.normalize(_noise(batch_size, (height, width)).to(device))
    input, upload = input.to(next(model.parameters()).dtype), Upload(device)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        paths = write_photos(Path(folder), images)
        size = loader_for(paths, preprocessing, batch_size, device).unresized
        pixels = _noise(batch_size, size or (height, width))

        def decode() -> None:
            for _ in loader_for(paths, preprocessing, batch_size, device):
                pass

        def transfer() -> None:
            for count in batches:
                moved = upload(pixels[:count])
                preprocessing.normalize(moved if size is None else resized(moved, preprocessing))

        calls: dict[str, Call] = {
            "all": lambda: embed_images(model, preprocessing, paths, batch_size=batch_size, progress=False),
            "model": lambda: [model(input[:count]) for count in batches],
            "decode": decode,
            "transfer": transfer,
        }
        times = interleaved(calls, device, Rounds(1, rounds, 1))
    rate = {stage: images / statistics.median(values) for stage, values in times.items()}
    slowest = min(("model", "decode", "transfer"), key=lambda stage: rate[stage])
    limit = LEAST_GPU if device.type == "cuda" else LEAST_CPU
    titles = {
        "all": f"disk to descriptors; bottleneck: {slowest}",
        "decode": "decode alone",
        "transfer": "transfer and resizing alone" if size else "transfer alone",
    }
    row = partial(Row, "embedding", f"{name}, {height}×{width}, {device.type}")
    return [
        row(title, rate[stage], rate["model"], "images/s", "model alone", ratio(times["model"], times[stage]),
            "higher", limit if stage == "all" else None)
        for stage, title in titles.items()
    ]  # fmt: skip


def _noise(count: int, size: tuple[int, int]) -> torch.Tensor:
    import torch

    return torch.randint(0, 256, (count, *size, 3), dtype=torch.uint8).permute(0, 3, 1, 2)


def write_photos(folder: Path, count: int, size: tuple[int, int] = (640, 480)) -> list[Path]:
    """Write JPEG files that take as long to decode as photos: noise on several scales, about 100 KB at
    640×480."""
    from PIL import Image

    rng = np.random.default_rng(0)
    paths = [folder / f"{i:05d}.jpg" for i in range(count)]
    for path in paths:
        noise = [Image.fromarray(rng.integers(0, 256, (n, n, 3), dtype=np.uint8)) for n in (6, 40, 200)]
        layers = [np.asarray(each.resize(size, Image.Resampling.BICUBIC), np.float32) for each in noise]
        photo = 0.5 * layers[0] + 0.3 * layers[1] + 0.2 * layers[2]
        Image.fromarray(photo.astype(np.uint8)).save(path, quality=90)
    return paths


def dated(values: Values) -> Values:
    """Return the row with date, command and machine in front, and numbers to four digits."""
    program = Path(sys.argv[0])
    command = program.parent.name if program.name == "__main__.py" else program.name
    if program.suffix == ".py" and program.name != "__main__.py":
        command = f"python {sys.argv[0]}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": " ".join([command, *sys.argv[1:]]),
        "machine": f"{platform.machine()} with {cores} cores",
        **{name: f"{value:.4g}" if isinstance(value, float) else value for name, value in values.items()},
    }


def save_rows(file: Path, rows: Sequence[Values]) -> None:
    """Write a table, replacing an earlier one."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    make_folder(file.parent)
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def bench(
    model: Annotated[
        str, typer.Option(help="Model: a name, folder or file. Default: the shipped model.")
    ] = "",
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Measure fewer rounds and images, which is faster but less precise."),
    ] = False,
    only: Annotated[
        list[Part] | None, typer.Option(help="Part to measure; repeatable. Default: all parts.")
    ] = None,
    device: Device = "",
    out: Annotated[Path, typer.Option(help="Folder in which to write ratios.csv.")] = Path("bench"),
) -> None:
    """Measure how fast a model is on this machine.

    Every figure is a ratio to a peer, such as the plain PyTorch model, that is measured in the same run.

    ```
    kappaplace bench
    kappaplace bench --quick --only embedding
    ```
    """
    import torch

    from kappaplace.models import PlaceModel, load_model, usable_device

    place = usable_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    opened, parts, gpu = load_model(model or None), only or list(Part), place.type == "cuda"
    rows: list[Row] = []

    def finish(new: Sequence[Row]) -> None:
        """Show and write a finished part, so that an interrupted run keeps it."""
        rows.extend(new)
        show(new)
        save_rows(out / "ratios.csv", [dated(row.record()) for row in rows])

    if Part.inference in parts and isinstance(opened, PlaceModel):
        rounds = Rounds(200 if gpu else 4 if quick else 12, 3, 20 if gpu else 2)
        for batch in (1, 64) if gpu else (1, 4):
            finish(measure_speed(opened, place, [batch], rounds))
    if Part.embedding in parts:
        images = (512 if quick else 2048) if gpu else 32 if quick else 64
        size = {"images": images, "batch_size": 64 if gpu else 16, "rounds": 2 if quick else 3}
        finish(measure_embedding(opened, model or "shipped model", place, **size))
    typer.echo(f"Ratios written to {out / 'ratios.csv'}.")
