"""`kappaplace map`: build a map of images, change it, look after it, hand it to others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kappaplace.cli import map_fit, map_label, map_monitor, map_share
from kappaplace.errors import KappaPlaceError

if TYPE_CHECKING:
    from kappaplace.maps.build import Report

app = typer.Typer(no_args_is_help=True, help="Build and keep maps of images in which queries are localized.")

_Map = Annotated[Path, typer.Argument(metavar="MAP", help="A map made by `map build`.")]
_Images = Annotated[
    list[Path],
    typer.Argument(metavar="IMAGES…", help="A folder, a table (.parquet, .csv) or image files."),
]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
_Layout = Annotated[str, typer.Option(help="Layout of the folder; see `kappaplace data layouts` (photos).")]
_Prefix = Annotated[str, typer.Option(help="Put before each name, to keep two sources apart.")]
_OnError = Annotated[str, typer.Option(help="Images that cannot be read: skip (and list them) or raise.")]
_Duplicates = Annotated[
    str, typer.Option(help="Another image under a name of the map: error, skip or replace.")
]
_Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.")]
_Batch = Annotated[int, typer.Option(help="Images embedded together.")]
_Ray = Annotated[
    str, typer.Option(help="Embed on a Ray cluster: auto (one is started if none runs), HOST:PORT, ray://….")
]
_Model = Annotated[str, typer.Option(help="The map's model, if it does not lie where it did.")]


@app.command()
def build(
    images: _Images,
    out: Annotated[Path, typer.Option(help="The map to make; one that was not finished is gone on with.")],
    model: Annotated[
        str,
        typer.Option(
            help="A model: folder, weights file or name (`kappaplace models`); without it our pretrained one."
        ),
    ] = "",
    layout: _Layout = "",
    prefix: _Prefix = "",
    radius: Annotated[
        float | None, typer.Option(help="Metres within which two images show one place.")
    ] = None,
    neighborhood: Annotated[
        str,
        typer.Option("--neighborhood", "--neighbourhood", help="What is near: metres:25, frames:5 or self."),
    ] = "",
    storage: Annotated[str, typer.Option(help="Descriptors as float32, float16 or int8.")] = "float32",
    thumbnails: Annotated[bool, typer.Option(help="Keep a small picture of each image.")] = False,
    duplicates: _Duplicates = "error",
    on_error: _OnError = "skip",
    device: _Device = "",
    batch_size: _Batch = 32,
    ray: _Ray = "",
    as_json: _Json = False,
) -> None:
    """Make a map. Stopped at any moment, the same command goes on and embeds nothing twice.

    Examples:

        kappaplace map build photos/ --out town.map

        kappaplace map build photos/ --out town.map --model runs/pt/model

        kappaplace map build walk.parquet --out walk.map --model cosplace-resnet50-512 --storage int8

        kappaplace map build city/test/database --layout at-names --out city.map --model runs/pt/model

        kappaplace map build photos/ --out town.map --model runs/pt/model --ray auto
    """
    from kappaplace.maps import PlaceMap

    made = PlaceMap.build(
        _images(images),
        out,
        model or None,
        layout=layout,
        prefix=prefix,
        radius=radius,
        neighborhood=neighborhood,
        storage=storage,
        thumbnails=thumbnails,
        duplicates=duplicates,
        on_error=on_error,
        device=device or None,
        batch_size=batch_size,
        ray=ray,
    )
    _show_report(out, made.report, made.info(), as_json)


@app.command()
def add(
    place_map: _Map,
    images: _Images,
    layout: _Layout = "",
    prefix: _Prefix = "",
    model: _Model = "",
    duplicates: _Duplicates = "error",
    on_error: _OnError = "skip",
    device: _Device = "",
    batch_size: _Batch = 32,
    ray: _Ray = "",
    as_json: _Json = False,
) -> None:
    """Add images; those that are there already and unchanged are left alone.

    Examples:

        kappaplace map add town.map more/

        kappaplace map add town.map winter.parquet --prefix winter/
    """
    opened = _open(place_map, model, device)
    opened.add(
        _images(images),
        layout=layout,
        prefix=prefix,
        duplicates=duplicates,
        on_error=on_error,
        batch_size=batch_size,
        ray=ray,
    )
    _show_report(place_map, opened.report, opened.info(), as_json)


@app.command()
def remove(
    place_map: _Map,
    names: Annotated[list[str] | None, typer.Argument(help="Names of references.")] = None,
    names_from: Annotated[Path | None, typer.Option("--from", help="A text file, one name a line.")] = None,
    as_json: _Json = False,
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
    place_map: _Map,
    storage: Annotated[
        str, typer.Option(help="Keep descriptors as float32, float16, int8 or pq (at most 128 bytes each).")
    ] = "",
    as_json: _Json = False,
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
def info(place_map: _Map, as_json: _Json = False) -> None:
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
def verify(place_map: _Map, as_json: _Json = False) -> None:
    """Compare every file with its checksum and every number with what it can be; exit code 1 if one is wrong.

    Examples:

        kappaplace map verify town.map
    """
    from kappaplace.maps.store.verify import verified

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
    place_map: _Map,
    model: Annotated[str, typer.Option(help="The new model: folder, weights file or name.")],
    on_error: Annotated[str, typer.Option(help="Images that cannot be read: raise or skip.")] = "raise",
    device: _Device = "",
    batch_size: _Batch = 32,
    ray: _Ray = "",
    as_json: _Json = False,
) -> None:
    """Embed all images again with another model. Until that is done, the map answers with the old one.

    Examples:

        kappaplace map reembed town.map --model runs/jt/model
    """
    opened = _open(place_map, "", device)
    calibrated = opened.manifest.calibration is not None
    opened.reembed(model, on_error=on_error, batch_size=batch_size, ray=ray)
    _show_report(place_map, opened.report, opened.info(), as_json)
    if calibrated and not as_json:
        typer.echo("The calibration belonged to the old model and is gone; run `kappaplace calibrate`.")


@app.command()
def export(
    place_map: _Map,
    out: Annotated[Path, typer.Option(help=".parquet, .npz, .geojson, or .txt (hloc pairs).")],
    queries: Annotated[
        list[Path] | None, typer.Option(help="For pairs: images, a folder or a table of queries; repeatable.")
    ] = None,
    k: Annotated[int, typer.Option(help="For pairs: matches a query.")] = 10,
    least: Annotated[float, typer.Option(help="For pairs: leave out those less probable.")] = 0.0,
    model: _Model = "",
    device: _Device = "",
) -> None:
    """Write a map for other programs; pairs of queries and references with their probabilities for hloc.

    Examples:

        kappaplace map export town.map --out town.parquet

        kappaplace map export town.map --out town.geojson

        kappaplace map export town.map --queries drive/ --out pairs.txt
    """
    opened = _open(place_map, model, device)
    if out.suffix.lower() != ".txt":
        from kappaplace.maps.exchange import export_map

        if queries:
            raise KappaPlaceError("--queries belong to pairs: write them into a .txt file.")
        export_map(opened.store, out)
        typer.echo(f"{len(opened):,} references written to {out}.")
        return
    if not queries:
        raise KappaPlaceError("Pairs are of queries and references: say which queries, with --queries.")
    from kappaplace.maps.answer import write_pairs
    from kappaplace.maps.sources import as_table

    table = as_table(_images(queries))
    table = table.queries if len(table.query_rows) else table
    images = table.image_paths()
    answers = opened.localize_embeddings(opened.embed(images), table.paths.tolist(), k, images=images)
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
    from kappaplace.maps.exchange import import_map

    import_map(file, out, model or None)
    typer.echo(f"{len(_open(out)):,} references imported into {out}.")


app.command("fit")(map_fit.fit)
app.command("label")(map_label.label)
app.command("monitor")(map_monitor.monitor)
app.command("push")(map_share.push)
app.command("pull")(map_share.pull)


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
