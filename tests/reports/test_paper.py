"""The reproduction page: every published number, ours next to it, status and reasons, pooled figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kappaplace.evaluation.paper import NUMBERS, POOLED, PaperComparison, PaperItem, PaperRow
from kappaplace.reports.runs import paper_table, write_paper_report
from tests.reports.synthetic import make_result, make_set

LABEL = "fig:combined_ece_final"
L2, SUE = (
    next(n for n in NUMBERS if n.table == LABEL and n.method == method and n.metric == "ECE@1")
    for method in ("L2", "SUE")
)


@pytest.fixture
def comparison() -> PaperComparison:
    """Pooled numbers of a model on two of three datasets."""
    sets = make_set("harbour"), make_set("hill", seed=1), make_set("archive", seed=2, poses=False)
    result = replace(make_result("base", *sets), facts={"pool": ["harbour", "hill"]})
    rows = [
        PaperRow(L2, 0.5, queries=600, references=1600, backbone="resnet50"),
        PaperRow(SUE, 0.2, "not comparable", "backbone <tiny> instead of resnet50", 0.01, 5, 6, "<tiny>"),
        PaperRow(NUMBERS[0], status="measurable", reason="with data: SF-XL v1"),
    ]
    items = [PaperItem(LABEL, "1 measured, 1 not comparable", "backbone <tiny>")]
    return PaperComparison(rows, {"baseline": result}, {}, items)


def test_page_shows_status_numbers_data_and_reasons(comparison: PaperComparison, tmp_path: Path) -> None:
    text = write_paper_report(comparison, tmp_path).read_text(encoding="utf-8")
    assert "1 of 3 published numbers were measured" in text
    assert "1 more are not comparable" in text
    assert "1 measured, 1 not comparable" in text
    assert "The order of methods by ECE@K depends on R@K" in text
    assert "<tiny>" not in text
    latex = (tmp_path / "tables" / "paper-fig-combined-ece-final.tex").read_text(encoding="utf-8")
    assert "not comparable: backbone" in latex
    assert "1,600" in latex
    assert (tmp_path / "tables" / "paper-overview.tex").is_file()


def test_numbers_that_are_not_comparable_have_no_difference(comparison: PaperComparison) -> None:
    table = paper_table(comparison, LABEL)
    rows = [dict(zip(table.header, (cell.text for cell in row), strict=True)) for row in table.rows]
    assert (rows[0]["paper"], rows[0]["ours"], rows[0]["difference"]) == ("0.492", "0.500", "+0.008")
    assert (rows[0]["queries"], rows[0]["backbone"], rows[0]["status"]) == ("600", "resnet50", "measured")
    assert (rows[1]["ours"], rows[1]["difference"]) == ("0.200 ± 0.010", "–")
    assert rows[1]["status"] == "not comparable: backbone <tiny> instead of resnet50"


def test_pooled_figures_have_the_pooled_sets_only(comparison: PaperComparison, tmp_path: Path) -> None:
    text = write_paper_report(comparison, tmp_path).read_text(encoding="utf-8")
    assert "Datasets: pooled: harbour, hill." in text
    assert {file.name for file in (tmp_path / "figures").glob("*.png")} == {
        "ece-bars-pooled.png",
        "reliability-pooled.png",
    }
    svg = (tmp_path / "figures" / "reliability-pooled.svg").read_text(encoding="utf-8")
    assert all(f"R@{k}" in svg for k in (1, 5, 10))
    assert L2.set == POOLED
