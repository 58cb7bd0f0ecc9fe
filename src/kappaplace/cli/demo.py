"""``kappaplace demo``: the whole way in a few minutes, offline; or on real images that you have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from kappaplace.errors import KappaPlaceError


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
    real: Annotated[
        Path | None,
        typer.Option(help="A folder or table with queries, references and positives, instead of the city."),
    ] = None,
    layout: Annotated[
        str, typer.Option(help="Layout of that folder, if it is not recognised; `kappaplace data layouts`.")
    ] = "",
    model: Annotated[
        str, typer.Option(help="Model for --real: folder, weights file or name; without it our own.")
    ] = "",
    device: Annotated[str, typer.Option(help="For --real: cpu, cuda, cuda:1, mps.")] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of the table.")
    ] = False,
) -> None:
    """Train a small model with a kappa head on a synthetic city and see how sure it is of each match.

    With --real nothing is trained: the pretrained model answers on your images.

    Examples:

        kappaplace demo

        kappaplace demo --seed 3 --out demo3

        kappaplace demo --json | jq .recall

        kappaplace demo --real gardens_point --out gardens
    """
    if real is not None:
        if steps is not None or seed != 0:
            raise KappaPlaceError("--seed and --steps belong to the synthetic city; leave them out.")
        _real(real, layout, model, device, out, as_json)
        return
    if layout or model or device:
        raise KappaPlaceError("--layout, --model and --device belong to --real DIR; give that, too.")
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


def _real(folder: Path, layout: str, model: str, device: str, out: Path, as_json: bool) -> None:
    from rich.console import Console
    from rich.markup import escape

    from kappaplace.demo.output import evaluation_table
    from kappaplace.demo.real import real_table, run_real
    from kappaplace.demo.real_output import missing_line, probability_line, write_real
    from kappaplace.files import make_folder
    from kappaplace.models.checkpoint import load_model
    from kappaplace.models.shipped import DEFAULT

    make_folder(out)
    table, notes = real_table(folder, layout), Console(stderr=True)
    result = run_real(
        table,
        load_model(model or None),
        model or DEFAULT,
        device=device or None,
        say=lambda line: notes.print(f"[dim]•[/dim] {escape(line)}"),
    )
    files = write_real(result, out)
    if as_json:
        typer.echo(json.dumps({**result.to_dict(), "files": {k: str(v) for k, v in files.items()}}))
        return
    console = Console()
    console.print(evaluation_table(result.evaluation, f"{result.model} on {result.retrieved.name}"))
    for line in (probability_line(result), missing_line(result)):
        if line:
            console.print(line)
    console.print(f"Open [bold]{escape(str(files['report']))}[/bold] in a browser.")
