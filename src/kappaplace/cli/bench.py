"""``kappaplace bench``: ratios that this machine can measure, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kappaplace.bench.check import Kept
    from kappaplace.bench.rows import Row


def bench(
    quick: Annotated[
        bool, typer.Option("--quick", help="Smaller sizes, fewer rounds: half a minute.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="One part: overhead, inference, export, embedding, search, metrics, training or growth; "
            "repeatable."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda; without it the GPU where there is one.")] = "",
    out: Annotated[Path, typer.Option(help="Folder of ratios.csv, growth.csv and growth.png.")] = Path(
        "bench"
    ),
    check: Annotated[
        Path | None,
        typer.Option(help="Kept ratios; exit with 1 where one has become worse beyond the tolerance."),
    ] = None,
) -> None:
    """Measure what this machine can, each figure as a ratio to a peer or a limit in the same run.

    ```
    kappaplace bench
    kappaplace bench --quick --only overhead --only search
    ```
    """
    from kappaplace.bench.check import read_kept
    from kappaplace.bench.rows import as_text
    from kappaplace.bench.run import machine_class, run_bench, save_bench

    kept = None if check is None else read_kept(check)  # told before minutes of measuring
    typer.echo(f"Measuring on {machine_class(device)}; other work on it shows in the figures.")
    found = run_bench(device, quick=quick, only=only or [], say=typer.echo)
    if found.rows:
        typer.echo(as_text(found.rows))
    for curve in found.curves:
        typer.echo(
            f"growth: {curve.what} over {curve.axis}: time slope {curve.time_slope:.2f}, "
            f"memory slope {curve.memory_slope:.2f}"
        )
    for file in save_bench(found, out, device):
        typer.echo(f"Written: {file}")
    if kept is not None and not _unchanged(found.rows, kept, check):
        raise typer.Exit(1)


def _unchanged(rows: list[Row], kept: Kept, file: Path | None) -> bool:
    from kappaplace.bench.check import compare

    changes = compare(rows, kept)
    worse = [change for change in changes if change.worse]
    for change in worse:
        typer.echo(
            f"Worse: {change.what}: {change.before:.4g} before, {change.now:.4g} now "
            f"(tolerance {change.tolerance:.1%})."
        )
    typer.echo(f"{len(changes)} ratios compared with {file}, {len(worse)} worse.")
    return not worse
