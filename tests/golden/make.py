"""Write golden files of this version: ``python -m tests.golden.make tests/golden/vX``.

``python -m tests.golden.make tests/golden/vX NAME…`` only writes these answers again.

Everything comes from seeds. Files of an older release are never written again; see README.md.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import torch
from PIL import Image
from torch import nn

from kappaplace import SyntheticCity
from kappaplace.maps import BuildOptions
from tests.golden.api import (
    FrozenEncoder,
    PlaceImages,
    PlaceMap,
    PlaceModel,
    Preprocessing,
    command,
    own_encoder,
    read_labels,
    save_calibration,
    save_model,
    settings_for,
    write_labels,
    write_tum,
)
from tests.golden.ask import CALIBRATORS, ENCODED, EXACT, calibration, calibration_examples, plain

PREPARED = Preprocessing(64, "exact")
ARCHIVE = "weights.tar.xz"
"""Weights of all models: most of them are the same, so that together they take little room."""
HEAVY = (".safetensors", ".onnx")
QUERIES, COPIES, CROWD = 20, 44, 960
REMOVED = ("003.png", "017.png", "018.png")


def make(out: Path) -> None:
    """All files, then the answers."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    os.chdir(out)
    torch.set_num_threads(1)
    _town()
    _models()
    _maps()
    _labels()
    _calibrations()
    _drive()
    _descriptors()
    _monitor()
    Path("training").mkdir()
    Path("training/settings.toml").write_text(
        settings_for("kappa-pt", options=["optimiser.epochs=3"]).to_toml()
    )
    _without_addresses(Path.cwd())
    Path("answers").mkdir()
    for name in EXACT | ENCODED:
        _answer(name, Path("answers"))
    _pack()


def answer_again(folder: Path, names: list[str]) -> None:
    """Write answers of an existing folder again; only in a commit that names the reason."""
    torch.set_num_threads(1)
    for name in names:
        with tempfile.TemporaryDirectory() as copy:  # opening a map may write into it
            shutil.copytree(folder, copy, dirs_exist_ok=True)
            with tarfile.open(Path(copy) / ARCHIVE) as archive:
                archive.extractall(copy, filter="data")
            os.chdir(copy)
            os.environ["KAPPAPLACE_CACHE"] = f"{copy}/cache"
            _answer(name, folder / "answers")
            os.chdir(folder)


