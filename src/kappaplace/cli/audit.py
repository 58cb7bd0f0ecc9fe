"""`kappaplace audit`: the risk of a threshold, and a threshold that stays within a risk limit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kappaplace.cli.options import AsJson
from kappaplace.data import TABLE_FORMATS
from kappaplace.evaluation import AnswerFiles, AuditOptions

if TYPE_CHECKING:
    from kappaplace.evaluation import Audit, OperatingPoint


def audit(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE… [TABLE]",
            help="Closure log (.csv or .jsonl), score matrix (.npy, .npz), two .npy files of "
            "descriptors (queries, "
            "references), log folder of VPR-methods-evaluation, or .pickle file of SUE. Optional: a "
            "table with the "
            "correct references.",
        ),
    ],
    options: AuditOptions,
    inputs: AnswerFiles,
    as_json: AsJson = False,
) -> None:
    """Measure the risk of your threshold, and find a threshold that stays within a risk limit.

    Works with the scores of any system. Nothing is fitted, so all labelled answers are used.

    Examples:

        kappaplace audit closures.csv --threshold 0.11

        kappaplace audit similarities.npy --positives positives.json --threshold 0.8 --max-risk 0.01

        kappaplace audit queries.npy references.npy walk.parquet --metric l2 --threshold 0.95 --json

        kappaplace audit logs/default/2026-05-01_12-00-00 --metric squared-l2 --threshold 0.6

        kappaplace audit st_lucia.pickle --score superpoint_inliers --threshold 50
    """
    from kappaplace.evaluation import audit, read_answers

    tables = tuple(file for file in files[1:] if file.suffix.lower() in TABLE_FORMATS)
    answers = read_answers([file for file in files if file not in tables], replace(inputs, tables=tables))
    result = audit(answers, options)
    if as_json:
        typer.echo(json.dumps(result.to_dict()))
        return
    _show(result)


def _show(result: Audit) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    console.print(escape(result.sentence), soft_wrap=True, highlight=False)
    table = Table("threshold", "", "risk", "interval", "accepted", "recall", box=SIMPLE_HEAD, show_edge=False)
    for name, point in (("yours", result.yours), ("safe", result.safe)):
        if point is not None:
            table.add_row(name, *_cells(point))
    console.print(table)
    for note in result.notes:
        if note not in result.sentence:
            console.print(escape(note), style="dim")


def _cells(point: OperatingPoint) -> list[str]:
    fractions = ["–" if value is None else f"{value:.1%}" for value in (point.risk, point.recall)]
    interval = "–" if point.low is None or point.high is None else f"{point.low:.1%} to {point.high:.1%}"
    return [
        repr(point.threshold).removesuffix(".0"),
        fractions[0],
        interval,
        f"{point.accepted:,} ({point.coverage:.1%})",
        fractions[1],
    ]
