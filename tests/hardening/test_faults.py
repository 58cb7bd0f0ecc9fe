"""Every file that is written, at its worst moments: the process killed, the disk full, a file in the way.

After each of them the version before is still there, whole; and writing again works.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kappaplace.calibration.sources import load_calibration, save_calibration
from kappaplace.data.images import Preprocessing
from kappaplace.data.near import Neighborhood
from kappaplace.data.positives import Positives
from kappaplace.data.readers.trajectory import read_poses
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation import evaluate_sets, read_result, write_result
from kappaplace.evaluation.inputs import from_similarities
from kappaplace.evaluation.run import Choices
from kappaplace.maps import PlaceMap
from kappaplace.maps.tune.label_sheet import Row, Sheet, read_labels, write_labels
from kappaplace.models.checkpoint import load_checkpoint, load_model, save_model
from kappaplace.models.embedding.store import EmbeddingStore
from kappaplace.models.export import SUFFIXES, ExportOptions, export_model
from kappaplace.models.place_model import PlaceModel
from kappaplace.slam.drive_files import write_tum
from kappaplace.training.loop import RunLog, load_state, save_state
from tests.hardening.valid import world
from tests.slam.synthetic import calibration

FORK = multiprocessing.get_context("fork")  # a fresh interpreter would take seconds to import torch
SMALL = 64  # bytes that fit on the full disk
REFUSED, KILLED = 3, -signal.SIGKILL


def model(seed: int) -> PlaceModel:
    torch.manual_seed(seed)
    return PlaceModel.create("resnet_tiny", dim=16, preprocessing=Preprocessing(32, "exact")).eval()


def _result(version: int) -> Any:
    rng = np.random.default_rng(version)
    cosines = rng.uniform(-1, 1, (20, 20))
    known = Positives.from_lists([[i] for i in range(20)], 20)
    near = Neighborhood("self", 0)
    sets = [from_similarities(cosines, known, k=5, name="set", neighborhood=near)]
    return evaluate_sets("A", sets, Choices(resamples=0, k=5))


def _similarity(folder: Path) -> float:
    return float(read_result(folder / "result").sets[0].matches.similarities.sum())


def _table(version: int) -> PlaceImages:
    return PlaceImages.create([f"{i}.jpg" for i in range(50)], np.full((50, 2), float(version)))


def _log(folder: Path, version: int) -> None:
    log = RunLog(folder)
    log.steps = [{"step": i, "loss": float(version)} for i in range(50)]
    log.write()


def _calibrate(folder: Path, version: int) -> None:
    PlaceMap.open(folder / "town.map").calibrate_with(calibration(), f"version {version}")


@dataclass(frozen=True)
class Writer:
    """Writes version 1 or 2 of something into a folder, and reads which of them is there."""

    write: Callable[[Path, int], object]
    read: Callable[[Path], object]
    gone: bool = False
    """Whether nothing at all, told in a sentence, is an honest state in between."""


WRITERS = {
    "checkpoint": Writer(
        lambda folder, v: save_model(model(v), folder / "saved"),
        lambda folder: load_checkpoint(folder / "saved")[0].aggregation.project.weight.sum().item(),
    ),
    "training state": Writer(
        lambda folder, v: save_state(folder, {"step": v, "model": model(v).state_dict()}),
        lambda folder: (load_state(folder) or {})["step"],
    ),
    "training log": Writer(_log, lambda folder: (folder / "steps.csv").read_text()),
    "evaluation results": Writer(
        lambda folder, v: write_result(_result(v), folder / "result"), _similarity, gone=True
    ),
    "calibration of a map": Writer(
        _calibrate, lambda folder: PlaceMap.open(folder / "town.map").info()["calibration"]
    ),
    "calibration of loop closures": Writer(
        lambda folder, v: save_calibration(replace(calibration(), facts={"version": v}), folder / "c.json"),
        lambda folder: load_calibration(folder / "c.json").facts["version"],
    ),
    "table, parquet": Writer(
        lambda folder, v: _table(v).save(folder / "t.parquet"),
        lambda folder: PlaceImages.open(folder / "t.parquet").positions[0, 0],
    ),
    "table, csv": Writer(
        lambda folder, v: _table(v).save(folder / "t.csv"),
        lambda folder: PlaceImages.open(folder / "t.csv").positions[0, 0],
    ),
    "labels": Writer(
        lambda folder, v: write_labels(
            Sheet(tuple(Row(i + 1, f"{i}.jpg", f"{v}.jpg", "yes") for i in range(30))), folder / "l.csv"
        ),
        lambda folder: read_labels(folder / "l.csv").rows[0].match,
    ),
    "trajectory": Writer(
        lambda folder, v: write_tum(folder / "o.tum", np.full((50, 3), float(v)), np.arange(50.0)),
        lambda folder: read_poses(folder / "o.tum").poses[0, 0],
    ),
    **{
        f"exported model, {format}": Writer(
            lambda folder, v, f=format: export_model(
                model(v), folder / f"m{SUFFIXES[f]}", f, ExportOptions(name=f"{v}")
            ),
            lambda folder, f=format: load_model(folder / f"m{SUFFIXES[f]}").record.name,  # type: ignore[union-attr]
        )
        for format in SUFFIXES
    },
}


NAMES = [
    pytest.param(name, marks=pytest.mark.slow) if name.startswith("exported") else name for name in WRITERS
]
"""Tracing a model takes a while."""


def in_a_child(work: Callable[[], object], before: Callable[[], object]) -> int:
    """Run in a process of its own that ``before`` prepares; 0, or why it ended."""

    def child() -> None:
        torch.set_num_threads(1)
        before()
        try:
            work()
        except KappaPlaceError as error:
            os._exit(REFUSED if "\n" not in str(error) else 4)
        os._exit(0)

    process = FORK.Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode


def dies_at_swap(number: int) -> Callable[[], None]:
    """Make the ``number``-th swap of a file the last moment of this process."""

    def prepare() -> None:
        real, seen = os.replace, [0]

        def swap(*words: Any, **more: Any) -> None:
            if seen[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)
            seen[0] += 1
            real(*words, **more)

        os.replace = swap

    return prepare


def full_disk() -> None:
    """No file may grow beyond a few bytes: the system refuses, whoever writes."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL, SMALL))


