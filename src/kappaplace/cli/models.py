"""``kappaplace models``: what is here, can be built or fetched, its size and licence; push and pull."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from kappaplace.cli.options import AsJson, Out, Public, Repo, Revision
from kappaplace.errors import KappaPlaceError

if TYPE_CHECKING:
    from kappaplace.calibration import Calibration
    from kappaplace.models import AnyModel, Exported


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
    from kappaplace.models import SHIPPED, installed, model_page

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
    as_json: AsJson = False,
) -> None:
    """Upload a model: weights in safetensors, its card, its calibration; a page is written if it has none.

    Examples:

        kappaplace models push runs/pt/model me/town-model
    """
    from kappaplace.sharing import push_model

    show_push(push_model, folder, repo, public, as_json)


@app.command("pull")
def pull(repo: Repo, out: Out, revision: Revision = "", as_json: AsJson = False) -> None:
    """Download a model; it appears when its weights have the checksum of its card.

    Examples:

        kappaplace models pull me/town-model --out town-model
    """
    from kappaplace.sharing import pull_model

    show_pull(pull_model, repo, out, revision, as_json)


def _shipped(name: str) -> dict[str, Any]:
    from kappaplace.models import read_card, shipped_folder, size_bytes

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
    from kappaplace.models import HUB, cached

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
    from kappaplace.models import BACKBONES

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


@app.command()
def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model: folder, weights file or name.")],
    out: Annotated[Path, typer.Option(help="The file: .onnx, or .zip for OpenVINO.")],
    format: Annotated[str, typer.Option(help="onnx or openvino.")] = "onnx",
    int8: Annotated[
        bool, typer.Option("--int8", help="Quantise to int8, with images like those in use.")
    ] = False,
    calibration_images: Annotated[
        Path | None, typer.Option(help="For int8: a folder or table of images; 128 of them are taken.")
    ] = None,
    half: Annotated[bool, typer.Option("--half", help="Weights in float16: half the file.")] = False,
    patches: Annotated[bool, typer.Option(help="Give the maps that `localize --rerank` compares.")] = True,
    calibration: Annotated[
        Path | None,
        typer.Option(help="A calibrated map, or a calibration file; without it, what came with the model."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Write a model for other runtimes, and check that it says the same.

    Examples:

        kappaplace export kappaplace-lite0 --out lite0.onnx

        kappaplace export runs/pt/model --format openvino --out place.zip --half

        kappaplace export runs/pt/model --out place-int8.onnx --int8 --calibration-images photos/

        kappaplace export runs/pt/model --out place.onnx --calibration town.map
    """
    from kappaplace.models import ExportOptions, export_model, load_model

    if int8 and calibration_images is None:
        raise KappaPlaceError(
            "int8 takes its ranges from images like those in use: give them with --calibration-images."
        )
    if calibration_images is not None and not int8:
        raise KappaPlaceError("--calibration-images are for int8; add --int8.")
    loaded = load_model(model)
    calibrated = _calibration(loaded, calibration)
    options = ExportOptions(
        half,
        _images(calibration_images),
        patches,
        None if calibrated is None else calibrated.to_dict(),
        Path(model).name,
        _licence(model),
    )
    _show_export(export_model(loaded, out, format, options), as_json)  # type: ignore[arg-type]


def _images(source: Path | None) -> list[Any] | None:
    from kappaplace.maps import as_table

    return None if source is None else list(as_table(source).image_paths())


def _calibration(model: AnyModel, source: Path | None) -> Calibration | None:
    from kappaplace.calibration import calibration_with
    from kappaplace.slam import calibration_for

    if source is not None:
        return calibration_for(model, source)
    return calibration_with(model.fingerprint, model.preprocessing)


def _licence(model: str) -> str:
    from kappaplace.models import CARD, is_shipped, read_card, shipped_folder

    folder = shipped_folder(model) if is_shipped(model) else Path(model)
    return str(read_card(folder)["licence"]) if (folder / CARD).is_file() else "not stated"


def _show_export(made: Exported, as_json: bool) -> None:
    record, size = made.record, made.file.stat().st_size
    if as_json:
        facts = {
            key: getattr(record, key) for key in ("fingerprint", "precision", "opset", "outputs", "parity")
        }
        calibrated = record.calibration is not None
        typer.echo(json.dumps({"file": str(made.file), "bytes": size, **facts, "calibration": calibrated}))
        return
    opset = f", opset {record.opset}" if record.opset else ""
    typer.secho(f"{made.file}: {record.precision}{opset}, {size / 1e6:.1f} MB", bold=True)
    anywhere = "any size" if record.size is None else f"{record.size[0]}×{record.size[1]} pixels"
    typer.echo(f"  takes       any batch, {anywhere}; gives {', '.join(record.outputs)}")
    for index, gap in enumerate(made.gaps):
        typer.echo(f"  {'' if index else 'parity':<11} {gap.sentence}")
    if made.quantised is not None:
        loss, done = made.quantised.loss, made.quantised
        typer.echo(
            f"  int8        mean cosine {loss.cosine:.4f}, rank correlation of κ {loss.ranks:.3f} on "
            f"{done.images} images; {done.kept} of {done.layers} layers stay in float32"
        )
        typer.echo("  maps        a model of its own: maps of the original do not fit it, and its scores are")
        typer.echo("              not calibrated (`kappaplace calibrate` on a map made with it)")
    else:
        typer.echo("  maps        those of the original open with it, and the other way round")
        where = "in the file" if record.calibration is not None else "none (see --calibration)"
        typer.echo(f"  calibration {where}")


def show_push(push: Callable[..., str], folder: Path, repo: str, public: bool, as_json: bool) -> None:
    """Upload and say where it is now."""
    address = push(folder, repo, public=public)
    typer.echo(json.dumps({"repository": repo, "address": address}) if as_json else f"Uploaded to {address}.")


def show_pull(pull: Callable[..., Path], repo: str, out: Path, revision: str, as_json: bool) -> None:
    """Download and say where it lies."""
    folder = pull(repo, out, revision=revision)
    said = {"repository": repo, "folder": str(folder)}
    typer.echo(json.dumps(said) if as_json else f"Downloaded to {folder}, checksums compared.")
