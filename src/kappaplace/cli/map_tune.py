"""``kappaplace map calibrate``, ``fit``, ``label`` and ``monitor``: answers that can be trusted."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kappaplace.calibration import CalibrateOptions
from kappaplace.cli.options import AsJson, BatchSize, Device, MapFolder, MapModel
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import FitOptions, LabelOptions

if TYPE_CHECKING:
    from kappaplace.calibration import DriftWarning
    from kappaplace.maps import Fitted, MapMonitor, Observed, PlaceMap

DRIFT = 1
"""Exit code where queries have left the calibrated range."""


def calibrate(
    place_map: MapFolder,
    options: CalibrateOptions,
    queries: Annotated[
        Path | None, typer.Option(help="Labeled queries: a table with positions or correct references.")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="Labels file, written by `map label`.")] = None,
    self_: Annotated[
        bool, typer.Option("--self", help="Use degraded images of the map itself; no labels are needed.")
    ] = False,
    root: Annotated[Path | None, typer.Option(help="Folder of the queries, if they have moved.")] = None,
    model: MapModel = "",
    device: Device = "",
    as_json: AsJson = False,
) -> None:
    """Calibrate a map: fit probabilities and decision thresholds, and store them with it.

    Labeled queries can carry a guarantee; self-calibration never does.

    Examples:

        kappaplace calibrate town.map --queries labelled.parquet

        kappaplace calibrate town.map --queries labelled.parquet --max-risk 0.01 --confidence 0.95

        kappaplace calibrate town.map --labels labels.csv

        kappaplace calibrate town.map --self --outside-rate 0.2
    """
    if (queries is not None) + (labels is not None) + self_ != 1:
        raise KappaPlaceError(
            "Calibrate on labeled queries (--queries TABLE), on labels of matches (--labels FILE) or without "
            "labels (--self): give one of them."
        )
    from kappaplace.maps import (
        PlaceMap,
        as_table,
        calibrate_map,
        calibrate_map_on_labels,
        no_longer_compared,
        self_calibrate_map,
        sparse_note,
    )

    opened = PlaceMap.open(place_map, model or None, device=device or None)
    notes: list[str] = []
    before = opened.calibration or opened.borrowed
    if queries is not None:
        from kappaplace.data import PlaceImages

        table = PlaceImages.open(queries, root) if queries.is_file() else as_table(queries)
        made = calibrate_map(opened, table, options)
    elif labels is not None:
        made = calibrate_map_on_labels(opened, labels, options, root=root)
    else:
        made = self_calibrate_map(opened, options)
        notes = [note] if (note := sparse_note(made)) else []
    notes += [note] if (note := no_longer_compared(before, made)) else []
    promise = [] if made.rule is None else made.rule.promise()
    if as_json:
        guaranteed = made.rule is not None and made.rule.guaranteed
        typer.echo(
            json.dumps(
                {"facts": dict(made.facts), "promise": promise, "guaranteed": guaranteed, "notes": notes}
            )
        )
        return
    facts = made.facts
    outside = "" if facts["outside"] is None else f", {facts['outside']:,} from outside the map"
    typer.echo(
        f"Calibrated on {facts['origin']}: {facts['right']:,} of {facts['queries']:,} queries were "
        f"right{outside}."
    )
    for sentence in [*promise, *notes]:
        typer.echo(sentence)


def fit(
    place_map: MapFolder,
    options: FitOptions,
    calibrate: Annotated[bool, typer.Option(help="Calibrate on the map's own images afterwards.")] = True,
    max_risk: Annotated[float, typer.Option(help="Maximum error rate among accepted answers.")] = 0.05,
    outside_rate: Annotated[
        float | None, typer.Option(help="Expected fraction of out-of-map queries. Default: 0.1.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="HTML page of what was learned. Default: fit.html in the map.")
    ] = None,
    estimate: Annotated[bool, typer.Option("--estimate", help="Print how long it takes, and stop.")] = False,
    model: MapModel = "",
    device: Device = "",
    as_json: AsJson = False,
) -> None:
    """Fit κ without labels, then calibrate: the map's own images, damaged in known ways, are all it needs.

    Descriptors stay as they are. Stopped at any moment, the same command goes on. No risk is guaranteed.

    Examples:

        kappaplace map fit town.map

        kappaplace map fit town.map --estimate

        kappaplace map fit town.map --views 6 --epochs 80 --report fit.html
    """
    from kappaplace.calibration import CalibrateOptions
    from kappaplace.maps import PlaceMap, estimate_fit
    from kappaplace.reports import write_fit_report

    opened = PlaceMap.open(place_map, model or None, device=device or None)
    calibrate_options = CalibrateOptions(max_risk=max_risk, outside_rate=outside_rate, seed=options.seed)
    if estimate:
        expected = estimate_fit(opened, options, calibrate=calibrate)
        facts = {"passes": expected.passes, "seconds": expected.seconds}
        typer.echo(json.dumps(facts) if as_json else expected.sentence)
        return
    lost = opened.manifest.calibration is not None
    say = _quiet if as_json else typer.echo
    done = opened.fit(options, calibrate_options, calibrate=calibrate, say=say)
    page, picture = write_fit_report(opened, report or place_map / "fit.html")
    if as_json:
        typer.echo(json.dumps(_fit_facts(opened, done, page, picture)))
        return
    _show_fit(opened, done, lost and done.new and not calibrate)
    typer.echo(f"What was learnt: {page} (its figure: {picture}).")


def _quiet(sentence: str) -> None:
    """Nothing but the JSON object is printed."""


def _show_fit(opened: PlaceMap, done: Fitted, lost: bool) -> None:
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


def _fit_facts(opened: PlaceMap, done: Fitted, page: Path, picture: Path) -> dict[str, Any]:
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


def label(
    place_map: MapFolder,
    queries: Annotated[
        list[Path],
        typer.Argument(metavar="QUERIES…", help="A folder, a table (.parquet, .csv) or image files."),
    ],
    out: Annotated[Path, typer.Option(help="Labels file (.csv). Labels of the same sample are kept.")],
    options: LabelOptions,
    page: Annotated[
        Path | None, typer.Option(help="Write an HTML page to label in a browser, instead of asking here.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw both images of each question side by side into this JPEG file.")
    ] = None,
    model: MapModel = "",
    device: Device = "",
) -> None:
    """Draw queries at random, find their best matches, and ask whether they are right.

    The queries must be like those of later use, and are drawn, not chosen: only so can a calibration
    promise anything. Stop at any time; the same command goes on.

    Examples:

        kappaplace map label town.map drive/ --out labels.csv --picture now.jpg

        kappaplace map label town.map drive/ --out labels.csv --page label.html

        kappaplace calibrate town.map --labels labels.csv
    """
    from kappaplace.maps import PlaceMap, as_table, label_loop, label_map
    from kappaplace.reports import write_label_page

    opened = PlaceMap.open(place_map, model or None, device=device or None)
    table = as_table(queries[0] if len(queries) == 1 else queries)
    sheet = label_map(opened, table, out, options)
    sample = sheet.sampling
    assert sample is not None  # of a sheet that was drawn
    apart = "" if sample.thinned == "nothing" else f", {sample.places:,} of them apart by {sample.thinned}"
    typer.echo(f"{len(sheet.rows):,} queries drawn at random from {sample.of:,}{apart} (seed {sample.seed}).")
    if sample.thinned == "nothing" and options.thin:
        typer.echo("Nothing is known of where or when they were taken: take care that no two show one place.")
    if page is not None:
        gone = write_label_page(opened, sheet, page, out.name)
        if gone:
            typer.secho(f"{gone:,} pictures cannot be opened; say “don't know” there.", fg="yellow", err=True)
        typer.echo(f"Open {page} in a browser, label, save, and run `kappaplace calibrate --labels`.")
        return
    sheet = label_loop(opened, sheet, out, ask=_ask, say=typer.echo, picture=picture)
    done = sum(bool(row.label) for row in sheet.rows)
    typer.echo(f"{done:,} of {len(sheet.rows):,} labelled in {out}.")


def _ask(question: str) -> str:
    return input(f"{question}: ")


def monitor(
    place_map: MapFolder,
    incoming: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGES|ANSWERS…",
            help="Images, a folder or a table of them, or answers of `localize`: .jsonl, .csv, - for stdin.",
        ),
    ],
    state: Annotated[
        Path | None, typer.Option(help="File that keeps what was seen. Default: MAP.monitor.json.")
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(help="Number of queries per comparison. Default: 200.", show_default=False),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the signals and their calibrated range: .png, .svg or .html.")
    ] = None,
    model: MapModel = "",
    device: Device = "",
    batch_size: BatchSize = 32,
    as_json: AsJson = False,
) -> None:
    """Compare incoming κ and scores with those at calibration; exit code 1 where they have left its range.

    What was seen is kept beside the map, so that queries may come in many calls. Each call takes its input
    as new queries.

    Examples:

        kappaplace map monitor town.map today/

        kappaplace map monitor town.map answers.jsonl --picture drift.html

        kappaplace localize town.map today/ --json | kappaplace map monitor town.map -
    """
    from kappaplace.maps import MapMonitor

    watch = MapMonitor.open(place_map, state, window=window)
    observed = _observed(place_map, incoming, model, device, batch_size)
    started_over, seen, windows = watch.set_aside, watch.drift.queries, watch.drift.windows
    warnings = watch.take(observed)
    watch.save()
    if picture is not None:
        from kappaplace.reports import write_drift

        write_drift(watch.drift, picture, f"Drift of {place_map.name}")
    new = (watch.drift.queries - seen, watch.drift.windows - windows)
    if as_json:
        typer.echo(json.dumps(_drift_facts(watch, warnings, *new)))
    else:
        _show_drift(watch, warnings, started_over, *new)
    if warnings or watch.drifting:
        raise typer.Exit(DRIFT)


def _observed(
    place_map: Path, incoming: list[Path], model: str, device: str, batch_size: int
) -> list[Observed]:
    from kappaplace.maps import from_lines, holds_answers, observed_in, read_observed

    if [str(file) for file in incoming] == ["-"]:
        return list(from_lines(sys.stdin, "the input"))
    answered = [file for file in incoming if holds_answers(file)]
    if answered and len(answered) < len(incoming):
        raise KappaPlaceError("Give images or files of answers, not both at once.")
    if answered:
        return [each for file in answered for each in read_observed(file)]
    from kappaplace.maps import PlaceMap, as_table

    table = as_table(incoming[0] if len(incoming) == 1 else incoming)
    table = table.queries if len(table.query_rows) else table
    opened = PlaceMap.open(place_map, model or None, device=device or None)
    answers = opened.localize(table.image_paths(), 1, batch_size=batch_size)
    return [observed_in(answer.to_dict(), answer.query) for answer in answers]


def _drift_facts(
    watch: MapMonitor, warnings: list[DriftWarning], queries: int, windows: int
) -> dict[str, object]:
    sketch, history = watch.drift.sketch, watch.drift.history
    return {
        "queries": queries,
        "skipped": watch.skipped,
        "windows": windows,
        "window": watch.drift.window,
        "waiting": watch.drift.waiting,
        "queries_in_all": watch.drift.queries,
        "drifting": bool(watch.drifting),
        "note": watch.note,
        "warnings": [asdict(warning) for warning in warnings],
        "signals": {
            name: {
                "calibrated": sketch.calibrated_range(name),
                "last_window": history[-1].quantiles[name] if history else None,
            }
            for name in sketch.values
        },
        "state": str(watch.file),
    }


def _show_drift(
    watch: MapMonitor, warnings: list[DriftWarning], started_over: Path | None, queries: int, windows: int
) -> None:
    drift = watch.drift
    if started_over is not None:
        typer.echo(f"The map was calibrated anew: the watch starts over, the old one is in {started_over}.")
    compared = "no window" if not windows else "1 window" if windows == 1 else f"{windows:,} windows"
    typer.echo(
        f"{queries:,} queries taken in, {compared} of {drift.window:,} compared; {drift.waiting:,} wait for "
        "the next."
    )
    if watch.skipped:
        typer.echo(f"{watch.skipped:,} answers without any match say nothing and were left out.")
    standing = [] if warnings else watch.drifting
    for warning in dict.fromkeys([*warnings, *standing]):
        typer.secho(warning.sentence, fg="yellow")
    if not warnings and not standing:
        typer.echo("No drift." if drift.history else "Too few queries to say anything yet.")
