"""`kappaplace map calibrate`, `fit`, `label` and `monitor`: probabilities, decisions and drift."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kappaplace.calibration import CalibrateOptions
from kappaplace.cli.options import AsJson, MapAccess, MapEncoder, MapFolder
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import FitOptions, LabelOptions
from kappaplace.records import Help
from kappaplace.types import Json

if TYPE_CHECKING:
    from kappaplace.calibration import Calibration, DriftWarning
    from kappaplace.maps import FitResult, MapMonitor, Observation, PlaceMap

DRIFT = 1
"""Exit code if queries have left the calibrated range."""


def images_of(images: list[Path]) -> Path | list[Path]:
    """Return the path of a single folder or table, otherwise the list of image files."""
    return images[0] if len(images) == 1 else images


@dataclass(frozen=True)
class Calibrating(CalibrateOptions):
    """Options of a calibration, in which the flag ``--no-decisions`` means ``max_risk=None``."""

    no_decisions: Annotated[
        bool,
        Help(
            "Fit only probabilities, without thresholds or a guarantee. This needs fewer labels.",
            ("--no-decisions",),
        ),
    ] = False

    def __post_init__(self) -> None:
        if self.no_decisions:
            object.__setattr__(self, "max_risk", None)
        super().__post_init__()


def calibrate(
    place_map: MapFolder,
    options: Calibrating,
    queries: Annotated[
        Path | None, typer.Option(help="Labelled queries: a table with positions or with correct references.")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="Labels file, written by `map label`.")] = None,
    self_: Annotated[
        bool,
        typer.Option(
            "--self",
            help="Calibrate without labels, on degraded copies of the map's own images (no guarantee).",
        ),
    ] = False,
    root: Annotated[Path | None, typer.Option(help="Folder of the query images, if they have moved.")] = None,
    *,
    access: MapAccess,
    as_json: AsJson = False,
) -> None:
    """Calibrate a map: fit probabilities and decision thresholds, and store them in the map.

    Calibration on labels can guarantee a maximum error rate; calibration with --self cannot.

    Examples:

        kappaplace calibrate town.map --queries labelled.parquet

        kappaplace calibrate town.map --queries labelled.parquet --max-risk 0.01 --confidence 0.95

        kappaplace calibrate town.map --labels labels.csv

        kappaplace calibrate town.map --self --outside-rate 0.2
    """
    if (queries is not None) + (labels is not None) + self_ != 1:
        raise KappaPlaceError(
            "calibrate needs exactly one source of labels. Pass --queries TABLE, --labels FILE, or --self to "
            "calibrate without labels."
        )
    from kappaplace.maps import (
        as_table,
        calibrate_map,
        calibrate_map_on_labels,
        reranking_note,
        self_calibrate_map,
        sparse_note,
    )

    opened = access.open(place_map)
    notes: list[str] = []
    before = opened.calibration or opened.borrowed
    if queries is not None:
        from kappaplace.data import PlaceImages

        table = PlaceImages.open(queries, root) if queries.is_file() else as_table(queries)
        calibration = calibrate_map(opened, table, options)
    elif labels is not None:
        calibration = calibrate_map_on_labels(opened, labels, options, root=root)
    else:
        calibration = self_calibrate_map(opened, options)
        notes = [note] if (note := sparse_note(calibration)) else []
    notes += [note] if (note := reranking_note(before, calibration)) else []
    _show_calibration(calibration, notes, as_json)


def _show_calibration(calibration: Calibration, notes: list[str], as_json: bool) -> None:
    facts, rule, domain = calibration.facts, calibration.rule, calibration.domain
    promise = [] if rule is None else rule.promise()
    if as_json:
        # As in every answer, see `judge`.
        guaranteed = rule is not None and rule.guaranteed and domain is not None and domain.conclusive
        answer = {"facts": dict(facts), "promise": promise, "guaranteed": guaranteed, "notes": notes}
        typer.echo(json.dumps(answer))
        return
    outside = "" if facts.get("outside") is None else f", {facts['outside']:,} were out-of-map queries"
    typer.echo(
        f"Calibrated on {facts['origin']}: {facts['right']:,} of {facts['queries']:,} top matches were "
        f"correct{outside}."
    )
    for line in [*promise, *_twin_notes(facts), *difficulty_lines(calibration), *notes]:
        typer.echo(line)


def difficulty_lines(calibration: Calibration) -> list[str]:
    """Return one line per quarter of difficulty: a guarantee holds on average, not in each quarter."""
    quarters = [f"  {number}: {part.sentence}" for number, part in enumerate(calibration.difficulty, 1)]
    return ["By quarter of difficulty, on queries that nothing was fitted on:", *quarters] if quarters else []


def _twin_notes(facts: Mapping[str, Json]) -> list[str]:
    """Return notes on queries that are copies of map images, and on their incorrect labels."""
    notes = []
    if twins := facts.get("twins"):
        notes.append(f"{twins:,} labelled queries are near-copies of map images and were excluded.")
    if isinstance(misplaced := facts.get("misplaced"), list) and misplaced:
        names = ", ".join(map(str, misplaced))
        notes.append(f"Copies of a map image that are labelled at another place: {names}.")
    return notes


@dataclass(frozen=True)
class FitCalibration:
    """Options of the calibration after a fit."""

    calibrate: Annotated[bool, Help("Calibrate on the map's own images afterwards.")] = True
    max_risk: Annotated[float, Help("Maximum error rate among accepted answers.")] = 0.05
    outside_rate: Annotated[float | None, Help("Expected fraction of out-of-map queries. Default: 0.1.")] = (
        None
    )


def fit(
    place_map: MapFolder,
    options: FitOptions,
    calibration: FitCalibration,
    report: Annotated[
        Path | None, typer.Option(help="HTML page that shows the fitted κ. Default: fit.html in the map.")
    ] = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Print the expected duration without fitting.")
    ] = False,
    *,
    access: MapAccess,
    as_json: AsJson = False,
) -> None:
    """Fit κ without labels, on degraded copies of the map's own images, then calibrate the map.

    Descriptors do not change, and no error rate is guaranteed. Run an interrupted fit again to resume it.

    Examples:

        kappaplace map fit town.map

        kappaplace map fit town.map --estimate

        kappaplace map fit town.map --views 6 --epochs 80 --report fit.html
    """
    from kappaplace.maps import estimate_fit
    from kappaplace.reports import write_fit_report

    opened, calibrate = access.open(place_map), calibration.calibrate
    calibrate_options = CalibrateOptions(
        max_risk=calibration.max_risk, outside_rate=calibration.outside_rate, seed=options.seed
    )
    if estimate:
        expected = estimate_fit(opened, options, calibrate=calibrate)
        facts = {"passes": expected.passes, "seconds": expected.seconds}
        typer.echo(json.dumps(facts) if as_json else expected.sentence)
        return
    calibrated = opened.manifest.calibration is not None
    say = (lambda line: None) if as_json else typer.echo  # only the JSON object is printed
    result = opened.fit(options, calibrate_options, calibrate=calibrate, say=say)
    page, figure = write_fit_report(opened, report or place_map / "fit.html")
    if as_json:
        check = result.record.learned
        answer: dict[str, Json] = {
            "map": str(opened.folder),
            "model": opened.manifest.model.source,
            "new": result.new,
            "images": result.record.images,
            "seconds": result.record.seconds,
            "with_level": check.with_level,
            "with_cosine": check.with_cosine,
            "before": check.before,
            "calibrated": result.calibration is not None,
            "guaranteed": False,
            "notes": list(result.notes),
            "report": str(page),
            "picture": str(figure),
        }
        typer.echo(json.dumps(answer))
        return
    _show_fit(opened, result, calibrated and result.new and not calibrate)
    typer.echo(f"Report: {page} (figure: {figure}).")


def _show_fit(opened: PlaceMap, result: FitResult, removed: bool) -> None:
    from kappaplace.reports import fit_verdict

    rule = None if result.calibration is None else result.calibration.rule
    for line in [*fit_verdict(opened), *([] if rule is None else rule.promise())]:
        typer.echo(line)
    for note in result.notes:
        typer.secho(note, fg="yellow")
    if removed:
        typer.secho(
            "The previous calibration was removed, because κ has changed. Calibrate again.", fg="yellow"
        )


def label(
    place_map: MapFolder,
    queries: Annotated[
        list[Path],
        typer.Argument(
            metavar="QUERIES…", help="Queries: a folder, a table (.parquet, .csv) or image files."
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Labels file to write (.csv). Labels of the same sample are kept.")
    ],
    options: LabelOptions,
    page: Annotated[
        Path | None, typer.Option(help="HTML page to write, for labelling the images in a browser.")
    ] = None,
    *,
    access: MapAccess,
) -> None:
    """Sample queries at random, and write their best matches to a file, for you to label.

    Pass images like those you will localize later: the sample must represent them, or the guarantee of the
    calibration does not hold. Label in a browser with --page, or write yes, no or unknown into the file.

    Examples:

        kappaplace map label town.map drive/ --out labels.csv --page label.html

        kappaplace calibrate town.map --labels labels.csv
    """
    from kappaplace.maps import as_table, label_map
    from kappaplace.reports import write_label_page

    opened = access.open(place_map)
    table = as_table(images_of(queries))
    sheet = label_map(opened, table, out, options)
    sample = sheet.sampling
    assert sample is not None  # `label_map` sampled the queries
    thinned = sample.thinned != "nothing"
    places = f" at {sample.places:,} places, separated by {sample.thinned}" if thinned else ""
    typer.echo(
        f"{len(sheet.rows):,} queries sampled at random from {sample.of:,}{places} (seed {sample.seed})."
    )
    if options.thin and not thinned:
        typer.echo("The images have no position or time. Make sure that no two of them show the same place.")
    if page is not None:
        unreadable = write_label_page(opened, sheet, page, out.name)
        if unreadable:
            typer.secho(
                f"{unreadable:,} images cannot be opened. Answer “Don’t know” for them.",
                fg="yellow",
                err=True,
            )
        typer.echo(f"Open {page} in a browser, label, save, and run `kappaplace calibrate --labels`.")
        return
    count = sum(bool(row.label) for row in sheet.rows)
    typer.echo(
        f"{out} has {count:,} of {len(sheet.rows):,} labels. Write yes, no or unknown into its column label, "
        "or pass --page to label in a browser."
    )


def monitor(
    place_map: MapFolder,
    incoming: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="IMAGES|ANSWERS…",
            help="Images (files, a folder or a table), or answers of `kappaplace localize` (.jsonl, .csv, "
            "or - for standard input).",
            show_default=False,
        ),
    ] = None,
    outcomes: Annotated[
        Path | None,
        typer.Option(
            help="CSV file with checked answers, to test the risk limit. The column correct has yes or no; "
            "if there is a column decision, only rows with accept count."
        ),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="State file of the monitor. Default: MAP.monitor.json.")
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            help="Number of queries per window. Default: 200, or the number in the state file.",
            show_default=False,
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            help="Figure to write, with the signals and their calibrated range: .png, .svg or .html."
        ),
    ] = None,
    *,
    encoder: MapEncoder,
    as_json: AsJson = False,
) -> None:
    """Compare κ and scores of incoming queries with the calibration. The exit code is 1 if they drift.

    Answers are no longer guaranteed after an alarm, until the map is calibrated again.

    The state file collects queries over many runs; each run treats its input as new queries.

    Examples:

        kappaplace map monitor town.map today/

        kappaplace map monitor town.map answers.jsonl --picture drift.html

        kappaplace localize town.map today/ --json | kappaplace map monitor town.map -

        kappaplace map monitor town.map --outcomes checked.csv
    """
    from kappaplace.maps import MapMonitor, read_outcomes

    if not incoming and outcomes is None:
        raise KappaPlaceError("monitor needs images, answers or outcomes. Pass files, or --outcomes FILE.")

    watch = MapMonitor.open(place_map, state, window=window)
    observed = _observed(place_map, incoming, encoder) if incoming else []
    if outcomes is not None:
        watch.add_outcomes(read_outcomes(outcomes))
    previous, queries, windows = watch.set_aside, watch.drift.queries, watch.drift.windows
    warnings = watch.take(observed)
    watch.save()
    if picture is not None:
        from kappaplace.reports import write_drift

        write_drift(watch.drift, picture, f"Drift of {place_map.name}")
    queries, windows = watch.drift.queries - queries, watch.drift.windows - windows
    if as_json:
        typer.echo(json.dumps(_drift_facts(watch, warnings, queries, windows)))
    else:
        if previous is not None:
            typer.echo(
                f"The map has been recalibrated. Monitoring restarts; the previous state is in {previous}."
            )
        _show_drift(watch, warnings, queries, windows)
    if warnings or watch.drifting or watch.risk_alarm:
        raise typer.Exit(DRIFT)


def _observed(place_map: Path, incoming: list[Path], encoder: MapEncoder) -> list[Observation]:
    from kappaplace.maps import is_answer_file, observe, read_answer_lines, read_observations

    if [str(file) for file in incoming] == ["-"]:
        return list(read_answer_lines(sys.stdin, "the input"))
    files = [file for file in incoming if is_answer_file(file)]
    if files and len(files) < len(incoming):
        raise KappaPlaceError(
            "monitor takes images or files with answers, got both. Pass them to separate commands."
        )
    if files:
        return [each for file in files for each in read_observations(file)]
    from kappaplace.maps import as_table

    table = as_table(images_of(incoming))
    table = table.queries if len(table.query_rows) else table
    answers = encoder.open(place_map).localize(table.image_paths(), 1, batch_size=encoder.batch_size)
    return [observe(answer.to_dict(), answer.query) for answer in answers]


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
        "alarms": [asdict(alarm) for alarm in watch.drift.alarms],
        "outcomes": None if watch.outcomes is None else watch.outcomes.steps,
        "incorrect": None if watch.outcomes is None else watch.outcomes.errors,
        "risk_alarm": watch.risk_alarm,
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


def _show_drift(watch: MapMonitor, warnings: list[DriftWarning], queries: int, windows: int) -> None:
    drift = watch.drift
    compared = "no window" if not windows else "1 window" if windows == 1 else f"{windows:,} windows"
    typer.echo(
        f"{queries:,} queries added, {compared} of {drift.window:,} compared; {drift.waiting:,} wait for the "
        "next window."
    )
    if watch.skipped:
        typer.echo(f"{watch.skipped:,} answers without a match were skipped.")
    if watch.outcomes is not None:
        count, errors = watch.outcomes.steps, watch.outcomes.errors
        typer.echo(f"Outcomes of {count:,} accepted answers, {errors:,} incorrect.")
        if watch.risk_alarm:
            typer.secho(watch.risk_alarm, fg="yellow")
    current = dict.fromkeys([*warnings, *watch.drifting])
    for warning in current:
        typer.secho(warning.sentence, fg="yellow")
    if not current:
        typer.echo("No drift." if drift.history else "Too few queries to detect drift.")
