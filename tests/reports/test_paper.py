"""The reproduction page: every published number, ours beside it, reasons where there is none."""

from __future__ import annotations

import math
from pathlib import Path

from kappaplace.reports.evaluation import write_paper_report


def test_page_shows_numbers_differences_and_reasons(tmp_path: Path) -> None:
    row = {"table": "tab:main", "set": "Pitts30k", "method": "KP-PT", "metric": "ECE@1", "reason": ""}
    rows = [
        {**row, "paper": 0.191, "ours": 0.201, "difference": 0.010},
        {**row, "table": "tab:cost", "set": "", "metric": "ms", "paper": 5.44, "ours": math.nan}
        | {"difference": math.nan, "reason": "no <data>"},
    ]
    text = write_paper_report(rows, tmp_path).read_text(encoding="utf-8")
    assert "1 of 2 published numbers" in text
    assert "0.191" in text
    assert "0.201" in text
    assert "+0.010" in text
    assert "no &lt;data&gt;" in text
    assert len(list((tmp_path / "tables").glob("*.tex"))) == 2
