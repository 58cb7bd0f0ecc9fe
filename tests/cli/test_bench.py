"""``kappaplace bench``: table, file, bad input."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kappaplace import KappaPlaceError, PlaceModel, save_model
from kappaplace.cli import bench
from kappaplace.cli.main import app


def run(*words: str):
    return CliRunner().invoke(app, ["bench", "--device", "cpu", "--quick", *words])


def test_a_model_gives_a_table_and_a_file(tiny: PlaceModel, tmp_path: Path) -> None:
    save_model(tiny, tmp_path / "tiny")
    result = run("--model", str(tmp_path / "tiny"), "--out", str(tmp_path / "bench"))
    assert result.exit_code == 0, result.output
    assert "model alone" in result.output
    with (tmp_path / "bench" / "ratios.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0])[:8] == ["date", "command", "machine", "part", "where", "what", "ours", "peer"]
    assert {row["part"] for row in rows} == {"inference", "embedding"}


def test_an_unknown_part_fails(tmp_path: Path) -> None:
    result = run("--only", "speed", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "speed" in result.output


def test_an_unknown_model_fails_before_measuring(tmp_path: Path) -> None:
    with pytest.raises(KappaPlaceError, match="nowhere"):
        CliRunner().invoke(app, ["bench", "--model", "nowhere"], catch_exceptions=False)


def test_a_finished_part_is_written_before_the_next_one_starts(
    tiny: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "measure_embedding", killed)
    save_model(tiny, tmp_path / "tiny")
    result = run("--model", str(tmp_path / "tiny"), "--out", str(tmp_path / "bench"))
    assert result.exit_code != 0
    with (tmp_path / "bench" / "ratios.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["what"] for row in rows] == ["latency, eager, batch 1", "throughput, eager, batch 4"]
    assert "batch 4" in result.output
