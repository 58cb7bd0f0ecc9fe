"""``kappaplace map fit``: κ for a map's own encoder, learnt from nothing but the map's images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kappaplace.maps.place_map import PlaceMap
    from kappaplace.maps.tune.fit import Fitted


def fit(
    place_map: Annotated[Path, typer.Argument(metavar="MAP", help="A map made by `map build`.")],
    images: Annotated[int, typer.Option(help="References to learn from, at most.")] = 500,
    views: Annotated[int, typer.Option(help="Damaged views of each.")] = 2,
    epochs: Annotated[int, typer.Option(help="Times that each image is visited.")] = 40,
    calibrate: Annotated[bool, typer.Option(help="Calibrate on the map's own images afterwards.")] = True,
    max_risk: Annotated[float, typer.Option(help="Share of errors aimed at among accepted answers.")] = 0.05,
    outside_rate: Annotated[
        float | None, typer.Option(help="Share of queries expected from outside the map; 0.1 if not stated.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Page that shows what was learnt; by default fit.html in the map.")
    ] = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Say how long it will take, and stop.")
    ] = False,
    model: Annotated[str, typer.Option(help="The map's model, if it does not lie where it did.")] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.")] = "",
    batch_size: Annotated[int, typer.Option(help="Images that are learnt from together.")] = 64,
    seed: Annotated[int, typer.Option(help="Of the choice of images and of the damage.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Fit κ without labels, then calibrate: the map's own images, damaged in known ways, are all it needs.

    Descriptors stay as they are. Stopped at any moment, the same command goes on. No risk is guaranteed.

    Examples:

        kappaplace map fit town.map

        kappaplace map fit town.map --estimate

        kappaplace map fit town.map --views 6 --epochs 80 --report fit.html
    """
    from kappaplace.calibration.fit import CalibrateOptions
    from kappaplace.maps.place_map import PlaceMap
    from kappaplace.maps.tune.fit import FitOptions, estimate_fit
    from kappaplace.reports import write_fit_report

    opened = PlaceMap.open(place_map, model or None, device=device or None)
    options = FitOptions(images, views, epochs, batch_size=batch_size, seed=seed)
    terms = CalibrateOptions(max_risk=max_risk, outside_rate=outside_rate, seed=seed)
    if estimate:
        expected = estimate_fit(opened, options, calibrate=calibrate)
        facts = {"passes": expected.passes, "seconds": expected.seconds}
        typer.echo(json.dumps(facts) if as_json else expected.sentence)
        return
    lost = opened.manifest.calibration is not None
    say = _quiet if as_json else typer.echo
    done = opened.fit(options, terms, calibrate=calibrate, say=say)
    page, picture = write_fit_report(opened, report or place_map / "fit.html")
    if as_json:
        typer.echo(json.dumps(_facts(opened, done, page, picture)))
        return
    _tell(opened, done, lost and done.new and not calibrate)
    typer.echo(f"What was learnt: {page} (its figure: {picture}).")


def _quiet(sentence: str) -> None:
    """Nothing but the JSON object is printed."""


def _tell(opened: PlaceMap, done: Fitted, lost: bool) -> None:
    from kappaplace.reports import fit_verdict

    for sentence in fit_verdict(opened):
        typer.echo(sentence)
    if done.calibration is not None and done.calibration.rule is not None:
        for sentence in done.calibration.rule.promise():
            typer.echo(sentence)
    for note in done.notes:
        typer.secho(note, fg="yellow")
    if lost:
        typer.secho("The calibration belonged to the κ of before and is gone; calibrate again.", fg="yellow")


def _facts(opened: PlaceMap, done: Fitted, page: Path, picture: Path) -> dict[str, Any]:
    learnt = done.record.learnt
    return {
        "map": str(opened.folder),
        "model": opened.manifest.model.source,
        "new": done.new,
        "images": done.record.images,
        "seconds": done.record.seconds,
        "with_level": learnt.with_level,
        "with_cosine": learnt.with_cosine,
        "before": learnt.before,
        "calibrated": done.calibration is not None,
        "guaranteed": False,
        "notes": list(done.notes),
        "report": str(page),
        "picture": str(picture),
    }
