"""Tables on the terminal: the paper's numbers beside ours, and what could not be measured."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from kappaplace.cli.show import number, paper_overview, paper_tables, seed_tables


def row(table: str, method: str, ours: float, status: str = "measured", reason: str = "") -> dict[str, Any]:
    return {
        "table": table,
        "method": method,
        "set": "Pitts30k",
        "metric": "ECE@1",
        "paper": 0.5,
        "spread": math.nan,
        "ours": ours,
        "our spread": math.nan,
        "difference": ours - 0.5,
        "queries": 6816,
        "references": 10_000,
        "backbone": "resnet50",
        "status": status,
        "reason": reason,
    }


def lines(table: Table | str) -> list[list[str]]:
    out = io.StringIO()
    Console(file=out, width=140).print(table)
    return [line.split() for line in out.getvalue().splitlines() if line.strip()]


def test_each_table_of_the_paper_has_its_rows_with_data_and_backbone() -> None:
    rows = [
        row("Table 1", "L2", 0.625),
        row("Table 2", "L2", 0.375) | {"spread": 0.003, "our spread": 0.01},
        row("Table 1", "SUE", math.nan, "not measurable", "no positions"),
        row("Table 1", "PA", 0.5, "not comparable", "40 × 640 images") | {"queries": 40, "references": 640},
        row("Table 3", "PA", math.nan, "measurable", "with data"),
    ]
    first, reason, second = paper_tables(rows)  # nothing of table 3 was measured
    assert (first.title, second.title) == ("Table 1", "Table 2")
    assert lines(first)[-2:] == [
        ["L2", "Pitts30k", "ECE@1", "0.500", "0.625", "+0.125", "6,816", "10,000", "resnet50"],
        ["PA", "Pitts30k", "ECE@1", "0.500", "0.500", "not", "comparable", "40", "640", "resnet50"],
    ]
    assert reason == "  not comparable: 40 × 640 images"
    assert lines(second)[-1][3:9] == ["0.500", "±", "0.003", "0.375", "±", "0.010"]


def test_every_table_and_figure_has_a_status() -> None:
    items = [{"label": "fig:x", "status": "not measurable", "detail": "a drawing"}]
    assert lines(paper_overview(items))[-1] == ["fig:x", "not", "measurable", "a", "drawing"]


def test_seeds_are_shown_as_mean_and_standard_deviation() -> None:
    rows = [
        {"set": "city", "score": score, "metric": metric, "mean": 0.5, "std": 0.0123, "runs": 5}
        for score, metric in (("", "R@1"), ("l2", "ECE@1"), ("l2", "Brier"))
    ]
    (table,) = seed_tables(rows, {"l2": "L2"})
    assert table.title == "city: mean ± std over 5 runs, R@1 0.500 ± 0.012"
    assert ["score", "ECE@1"] in lines(table)
    assert lines(table)[-1] == ["L2", "0.500", "±", "0.012"]
    (both,) = seed_tables(rows, {"l2": "L2"}, ["R@1", "ECE@1"])
    assert lines(both)[-2:] == [
        ["retrieval", "0.500", "±", "0.012", "–"],
        ["L2", "–", "0.500", "±", "0.012"],
    ]
    (brier,) = seed_tables(rows, {"l2": "L2"}, ["Brier"])
    assert lines(brier)[-1] == ["L2", "0.500", "±", "0.012"]


@pytest.mark.parametrize(
    ("value", "text"), [(0.1234, "0.123"), (1.0, "1.000"), (-0.5, "-0.500"), (None, "–"), (math.nan, "–")]
)
def test_numbers_have_three_decimals(value: float | None, text: str) -> None:
    assert number(value) == text
