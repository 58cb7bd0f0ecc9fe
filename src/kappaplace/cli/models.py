"""``kappaplace models``: what can be built or fetched, its size, licence and source."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """List known backbones and published models.

    Examples:

        kappaplace models

        kappaplace models --json | jq '.models[].name'
    """
    from kappaplace.models.backbones import BACKBONES
    from kappaplace.models.hub import HUB, cached

    backbones: list[dict[str, Any]] = [
        {
            "name": spec.name,
            "parameters_m": spec.parameters_m,
            "channels": spec.channels,
            "input_size": spec.input_size,
            "licence": spec.licence,
            "weights": f"{spec.weights.kind} {spec.weights.where}".strip(),
            "extra": spec.extra,
            "note": spec.note,
        }
        for spec in BACKBONES.values()
    ]
    published: list[dict[str, Any]] = [
        {
            "name": model.name,
            "dim": model.dim,
            "size_mb": model.size_mb,
            "licence": model.licence,
            "source": model.where,
            "kind": model.kind,
            "downloaded": cached(model),
        }
        for model in HUB.values()
    ]
    if as_json:
        typer.echo(json.dumps({"backbones": backbones, "models": published}, indent=2))
        return
    _show(backbones, published)


def _show(backbones: list[dict[str, Any]], published: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("name", "M", "channels", "input", "licence", "weights", title="Backbones")
    table.columns[0].no_wrap = True
    for row in backbones:
        source = row["weights"].partition(" ")[0]
        notes = [f"extra {row['extra']}" if row["extra"] else "", row["note"]]
        note = "; ".join(note for note in notes if note)
        cells = (row["name"], f"{row['parameters_m']:.1f}", str(row["channels"]), str(row["input_size"]))
        table.add_row(*cells, row["licence"], f"{source} ({note})" if note else source)
    console.print(table)
    table = Table("name", "dim", "MB", "licence", "source", "here", title="Published models")
    table.columns[0].no_wrap = True
    table.columns[4].overflow = "fold"  # never cut: it is where the code comes from
    for row in published:
        source = row["source"].removeprefix("https://github.com/").partition("/releases/")[0]
        if row["kind"] == "torch.hub":
            source += " *"
        here = "✓" if row["downloaded"] else ""
        table.add_row(row["name"], str(row["dim"]), f"≈{row['size_mb']}", row["licence"], source, here)
    console.print(table)
    console.print(
        "Load one with kappaplace.load_model(name); sizes are rounded. * runs its authors' code.", style="dim"
    )
