"""`kappaplace models`: list, describe, export, push and pull models."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kappaplace.cli.options import AsJson, Out, Public, Repo, Revision, VerbGroup, command
from kappaplace.errors import KappaPlaceError
from kappaplace.records import Help
from kappaplace.types import Json

if TYPE_CHECKING:
    from kappaplace.calibration import Calibration
    from kappaplace.models import AnyModel, Exported

Row = Mapping[str, Json]


class _Models(VerbGroup):
    def with_command(self, words: list[str]) -> list[str]:
        """Accept `kappaplace models` for `list` and `kappaplace models NAME` for `info NAME`."""
        if words and words[0] in self.commands:
            return words
        named = any(not word.startswith("-") for word in words)
        return ["info" if named else "list", *words]


app = typer.Typer(
    cls=_Models,
    help="List, describe, export and share models."
    "\n\n`kappaplace models` is short for `kappaplace models list`, and `kappaplace models NAME` for "
    "`kappaplace models info NAME`.",
)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the pretrained model, published models and backbones.

    Examples:

        kappaplace models list

        kappaplace models list --json | jq '.models[].name'
    """
    models, backbones = _models(), _backbones()
    if as_json:
        typer.echo(json.dumps({"backbones": backbones, "models": models}, indent=2))
    else:
        _show(backbones, models)


@app.command("info")
@app.command("show", hidden=True)
def info(
    name: Annotated[str, typer.Argument(help="Name of a model or backbone, see `kappaplace models list`.")],
    as_json: AsJson = False,
) -> None:
    """Show the card of a model: size, licence, training data and metrics.

    Examples:

        kappaplace models info kappaplace-lite0
    """
    from kappaplace.models import SHIPPED, model_page

    rows = {row["name"]: row for row in (*_backbones(), *_models())}
    if name not in (*rows, *SHIPPED):
        raise KappaPlaceError(f'Unknown model "{name}". `kappaplace models list` shows the names.')
    page = model_page(name) if name in SHIPPED else ""
    if as_json:
        typer.echo(json.dumps({**rows[name], **({"card": page} if page else {})}, indent=2))
    else:
        _show_one(rows[name], page)


@app.command("push")
def push(
    folder: Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder, such as runs/pt/model.")],
    repo: Repo,
    public: Public = False,
    as_json: AsJson = False,
) -> None:
    """Upload a model to the Hugging Face Hub: weights, card, calibration and a model page.

    Examples:

        kappaplace models push runs/pt/model me/town-model
    """
    from kappaplace.sharing import push_model

    show_push(push_model, folder, repo, public, as_json)


@app.command("pull")
def pull(repo: Repo, out: Out, revision: Revision = "", as_json: AsJson = False) -> None:
    """Download a model from the Hugging Face Hub and check its checksum.

    Examples:

        kappaplace models pull me/town-model --out town-model
    """
    from kappaplace.sharing import pull_model

    show_pull(pull_model, repo, out, revision, as_json)


def _models() -> list[Row]:
    from kappaplace.models import HUB, cached, installed

    published: list[Row] = [
        {
            "name": model.name,
            "dim": model.dim,
            "size_mb": model.size_mb,
            "licence": model.license,
            "source": model.location,
            "kind": model.kind,
            "downloaded": cached(model),
            "patches": model.shows_patches,
            "cross_image": model.cross_image,
            "weights_page": model.weights,
            "unverified": list(model.unverified),
        }
        for model in HUB.values()
    ]
    return [*map(_shipped, installed()), *published]


def _shipped(name: str) -> Row:
    from kappaplace.models import read_card, shipped_folder, size_bytes

    folder = shipped_folder(name)
    card = read_card(folder)
    return {
        "name": name,
        "dim": card["architecture"]["dim"],
        "size_mb": round(size_bytes(folder) / 1e6, 1),
        "licence": card["licence"],
        "source": "included",
        "kind": "shipped",
        "downloaded": True,
        "patches": True,
        "cross_image": False,
        "weights_page": "",
        "unverified": [],
        "data": card["data"],
        "metrics": card["metrics"],
    }


