"""``kappaplace map monitor``: do queries still look like those that the map was calibrated on?"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kappaplace.errors import KappaPlaceError

if TYPE_CHECKING:
    from kappaplace.calibration.drift import DriftWarning
    from kappaplace.maps.tune.monitor import MapMonitor, Observed

DRIFT = 1
"""Exit code where queries have left the calibrated range."""


def monitor(
    place_map: Annotated[Path, typer.Argument(metavar="MAP", help="A calibrated map.")],
    incoming: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGES|ANSWERS…",
            help="Images, a folder or a table of them, or answers of `localize`: .jsonl, .csv, - for stdin.",
        ),
    ],
    state: Annotated[
        Path | None, typer.Option(help="Where to keep what was seen; by default MAP.monitor.json.")
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="Queries compared at a time; 200, or as before.", show_default=False)
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw signals against the calibrated range: .png, .svg or .html.")
    ] = None,
    model: Annotated[str, typer.Option(help="The map's model, if it does not lie where it did.")] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.")] = "",
    batch_size: Annotated[int, typer.Option(help="Images embedded together.")] = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Compare incoming κ and scores with those at calibration; exit code 1 where they have left its range.

    What was seen is kept beside the map, so that queries may come in many calls. Each call takes its input
    as new queries.

    Examples:

        kappaplace map monitor town.map today/

        kappaplace map monitor town.map answers.jsonl --picture drift.html

        kappaplace localize town.map today/ --json | kappaplace map monitor town.map -
    """
    from kappaplace.maps.tune.monitor import MapMonitor

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
        typer.echo(json.dumps(_facts(watch, warnings, *new)))
    else:
        _show(watch, warnings, started_over, *new)
    if warnings or watch.drifting:
        raise typer.Exit(DRIFT)


def _observed(
    place_map: Path, incoming: list[Path], model: str, device: str, batch_size: int
) -> list[Observed]:
    from kappaplace.maps.tune.monitor import from_lines, holds_answers, observed_in, read_observed

    if [str(file) for file in incoming] == ["-"]:
        return list(from_lines(sys.stdin, "the input"))
    answered = [file for file in incoming if holds_answers(file)]
    if answered and len(answered) < len(incoming):
        raise KappaPlaceError("Give images or files of answers, not both at once.")
    if answered:
        return [each for file in answered for each in read_observed(file)]
    from kappaplace.maps import PlaceMap
    from kappaplace.maps.sources import as_table

    table = as_table(incoming[0] if len(incoming) == 1 else incoming)
    table = table.queries if len(table.query_rows) else table
    opened = PlaceMap.open(place_map, model or None, device=device or None)
    answers = opened.localize(table.image_paths(), 1, batch_size=batch_size)
    return [observed_in(answer.to_dict(), answer.query) for answer in answers]


def _facts(watch: MapMonitor, warnings: list[DriftWarning], queries: int, windows: int) -> dict[str, object]:
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


def _show(
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
