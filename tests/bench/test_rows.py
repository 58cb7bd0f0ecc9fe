"""Rows, their limits, and the comparison with kept ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kappaplace.bench.check import EXACT_TOLERANCE, TOLERANCE, compare, read_kept
from kappaplace.bench.record import append_row, dated, write_rows
from kappaplace.bench.rows import Row, as_text, cells
from kappaplace.errors import KappaPlaceError

FASTER = Row("inference", "tiny", "latency", 1.0, 4.0, "ms", "eager", 4.0, "higher", 3.0)
COST = Row("overhead", "tiny", "parameters", 1001.0, 1000.0, "", "without κ", 1.001, "lower", 1.001)


def test_a_limit_is_kept_or_missed() -> None:
    assert FASTER.met
    assert COST.met
    assert not replace(FASTER, ratio=2.9).met
    assert not replace(COST, ratio=1.0011).met
    assert replace(COST, limit=None).met is None
    assert "missed" in cells(replace(FASTER, ratio=2.9))[-1]
    assert cells(replace(FASTER, limit=None))[-1] == ""


def test_the_text_names_each_section_once() -> None:
    text = as_text([FASTER, replace(FASTER, what="throughput"), COST])
    assert text.count("-- inference: tiny") == 1
    assert text.count("-- overhead: tiny") == 1


def kept(folder: Path, *rows: Row) -> Path:
    write_rows(folder / "kept.csv", [dated(row.record()) for row in rows])
    return folder / "kept.csv"


def test_worse_is_worse_beyond_the_tolerance_only(tmp_path: Path) -> None:
    file = kept(tmp_path, FASTER, COST)
    within = [
        replace(FASTER, ratio=4.0 * (1 - TOLERANCE) + 0.01),
        replace(COST, ratio=1.001 + EXACT_TOLERANCE),
        replace(FASTER, ratio=400.0),
        replace(COST, ratio=0.5),
    ]
    assert not any(change.worse for change in compare(within, read_kept(file)))
    beyond = [replace(FASTER, ratio=4.0 * (1 - TOLERANCE) - 0.01), replace(COST, ratio=1.01)]
    assert all(change.worse for change in compare(beyond, read_kept(file)))


def test_only_the_same_measurement_is_compared(tmp_path: Path) -> None:
    file = kept(tmp_path, replace(FASTER, what="disk to descriptors; bottleneck: model"))
    assert not compare([replace(FASTER, where="other")], read_kept(file))
    assert (
        len(compare([replace(FASTER, what="disk to descriptors; bottleneck: decode")], read_kept(file))) == 1
    )


def test_a_file_that_is_not_one_is_told(tmp_path: Path) -> None:
    with pytest.raises(KappaPlaceError, match="No ratios"):
        read_kept(tmp_path / "none.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(KappaPlaceError, match="no table"):
        read_kept(tmp_path / "other.csv")


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
