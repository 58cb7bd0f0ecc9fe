"""``kappaplace models``: what is here, can be built or fetched, its size and licence; push and pull."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kappaplace.cli.share import Json, Out, Public, Repo, Revision, show_pull, show_push
from kappaplace.errors import KappaPlaceError


class _ShowsByDefault(TyperGroup):
    """``kappaplace models`` and ``kappaplace models NAME`` show; its other verbs are written out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        verbs = {*self.commands, *ctx.help_option_names}
        if not ctx.resilient_parsing and (not args or args[0] not in verbs):  # the first: a shell completes
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_ShowsByDefault,
    help="Models: list them, show the card of one, put one on the Hugging Face hub or get it from there."
    "\n\n`kappaplace models NAME` is short for `kappaplace models show NAME`.",
)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="Tell all about this one; without it all are listed.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """List the pretrained model, published ones and known backbones; or show the card of one.

    Examples:

        kappaplace models

        kappaplace models kappaplace-lite0

        kappaplace models --json | jq '.models[].name'
    """
    from kappaplace.models.shipped import SHIPPED, installed, model_page

    own, backbones = [_shipped(each) for each in installed()], _backbones()
    published = [*own, *_published()]
    if name:
        known = {row["name"]: row for row in (*backbones, *published)}
        if name not in (*known, *SHIPPED):
            raise KappaPlaceError(f"No model '{name}' is known; `kappaplace models` lists the names.")
        page = model_page(name) if name in SHIPPED else ""
        if as_json:
            typer.echo(json.dumps({**known[name], **({"card": page} if page else {})}, indent=2))
        else:
            _show_one(known[name], page)
        return
    if as_json:
        typer.echo(json.dumps({"backbones": backbones, "models": published}, indent=2))
        return
    _show(backbones, published)


@app.command("push")
def push(
    folder: Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder, such as runs/pt/model.")],
    repo: Repo,
    public: Public = False,
    as_json: Json = False,
) -> None:
    """Upload a model: weights in safetensors, its card, its calibration; a page is written if it has none.

    Examples:

        kappaplace models push runs/pt/model me/town-model
    """
    from kappaplace.sharing import push_model

    show_push(push_model, folder, repo, public, as_json)


@app.command("pull")
def pull(repo: Repo, out: Out, revision: Revision = "", as_json: Json = False) -> None:
    """Download a model; it appears when its weights have the checksum of its card.

    Examples:

        kappaplace models pull me/town-model --out town-model
    """
    from kappaplace.sharing import pull_model

    show_pull(pull_model, repo, out, revision, as_json)


def _shipped(name: str) -> dict[str, Any]:
    from kappaplace.models.checkpoint import read_card
    from kappaplace.models.shipped import shipped_folder, size_bytes

    folder = shipped_folder(name)
    card = read_card(folder)
    return {
        "name": name,
        "dim": card["architecture"]["dim"],
        "size_mb": round(size_bytes(folder) / 1e6, 1),
        "licence": card["licence"],
        "source": "comes with kappaplace",
        "kind": "shipped",
        "downloaded": True,
        "data": card["data"],
        "metrics": card["metrics"],
    }


def _published() -> list[dict[str, Any]]:
    from kappaplace.models.published import HUB, cached

    return [
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


def _backbones() -> list[dict[str, Any]]:
    from kappaplace.models.backbones import BACKBONES

    return [
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


def _show_one(row: dict[str, Any], page: str) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    if page:
        Console().print(Markdown(page))
        return
    for key, value in row.items():
        typer.echo(f"{key.replace('_', ' '):<13} {value}")


def _show(backbones: list[dict[str, Any]], published: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("name", "dim", "MB", "licence", "source", "here", title="Models")
    table.columns[0].no_wrap = True
    table.columns[4].overflow = "fold"  # never cut: it is where the code comes from
    for row in published:
        source = row["source"].removeprefix("https://github.com/").partition("/releases/")[0]
        if row["kind"] == "torch.hub":
            source += " *"
        here = "✓" if row["downloaded"] else ""
        table.add_row(row["name"], str(row["dim"]), f"≈{row['size_mb']:.0f}", row["licence"], source, here)
    console.print(table)
    console.print(
        "Load one with kappaplace.load_model(name); sizes are rounded. * runs its authors' code.", style="dim"
    )
    table = Table("name", "M", "channels", "input", "licence", "weights", title="Backbones")
    table.columns[0].no_wrap = True
    for row in backbones:
        source = row["weights"].partition(" ")[0]
        notes = [f"extra {row['extra']}" if row["extra"] else "", row["note"]]
        note = "; ".join(note for note in notes if note)
        cells = (row["name"], f"{row['parameters_m']:.1f}", str(row["channels"]), str(row["input_size"]))
        table.add_row(*cells, row["licence"], f"{source} ({note})" if note else source)
    console.print(table)
