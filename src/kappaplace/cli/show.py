"""Tables of evaluations for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from rich import box
from rich.table import Table

from kappaplace.evaluation import MEAN, POOLED, EvaluationResult, SetResult, flaws_of, warnings_of
from kappaplace.metrics import ECE_NOTE

if TYPE_CHECKING:
    from kappaplace.evaluation import Cell, ComparedSet

Row: TypeAlias = Mapping[str, Any]
"""One number of the paper: its table, method, dataset, metric and values."""
# The most important metrics in reading order; the files contain the others.
SHOWN = {
    "AUROC": "AUROC",
    "AURC": "AURC",
    "coverage@10%": "cov@10%",
    "ECE@1": "ECE@1",
    "ECE@5": "@5",
    "ECE@10": "@10",
    "smooth ECE": "smECE",
    "Brier": "Brier",
}
OPTIONAL = ("ECE@5", "ECE@10")  # omitted if there are probabilities: the table must fit into 80 columns


def set_tables(result: EvaluationResult) -> Iterator[Table | str]:
    """Yield one table per dataset with one row per score, then the pooled table and the mean."""
    by_name = {each.name: each for each in result.sets}
    labels = {name: score.label for each in result.sets for name, score in each.scores.items()}
    for name, metrics in result.metrics.items():
        recall = ", ".join(
            f"{metric} {value:.3f}" for metric, value in metrics["recall"].items() if "R@" in metric
        )
        dataset = {POOLED: "all datasets pooled", MEAN: "mean over datasets"}.get(name, name)
        title = f"{result.name}, {dataset}: {metrics['queries']:,} queries, {recall}"
        table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        measured = {metric for row in metrics["scores"].values() for metric in row}
        omitted = set(OPTIONAL) if "Brier" in measured else set()
        shown = [metric for metric in SHOWN if metric in measured - omitted]
        table.add_column("score", no_wrap=True)
        for metric in shown:
            table.add_column(SHOWN[metric], justify="right", no_wrap=True)
        intervals = metrics.get("intervals", {}).get("scores", {})
        flaws = _flaws(result, name)
        for score, values in metrics["scores"].items():
            limits = intervals.get(score, {}).get("AUROC")
            star = {metric: "*" for metric in shown if metric.startswith("ECE@") and score in flaws}
            cells = [number(values.get(metric)) + star.get(metric, "") for metric in shown]
            if limits is not None and not math.isnan(limits[0]):
                cells[0] += f" ({number(limits[0])}–{number(limits[1])})"
            table.add_row(labels.get(score, score), *cells)
        table.add_section()
        for baseline, values in metrics.get("baselines", {}).items():
            table.add_row(baseline, *(number(values.get(metric)) for metric in shown))
        yield table
        if name in by_name:
            yield _caption(by_name[name])


def _flaws(result: EvaluationResult, name: str) -> set[str]:
    """Return the scores whose ECE is meaningless: on a dataset, or on any of those that are pooled."""
    return {score for each in result.sets if name in (each.name, POOLED, MEAN) for score in flaws_of(each)}


def ece_notes(results: Sequence[EvaluationResult]) -> list[str]:
    """Return warnings about meaningless metrics, and notes on the ECE of evaluations."""
    warnings = [f"Warning: {text}" for result in results for text in warnings_of(result)]
    return [ECE_NOTE, *warnings]


def _caption(each: SetResult) -> str:
    counted = str(each.facts.get("counted", ""))
    missing = f"skipped: {', '.join(each.left_out)} (reasons in results.json)" if each.left_out else ""
    return "; ".join(part for part in (counted, missing) if part)


def comparison_table(compared: ComparedSet, names: tuple[str, ...]) -> Table:
    """Return a table of scores × evaluations; ✓ marks differences significant at 5% (Holm-corrected)."""
    title = f"{compared.metric} on {compared.name} ({compared.queries:,} queries)"
    table = Table(title=title, caption=compared.note or None, box=box.SIMPLE_HEAD)
    table.add_column("score", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    for score, cells in compared.rows.items():
        table.add_row(score or "retrieval", *(_cell(cell) for cell in cells))
    return table


SEED_METRICS = ("AUROC", "ECE@1", "ECE@5", "ECE@10")


def seed_tables(
    rows: Sequence[Row], labels: Mapping[str, str], metrics: Sequence[str] = ()
) -> Iterator[Table]:
    """Yield mean ± std over seeds, one table per dataset with one row per score.

    Args:
        rows: Rows of `kappaplace.evaluation.spread_over_seeds`.
        labels: Names of the scores.
        metrics: Metrics to show. Default: the most important ones.

    Yields:
        One table per dataset.
    """
    for name in dict.fromkeys(row["set"] for row in rows):
        part = {(row["score"], row["metric"]): row for row in rows if row["set"] == name}
        shown = [each for each in metrics or SEED_METRICS if any(metric == each for _, metric in part)]
        recall = part.get(("", "R@1"))
        title = f"{name}: mean ± std over {rows[0]['runs']} runs"
        if recall and not metrics:
            title += f", R@1 {_with_spread(recall['mean'], recall['std'])}"
        table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("score", no_wrap=True)
        for metric in shown:
            table.add_column(metric, justify="right", no_wrap=True)
        for score in dict.fromkeys(score for score, _ in part):
            cells = [part.get((score, metric)) for metric in shown]
            if any(cells):
                values = ("–" if c is None else _with_spread(c["mean"], c["std"]) for c in cells)
                table.add_row(labels.get(score, score) or "retrieval", *values)
        yield table


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    text = f"{number(cell.value)}{'*' * bool(cell.flaw)} ({number(cell.low)}–{number(cell.high)})"
    if not math.isnan(cell.p_value):
        text += f"\n{cell.difference:+.3f}, p {cell.p_value:.3f}{' ✓' if cell.p_value < 0.05 else ''}"
    return text


def paper_tables(rows: Sequence[Row]) -> Iterator[Table | str]:
    """Yield our numbers next to the paper's, one table per table of the paper, with data and backbone.

    Numbers that are not comparable have a mark instead of a difference; the reasons follow the table.
    """
    ours = [row for row in rows if row["status"] in ("measured", "not comparable")]
    for label in dict.fromkeys(row["table"] for row in ours):
        table = Table(title=label, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for column in ("method", "set", "metric"):
            table.add_column(column)
        for column in ("paper", "ours", "difference", "queries", "references"):
            table.add_column(column, justify="right")
        table.add_column("backbone")
        part = [row for row in ours if row["table"] == label]
        for row in part:
            comparable = row["status"] == "measured"
            values = (
                _with_spread(row["paper"], row["spread"]),
                _with_spread(row["ours"], row["our spread"]),
                f"{row['difference']:+.3f}" if comparable else "not comparable",
            )
            data = (_count(row["queries"]), _count(row["references"]), row["backbone"])
            table.add_row(row["method"], row["set"], row["metric"], *values, *data)
        yield table
        for reason in dict.fromkeys(row["reason"] for row in part if row["reason"]):
            yield f"  not comparable: {reason}"


def _with_spread(value: float, spread: float) -> str:
    return number(value) if math.isnan(spread) else f"{number(value)} ± {number(spread)}"


def _count(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:,.0f}"


def paper_overview(items: Sequence[Row]) -> Table:
    """Return every table and figure of the paper with its status and its missing or different data."""
    table = Table("table or figure", "status", "detail", title="The paper", box=box.SIMPLE_HEAD)
    for item in items:
        table.add_row(item["label"], item["status"], item["detail"])
    return table


def number(value: float | None) -> str:
    """Return a number with three decimals; a dash if it is not defined."""
    return "–" if value is None or math.isnan(value) else f"{value:.3f}"
