"""`kappaplace map`: build a map of images, change, query, calibrate and share it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kappaplace.cli import map_tune
from kappaplace.cli.localize import localize
from kappaplace.cli.map_tune import images_of
from kappaplace.cli.models import show_pull, show_push
from kappaplace.cli.options import (
    AsJson,
    BatchSize,
    Device,
    MapAccess,
    MapFolder,
    Out,
    Public,
    Repo,
    Revision,
    command,
)
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import AddOptions, BuildOptions, LocalizeOptions, OnError, Patches
from kappaplace.types import Json

if TYPE_CHECKING:
    from kappaplace.maps import Directions, Report

BUILD, USE, CALIBRATE, SHARE = "Build and change", "Use", "Calibrate and monitor", "Share"
app = typer.Typer(no_args_is_help=True, help="Build maps of images, and localize queries in them.")

_Images = Annotated[
    list[Path],
    typer.Argument(metavar="IMAGES…", help="Images: a folder, a table (.parquet, .csv) or image files."),
]


@command(app, panel=BUILD)
def build(
    images: _Images,
    out: Annotated[Path, typer.Option(help="Map folder to write.")],
    options: BuildOptions,
    model: Annotated[
        str,
        typer.Option(help="Model: a folder, weights file or name. Default: the pretrained model."),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Build a map from images. Run an interrupted build again to resume it.

    Examples:

        kappaplace map build photos/ --out town.map

        kappaplace map build photos/ --out town.map --model runs/pt/model

        kappaplace map build walk.parquet --out walk.map --model cosplace-resnet50-512 --storage int8

        kappaplace map build city/test/database --layout at-names --out city.map --model runs/pt/model

        kappaplace map build photos/ --out town.map --model runs/pt/model --ray auto
    """
    from kappaplace.maps import PlaceMap

    place_map = PlaceMap.build(images_of(images), out, model or None, options)
    _show_report(out, place_map.report, place_map.info(), as_json)