def _backbones() -> list[Row]:
    from kappaplace.models import BACKBONES

    return [
        {
            "name": spec.name,
            "parameters_m": spec.parameters_m,
            "channels": spec.channels,
            "input_size": spec.input_size,
            "licence": spec.license,
            "weights": f"{spec.weights.kind} {spec.weights.location}".strip(),
            "extra": spec.extra,
            "note": spec.note,
        }
        for spec in BACKBONES.values()
    ]


def _show_one(row: Row, page: str) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    if page:
        Console().print(Markdown(page))
        return
    for key, value in row.items():
        typer.echo(f"{key.replace('_', ' '):<13} {value}")


def _show(backbones: list[Row], models: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("name", "dim", "MB", "licence", "source", "patches", "local", title="Models")
    table.columns[0].no_wrap = True
    table.columns[4].overflow = "fold"  # never truncated: it is the origin of the code
    for row in models:
        source = str(row["source"]).removeprefix("https://github.com/").partition("/releases/")[0]
        marks = {"*": row["kind"] == "torch.hub", "†": row["weights_page"], "‡": row["cross_image"]}
        source = " ".join([source, *(mark for mark, is_set in marks.items() if is_set)])
        license = f"{row['licence']}{'?' * ('license' in str(row['unverified']))}"
        ticks = ["✓" if row[key] else "" for key in ("patches", "downloaded")]
        table.add_row(str(row["name"]), str(row["dim"]), f"≈{row['size_mb']:.0f}", license, source, *ticks)
    console.print(table)
    console.print(
        "Load a model with kappaplace.load_model(name). Sizes are rounded. * runs its authors' code. † you "
        "download the weights in a browser. ‡ cross-image: it embeds one image at a time. ? not verified.",
        style="dim",
    )
    table = Table("name", "M", "channels", "input", "licence", "weights", title="Backbones")
    table.columns[0].no_wrap = True
    for row in backbones:
        source = str(row["weights"]).partition(" ")[0]
        notes = [f"extra {row['extra']}" if row["extra"] else "", str(row["note"])]
        note = "; ".join(note for note in notes if note)
        cells = [str(row[key]) for key in ("channels", "input_size", "licence")]
        weights = f"{source} ({note})" if note else source
        table.add_row(str(row["name"]), f"{row['parameters_m']:.1f}", *cells, weights)
    console.print(table)


@dataclass(frozen=True)
class ExportFlags:
    """Options for the content of an exported file."""

    int8: Annotated[bool, Help("Quantize to int8; requires --calibration-images.", ("--int8",))] = False
    calibration_images: Annotated[
        Path | None, Help("Folder or table of typical images for --int8; 128 of them are used.")
    ] = None
    half: Annotated[bool, Help("Store the weights in float16, which halves the file size.", ("--half",))] = (
        False
    )
    patches: Annotated[bool, Help("Include the patch features that `localize --rerank` needs.")] = True
    calibration: Annotated[
        Path | None,
        Help("Calibrated map or calibration file to include. Default: the shipped calibration of the model."),
    ] = None


@command(app)
def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model: a folder, weights file or name.")],
    out: Annotated[Path, typer.Option(help="File to write: .onnx, or .zip for OpenVINO.")],
    options: ExportFlags,
    format: Annotated[Literal["onnx", "openvino"], typer.Option(help="Format of the file.")] = "onnx",
    as_json: AsJson = False,
) -> None:
    """Export a model for another runtime, and check that its results match the original.

    Examples:

        kappaplace export kappaplace-lite0 --out lite0.onnx

        kappaplace export runs/pt/model --format openvino --out place.zip --half

        kappaplace export runs/pt/model --out place-int8.onnx --int8 --calibration-images photos/

        kappaplace export runs/pt/model --out place.onnx --calibration town.map
    """
    from kappaplace.maps import as_table
    from kappaplace.models import ExportOptions, export_model, load_model

    images = options.calibration_images
    if options.int8 and images is None:
        raise KappaPlaceError(
            "--int8 needs typical images. Pass a folder or table with --calibration-images."
        )
    if images is not None and not options.int8:
        raise KappaPlaceError("--calibration-images can only be used with --int8. Add --int8.")
    loaded = load_model(model)
    calibration = _calibration(loaded, options.calibration)
    export_options = ExportOptions(
        options.half,
        None if images is None else as_table(images).image_paths(),
        options.patches,
        None if calibration is None else calibration.to_dict(),
        Path(model).name,
        _license(model),
    )
    _show_export(export_model(loaded, out, format, export_options), as_json)