def bound_by_permissions() -> None:
    """Let permissions bind this process even if it runs as root, by giving up root's right to ignore them."""
    if os.geteuid():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3 of the call, this process
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable, twice 32 bits
    assert libc.capget(header, sets) == 0
    for number in range(3):
        sets[number] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    assert libc.capset(header, sets) == 0


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("town")
    world(folder)
    return folder


@pytest.fixture
def folder(town: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(town, tmp_path / "w"))


def state(writer: Writer, folder: Path) -> object:
    try:
        return writer.read(folder)
    except KappaPlaceError:
        return None


@pytest.mark.parametrize("name", NAMES)
def test_killed_before_any_swap(name: str, folder: Path) -> None:
    writer = WRITERS[name]
    writer.write(folder, 2)
    new = writer.read(folder)
    writer.write(folder, 1)
    old = writer.read(folder)
    assert old != new
    kills = 0
    while in_a_child(lambda: writer.write(folder, 2), dies_at_swap(kills)) == KILLED:
        found = state(writer, folder)
        assert found in (old, new) or (writer.gone and found is None)
        kills += 1
        assert kills < 20
        writer.write(folder, 1)
        assert writer.read(folder) == old
    assert kills >= 1
    assert writer.read(folder) == new


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_is_one_sentence_and_leaves_what_was_there(name: str, folder: Path) -> None:
    pytest.importorskip("resource")
    writer = WRITERS[name]
    writer.write(folder, 1)
    old = writer.read(folder)
    assert in_a_child(lambda: writer.write(folder, 2), full_disk) == REFUSED
    assert state(writer, folder) in ((old, None) if writer.gone else (old,))
    assert not list(folder.rglob("*.part"))
    writer.write(folder, 2)
    assert writer.read(folder) not in (old, None)


