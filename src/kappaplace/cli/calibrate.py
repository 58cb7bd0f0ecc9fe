"""``kappaplace calibrate``: from scores to probabilities, and to decisions that keep a promise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from kappaplace.errors import KappaPlaceError


def calibrate(
    place_map: Annotated[Path, typer.Argument(metavar="MAP", help="A map made by `map build`.")],
    queries: Annotated[
        Path | None, typer.Option(help="Labelled queries: a table with positions or given positives.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="Labels of best matches: a file made by `map label`.")
    ] = None,
    self_: Annotated[
        bool, typer.Option("--self", help="Without labels: the map's own images, damaged, ask the map.")
    ] = False,
    max_risk: Annotated[float, typer.Option(help="Share of errors allowed among accepted answers.")] = 0.05,
    confidence: Annotated[float, typer.Option(help="How sure the promise shall be.")] = 0.95,
    outside_rate: Annotated[
        float | None, typer.Option(help="Share of queries expected from outside the map.")
    ] = None,
    verify: Annotated[
        int | None,
        typer.Option(help="Compare so many matches cell by cell (10 is good), here and in use."),
    ] = None,
    thin: Annotated[bool, typer.Option(help="Keep one labelled query a place.")] = True,
    root: Annotated[Path | None, typer.Option(help="Where the queries' images lie now.")] = None,
    model: Annotated[str, typer.Option(help="The map's model, if it does not lie where it did.")] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.")] = "",
    seed: Annotated[int, typer.Option(help="Of the split and of the damage.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Fit probabilities and thresholds, and keep them with the map.

    Labelled queries can carry a guarantee; self-calibration never does.

    Examples:

        kappaplace calibrate town.map --queries labelled.parquet

        kappaplace calibrate town.map --queries labelled.parquet --max-risk 0.01 --confidence 0.95

        kappaplace calibrate town.map --labels labels.csv

        kappaplace calibrate town.map --self --outside-rate 0.2
    """
    if (queries is not None) + (labels is not None) + self_ != 1:
        raise KappaPlaceError(
            "Calibrate on labelled queries (--queries TABLE), on labels of matches (--labels FILE) or "
            "without any (--self): one of them."
        )
    from kappaplace.calibration.fit import CalibrateOptions
    from kappaplace.maps import PlaceMap
    from kappaplace.maps.sources import as_table
    from kappaplace.maps.tune.calibrate import calibrate_map, no_longer_compared
    from kappaplace.maps.tune.label import calibrate_map_on_labels
    from kappaplace.maps.tune.self_calibrate import self_calibrate_map, sparse_note

    opened = PlaceMap.open(place_map, model or None, device=device or None)
    notes: list[str] = []
    options = CalibrateOptions(max_risk, confidence, outside_rate, thin=thin, seed=seed, rerank=verify)
    before = opened.calibration or opened.borrowed
    if queries is not None:
        from kappaplace.data.table import PlaceImages

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
