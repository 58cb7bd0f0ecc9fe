"""``kappaplace demo``: the whole way in a few minutes, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Folder for report.html, table.json and the model.")] = Path(
        "demo"
    ),
    seed: Annotated[
        int, typer.Option(help="Which city and which training; the same seed, the same table.")
    ] = 0,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps of the encoder; fewer are quicker and worse.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of the table.")
    ] = False,
) -> None:
    """Train a small model with a kappa head on a synthetic city and see how sure it is of each match.

    Examples:

        kappaplace demo

        kappaplace demo --seed 3 --out demo3

        kappaplace demo --json | jq .recall
    """
    import json

    from rich.console import Console

    from kappaplace.demo.output import evaluation_table, write_results
    from kappaplace.demo.run import DemoSettings, run_demo
    from kappaplace.files import make_folder

    make_folder(out)  # before a minute of work, not after it
    settings = DemoSettings(seed=seed) if steps is None else DemoSettings(seed=seed, steps=steps)
    notes = Console(stderr=True)
    result = run_demo(settings, say=lambda line: notes.print(f"[dim]•[/dim] {line}"))
    files = write_results(result, out)
    if as_json:
        typer.echo(
            json.dumps({**result.evaluation.to_dict(), "files": {k: str(v) for k, v in files.items()}})
        )
        return
    console = Console()
    console.print(evaluation_table(result.evaluation, "In a district that was never seen"))
    console.print(f"Open [bold]{files['report']}[/bold] in a browser; the model is in {files['model']}.")
