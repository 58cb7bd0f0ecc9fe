"""Time and memory of the paper's tables: what is counted, and that a bare machine can run it."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

import paper_cost
from kappaplace.evaluation.paper import COST
from kappaplace.models.place_model import PlaceModel

ROOT = Path(__file__).parents[2]
BARE = """
import runpy, sys
from importlib import util

class Blocked:
    names = {"rich", "typer", "scipy", "pyarrow", "pyproj", "matplotlib", "faiss", "pydantic", "kornia"}

    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(name)

real = util.find_spec
util.find_spec = lambda name, *rest: None if name in Blocked.names else real(name, *rest)
sys.meta_path.insert(0, Blocked())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_parameters_of_the_three_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper_cost, "WARM_UP", 0)
    monkeypatch.setattr(paper_cost, "RUNS", 1)
    rows = {(method, metric): value for method, metric, value in paper_cost.efficiency("resnet_tiny", 32)}
    for method, head in (("Baseline", "none"), ("KappaPlace", "mirrored"), ("KappaPlace folded", "folded")):
        model = PlaceModel.create("resnet_tiny", 512, head, pretrained=False)  # type: ignore[arg-type]
        assert rows[method, "parameters M"] * 1e6 == sum(p.numel() for p in model.parameters())
        assert rows[method, "latency ms"] > 0


def test_every_row_of_the_papers_training_times_is_measured() -> None:
    wanted = {number.method for number in COST if number.table == "tab:training_times"}
    assert {run.method for run in paper_cost.RUNS_OF_THE_PAPER} == wanted
    assert {recipe for run in paper_cost.RUNS_OF_THE_PAPER for recipe in run.steps} == set(paper_cost.RECIPES)


@pytest.mark.slow
def test_it_runs_with_little_more_than_torch(tmp_path: Path) -> None:
    small = ("--backbone", "resnet_tiny", "--size", "32", "--batch", "8", "--steps", "2")
    words = (sys.executable, "-c", BARE, "benchmarks/paper_cost.py", *small, "--csv", str(tmp_path / "c.csv"))
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "c.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {row["way"] for row in rows} <= {"trial", "fast"}  # not the paper's backbone
    rows = [row for row in rows if row["way"] == "trial"]
    ms, hours = (
        {row["method"]: float(row["value"]) for row in rows if row["metric"] == metric}
        for metric in ("ms per step", "training hours")
    )
    expected = (500_000 * ms["retrieval"] + 262_800 * ms["stun"]) / 3.6e6
    assert hours["STUN"] == pytest.approx(expected, rel=1e-3)
