"""The report of a reproduction: the numbers of the paper and ours, and the paper's pooled figures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from kappaplace.metrics import ECE_NOTE
from kappaplace.reports import html
from kappaplace.reports.figures import ece_bars_figure, reliability_figure
from kappaplace.reports.groups import Group, group_of, pooled_group
from kappaplace.reports.html import CAPTIONS, Artifacts, Cell, Table
from kappaplace.reports.tables import DIGITS, MISSING, number

if TYPE_CHECKING:
    from kappaplace.evaluation import EvaluationResult, PaperComparison

POOLED_FIGURE = "fig:combined_ece_final"
STATUS = (
    "A number is “measured” if the backbone and the counts of queries and references are those of the paper. "
    "Otherwise it is “not comparable”, and no difference is shown. The training of the models is not checked."
)


def write_paper_report(comparison: PaperComparison, folder: str | Path) -> Path:
    """Write report.html: the status of every table and figure, the numbers, and the pooled figures.

    Args:
        comparison: The numbers of the paper and ours, as `compare_with_paper` returns them.
        folder: Output folder. The tables are also written as LaTeX.

    Returns:
        Path of ``report.html``.
    """
    files = Artifacts(folder)
    measured = sum(row.status == "measured" for row in comparison.rows)
    other = sum(row.status == "not comparable" for row in comparison.rows)
    items = [list(item) for item in comparison.items]
    header = ("table or figure", "status", "detail")
    overview = Table.of_words(header, items, "Tables and figures of the paper.")
    sections = [files.table("paper overview", overview), html.paragraph(STATUS, small=True)]
    sections += _figures(files, comparison)
    for label in dict.fromkeys(row.paper.table for row in comparison.rows):
        table = paper_table(comparison, label)
        sections += [html.heading(label), files.table(f"paper {label}", table)]
    lead = (
        f"{measured} of {len(comparison.rows)} published numbers were measured with these data and models; "
        f"{other} more are not comparable."
    )
    return files.page(html.page("Published and measured numbers", lead, sections))


def paper_table(comparison: PaperComparison, label: str) -> Table:
    """Return one table of the paper: published and measured numbers, data, backbone and status.

    Args:
        comparison: The numbers of the paper and ours.
        label: Label of the table in the source of the paper.

    Returns:
        The table.
    """
    columns = "set method metric paper ours difference queries references backbone status"
    rows = [row for row in comparison.rows if row.paper.table == label]
    cells = []
    for row in rows:
        sign = f"{row.difference:+.{DIGITS}f}".replace("-", "−") if math.isfinite(row.difference) else MISSING
        data = [f"{count:,}" if count else MISSING for count in (row.queries, row.references)]
        texts = [row.paper.set or MISSING, row.paper.method, row.paper.metric]
        texts += [_spread(row.paper.value, row.paper.spread), _spread(row.ours, row.spread), sign, *data]
        reason = f"{row.status}: {row.reason}" if row.reason else row.status
        cells.append(tuple(map(Cell, (*texts, row.backbone or MISSING, reason))))
    caption = ECE_NOTE if any("ECE@" in row.paper.metric for row in rows) else ""
    return Table(tuple(columns.split()), tuple(cells), caption)


def _spread(value: float, spread: float | None) -> str:
    if spread is None or math.isnan(spread):
        return number(value)
    return f"{number(value)} ± {number(spread)}"


def _figures(files: Artifacts, comparison: PaperComparison) -> list[str]:
    """Return the figures of pooled ECE and reliability: each method with its model, on the paper's sets."""
    methods: dict[str, tuple[Group, str]] = {}
    for row in comparison.rows:
        result = comparison.evaluations.get(row.paper.role)
        if row.paper.table == POOLED_FIGURE and result is not None:
            group = _pooled(result)
            if row.paper.score in group.scores:
                methods[row.paper.method] = group, row.paper.score
    if not methods:
        return []
    first = next(iter(methods.values()))[0]
    curves = {
        name: {k: group.reliability(score, k) for k in group.ks} for name, (group, score) in methods.items()
    }
    errors = {name: {k: curve.error for k, curve in by_k.items()} for name, by_k in curves.items()}
    names, caption = ", ".join(methods), f"{CAPTIONS['bars']} {ECE_NOTE}"
    bars, lines = ece_bars_figure(errors, first.ks), reliability_figure(curves, columns=min(2, len(curves)))
    return [
        html.heading("Pooled figures"),
        html.paragraph(f"Datasets: {first.title}.", small=True),
        html.grid(
            [
                files.figure("ece-bars-pooled", bars, f"Bars of ECE of {names}", caption),
                files.figure(
                    "reliability-pooled", lines, f"Reliability curves of {names}", CAPTIONS["reliability"]
                ),
            ]
        ),
    ]


def _pooled(result: EvaluationResult) -> Group:
    return pooled_group(result) or group_of(result, result.sets[0])
