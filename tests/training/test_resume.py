"""A run that is killed at any moment ends with the same weights as an uninterrupted one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from kappaplace.training.loop import load_state
from tests.training.small_run import small_run

ROOT = Path(__file__).parents[2]
OPTIONS = ("run.checkpoint_every=2", "optimizer.epochs=4")


def start(recipe: str, folder: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.training.small_run", recipe, str(folder), *options]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state = load_state(folder)
    assert state is not None
    assert state["finished"]
    return {**state["model"], **{f"objective.{k}": v for k, v in state["objective"].items()}}


def test_killed_run_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    """It is killed when the first state appears, then twice at random moments (SIGKILL: no cleanup)."""
    whole = small_run("kappa-jt", str(tmp_path / "whole"), *OPTIONS)
    broken = tmp_path / "broken"
    moments = random.Random(int(time.time()))
    kills = 0
    for number in range(3):
        process = start("kappa-jt", broken, *OPTIONS)
        while not (broken / "training.pt").exists() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(0.05 if number == 0 else moments.uniform(0.0, 3.5))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills >= 1
    again = small_run("kappa-jt", str(broken), *OPTIONS)
    one, other = weights(tmp_path / "whole"), weights(broken)
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name
    drop = ("seconds",)
    tables = [
        [{k: v for k, v in row.items() if k not in drop} for row in run.epochs] for run in (whole, again)
    ]
    assert tables[0] == tables[1]
    assert not [file for file in broken.rglob("*.part") if str(os.getpid()) in file.name]


@pytest.mark.parametrize("recipe", ["mc-dropout", "contrastive"])
def test_interrupted_run_repeats_its_random_numbers(recipe: str, tmp_path: Path, monkeypatch) -> None:
    """After a stop between two states and a resume, dropout and order equal those of a single run."""
    from kappaplace.training.loop import Loop

    whole = small_run(recipe, str(tmp_path / "whole"), *OPTIONS)
    chunks = iter(range(7))
    original = Loop._train_chunk

    def failing(self, bar) -> None:
        if next(chunks, None) is None:
            raise RuntimeError("power cut")
        original(self, bar)

    monkeypatch.setattr(Loop, "_train_chunk", failing)
    with pytest.raises(RuntimeError, match="power cut"):
        small_run(recipe, str(tmp_path / "cut"), *OPTIONS)
    monkeypatch.setattr(Loop, "_train_chunk", original)
    small_run(recipe, str(tmp_path / "cut"), *OPTIONS)
    one, other = weights(whole.folder), weights(tmp_path / "cut")
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    first = small_run("retrieval", str(tmp_path))
    stamp = (tmp_path / "training.pt").stat().st_mtime_ns
    second = small_run("retrieval", str(tmp_path))
    assert second.epochs == first.epochs
    assert (tmp_path / "training.pt").stat().st_mtime_ns == stamp


def test_cached_run_resumes_from_half_extracted_features(tmp_path: Path, monkeypatch) -> None:
    import kappaplace.training.features as features

    options = ("anchors.source=places", "optimizer.lr=1e-2")
    whole = small_run("kappa-pt", str(tmp_path / "whole"), *options, start=True)
    monkeypatch.setattr(features, "FLUSH_EVERY", 16)
    monkeypatch.setattr("kappaplace.training.run.EXTRACTION_BATCH", (16, 16))
    work = features.ViewSource.batches
    seen: list[int] = []

    def cut(*arguments):
        for number, part in enumerate(work(*arguments)):
            if number == 4:
                raise RuntimeError("power cut")
            yield part

    def counted(*arguments):
        for part in work(*arguments):
            seen.append(part[0])
            yield part

    monkeypatch.setattr(features.ViewSource, "batches", cut)
    with pytest.raises(RuntimeError, match="power cut"):
        small_run("kappa-pt", str(tmp_path / "cut"), *options, start=True)
    monkeypatch.setattr(features.ViewSource, "batches", counted)
    small_run("kappa-pt", str(tmp_path / "cut"), *options, start=True)
    assert min(seen) == 48  # three of the four batches of 16 were on disk, one was in hand
    one, other = weights(whole.folder), weights(tmp_path / "cut")
    assert all(torch.equal(value, other[name]) for name, value in one.items())