@pytest.mark.parametrize("name", ["cache", "features", "map", pytest.param("city", marks=pytest.mark.slow)])
def test_a_full_disk_under_long_work(name: str, folder: Path) -> None:
    """Where arrays are mapped, the space is taken before: a full disk must not kill the process."""
    from kappaplace.training.features import _create
    from kappaplace_city import SyntheticCity, write_city

    images = [str(file) for file in sorted((folder / "images").glob("*.png"))]
    work: dict[str, Callable[[], object]] = {
        "cache": lambda: EmbeddingStore.of(model(0), folder / "cache").embed(images),
        "features": lambda: _create(folder / "features", "key", 100, [16, 16]),
        "map": lambda: PlaceMap.build(folder / "images", folder / "new.map", str(folder / "model")),
        "city": lambda: write_city(SyntheticCity(0, (1, 1)), folder / "city", 16),
    }
    assert in_a_child(work[name], full_disk) == REFUSED
    assert not list(folder.rglob("*.part"))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "calibration of a map"])
def test_a_file_in_place_of_the_folder(name: str, folder: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(KappaPlaceError):
        WRITERS[name].write(blocked / "below", 1)
    assert blocked.read_text() == "in the way"


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_without_permission(name: str, folder: Path) -> None:
    os.chmod(folder, 0o500)
    os.chmod(folder / "town.map", 0o500)
    try:
        assert in_a_child(lambda: WRITERS[name].write(folder, 1), bound_by_permissions) == REFUSED
    finally:
        os.chmod(folder, 0o700)
        os.chmod(folder / "town.map", 0o700)


def test_a_clock_that_jumps_loses_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time of day is written, never computed with: back to 1970, on to 2106, and a date from the future."""
    images = folder / "images"
    cache = EmbeddingStore.of(model(0), folder / "cache")
    files = [str(file) for file in sorted(images.glob("*.png"))]
    first = np.array(cache.embed(files).descriptor)
    for moment in (0.0, 2.0**32):
        monkeypatch.setattr(time, "time", lambda moment=moment: moment)
        monkeypatch.setattr(time, "time_ns", lambda moment=moment: int(moment * 1e9))
        for file in files:
            os.utime(file, (moment, moment))
        np.testing.assert_array_equal(cache.embed(files).descriptor, first)
        town = PlaceMap.open(folder / "town.map")
        before = len(town)
        town.add(folder / "table.parquet")
        assert len(town) == before
        assert town.verify() == []
        save_state(folder, {"step": int(moment)})
        assert (load_state(folder) or {})["step"] == int(moment)


def test_a_damaged_cache_is_told_and_made_anew(folder: Path) -> None:
    cache = EmbeddingStore.of(model(0), folder / "cache")
    files = [str(file) for file in sorted((folder / "images").glob("*.png"))]
    first = np.array(cache.embed(files).descriptor)
    (store,) = (path.parent for path in (folder / "cache").rglob("sums.npy"))
    for name in ("descriptor.npy", "sums.npy", "kappa.npy"):
        good = (store / name).read_bytes()
        for bad in (b"", good[: len(good) // 2], good[:100]):
            (store / name).write_bytes(bad)
            with pytest.raises(KappaPlaceError, match="Remove this folder"):
                cache.embed(files)
        # A list beside it is not held up by the damage: it has less to copy, that is all.
        np.testing.assert_allclose(cache.embed(files[:5]).descriptor, first[:5], atol=1e-6)
        (store / name).write_bytes(good)
    np.testing.assert_array_equal(cache.embed(files).descriptor, first)


def test_half_a_cache_of_a_killed_process_is_not_found(folder: Path) -> None:
    """Killed while the files of a list are laid out: the next run starts as if nothing had been."""
    files = [str(file) for file in sorted((folder / "images").glob("*.png"))]

    def dies() -> None:
        def rename(*_: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        os.rename = rename

    assert in_a_child(lambda: EmbeddingStore.of(model(0), folder / "cache").embed(files), dies) == KILLED
    assert not list((folder / "cache").glob("*/[!.]*/sums.npy"))
    assert len(EmbeddingStore.of(model(0), folder / "cache").embed(files).descriptor) == len(files)


def test_two_processes_on_one_cache(folder: Path) -> None:
    files = [str(file) for file in sorted((folder / "images").glob("*.png"))]

    def work() -> None:
        torch.set_num_threads(1)
        EmbeddingStore.of(model(0), folder / "cache").embed(files)

    both = [FORK.Process(target=work) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
        assert process.exitcode == 0
    made = EmbeddingStore.of(model(0), folder / "cache").embed(files).descriptor
    np.testing.assert_allclose(made, model(0).embed(files, progress=False).descriptor, atol=1e-5)
    assert not list((folder / "cache").rglob("*.part"))
