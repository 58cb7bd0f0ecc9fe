"""The reproduction as a page: the paper's numbers, ours, and what there was no data for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kappaplace.reports import html
from kappaplace.reports.artifacts import Artefacts
from kappaplace.reports.tables import paper_table


def write_paper_report(rows: Sequence[Mapping[str, Any]], folder: str | Path) -> Path:
    """report.html with one table for each of the paper's, and the same tables as LaTeX beside it."""
    files = Artefacts(folder)
    measured = sum(math.isfinite(row["ours"]) for row in rows)
    sections = []
    for name in dict.fromkeys(str(row["table"]) for row in rows):
        mine = [row for row in rows if row["table"] == name]
        sections += [html.heading(name), files.table(f"paper {name}", paper_table(mine))]
    lead = f"{measured} of {len(rows)} published numbers could be measured with the data and models given."
    return files.page(html.page("The paper's numbers and ours", lead, sections))
