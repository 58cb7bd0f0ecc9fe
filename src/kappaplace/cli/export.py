"""``kappaplace models export``: a model as one file for ONNX Runtime or OpenVINO."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kappaplace.errors import KappaPlaceError

if TYPE_CHECKING:
    from kappaplace.calibration.calibration import Calibration
    from kappaplace.models.checkpoint import AnyModel
    from kappaplace.models.export import Exported


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
    from kappaplace.models.checkpoint import load_model
    from kappaplace.models.export import ExportOptions, export_model

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
    _show(export_model(loaded, out, format, options), as_json)  # type: ignore[arg-type]


def _images(source: Path | None) -> list[Any] | None:
    from kappaplace.maps.sources import as_table

    return None if source is None else list(as_table(source).image_paths())


def _calibration(model: AnyModel, source: Path | None) -> Calibration | None:
    from kappaplace.calibration.sources import calibration_with
    from kappaplace.slam.calibrate import calibration_for

    if source is not None:
        return calibration_for(model, source)
    return calibration_with(model.fingerprint, model.preprocessing)


def _licence(model: str) -> str:
    from kappaplace.models.checkpoint import CARD, read_card
    from kappaplace.models.shipped import is_shipped, shipped_folder

    folder = shipped_folder(model) if is_shipped(model) else Path(model)
    return str(read_card(folder)["licence"]) if (folder / CARD).is_file() else "not stated"


def _show(made: Exported, as_json: bool) -> None:
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
