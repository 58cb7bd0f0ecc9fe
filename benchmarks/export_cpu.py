"""Exported models on the CPU against the eager model: latency, and the loss of int8 in R@1 and ranks of κ.

python benchmarks/export_cpu.py [--models lite0 resnet50] [--resnet50 WEIGHTS] [--data SET] [--csv FILE]

Latency is the time per image; every round times each form once, in turn, so that other load affects all
alike. The ratio uses medians. "cpu" is processor time, which hardly depends on other load (use
OMP_NUM_THREADS=1). Quality is measured on SET, a folder for `kappaplace data import gt-json`. Default: a
synthetic city. int8 is calibrated on references and evaluated on queries. ResNet-50 uses WEIGHTS, a weights
file (projection and head are untrained then, and κ hardly varies) or a model folder. Default: untrained.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

from kappaplace.data.images import Preprocessing
from kappaplace.data.readers.query_ref import read_gt_json
from kappaplace.data.table import PlaceImages
from kappaplace.models.checkpoint import load_model
from kappaplace.models.export import Exported, ExportOptions, export_model
from kappaplace.models.export.formats import convert, probe_images
from kappaplace.models.place_model import PlaceModel
from kappaplace.types import Embeddings
from kappaplace_city import SyntheticCity, write_city
from record import Option, log_row, parse_options

FORMS = ("onnx", "openvino", "openvino half", "onnx int8", "openvino int8")
LATENCY_SIZE = {"lite0": 320, "resnet50": 512}


def main() -> None:
    args = parse_options(
        __doc__,
        models=Option(list(LATENCY_SIZE), choices=list(LATENCY_SIZE)),
        forms=Option(FORMS, choices=FORMS),
        resnet50=Option(Path, help="weights file or model folder"),
        data=Path,
        rounds=20,
        no_speed=False,
        no_quality=False,
        images=Option(400, help="largest number of queries, and of references"),
        csv=Path,
    )
    with tempfile.TemporaryDirectory() as folder:
        table = read_gt_json(args.data) if args.data else _city(Path(folder))
        for name in args.models:
            for row in measure(name, args, table, Path(folder)):
                log_row(args.csv, row)


def _city(folder: Path) -> PlaceImages:
    from kappaplace.data.readers.at_names import read as read_names

    city = SyntheticCity(0, (2, 2))
    write_city(city, folder / "city", 128, views={"test": city.views("test", queries=200)})
    return read_names(folder / "city" / "test")


def model_named(name: str, resnet50: Path | None) -> PlaceModel:
    """Return the shipped model, or a ResNet-50 at 320 pixels."""
    if name == "lite0":
        model = load_model()
    elif resnet50 is not None:
        torch.manual_seed(0)
        model = load_model(resnet50, backbone="resnet50_v1" if resnet50.is_file() else None)
    else:
        torch.manual_seed(0)
        model = PlaceModel.create("resnet50")
    assert isinstance(model, PlaceModel)
    if name != "lite0":
        model.preprocessing = Preprocessing(320, "exact")
    return model.eval()


def measure(name: str, args: argparse.Namespace, table: PlaceImages, folder: Path) -> list[dict[str, Any]]:
    model = model_named(name, args.resnet50)
    queries = table.image_paths(table.query_rows)[: args.images]
    references = table.image_paths(table.reference_rows)
    models: dict[str, Any] = {"eager": model}
    float_layers: dict[str, int] = {}
    for form in args.forms:
        export = exported(model, form, folder / name, references)
        float_layers[form] = export.quantized.float_layers if export.quantized else 0
        models[form] = load_model(export.file)
    speed = {} if args.no_speed else latency(models, LATENCY_SIZE[name], args.rounds)
    expected = None if args.no_quality else embeddings(model, queries, references)
    rows = []
    for form, each in models.items():
        quality = {"R@1": "", "R@1 lost": "", "kappa ranks": "", "mean cosine": ""}
        if expected is not None and (form == "eager" or "int8" in form):
            answers = expected if form == "eager" else embeddings(each, queries, references)
            quality = fidelity(table, expected, answers, len(queries))
        rows.append(
            {
                "model": name,
                "form": form,
                "data": args.data.name if args.data else "city",
                "size": LATENCY_SIZE[name],
                "threads": torch.get_num_threads(),
                **speed_ratios(speed.get("eager"), speed.get(form)),
                "float layers": float_layers.get(form, ""),
                **quality,
            }
        )
    return rows


def speed_ratios(eager: Any, form: Any) -> dict[str, float | str]:
    """Return milliseconds per image (wall clock and processor), and their ratios to the eager model."""
    if eager is None:
        return {"ms": "", "times faster": "", "cpu ms": "", "times less cpu": ""}
    (clock, cpu), (eager_clock, eager_cpu) = (
        [statistics.median(column) for column in zip(*times, strict=True)] for times in (form, eager)
    )
    return {
        "ms": 1e3 * clock,
        "times faster": eager_clock / clock,
        "cpu ms": 1e3 * cpu,
        "times less cpu": eager_cpu / cpu,
    }


def exported(model: PlaceModel, form: str, folder: Path, images: list[str]) -> Exported:
    """Export one form; earlier exports are reused, because OpenVINO forms are converted from ONNX."""
    int8 = "int8" in form
    export = _exports.get(str(folder) + "int8" * int8)
    if export is None:
        file = folder / ("int8.onnx" if int8 else "model.onnx")
        export = export_model(model, file, options=ExportOptions(int8_images=images if int8 else None))
        _exports[str(folder) + "int8" * int8] = export
    if form.startswith("onnx"):
        return export
    half = form.endswith("half")
    record = replace(export.record, precision="float16") if half else export.record
    file = folder / f"{form.replace(' ', '-')}.zip"
    convert(export.file, file, record.to_json(), half=half)
    return export._replace(file=file)


_exports: dict[str, Exported] = {}


def latency(models: dict[str, Any], size: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return seconds per image (wall clock, processor) for each round and form; three rounds warm up."""
    images = probe_images(next(iter(models.values())).preprocessing, 1, (size, size))
    seconds: dict[str, list[tuple[float, float]]] = {form: [] for form in models}
    with torch.inference_mode():
        for number in range(rounds + 3):
            for form, model in models.items():
                start, used = time.perf_counter(), time.process_time()
                model(images)
                if number >= 3:
                    seconds[form].append((time.perf_counter() - start, time.process_time() - used))
    return seconds


def embeddings(model: Any, queries: list[str], references: list[str]) -> tuple[Embeddings, Embeddings]:
    return tuple(model.embed(paths, batch_size=8, progress=False) for paths in (queries, references))  # type: ignore[return-value]


def fidelity(table: PlaceImages, expected: Any, answers: Any, count: int) -> dict[str, float]:
    """Return R@1, and the similarity of κ and descriptors to those of the eager model."""
    positives = table.positives()

    def right(pair: Any) -> float:
        top = (pair[0].descriptor @ pair[1].descriptor.T).argmax(1)
        return float(np.mean([top[i] in positives.of(i) for i in range(count)]))

    return {
        "R@1": right(answers),
        "R@1 lost": right(expected) - right(answers),
        "kappa ranks": float(spearmanr(expected[0].kappa, answers[0].kappa).statistic),
        "mean cosine": float((expected[0].descriptor * answers[0].descriptor).sum(1).mean()),
    }


if __name__ == "__main__":
    main()
