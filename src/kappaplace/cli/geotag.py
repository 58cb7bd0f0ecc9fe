"""`kappaplace geotag`: positions for photos without GPS, where the answer of a map is accepted."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kappaplace.cli.options import AsJson, MapAccess
from kappaplace.errors import KappaPlaceError
from kappaplace.files import check_target
from kappaplace.maps import GeotagOptions
from kappaplace.records import Help

if TYPE_CHECKING:
    from kappaplace.maps import Geotags

COLORS = {"accepted": "green", "between": "green", "implausible": "red", "unreadable": "yellow"}


@dataclass(frozen=True)
class GeotagOutput:
    """Options for the files to write. By default, nothing is written."""

    apply: Annotated[bool, Help("Write the positions. Default: only show them.", ("--apply",))] = False
    write_exif: Annotated[
        Path | None,
        Help(
            "Folder for copies of the photos with the position in their EXIF data, instead of sidecars next "
            "to the photos."
        ),
    ] = None
    undo: Annotated[bool, Help("Delete only the files that an earlier run wrote.", ("--undo",))] = False
    report: Annotated[Path | None, Help("HTML page to write: every photo with its matches.")] = None


def geotag(
    photos: Annotated[Path, typer.Argument(metavar="PHOTOS", help="Folder of photos.")],
    place_map: Annotated[
        Path | None,
        typer.Option("--map", help="Calibrated map of the area, built from photos with GPS."),
    ] = None,
    *,
    options: GeotagOptions,
    output: GeotagOutput,
    access: MapAccess,
    as_json: AsJson = False,
) -> None:
    """Find positions for photos without GPS. Without --apply, nothing is written.

    A photo gets a position if the map accepts its best match, and if photos taken shortly before or after do
    not contradict it. --apply writes an XMP sidecar next to each of these photos. Photos and existing
    sidecars are never changed.

    Examples:

        kappaplace geotag holiday/ --map town.map --report holiday.html

        kappaplace geotag holiday/ --map town.map --apply

        kappaplace geotag holiday/ --map town.map --write-exif tagged/ --apply

        kappaplace geotag holiday/ --undo
    """
    from kappaplace.maps import geotag, undo_geotags

    if output.undo:
        deleted, changed = undo_geotags(output.write_exif or photos)
        if as_json:
            typer.echo(json.dumps({"deleted": list(map(str, deleted)), "changed": list(map(str, changed))}))
            return
        typer.echo(f"Deleted {len(deleted):,} files.")
        for file in changed:
            typer.secho(f"Kept, because it has changed since: {file}", fg="yellow", err=True)
        return
    if place_map is None:
        raise KappaPlaceError("geotag needs a map. Pass --map MAP, or --undo.")
    if output.report is not None:
        check_target(output.report)
    opened = access.open(place_map)
    tags = geotag(photos, opened, options)
    if output.report is not None:
        from kappaplace.reports import write_geotags

        write_geotags(opened, tags, output.report)
    written = None
    if output.apply:
        written = tags.write() if output.write_exif is None else tags.copy_to(output.write_exif)
    if as_json:
        files = None if written is None else list(map(str, written))
        typer.echo(json.dumps({**tags.to_dict(), "written": files}))
        return
    _show(tags)
    folder = "" if output.write_exif is None else f" --write-exif {output.write_exif}"
    if written is None:
        typer.echo("Nothing was written. Run again with --apply to write the positions.")
    else:
        typer.echo(f"Wrote {len(written):,} files. `kappaplace geotag {photos}{folder} --undo` deletes them.")


def _show(tags: Geotags) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    for tag in tags.tags:
        if tag.status == "GPS":
            continue
        color, degrees = COLORS.get(tag.status, "bold"), tags.degrees(tag)
        where = "" if degrees is None else f" {degrees[0]:.6f}, {degrees[1]:.6f} ± {tag.accuracy:.0f} m;"
        text = f"{escape(tag.photo.name)}: [{color}]{tag.status}[/{color}],{where} {escape(tag.reason)}"
        console.print(text, soft_wrap=True, highlight=False)
    for note in tags.notes:
        console.print(escape(note), style="dim")
    console.print(tags.sentence, soft_wrap=True, highlight=False)
