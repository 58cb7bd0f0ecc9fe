"""`kappaplace map`: build a map of images, change it, look after it, hand it to others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kappaplace.cli import map_tune
from kappaplace.cli.options import AsJson, BatchSize, Device, MapFolder, MapModel, command
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import AddOptions, BuildOptions, LocalizeOptions, OnError

if TYPE_CHECKING:
    from kappaplace.maps import Report
from kappaplace.cli.models import show_pull, show_push
from kappaplace.cli.options import Out, Public, Repo, Revision

app = typer.Typer(no_args_is_help=True, help="Build and keep maps of images in which queries are localized.")

_Images = Annotated[
    list[Path],
    typer.Argument(metavar="IMAGES…", help="A folder, a table (.parquet, .csv) or image files."),
]


@command(app)
def build(
    images: _Images,
    out: Annotated[Path, typer.Option(help="Map folder to write. A build that was stopped resumes.")],
    options: BuildOptions,
    model: Annotated[
        str,
        typer.Option(help="Model: a folder, weights file or name. Default: the pretrained model."),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Build a map. A build that was stopped resumes with the same command.

    Examples:

        kappaplace map build photos/ --out town.map

        kappaplace map build photos/ --out town.map --model runs/pt/model

        kappaplace map build walk.parquet --out walk.map --model cosplace-resnet50-512 --storage int8

        kappaplace map build city/test/database --layout at-names --out city.map --model runs/pt/model

        kappaplace map build photos/ --out town.map --model runs/pt/model --ray auto
    """
    from kappaplace.maps import PlaceMap

    place_map = PlaceMap.build(_images(images), out, model or None, options)
    _show_report(out, place_map.report, place_map.info(), as_json)


@command(app)
def add(
    place_map: MapFolder,
    images: _Images,
    options: AddOptions,
    model: MapModel = "",
    as_json: AsJson = False,
) -> None:
    """Add images to a map; unchanged images of the map are left alone.

    Examples:

        kappaplace map add town.map more/

        kappaplace map add town.map winter.parquet --prefix winter/
    """
    opened = _open(place_map, model, options.device)
    opened.add(_images(images), options)
    _show_report(place_map, opened.report, opened.info(), as_json)


@app.command()
def remove(
    place_map: MapFolder,
    names: Annotated[list[str] | None, typer.Argument(help="Names of references.")] = None,
    names_from: Annotated[Path | None, typer.Option("--from", help="A text file, one name a line.")] = None,
    as_json: AsJson = False,
) -> None:
    """Take references out, all of those named or none; `map compact` frees their space.

    Examples:

        kappaplace map remove town.map a/0001.jpg a/0002.jpg

        kappaplace map remove town.map --from demolished.txt
    """
    chosen = list(names or [])
    if names_from is not None:
        try:
            chosen += names_from.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise KappaPlaceError(f"The list {names_from} cannot be read ({error}).") from None
    chosen = [name for name in chosen if name]
    if not chosen:
        raise KappaPlaceError("Say which references shall go: give their names, or a list with --from.")
    opened = _open(place_map)
    count = opened.remove(chosen)
    if as_json:
        typer.echo(json.dumps({"removed": count, "references": len(opened)}))
    else:
        typer.echo(f"{count:,} references removed, {len(opened):,} are left.")


