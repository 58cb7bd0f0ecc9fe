"""``kappaplace compare``: evaluations side by side, with intervals and paired tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    folders: Annotated[list[Path], typer.Argument(help="Folders that `kappaplace evaluate` wrote.")],
    metric: Annotated[
        list[str] | None, typer.Option(help="What to compare: AUROC, AURC, ECE@1, R@1, …; repeatable.")
    ] = None,
    against: Annotated[
        str, typer.Option(help="Of a single folder: the score with which its others are compared.")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="Folder for comparison.csv and one report of all.")] = None,
    resamples: Annotated[
        int | None, typer.Option(min=1, help="Bootstrap resamples (default: 1000, more for many tests).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap.")] = 0,
    report: Annotated[bool, typer.Option(help="With --out: write report.html.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Tell which evaluation is better, per set and pooled.

    Every evaluation is tested against the first on the same queries (paired bootstrap, Holm-corrected); a
    single one compares its scores with one of them.

    Examples:

        kappaplace compare results/pt results/jt

        kappaplace compare results/mine --against mine

        kappaplace compare results/pt results/jt --metric AURC --metric ECE@1 --out results/pt-or-jt
    """
    import json

    from rich.console import Console

    from kappaplace.cli.show import comparison_table
    from kappaplace.evaluation.comparison import compare_results, comparison_rows, write_comparison
    from kappaplace.evaluation.results import plain, read_result

    results = [read_result(folder) for folder in folders]
    tables = [
        compare_results(results, each, against=against, resamples=resamples, seed=seed)
        for each in metric or ["AUROC", "R@1"]
    ]
    if out is not None:
        write_comparison(tables, out)
        if report:
            from kappaplace.reports import write_report

            write_report(results[0], out, results[1:])
    if as_json:
        typer.echo(json.dumps(plain({"rows": comparison_rows(tables)})))
        return
    console = Console()
    for table in tables:
        for compared in table.sets:
            console.print(comparison_table(compared, table.names))
    if out is not None:
        console.print(f"The comparison is in [bold]{out}[/bold].")
