"""``kappaplace map label``: is this the same place? Labels by a person, for `kappaplace calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def label(
    place_map: Annotated[Path, typer.Argument(metavar="MAP", help="A map made by `map build`.")],
    queries: Annotated[
        list[Path],
        typer.Argument(metavar="QUERIES…", help="A folder, a table (.parquet, .csv) or image files."),
    ],
    out: Annotated[Path, typer.Option(help="The labels file; one of the same sample is gone on with.")],
    page: Annotated[
        Path | None, typer.Option(help="Write one HTML page to label in a browser, instead of asking here.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw both images of each question side by side into this JPEG.")
    ] = None,
    size: Annotated[int, typer.Option(help="Queries to draw.")] = 300,
    seed: Annotated[int, typer.Option(help="Of the random choice.")] = 0,
    thin: Annotated[bool, typer.Option(help="Draw one query a place, by position or time.")] = True,
    verify: Annotated[
        int | None,
        typer.Option(help="Matches compared cell by cell before one is shown; as the map is asked now."),
    ] = None,
    model: Annotated[str, typer.Option(help="The map's model, if it does not lie where it did.")] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.")] = "",
    batch_size: Annotated[int, typer.Option(help="Images embedded together.")] = 32,
) -> None:
    """Draw queries at random, find their best matches, and ask whether they are right.

    The queries must be like those of later use, and are drawn, not chosen: only so can a calibration
    promise anything. Stop at any time; the same command goes on.

    Examples:

        kappaplace map label town.map drive/ --out labels.csv --picture now.jpg

        kappaplace map label town.map drive/ --out labels.csv --page label.html

        kappaplace calibrate town.map --labels labels.csv
    """
    from kappaplace.maps import PlaceMap
    from kappaplace.maps.sources import as_table
    from kappaplace.maps.tune.label import label_loop, open_sheet
    from kappaplace.maps.tune.label_sheet import draw_sample
    from kappaplace.reports import write_label_page

    opened = PlaceMap.open(place_map, model or None, device=device or None)
    table = as_table(queries[0] if len(queries) == 1 else queries)
    sample = draw_sample(table, opened.manifest.radius, size=size, seed=seed, thin=thin)
    sheet = open_sheet(opened, sample, out, verify=verify, batch_size=batch_size)
    apart = "" if sample.thinned == "nothing" else f", {sample.places:,} of them apart by {sample.thinned}"
    typer.echo(f"{len(sheet.rows):,} queries drawn at random from {sample.of:,}{apart} (seed {seed}).")
    if sample.thinned == "nothing" and thin:
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