def _calibration(model: AnyModel, source: Path | None) -> Calibration | None:
    from kappaplace.calibration import calibration_with
    from kappaplace.slam import calibration_for

    if source is not None:
        return calibration_for(model, source)
    return calibration_with(model.fingerprint, model.preprocessing)


def _license(model: str) -> str:
    from kappaplace.models import CARD, is_shipped, read_card, shipped_folder

    folder = shipped_folder(model) if is_shipped(model) else Path(model)
    return str(read_card(folder)["licence"]) if (folder / CARD).is_file() else "not stated"


def _show_export(export: Exported, as_json: bool) -> None:
    record, size = export.record, export.file.stat().st_size
    if as_json:
        facts = {
            key: getattr(record, key) for key in ("fingerprint", "precision", "opset", "outputs", "parity")
        }
        calibrated = record.calibration is not None
        typer.echo(json.dumps({"file": str(export.file), "bytes": size, **facts, "calibration": calibrated}))
        return
    opset = f", opset {record.opset}" if record.opset else ""
    typer.secho(f"{export.file}: {record.precision}{opset}, {size / 1e6:.1f} MB", bold=True)
    images = "any image size" if record.size is None else f"{record.size[0]}×{record.size[1]} pixels"
    typer.echo(f"  input       any batch size, {images}")
    typer.echo(f"  outputs     {', '.join(record.outputs)}")
    for index, gap in enumerate(export.gaps):
        typer.echo(f"  {'' if index else 'parity':<11} {gap.sentence}")
    if export.quantized is not None:
        loss, model = export.quantized.loss, export.quantized
        typer.echo(
            f"  int8        mean cosine {loss.cosine:.4f}, rank correlation of κ {loss.ranks:.3f} on "
            f"{model.images} images; {model.float_layers} of {model.layers} layers stay in float32"
        )
        typer.echo(
            "  maps        not compatible with maps of the original model: build a new map with this file"
        )
        typer.echo("  calibration none: run `kappaplace calibrate` on the new map")
    else:
        typer.echo("  maps        compatible with maps of the original model, in both directions")
        calibration = "in the file" if record.calibration is not None else "none (see --calibration)"
        typer.echo(f"  calibration {calibration}")


def show_push(push: Callable[..., str], folder: Path, repo: str, public: bool, as_json: bool) -> None:
    """Upload a model or map and print its URL.

    Args:
        push: Function that uploads and returns the URL.
        folder: Model or map.
        repo: Repository, OWNER/NAME.
        public: Whether a new repository is public.
        as_json: Print JSON instead of text.
    """
    url = push(folder, repo, public=public)
    typer.echo(json.dumps({"repository": repo, "address": url}) if as_json else f"Uploaded to {url}.")


def show_pull(pull: Callable[..., Path], repo: str, out: Path, revision: str, as_json: bool) -> None:
    """Download a model or map and print its folder.

    Args:
        pull: Function that downloads and returns the folder.
        repo: Repository, OWNER/NAME.
        out: Folder to create.
        revision: Branch, tag or commit. Empty: the latest commit.
        as_json: Print JSON instead of text.
    """
    folder = pull(repo, out, revision=revision)
    answer = {"repository": repo, "folder": str(folder)}
    typer.echo(json.dumps(answer) if as_json else f"Downloaded to {folder}; all checksums match.")
