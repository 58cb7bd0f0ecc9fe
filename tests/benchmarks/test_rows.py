"""Rows, their limits, and the comparison with kept ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kappaplace import KappaPlaceError
from kappaplace.cli.bench import Row, dated, save_rows, show
from record import EXACT_TOLERANCE, TOLERANCE, append_row, compare_ratios, read_ratios

FASTER = Row("inference", "tiny", "latency", 1.0, 4.0, "ms", "eager", 4.0, "higher", 3.0)
COST = Row("overhead", "tiny", "parameters", 1001.0, 1000.0, "", "without κ", 1.001, "lower", 1.001)


def test_a_limit_is_kept_or_missed() -> None:
    assert FASTER.met
    assert COST.met
    assert not replace(FASTER, ratio=2.9).met
    assert not replace(COST, ratio=1.0011).met
    assert replace(COST, limit=None).met is None
    assert "missed" in replace(FASTER, ratio=2.9).cells()[-1]
    assert replace(FASTER, limit=None).cells()[-1] == ""


def test_the_text_names_each_section_once(capsys: pytest.CaptureFixture[str]) -> None:
    show([FASTER, replace(FASTER, what="throughput"), COST])
    text = capsys.readouterr().out
    assert text.count("inference: tiny") == 1
    assert text.count("overhead: tiny") == 1


def kept(folder: Path, *rows: Row) -> Path:
    save_rows(folder / "kept.csv", [dated(row.record()) for row in rows])
    return folder / "kept.csv"


def test_worse_is_worse_beyond_the_tolerance_only(tmp_path: Path) -> None:
    file = kept(tmp_path, FASTER, COST)
    within = [
        replace(FASTER, ratio=4.0 * (1 - TOLERANCE) + 0.01),
        replace(COST, ratio=1.001 + EXACT_TOLERANCE),
        replace(FASTER, ratio=400.0),
        replace(COST, ratio=0.5),
    ]
    assert compare_ratios(within, read_ratios(file)) == (4, [])
    beyond = [replace(FASTER, ratio=4.0 * (1 - TOLERANCE) - 0.01), replace(COST, ratio=1.01)]
    assert len(compare_ratios(beyond, read_ratios(file))[1]) == 2


def test_only_the_same_measurement_is_compared(tmp_path: Path) -> None:
    file = kept(tmp_path, replace(FASTER, what="disk to descriptors; bottleneck: model"))
    assert compare_ratios([replace(FASTER, where="other")], read_ratios(file)) == (0, [])
    now = replace(FASTER, what="disk to descriptors; bottleneck: decode")
    assert compare_ratios([now], read_ratios(file))[0] == 1


def test_a_file_that_is_not_one_is_told(tmp_path: Path) -> None:
    with pytest.raises(KappaPlaceError, match="No ratios"):
        read_ratios(tmp_path / "none.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(KappaPlaceError, match="not a table"):
        read_ratios(tmp_path / "other.csv")


@pytest.mark.parametrize(
    ("called", "told"),
    [
        ("benchmarks/overhead.py", "python benchmarks/overhead.py --csv x"),
        ("/somewhere/bin/kappaplace", "kappaplace --csv x"),
        ("/somewhere/kappaplace/__main__.py", "kappaplace --csv x"),
    ],
)
def test_the_command_is_told_without_where_the_program_lies(
    called: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [called, "--csv", "x"])
    assert dated({})["command"] == told


def test_rows_with_other_columns_are_not_mixed(tmp_path: Path) -> None:
    append_row(tmp_path / "x.csv", {"a": 1.23456})
    append_row(tmp_path / "x.csv", {"a": 2.0})
    lines = (tmp_path / "x.csv").read_text().splitlines()
    assert len(lines) == 3
    assert lines[1].endswith(",1.235")
    with pytest.raises(KappaPlaceError, match="columns"):
        append_row(tmp_path / "x.csv", {"b": 1})