@app.command()
def compact(
    place_map: MapFolder,
    storage: Annotated[
        str, typer.Option(help="Keep descriptors as float32, float16, int8 or pq (at most 128 bytes each).")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Free the space of removed references and compare all places with each other anew.

    Examples:

        kappaplace map compact town.map

        kappaplace map compact town.map --storage pq
    """
    opened = _open(place_map)
    before, calibrated = opened.info()["bytes"], opened.manifest.calibration is not None
    opened.compact(storage or None)
    facts = opened.info()
    if calibrated and opened.manifest.calibration is None and not as_json:
        typer.echo("The calibration belonged to finer descriptors and is gone; run `kappaplace calibrate`.")
    if as_json:
        typer.echo(json.dumps(facts | {"bytes_before": before}))
    else:
        typer.echo(f"{facts['references']:,} references in {_segments(facts)}, {_size(facts['bytes'])}.")


@app.command()
def info(place_map: MapFolder, as_json: AsJson = False) -> None:
    """Tell what a map holds and what made it.

    Examples:

        kappaplace map info town.map
    """
    facts = _open(place_map).info()
    if as_json:
        typer.echo(json.dumps(facts))
        return
    typer.secho(f"{facts['name'] or place_map}: {facts['references']:,} references", bold=True)
    typer.echo(f"  positions   {facts['frame']}, {facts['unposed']:,} without")
    typer.echo(f"  near        {facts['neighbourhood']}, radius {facts['radius']:g} m")
    kappa = "with κ" if facts["kappa"] else "without κ"
    typer.echo(f"  model       {facts['model']} ({facts['dim']} dimensions, {kappa})")
    typer.echo(f"  stored      {facts['storage']}, {_segments(facts)}, {_size(facts['bytes'])}")
    typer.echo(f"  removed     {facts['removed']:,} (freed by `map compact`)")
    typer.echo(f"  places      distinctiveness {facts['distinctiveness']}")
    lent = "on other places, with the model" if facts["borrowed"] else "no"
    typer.echo(f"  calibrated  {facts['calibration'] or f'{lent}; see `kappaplace calibrate`'}")


@app.command()
def verify(place_map: MapFolder, as_json: AsJson = False) -> None:
    """Compare every file with its checksum and every number with what it can be; exit code 1 if one is wrong.

    Examples:

        kappaplace map verify town.map
    """
    from kappaplace.maps import verified

    manifest, found = verified(place_map)
    if as_json:
        typer.echo(json.dumps({"map": str(place_map), "references": manifest.count, "problems": found}))
    else:
        for sentence in found:
            typer.secho(sentence, fg="red", err=True)
        typer.echo(f"{place_map}: {len(found)} problems." if found else f"{place_map} is sound.")
    if found:
        raise typer.Exit(1)


@app.command()
def reembed(
    place_map: MapFolder,
    model: Annotated[str, typer.Option(help="The new model: a folder, weights file or name.")],
    on_error: Annotated[
        OnError, typer.Option(help="What to do with an unreadable image: stop, or list and skip it.")
    ] = "stop",
    device: Device = "",
    batch_size: BatchSize = 32,
    ray: Annotated[str, typer.Option(help="Embed on a Ray cluster: auto, HOST:PORT or ray://….")] = "",
    as_json: AsJson = False,
) -> None:
    """Embed all images of a map again with another model. Until then, the map answers with the old one.

    Examples:

        kappaplace map reembed town.map --model runs/jt/model
    """
    opened = _open(place_map, "", device)
    calibrated = opened.manifest.calibration is not None
    opened.reembed(model, AddOptions(on_error=on_error, batch_size=batch_size, ray=ray))
    _show_report(place_map, opened.report, opened.info(), as_json)
    if calibrated and not as_json:
        typer.echo("The calibration of the old model was dropped; run `kappaplace calibrate`.")


@app.command()
def export(
    place_map: MapFolder,
    out: Annotated[Path, typer.Option(help=".parquet, .npz, .geojson, or .txt (hloc pairs).")],
    queries: Annotated[
        list[Path] | None, typer.Option(help="For pairs: images, a folder or a table of queries; repeatable.")
    ] = None,
    k: Annotated[int, typer.Option(help="For pairs: matches a query.")] = 10,
    least: Annotated[float, typer.Option(help="For pairs: leave out those less probable.")] = 0.0,
    model: MapModel = "",
    device: Device = "",
) -> None:
    """Write a map for other programs; pairs of queries and references with their probabilities for hloc.

    Examples:

        kappaplace map export town.map --out town.parquet

        kappaplace map export town.map --out town.geojson

        kappaplace map export town.map --queries drive/ --out pairs.txt
    """
    opened = _open(place_map, model, device)
    if out.suffix.lower() != ".txt":
        if queries:
            raise KappaPlaceError("--queries belong to pairs: write them into a .txt file.")
        opened.export(out)
        typer.echo(f"{len(opened):,} references written to {out}.")
        return
    if not queries:
        raise KappaPlaceError("Pairs are of queries and references: say which queries, with --queries.")
    from kappaplace.maps import as_table, write_pairs

    table = as_table(_images(queries))
    table = table.queries if len(table.query_rows) else table
    images = table.image_paths()
    answers = opened.localize_embeddings(
        opened.embed(images), table.paths.tolist(), LocalizeOptions(k=k), images=images
    )
    beside = write_pairs(answers, out, least=least)
    typer.echo(f"Pairs of {len(answers):,} queries written to {out}, with probabilities to {beside}.")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="An exported map, .parquet or .npz.")],
    out: Annotated[Path, typer.Option(help="The map to make.")],
    model: Annotated[str, typer.Option(help="What made the descriptors, if the file does not say it.")] = "",
) -> None:
    """Make a map of an exported one, or of descriptors with names from elsewhere.

    Examples:

        kappaplace map import town.parquet --out town.map

        kappaplace map import descriptors.npz --out mine.map --model cosplace-resnet50-512
    """
    from kappaplace.maps import PlaceMap

    typer.echo(f"{len(PlaceMap.import_(file, out, model or None)):,} references imported into {out}.")


for _verb in (map_tune.calibrate, map_tune.fit, map_tune.label, map_tune.monitor):
    command(app)(_verb)


def _open(folder: Path, model: str = "", device: str = "") -> Any:
    from kappaplace.maps import PlaceMap

    return PlaceMap.open(folder, model or None, device=device or None)


def _images(images: list[Path]) -> Any:
    """One folder, one table, or many image files."""
    return images[0] if len(images) == 1 else images


def _show_report(folder: Path, report: Report | None, facts: dict[str, Any], as_json: bool) -> None:
    assert report is not None
    if as_json:
        done = {"added": report.added, "already": report.already, "replaced": report.replaced}
        skipped = [{"name": name, "reason": reason} for name, reason in report.skipped]
        typer.echo(json.dumps({**facts, **done, "without_position": report.unposed, "skipped": skipped}))
        return
    for name, reason in report.skipped:
        typer.secho(f"left out {name}: {reason}", fg="yellow", err=True)
    typer.echo(f"{report.sentence} {folder} now has {facts['references']:,} references.")


def _segments(facts: dict[str, Any]) -> str:
    return "1 segment" if facts["segments"] == 1 else f"{facts['segments']:,} segments"


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


@app.command()
def push(
    place_map: Annotated[Path, typer.Argument(metavar="MAP", help="A map made by `map build`.")],
    repo: Repo,
    public: Public = False,
    as_json: AsJson = False,
) -> None:
    """Upload a map, its model too where that is not one that everybody can name; images stay here.

    Positions, names, and thumbnails if the map keeps them, are part of it: think before `--public`.

    Examples:

        kappaplace map push town.map me/town
    """
    from kappaplace.sharing import push_map

    show_push(push_map, place_map, repo, public, as_json)


@app.command()
def pull(repo: Repo, out: Out, revision: Revision = "", as_json: AsJson = False) -> None:
    """Download a map; it appears when every file has its checksum.

    Examples:

        kappaplace map pull me/town --out town.map
    """
    from kappaplace.sharing import pull_map

    show_pull(pull_map, repo, out, revision, as_json)