@command(app, panel=BUILD)
def add(
    place_map: MapFolder,
    images: _Images,
    options: AddOptions,
    model: Annotated[
        str, typer.Option(help="Model of the map, if it has moved: a folder, a file or a name.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Add images to a map. Images that are already in the map are skipped.

    Examples:

        kappaplace map add town.map more/

        kappaplace map add town.map winter.parquet --prefix winter/
    """
    opened = MapAccess(model, options.device).open(place_map)
    opened.add(images_of(images), options)
    _show_report(place_map, opened.report, opened.info(), as_json)


@app.command(rich_help_panel=BUILD)
def remove(
    place_map: MapFolder,
    names: Annotated[list[str] | None, typer.Argument(help="Names of the references to remove.")] = None,
    names_from: Annotated[
        Path | None, typer.Option("--from", help="Text file with one name per line.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove references from a map. If one name is unknown, nothing is removed.

    `kappaplace map compact` frees the disk space.

    Examples:

        kappaplace map remove town.map a/0001.jpg a/0002.jpg

        kappaplace map remove town.map --from demolished.txt
    """
    references = list(names or [])
    if names_from is not None:
        try:
            references += names_from.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise KappaPlaceError(f"Cannot read the list {names_from} ({error}). Check --from.") from None
    references = [name for name in references if name]
    if not references:
        raise KappaPlaceError("No references to remove. Pass their names, or a text file with --from.")
    opened = MapAccess().open(place_map)
    count = opened.remove(references)
    if as_json:
        typer.echo(json.dumps({"removed": count, "references": len(opened)}))
    else:
        typer.echo(f"{count:,} references removed, {len(opened):,} remain.")


@app.command(rich_help_panel=BUILD)
def compact(
    place_map: MapFolder,
    storage: Annotated[
        Literal["float32", "float16", "int8", "pq"] | None,
        typer.Option(
            help="New storage type of the descriptors; pq takes at most 128 bytes per reference. "
            "Default: unchanged."
        ),
    ] = None,
    dim: Annotated[
        int | None,
        typer.Option(
            help="New dimension of the descriptors, which are whitened on the map's own images. "
            "Default: unchanged."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Free the disk space of removed references, and recompute how similar the places are.

    Examples:

        kappaplace map compact town.map

        kappaplace map compact town.map --storage pq

        kappaplace map compact town.map --dim 512
    """
    opened = MapAccess().open(place_map)
    before, calibrated = opened.info()["bytes"], opened.manifest.calibration is not None
    opened.compact(storage, dim)
    facts = opened.info()
    if calibrated and opened.manifest.calibration is None and not as_json:
        typer.echo(
            "The calibration was removed, because it does not match the new descriptors. "
            "Run `kappaplace calibrate` again."
        )
    if as_json:
        typer.echo(json.dumps(facts | {"bytes_before": before}))
    else:
        typer.echo(f"{facts['references']:,} references in {_segments(facts)}, {_size(facts['bytes'])}.")


@app.command(rich_help_panel=USE)
def info(
    place_map: MapFolder,
    directions: Annotated[
        bool, typer.Option("--directions", help="List the references by cell and direction of view.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the content of a map, its model and its calibration, and in which directions it sees.

    Examples:

        kappaplace map info town.map

        kappaplace map info town.map --directions
    """
    opened = MapAccess().open(place_map)
    facts, seen = opened.info(), opened.directions()
    if as_json:
        counted = {"counts": seen.counts, "unknown": seen.unknown, "size": seen.size, "one_way": seen.one_way}
        cells = {"cells": [asdict(cell) for cell in seen.cells]} if directions else {}
        typer.echo(json.dumps({**facts, "directions": {**counted, **cells}}))
        return
    typer.secho(f"{facts['name'] or place_map}: {facts['references']:,} references", bold=True)
    typer.echo(f"  positions   {facts['frame']}, {facts['unposed']:,} without")
    typer.echo(f"  near        {facts['neighbourhood']}, radius {facts['radius']:g} m")
    typer.echo(f"  directions  {seen.sentence}")
    kappa = "with κ" if facts["kappa"] else "without κ"
    white = f", whitened from {facts['whitened_from']}" if "whitened_from" in facts else ""
    typer.echo(f"  model       {facts['model']} ({facts['dim']} dimensions{white}, {kappa})")
    stored = f"{facts['storage']}, patches {facts['patches']}, {_segments(facts)}, {_size(facts['bytes'])}"
    typer.echo(f"  stored      {stored}")
    typer.echo(f"  removed     {facts['removed']:,} (freed by `map compact`)")
    typer.echo(f"  places      compared: {facts['distinctiveness']}")
    shipped = "by the calibration shipped with the model" if facts["borrowed"] else "no"
    typer.echo(f"  calibrated  {facts['calibration'] or f'{shipped}; see `kappaplace calibrate`'}")
    if "groups" in facts:
        typer.echo(f"  groups      {facts['groups']}")
    difficulty = facts.get("difficulty")
    for number, line in enumerate(difficulty if isinstance(difficulty, list) else [], 1):
        typer.echo(f"  quarter {number}   {line}")
    if directions:
        _show_directions(seen)


def _show_directions(seen: Directions) -> None:
    """Print the number of references of each cell by direction; a dot if there is none."""
    degrees = bool(seen.cells) and seen.cells[0].latitude is not None
    typer.echo(
        f"{'latitude   longitude' if degrees else 'x          y':24}{''.join(f'{n:>5}' for n in seen.counts)}"
    )
    for cell in seen.cells:
        where = f"{cell.latitude:.5f}, {cell.longitude:.5f}" if degrees else f"{cell.x:.1f}, {cell.y:.1f}"
        typer.echo(f"{where:24}{''.join(f'{count or chr(183):>5}' for count in cell.counts)}")


@app.command(rich_help_panel=USE)
def show(
    place_map: MapFolder,
    out: Annotated[Path, typer.Option(help="File to write: .png, .svg or .html.")],
) -> None:
    """Draw the references of a map from above, with their directions of view.

    Examples:

        kappaplace map show town.map --out town.png

        kappaplace map show town.map --out town.html
    """
    from kappaplace.reports import write_place_map

    typer.echo(f"{out}: {write_place_map(MapAccess().open(place_map), out)}")


@app.command(rich_help_panel=USE)
def verify(place_map: MapFolder, as_json: AsJson = False) -> None:
    """Check the checksums and the values of all files. The exit code is 1 if there is a problem.

    Examples:

        kappaplace map verify town.map
    """
    from kappaplace.maps import verify_folder

    manifest, problems = verify_folder(place_map)
    if as_json:
        typer.echo(json.dumps({"map": str(place_map), "references": manifest.count, "problems": problems}))
    else:
        for problem in problems:
            typer.secho(problem, fg="red", err=True)
        typer.echo(f"{place_map}: {len(problems) or 'no'} problem{'s' * (len(problems) != 1)} found.")
    if problems:
        raise typer.Exit(1)


@app.command(rich_help_panel=BUILD)
def reembed(
    place_map: MapFolder,
    model: Annotated[
        str, typer.Option(help="New model: a folder, weights file or name. Default: unchanged.")
    ] = "",
    patches: Annotated[
        Patches | None,
        typer.Option(
            help="Data to store for patch matching: nothing, codes of at most 4 KiB per reference, or whole "
            "feature maps. Default: unchanged."
        ),
    ] = None,
    on_error: Annotated[
        OnError, typer.Option(help="Action for an unreadable image: stop, or skip (report it and continue).")
    ] = "stop",
    device: Device = "",
    batch_size: BatchSize = 32,
    ray: Annotated[str, typer.Option(help="Ray cluster to embed on: auto, HOST:PORT or ray://….")] = "",
    as_json: AsJson = False,
) -> None:
    """Embed all images of a map again, with another model. The map can be queried in the meantime.

    With `--patches` and without `--model`, only the patches are stored: descriptors and calibration stay.

    Examples:

        kappaplace map reembed town.map --model runs/jt/model

        kappaplace map reembed town.map --patches compact
    """
    opened = MapAccess(device=device).open(place_map)
    calibrated = opened.manifest.calibration is not None
    opened.reembed(
        model or None, AddOptions(on_error=on_error, batch_size=batch_size, ray=ray), patches=patches
    )
    _show_report(place_map, opened.report, opened.info(), as_json)
    if calibrated and model and not as_json:
        typer.echo("The calibration of the previous model was removed. Run `kappaplace calibrate` again.")


@command(app, panel=SHARE)
def export(
    place_map: MapFolder,
    out: Annotated[
        Path, typer.Option(help="File to write: .parquet, .npz, .geojson, or .txt for hloc pairs.")
    ],
    access: MapAccess,
    queries: Annotated[
        list[Path] | None,
        typer.Option(help="Queries of the hloc pairs: images, a folder or a table; repeatable."),
    ] = None,
    k: Annotated[int, typer.Option(help="Number of hloc pairs per query.")] = 10,
    least: Annotated[
        float, typer.Option("--min-probability", "--least", help="Minimum probability of an hloc pair.")
    ] = 0.0,
) -> None:
    """Write a map for other programs, or pairs of queries and references for hloc.

    Examples:

        kappaplace map export town.map --out town.parquet

        kappaplace map export town.map --out town.geojson

        kappaplace map export town.map --queries drive/ --out pairs.txt
    """
    opened = access.open(place_map)
    if out.suffix.lower() != ".txt":
        if queries:
            raise KappaPlaceError(f'--queries can only be used with a .txt file, got --out "{out}". Omit it.')
        opened.export(out)
        typer.echo(f"{len(opened):,} references written to {out}.")
        return
    if not queries:
        raise KappaPlaceError("Pairs need queries, got none. Pass images or a table with --queries.")
    from kappaplace.maps import as_table, write_pairs

    table = as_table(images_of(queries))
    table = table.queries if len(table.query_rows) else table
    images = table.image_paths()
    answers = opened.localize_embeddings(
        opened.embed(images), table.paths.tolist(), LocalizeOptions(k=k), images=images
    )
    probabilities = write_pairs(answers, out, least=least)
    typer.echo(f"Pairs of {len(answers):,} queries written to {out}, their probabilities to {probabilities}.")


@app.command("import", rich_help_panel=SHARE)
def import_(
    file: Annotated[Path, typer.Argument(help="Exported map or descriptors, .parquet or .npz.")],
    out: Annotated[Path, typer.Option(help="Map folder to create.")],
    model: Annotated[
        str,
        typer.Option(
            help="Model that computed the descriptors: a folder, weights file or name. Default: the "
            "published model that the file names."
        ),
    ] = "",
    root: Annotated[str, typer.Option(help="Folder of the images. Default: no images.")] = "",
) -> None:
    """Build a map from an exported map, or from descriptors with names.

    The file may come from someone else, so the image folders that it names are not used.

    Examples:

        kappaplace map import town.parquet --out town.map

        kappaplace map import descriptors.npz --out mine.map --model cosplace-resnet50-512
    """
    from kappaplace.maps import PlaceMap

    typer.echo(
        f"{len(PlaceMap.import_(file, out, model or None, root or None)):,} references imported into {out}."
    )


command(app, panel=USE)(localize)
for _verb in (map_tune.calibrate, map_tune.fit, map_tune.label, map_tune.monitor):
    command(app, panel=CALIBRATE)(_verb)


def _show_report(folder: Path, report: Report | None, facts: dict[str, Json], as_json: bool) -> None:
    assert report is not None
    if as_json:
        counts = {"added": report.added, "already": report.already, "replaced": report.replaced}
        skipped = [{"name": name, "reason": reason} for name, reason in report.skipped]
        typer.echo(json.dumps({**facts, **counts, "without_position": report.unposed, "skipped": skipped}))
        return
    for name, reason in report.skipped:
        typer.secho(f"Skipped {name}: {reason}", fg="yellow", err=True)
    typer.echo(f"{report.sentence} {folder} now has {facts['references']:,} references.")


def _segments(facts: dict[str, Json]) -> str:
    return "1 segment" if facts["segments"] == 1 else f"{facts['segments']:,} segments"


def _size(count: Json) -> str:
    assert isinstance(count, int)
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


@app.command(rich_help_panel=SHARE)
def push(
    place_map: MapFolder,
    repo: Repo,
    public: Public = False,
    as_json: AsJson = False,
) -> None:
    """Upload a map to the Hugging Face Hub, together with its model if the model is your own.

    Images are not uploaded. Names, positions and thumbnails are: check them before you pass `--public`.

    Examples:

        kappaplace map push town.map me/town
    """
    from kappaplace.sharing import push_map

    show_push(push_map, place_map, repo, public, as_json)


@app.command(rich_help_panel=SHARE)
def pull(repo: Repo, out: Out, revision: Revision = "", as_json: AsJson = False) -> None:
    """Download a map from the Hugging Face Hub and check its checksums.

    Examples:

        kappaplace map pull me/town --out town.map
    """
    from kappaplace.sharing import pull_map

    show_pull(pull_map, repo, out, revision, as_json)
