"""Damage and names that once ended a command with a traceback; damaged files for every command."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation import compare, read_result
from kappaplace.files import write_file
from kappaplace.reports import write_report
from tests.attack.inputs import called, inside, whole_world
from tests.hardening.damage import NONSENSE, _places

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KAPPAPLACE_CACHE", str(folder / "cache"))
        whole_world(folder)
    return folder


def refused(folder: Path, *words: str) -> str:
    with inside(folder):
        code, said = called(list(words))
    assert code == 2, said
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize("target", ["/", "", "images"])
@pytest.mark.parametrize("option", ["--html", "--csv"])
def test_a_folder_instead_of_a_file_for_answers(option: str, target: str, whole: Path) -> None:
    said = refused(whole, "localize", "town.map", "images/000.png", option, target)
    assert "because it is a folder" in said
    assert "images/000.png" not in said  # before the work


def test_a_folder_instead_of_a_page_of_labels(whole: Path) -> None:
    assert "folder" in refused(whole, "map", "label", "town.map", "asked", "--out", "new.csv", "--page", "/")


def test_names_that_are_not_utf8(whole: Path, tmp_path: Path) -> None:
    words = ("data", "import", "csv", "images", "--out", "new.parquet", "--name", "a\udcffb")
    assert "must be UTF-8" in refused(whole, *words)
    assert not (whole / "new.parquet").exists()
    manifest = (whole / "town.map" / "manifest.json").read_bytes()
    assert "not UTF-8" in refused(whole, "map", "add", "town.map", "asked", "--prefix", "\udcff/")
    assert (whole / "town.map" / "manifest.json").read_bytes() == manifest
    with pytest.raises(KappaPlaceError, match="not UTF-8"):
        write_file(tmp_path / "a", "x\udcff")


@pytest.mark.parametrize("value", ["1e308", "-1e10", "inf"])
def test_a_position_that_is_on_no_map(value: str, whole: Path) -> None:
    """Squares of such coordinates overflow in the search of neighbors."""
    rows = (whole / "table.csv").read_text().splitlines()
    cells = rows[-1].split(",")
    at = next(i for i, cell in enumerate(cells) if cell == "230.0")
    cells[at] = value
    (whole / "far.csv").write_text("\n".join([*rows[:-1], ",".join(cells)]) + "\n")
    assert "has a coordinate above 1e+09 metres" in refused(whole, "data", "check", "far.csv")


@pytest.mark.parametrize("queries", ["2147483648", str(10**30), "-1"])
def test_a_city_of_too_many_queries(queries: str, whole: Path) -> None:
    assert "queries must be between 0 and 100,000" in refused(
        whole, "city", "--out", "city", "--queries", queries
    )


def test_monitoring_a_field_that_is_too_long(whole: Path) -> None:
    rows = (whole / "answers.csv").read_text().splitlines()
    long = "a" * (1 << 24)
    for at, kind in ((0, "header"), (1, "row")):
        damaged = list(rows)
        damaged[at] = f'{damaged[at]},"{long}'
        (whole / "long.csv").write_text("\n".join(damaged))
        with inside(whole):
            code, said = called(["map", "monitor", "town.map", "long.csv", "--state", "none.json"])
        assert code in (0, 1, 2), kind
        assert "Traceback" not in said


def test_a_changed_state_of_a_monitor(whole: Path) -> None:
    good = (whole / "state.json").read_text()
    for name in ("format", "calibration", "note", "monitor"):
        for value in NONSENSE:
            (whole / "changed.json").write_text(json.dumps(json.loads(good) | {name: value}))
            with inside(whole):
                code, said = called(["map", "monitor", "town.map", "answers.csv", "--state", "changed.json"])
            assert code in (0, 1, 2), (name, value)
            assert "Traceback" not in said


def _compared(folder: Path, report: Path | None = None) -> int:
    """Everything that `compare` does with results; 1 if that is one message."""
    message = ""
    try:
        result = read_result(folder)
        compare([result, result], resamples=2)
        if report is not None:
            write_report(result, report, [result])
    except KappaPlaceError as error:
        message = str(error)
    assert "\n" not in message
    return int(bool(message))


@pytest.mark.parametrize("report", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_damaged_results_are_one_message(report: bool, whole: Path, tmp_path: Path) -> None:
    """Values outside the metrics of scores, and each column, with values that make no sense."""
    folder, out, values = whole / "other", tmp_path / "out" if report else None, (*NONSENSE, {"a": 1}, ["a"])
    chance, messages = random.Random(0), 0
    good = (folder / "results.json").read_text()
    step, tries = (20, 1) if report else (1, 3)  # a report takes seconds
    for number in range(0, len([*_few_places(json.loads(good))]), step):
        for value in chance.sample(values, tries):
            record = json.loads(good)
            holder, key = [*_few_places(record)][number]
            holder[key] = value
            (folder / "results.json").write_text(json.dumps(record))
            messages += _compared(folder, out)
    (folder / "results.json").write_text(good)
    for name in ("queries", "matches", "references"):
        file = folder / f"{name}.parquet"
        table, content = pq.read_table(file), file.read_bytes()
        rows = table.num_rows
        for at, column in enumerate(table.column_names):
            for value in chance.sample((None, "x", -5, 10**9, float("nan"), [1.0]), tries):
                changed = table.set_column(at, column, pa.array([value] * rows))
                pq.write_table(changed, file)
                messages += _compared(folder, out)
        file.write_bytes(content)
    assert messages > (10 if report else 100)
    assert not _compared(folder, tmp_path / "out")


def _few_places(record: dict) -> list:
    """Where a value can be replaced: everywhere but in most metrics, which are alike."""
    metrics = record["metrics"]
    for measured in metrics.values():
        for name in list(measured["scores"])[1:]:
            del measured["scores"][name]
            measured.get("intervals", {}).get("scores", {}).pop(name, None)
    return [(holder, key) for holder, key in _places(record)][::2]


@pytest.mark.parametrize("tries", [40, pytest.param(3000, marks=pytest.mark.slow)])
def test_damaged_files_of_every_command(tries: int) -> None:
    """In a process of its own, whose memory is limited; the slow run has more than 3,000 cases."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.attack.inputs", str(tries), str(tries)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-5000:] + result.stdout
