"""Same seed, same machine: the same bytes, apart from the time that is stated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kappaplace.calibration.options import CalibrateOptions
from kappaplace.maps import BuildOptions, PlaceMap
from kappaplace.maps.tune.self_calibrate import self_calibrate_map
from tests.evaluation.conftest import city_folder, saved_model  # noqa: F401  # fixtures
from tests.hardening.commands import run
from tests.training.small_run import small_run


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("report", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_evaluation_and_its_report(
    report: bool,
    saved_model: Path,  # noqa: F811
    city_folder: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tables, pictures and page; of results.json all but ``times``. Each run embeds for itself."""
    found = []
    for number in range(2):
        out = tmp_path / str(number) / "out"
        words = ("evaluate", saved_model, city_folder / "val.parquet", "--resamples", 20, "--out", out)
        shown = "--report" if report else "--no-report"
        assert run(monkeypatch, *words, shown, "--cache", tmp_path / str(number)) == 0
        files = contents(out)
        record = json.loads(files.pop("results.json"))
        assert set(record.pop("times")) == {"started", "seconds"}
        found.append(files | {"results.json": json.dumps(record).encode()})
    assert found[0].keys() == found[1].keys()
    assert {"metrics.csv", "queries.parquet", "matches.parquet", "references.parquet"} <= found[0].keys()
    assert ("report.html" in found[0]) == report
    for name, content in found[0].items():
        assert content == found[1][name], name


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["retrieval", "kappa-jt"])
def test_training(recipe: str, tmp_path: Path) -> None:
    """Weights to the bit; the course of the run apart from its seconds."""
    runs = [small_run(recipe, str(tmp_path / str(number)), "optimizer.epochs=2") for number in range(2)]
    states = [run.model.state_dict() for run in runs]
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name
    courses = [[{k: v for k, v in row.items() if k != "seconds"} for row in run.epochs] for run in runs]
    assert courses[0] == courses[1]
    files = [contents(tmp_path / str(number) / "model") for number in range(2)]
    weights = [{n: c for n, c in each.items() if n.endswith(".safetensors")} for each in files]
    assert weights[0] == weights[1]
    assert weights[0]


def test_a_map_and_its_calibration(
    saved_model: Path,  # noqa: F811
    city_folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    made = []
    for number in range(2):
        out = tmp_path / str(number) / "a.map"
        town = PlaceMap.build(
            city_folder / "val.parquet", out, str(saved_model), options=BuildOptions(thumbnails=True)
        )
        self_calibrate_map(town, CalibrateOptions(max_risk=0.3))
        made.append(contents(out))
    assert made[0].keys() == made[1].keys()
    for name, content in made[0].items():
        assert content == made[1][name], name
