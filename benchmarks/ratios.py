"""Ratios that show on any machine whether something has become slower, in about a minute on a CPU.

python benchmarks/ratios.py [--only search metrics] [--out build/bench] [--check results/bench_ratios.csv]

With `--check`, they are compared with an earlier run; the exit code is 1 if one is worse beyond the
tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from cached_pt import measure_training
from exact_search import measure_search
from inference import measure_fidelity
from kappaplace import PlaceModel, Preprocessing, load_model
from kappaplace.cli.bench import Rounds, Row, dated, measure_embedding, measure_speed, save_rows, show
from metrics_speed import measure_metrics
from overhead import Setting, measure_overhead
from record import Option, compare_ratios, parse_options, read_ratios
from train_throughput import measure_steps

CPU, BACKBONE, SIZE = torch.device("cpu"), "efficientnet_lite0", 224


def model(size: int) -> PlaceModel:
    """Create a model with random weights, which do not change the time."""
    torch.manual_seed(0)
    return PlaceModel.create(BACKBONE, 512, "folded", preprocessing=Preprocessing(size, "exact")).eval()


def inference() -> list[Row]:
    fidelity = {"queries": 20, "size": 192, "district": (1, 30.0)}
    return measure_speed(model(SIZE), CPU, [1, 4], Rounds(12, 3, 2)) + measure_fidelity(
        load_model(), CPU, **fidelity
    )


PARTS: dict[str, Callable[[], list[Row]]] = {
    "overhead": lambda: measure_overhead(Setting(BACKBONE, SIZE, CPU, Rounds(6, 3, 2))),
    "inference": inference,
    "embedding": lambda: measure_embedding(model(320), BACKBONE, CPU, images=32, batch_size=16, rounds=2),
    "search": lambda: measure_search(10_000),
    "metrics": lambda: measure_metrics(10_000, 200),
    "training": lambda: measure_training(CPU, images=256, epochs=4) + measure_steps(CPU, batch=32, steps=10),
}


def main() -> int:
    arguments = parse_options(
        __doc__, only=Option(list(PARTS), choices=list(PARTS)), out=Path("build/bench"), check=Path
    )
    before = read_ratios(arguments.check) if arguments.check else {}  # fail before measuring
    rows = [row for name in arguments.only for row in PARTS[name]()]
    show(rows)
    save_rows(arguments.out / "ratios.csv", [dated(row.record()) for row in rows])
    shared, lines = compare_ratios(rows, before)
    if arguments.check:
        print(*lines, f"{shared} ratios compared with {arguments.check}, {len(lines)} worse.", sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    raise SystemExit(main())
