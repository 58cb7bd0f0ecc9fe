"""The benchmark scripts: a limit that fails, dated rows that add up, ratios compared with kept ones."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


def run(script: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / script), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_loader_ratio_below_the_least_fails_and_is_recorded(tmp_path):
    file = tmp_path / "results" / "loader.csv"
    small = ("--images", "4", "--rounds", "1", "--size", "32", "--csv", str(file))
    assert run("loader_ratio.py", *small, "--least", "1000").returncode == 1
    assert run("loader_ratio.py", *small, "--least", "0").returncode == 0
    with file.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2
    assert all(float(row["ratio"]) > 0 and row["date"].endswith("Z") for row in rows)
    assert "--least 1000" in rows[0]["command"]


def test_table_scale_is_recorded(tmp_path):
    file = tmp_path / "scale.csv"
    done = run("table_scale.py", "--rows", "2000", "--csv-rows", "100", "--csv", str(file))
    assert done.returncode == 0, done.stderr
    with file.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert rows[0]["rows"] == "2000"
    assert float(rows[0]["open_Parquet_s_per_million"]) > 0
    file.write_text("other,columns\n", encoding="utf-8")
    assert run("table_scale.py", "--rows", "2000", "--csv-rows", "0", "--csv", str(file)).returncode == 1


def test_ratios_are_compared_with_kept_ones(tmp_path):
    """The ratio of a far better machine: the same run is then a regression."""
    first = run("ratios.py", "--only", "metrics", "--out", str(tmp_path / "a"))
    assert first.returncode == 0, first.stderr
    assert "plain loops" in first.stdout
    file = tmp_path / "a" / "ratios.csv"
    with file.open(encoding="utf-8", newline="") as stream:
        (row,) = csv.DictReader(stream)
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(row))
        writer.writeheader()
        writer.writerow(row | {"ratio": "1000000"})
    worse = run("ratios.py", "--only", "metrics", "--out", str(tmp_path / "b"), "--check", str(file))
    assert worse.returncode == 1
    assert "1 worse" in worse.stdout
