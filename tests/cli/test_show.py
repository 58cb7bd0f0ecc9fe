"""Tables on the terminal: the paper's numbers beside ours, and what could not be measured."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from kappaplace.cli.show import missing_table, number, paper_tables


def row(table: str, method: str, ours: float | None, reason: str = "") -> dict[str, Any]:
    difference = None if ours is None else ours - 0.5
    return {
        "table": table,
        "method": method,
        "set": "Pitts30k",
        "metric": "ECE@1",
        "paper": 0.5,
        "ours": ours,
        "difference": difference,
        "reason": reason,
    }


def lines(table: Table) -> list[list[str]]:
    out = io.StringIO()
    Console(file=out, width=120).print(table)
    return [line.split() for line in out.getvalue().splitlines() if line.strip()]


def test_each_table_of_the_paper_has_its_measured_rows() -> None:
    rows = [
        row("Table 1", "L2", 0.625),
        row("Table 2", "L2", 0.375),
        row("Table 1", "SUE", None, "no positions"),
        row("Table 1", "PA", 0.5),
        row("Table 3", "PA", None, "no positions"),
    ]
    first, second = paper_tables(rows)  # nothing of table 3 was measured
    assert (first.title, second.title) == ("Table 1", "Table 2")
    assert lines(first)[-2:] == [
        ["L2", "Pitts30k", "ECE@1", "0.500", "0.625", "+0.125"],
        ["PA", "Pitts30k", "ECE@1", "0.500", "0.500", "+0.000"],
    ]
    assert lines(second)[-1] == ["L2", "Pitts30k", "ECE@1", "0.500", "0.375", "-0.125"]


def test_what_was_not_measured_is_counted_by_reason() -> None:
    rows = [
        row("Table 1", "L2", 0.6),
        row("Table 1", "SUE", None, "no positions"),
        row("Table 1", "log SUE", None, "no positions"),
        row("Table 2", "STUN", None, "no variance"),
    ]
    assert lines(missing_table(rows))[-2:] == [
        ["2", "Table", "1", "no", "positions"],
        ["1", "Table", "2", "no", "variance"],
    ]


@pytest.mark.parametrize(
    ("value", "text"), [(0.1234, "0.123"), (1.0, "1.000"), (-0.5, "-0.500"), (None, "–"), (math.nan, "–")]
)
def test_numbers_have_three_decimals(value: float | None, text: str) -> None:
    assert number(value) == text