def _answer(name: str, out: Path) -> None:
    text = json.dumps(plain((EXACT | ENCODED)[name]()), indent=None, separators=(",", ":"))
    text = text.replace(f"{Path.cwd()}/", "")
    (out / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print(name, len(text), flush=True)


def _town() -> None:
    """Views of one quarter; queries are other views, which are hard, and noisy copies, which are not."""
    views = SyntheticCity(0, (1, 1)).views("val", spacing=20.0, queries=QUERIES, query_strength=0.2, seed=0)
    pictures = [np.asarray(image) for image in views.render(32)]
    copied = np.flatnonzero(~views.is_query)[:COPIES]
    rng = np.random.default_rng(0)
    for row in copied:
        noisy = pictures[row] + rng.normal(0, 8, pictures[row].shape)
        pictures.append(np.clip(noisy, 0, 255).astype(np.uint8))
    rows = np.concatenate([np.arange(len(views.positions)), copied])
    paths = [f"{row:03d}.png" for row in range(len(rows))]
    Path("images").mkdir()
    for path, picture in zip(paths, pictures, strict=True):
        Image.fromarray(picture).save(Path("images") / path, optimize=True)
    table = PlaceImages.create(
        paths,
        views.positions[rows],
        heading=views.heading[rows],
        is_query=np.concatenate([views.is_query, np.ones(len(copied), bool)]),
        root="images",
        frame="EPSG:32610",
        name="golden",
    )
    table.save("town.parquet")
    mixed = rng.permutation(table.query_rows)
    asked = [f"images/{paths[row]}" for row in mixed]
    at = table.positions[table.query_rows[0]].tolist()
    Path("places.json").write_text(json.dumps({"queries": asked, "near": [*at, 45.0]}) + "\n")


def _models() -> None:
    """One backbone with every kind of head. Weights have three values only: they are kept, not admired."""
    torch.manual_seed(0)
    base = PlaceModel.create("resnet_tiny", 32, preprocessing=PREPARED)
    _coarse(base)
    for name, head in (
        ("mirrored", "mirrored"),
        ("none", "none"),
        ("layers", "layers"),
        ("variance", "variance"),
        ("linear", "linear"),
    ):
        model = PlaceModel.create("resnet_tiny", 32, head, preprocessing=PREPARED)  # type: ignore[arg-type]
        _coarse(model)
        model.backbone.load_state_dict(base.backbone.state_dict())
        model.aggregation.load_state_dict(base.aggregation.state_dict())
        save_model(model.eval(), f"models/{name}")
        if name == "mirrored":
            save_model(model.eval(), "models/half", half=True)
    frozen = FrozenEncoder(own_encoder(), layer="0", preprocessing=PREPARED)
    save_model(frozen, "models/frozen")
    command("export", "models/mirrored", "--out", "models/place.onnx")
    exported = onnx.load("models/place.onnx")
    for node in exported.graph.node:
        del node.metadata_props[:]  # lines of the exporter's own files, on this machine
    onnx.save(exported, "models/place.onnx")


def _coarse(model: nn.Module) -> None:
    with torch.no_grad():
        for value in model.parameters():
            if value.dim() > 1:
                value.copy_(value.sign() * (value.abs() > 0.7 * value.std()) * value.std())


def _maps() -> None:
    """Four storages; with rows removed, calibrated by labels, by itself, with cells compared, fitted."""
    command(
        "map",
        "build",
        "town.parquet",
        "--out",
        "float16.map",
        "--model",
        "models/mirrored",
        "--storage",
        "float16",
    )
    town = PlaceMap.build(
        "town.parquet",
        "float32.map",
        "models/mirrored",
        options=BuildOptions(segment_rows=20, thumbnails=False),
    )
    town.remove(REMOVED)
    promise = ("--max-risk", 0.15, "--confidence", 0.8)
    command("calibrate", "float32.map", "--queries", "town.parquet", "--no-thin", *promise)
    command(
        "map", "build", "town.parquet", "--out", "int8.map", "--model", "models/mirrored", "--storage", "int8"
    )
    command("map", "remove", "int8.map", *REMOVED[:1])
    _crowd("pq.map")
    command("calibrate", "pq.map", "--queries", "town.parquet", "--no-thin", *promise)
    command("map", "remove", "pq.map", *REMOVED)
    shutil.copytree("float16.map", "compared.map")
    command("calibrate", "compared.map", "--queries", "town.parquet", "--no-thin", "--verify", 3, *promise)
    command("calibrate", "float16.map", "--self", "--outside-rate", 0.1, "--max-risk", 0.3)
    command("map", "build", "town.parquet", "--out", "fitted.map", "--model", "models/none", "--radius", 30)
    command("map", "fit", "fitted.map", "--views", 1, "--epochs", 1, "--batch-size", 16)
    for page in Path("fitted.map").glob("fit.*"):
        page.unlink()  # pictures of a report, nothing that a map needs
    for extra in ("queries", "queries-fitted"):
        opened = PlaceMap.open("fitted.map" if extra.endswith("fitted") else "float32.map")
        images = json.loads(Path("places.json").read_text())["queries"][:8]
        made = opened.embed(images)
        np.savez(f"{extra}.npz", descriptor=made.descriptor, kappa=made.kappa, names=np.array(images))


def _crowd(folder: str) -> None:
    """Codes are learnt from a thousand references: the town's, and made-up ones far away, without images."""
    command("map", "export", "float16.map", "--out", "few.npz")
    with np.load("few.npz") as stored:
        few = {key: stored[key] for key in stored.files}
    rng = np.random.default_rng(0)
    rows = rng.integers(0, len(few["name"]), CROWD)
    more = {key: column[rows] if column.ndim else column for key, column in few.items()}
    z = more["descriptors"] + rng.normal(0, 0.05, more["descriptors"].shape)
    more["descriptors"] = (z / np.linalg.norm(z, axis=1, keepdims=True)).astype(np.float32)
    more["name"] = np.array([f"far/{row:04d}.png" for row in range(CROWD)])
    more["x"], more["root"] = more["x"] + 5000.0 + 10 * np.arange(CROWD), np.full(CROWD, "")
    np.savez("many.npz", **{k: np.concatenate([few[k], more[k]]) if few[k].ndim else few[k] for k in few})
    command("map", "import", "many.npz", "--out", folder)
    command("map", "compact", folder, "--storage", "pq")
    for file in ("few.npz", "many.npz"):
        Path(file).unlink()


def _labels() -> None:
    """Format 2 as it is written, and format 1 as it was before matches could be compared."""
    command(
        "map",
        "label",
        "float16.map",
        *json.loads(Path("places.json").read_text())["queries"],
        "--out",
        "labels-2.csv",
        "--page",
        "page.html",
        "--no-thin",
        "--verify",
        0,
    )
    Path("page.html").unlink()
    table = PlaceImages.open("town.parquet")
    row = dict(zip(table.paths.tolist(), table.positions, strict=True))
    sheet = read_labels("labels-2.csv")
    for place, each in enumerate(sheet.rows):
        near = np.hypot(*(row[each.query] - row[each.match])) < 25
        sheet = sheet.with_label(place, "unknown" if place % 9 == 4 else "yes" if near else "no")
    assert sheet.sampling is not None
    write_labels(replace(sheet, sampling=replace(sheet.sampling, root="images")), "labels-2.csv")
    now = Path("labels-2.csv").read_bytes()
    before = now.replace(b"# kappaplace-labels: 2", b"# kappaplace-labels: 1").replace(
        b"# verify: 0\r\n", b""
    )
    assert before != now
    Path("labels-1.csv").write_bytes(before)


def _calibrations() -> None:
    rng = np.random.default_rng(0)
    count, matches = 400, 4
    hidden = rng.normal(size=count)
    right = hidden + rng.normal(0, 0.4, count) < 0.5
    outside = ~right & (rng.random(count) < 0.5)
    features = np.stack([hidden * (j + 1) + rng.normal(0, 0.5, count) for j in range(3)], 1)
    pairs = np.stack([features[:, :2] + depth for depth in range(matches)], 1)
    pair_right = np.stack([right & (rng.random(count) < 0.9**depth) for depth in range(matches)], 1)
    asked = rng.normal(size=(30, 3)) * [1, 2, 3]
    np.savez(
        "features.npz",
        features=features,
        right=right,
        outside=outside,
        pair_features=pairs,
        pair_right=pair_right,
        asked=asked,
        pair_asked=rng.normal(size=(30, matches, 2)),
    )
    for name in CALIBRATORS:
        Path("calibrations").mkdir(exist_ok=True)
        save_calibration(calibration(name, calibration_examples()), f"calibrations/{name}.json")


def _drive() -> None:
    """A drive whose images are nowhere: where they would be embedded, their descriptors lie already."""
    from kappaplace_city.drives import AppearanceModel, drive_through, look_at

    city = SyntheticCity(1, (2, 2), aliased=0.2, featureless=0.1)
    way = drive_through(city, legs=26, step=5.0, seed=1)
    made = look_at(city, "test", way, AppearanceModel(dim=32), seed=1).embeddings
    count = len(made.descriptor)
    Path("drive").mkdir()
    names = [f"{row:04d}.jpg" for row in range(count)]
    table = PlaceImages.create(
        names, way.odometry[:, :2], timestamp=np.arange(float(count)), root="drive/frames"
    )
    table.save("drive/drive.parquet")
    for name, poses in (("odometry", way.odometry), ("truth", way.truth)):
        write_tum(f"drive/{name}.tum", poses, np.arange(float(count)))
    model = json.loads(Path("float32.map/manifest.json").read_text())["model"]["fingerprint"]
    files = [str(path) for path in PlaceImages.open("drive/drive.parquet").image_paths()]
    np.savez(
        "drive/embeddings.npz",
        model=model,
        files=np.array(files),
        descriptor=np.asarray(made.descriptor, np.float32),
        kappa=np.asarray(made.kappa, np.float32),
    )
    words = ("--odometry", "drive/odometry.tum", "--truth", "drive/truth.tum", "--out", "drive/closures.json")
    command("slam", "calibrate", "drive/drive.parquet", *words, "--model", "models/mirrored")


def _descriptors() -> None:
    """What `evaluate` takes, and two evaluations."""
    table, town = PlaceImages.open("town.parquet"), PlaceMap.open("float16.map")
    for name, rows in (("query", table.query_rows), ("reference", table.reference_rows)):
        made = town.embed(table.image_paths(rows))
        np.save(f"{name}.npy", made.descriptor)
        np.save(f"{name}-kappa.npy", made.kappa)
    rng = np.random.default_rng(0)
    noisy = np.load("query.npy") + rng.normal(0, 0.02, np.load("query.npy").shape)
    np.save("noisy.npy", (noisy / np.linalg.norm(noisy, axis=1, keepdims=True)).astype(np.float32))
    for name, query in (("one", "query"), ("other", "noisy")):
        words = (
            "--descriptors",
            f"{query}.npy",
            "reference.npy",
            "town.parquet",
            "--kappa",
            "query-kappa.npy",
        )
        words += ("reference-kappa.npy", "--resamples", "20", "--no-report", "--name", name)
        command("evaluate", *words, "--out", f"evaluations/{name}")


def _monitor() -> None:
    """Answers of a map, and what a watch on them keeps after a full window."""
    words = ("localize", "float32.map", *json.loads(Path("places.json").read_text())["queries"])
    Path("answers.jsonl").write_text(command(*words, "--json", "--k", 1))
    for code in (0, 1):
        try:
            command("map", "monitor", "float32.map", "answers.jsonl", "--window", 25, code=code)
            break
        except AssertionError:
            Path("float32.map.monitor.json").unlink(missing_ok=True)


def _without_addresses(here: Path) -> None:
    """Roots relative to the golden folder: nothing of the machine that wrote them."""
    for file in [*here.rglob("*.json"), *here.rglob("*.jsonl"), *here.rglob("*.csv"), *here.rglob("*.toml")]:
        text = file.read_bytes()
        if str(here).encode() in text:
            file.write_bytes(text.replace(f"{here}/".encode(), b"").replace(str(here).encode(), b"."))


def _pack() -> None:
    """All weights in one archive, the same bytes each time."""
    heavy = sorted(file for file in Path().rglob("*") if file.suffix in HEAVY)
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for file in heavy:
            content = file.read_bytes()
            entry = tarfile.TarInfo(file.as_posix())
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
            file.unlink()
    for lock in Path().rglob("*.lock"):
        lock.unlink()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        answer_again(Path(sys.argv[1]).resolve(), sys.argv[2:])
    else:
        make(Path(sys.argv[1]).resolve())
