"""``kappaplace bench``: table, files, check, bad input."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kappaplace.bench.record import write_rows
from kappaplace.cli.main import app
from kappaplace.errors import KappaPlaceError


def run(*words: str):
    return CliRunner().invoke(app, ["bench", "--device", "cpu", "--quick", *words])


def test_one_part_gives_a_table_and_a_file_that_a_second_run_is_compared_with(tmp_path: Path) -> None:
    first = run("--only", "metrics", "--out", str(tmp_path / "a"))
    assert first.exit_code == 0, first.output
    assert "plain loops" in first.output
    file = tmp_path / "a" / "ratios.csv"
    with file.open(encoding="utf-8", newline="") as stream:
        (row,) = csv.DictReader(stream)
    assert list(row)[:8] == ["date", "command", "machine", "part", "where", "what", "ours", "peer"]
    assert "-core CPU, threads: " in row["machine"]

    # The ratio of a far better machine: the same run is then a regression.
    write_rows(file, [row | {"ratio": "1000000"}])
    worse = run("--only", "metrics", "--out", str(tmp_path / "b"), "--check", str(file))
    assert worse.exit_code == 1
    assert "1 worse" in worse.output


def test_an_unknown_part_is_told(tmp_path: Path) -> None:
    with pytest.raises(KappaPlaceError, match="no part 'speed'"):
        CliRunner().invoke(app, ["bench", "--only", "speed", "--out", str(tmp_path)], catch_exceptions=False)
