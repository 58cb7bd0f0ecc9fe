"""Two processes that share the work have the same losses as one."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.training.small_run import small_run

ROOT = Path(__file__).parents[2]
FROZEN = ("anchors.source=places", "anchors.views=2", "optimizer.lr=1e-2")


def launch(recipe: str, folder: Path, *options: str) -> None:
    """torchrun with two CPU processes, as a user would."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "tests.training.small_run", recipe, str(folder), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert answer.returncode == 0, answer.stderr[-3000:]


def columns(folder: Path, name: str) -> np.ndarray:
    with (folder / "steps.csv").open(encoding="utf-8") as stream:
        return np.array([float(row[name]) for row in csv.DictReader(stream)])


@pytest.mark.parametrize("recipe", ["kappa-jt", "contrastive-jt"])
def test_two_processes_give_the_losses_of_one(recipe: str, tmp_path: Path) -> None:
    options = ("run.checkpoint_every=1",)  # a row a step
    small_run(recipe, str(tmp_path / "one"), *options)
    launch(recipe, tmp_path / "two", *options)
    one, two = columns(tmp_path / "one", "loss"), columns(tmp_path / "two", "loss")
    assert len(one) == 18
    np.testing.assert_allclose(one, two, rtol=2e-4)
    assert np.ptp(one) > 0.01  # there was something to follow


def test_accumulated_batches_give_the_losses_of_whole_ones(tmp_path: Path) -> None:
    options = ("run.checkpoint_every=1",)
    small_run("kappa-jt", str(tmp_path / "one"), *options)
    small_run("kappa-jt", str(tmp_path / "four"), *options, "run.accumulate=4")
    np.testing.assert_allclose(
        columns(tmp_path / "one", "loss"), columns(tmp_path / "four", "loss"), rtol=2e-4
    )
