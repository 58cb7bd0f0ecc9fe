"""Ctrl-C in every long command: one sentence, exit code 130, and a state from which the same command goes on.

Real processes get a real signal in the middle of their work, as all processes of a terminal do.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from kappaplace.calibration.sources import save_calibration
from kappaplace.cli.main import INTERRUPTED, STOPPED
from kappaplace.data.images import Preprocessing
from kappaplace.data.table import PlaceImages
from kappaplace.maps import PlaceMap
from kappaplace.models.checkpoint import save_model
from kappaplace.models.place_model import PlaceModel
from kappaplace.slam.drive_files import write_tum
from tests.hardening.commands import run
from tests.slam.synthetic import calibration
from tests.training.small_run import OPTIONS

IMAGES = 700
PATIENCE = 120.0  # seconds for a process to reach its work on a busy machine
linux = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks into a process through /proc")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures, their table, a model, a map, and odometry: what the commands work on."""
    folder, rng = tmp_path_factory.mktemp("welt ü"), np.random.default_rng(0)
    (folder / "images").mkdir()
    paths = [f"{i:04d}.jpg" for i in range(IMAGES)]
    for path in paths:
        look = np.kron(rng.integers(0, 256, (6, 6, 3)), np.ones((20, 20, 1))).astype(np.uint8)
        Image.fromarray(look).save(folder / "images" / path, quality=90)
    where = np.stack([np.arange(IMAGES) * 2.0, np.zeros(IMAGES)], 1)
    asked = np.arange(IMAGES) % 4 == 0
    table = PlaceImages.create(paths, where, is_query=asked, root=folder / "images", name="walk")
    table.save(folder / "walk.parquet")
    table.select(np.flatnonzero(~asked)).save(folder / "train.parquet")
    torch.manual_seed(0)
    model = PlaceModel.create("resnet_tiny", dim=32, preprocessing=Preprocessing(96, "exact")).eval()
    save_model(model, folder / "model")
    PlaceMap.build(folder / "walk.parquet", folder / "made.map", str(folder / "model"))
    write_tum(folder / "odometry.tum", np.column_stack([where, np.zeros(IMAGES)]), np.arange(float(IMAGES)))
    save_calibration(calibration(), folder / "closures.json")
    return folder


@dataclass(frozen=True)
class Case:
    """A command, when it is in the middle of its work, and what must hold after the stop."""

    words: str
    working: Callable[[Path, int], bool]
    after: Callable[[Path], None] = lambda world: None
    again: Callable[[Path], None] | None = None
    """Looks at the results of the same command run to its end; None where that would take minutes."""
    pause: float = 0.2
    """Seconds into the work, where no file tells how far it is."""


def maps_file(part: str) -> Callable[[Path, int], bool]:
    def looks(world: Path, process: int) -> bool:
        try:
            return part in Path(f"/proc/{process}/maps").read_text()
        except OSError:
            return False

    return looks


def there(pattern: str) -> Callable[[Path, int], bool]:
    return lambda world, process: any(world.glob(pattern))


def sound(name: str, rows: int | None = None) -> Callable[[Path], None]:
    def check(world: Path) -> None:
        if (world / name / "manifest.json").exists():
            opened = PlaceMap.open(world / name)
            assert opened.verify() == []
            assert rows is None or len(opened) == rows

    return check


def nothing_at(name: str) -> Callable[[Path], None]:
    def check(world: Path) -> None:
        assert not list(world.glob(name))

    return check


def whole_rows(world: Path) -> None:
    """The answers so far are kept, each in whole rows, and the next run continues after them."""
    file = world / "answers.csv"
    if file.exists():
        rows = list(csv.reader(file.read_text(encoding="utf-8").splitlines()))
        assert {len(row) for row in rows} <= {len(rows[0])}


def every_image(world: Path) -> None:
    with (world / "answers.csv").open(encoding="utf-8", newline="") as stream:
        names = {Path(row["query"]).name for row in csv.DictReader(stream)}
    assert names == {path.name for path in (world / "images").iterdir()}


def uncalibrated(world: Path) -> None:
    assert json.loads((world / "made.map" / "manifest.json").read_text())["calibration"] is None
    assert PlaceMap.open(world / "made.map").verify() == []


def whole_city(world: Path) -> None:
    files = list((world / "city").rglob("*.jpg"))
    assert len(files) > 20
    for file in files:
        with Image.open(file) as image:
            image.load()


def blocks_kept(world: Path) -> None:
    assert list((world / "new.map" / "pending").glob("*.npz"))


def embedded(world: Path) -> int:
    """Number of frames whose embeddings are on disk."""
    sums = list((world / "drive" / "embeddings").rglob("sums.npy"))
    return np.count_nonzero(np.load(sums[0])) if sums else 0


def slam_kept(world: Path) -> None:
    assert embedded(world) >= 64


SETTINGS = " ".join(f"-s {option}" for option in OPTIONS)
CASES = {
    "map build": Case(
        "map build walk.parquet --out new.map --model model",
        there("new.map/pending/*.npz"),
        blocks_kept,
        sound("new.map", IMAGES - IMAGES // 4),
    ),
    "train": Case(
        f"train retrieval --data train.parquet --out run --cpu {SETTINGS} -s optimizer.epochs=4000 "
        "-s run.checkpoint_every=2",
        there("run/training.pt"),
    ),
    "evaluate": Case(
        "evaluate ./model walk.parquet --out judged --cache cache --resamples 100000 --no-report",
        there("cache/files/*.npz"),
        nothing_at("judged/results.json"),
    ),
    "calibrate": Case("calibrate made.map --self", maps_file("segments/"), uncalibrated),
    "map fit": Case("map fit made.map", there("made.map/fit/*"), sound("made.map")),
    "localize": Case(
        "localize made.map images --json --csv answers.csv",
        maps_file("segments/"),
        whole_rows,
        every_image,
    ),
    "slam run": Case(
        "slam run images --odometry odometry.tum --out drive --model model --calibration closures.json",
        lambda world, _: embedded(world) >= 64,
        slam_kept,
    ),
    "city": Case("city --out city --blocks 2 --size 64", there("city/*/*/*.jpg"), whole_city),
    "export": Case("export model --out model.onnx", maps_file("onnx"), nothing_at("*model.onnx*")),
    "demo": Case("demo --out demo", maps_file("libtorch_cpu"), nothing_at("demo/report.html"), pause=4.0),
    "bench": Case(
        "bench --only embedding --out bench", maps_file("libtorch_cpu"), nothing_at("bench/*.csv"), pause=4.0
    ),
}


@linux
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_stop_is_one_sentence_and_loses_nothing(
    name: str, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "slam run":
        pytest.importorskip("gtsam")
    if name == "export":
        pytest.importorskip("onnx")
    case = CASES[name]
    process = subprocess.Popen(
        [sys.executable, "-m", "kappaplace", *case.words.split()],
        cwd=world,
        env={**os.environ, "OMP_NUM_THREADS": "1", "KAPPAPLACE_CACHE": str(world / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + PATIENCE
        while not case.working(world, process.pid):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(case.pause)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == INTERRUPTED, said
    assert said.strip().splitlines()[-1] == STOPPED
    assert "Traceback" not in said
    assert "Error" not in said
    assert not list(world.rglob("*.part"))
    case.after(world)
    if case.again is not None:
        monkeypatch.chdir(world)
        assert run(monkeypatch, *case.words.split()) == 0
        case.again(world)
