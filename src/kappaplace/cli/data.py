"""`kappaplace data`: import any collection of images with poses, check it, look at it, split it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from kappaplace.data.checks import find_problems, summarize
from kappaplace.data.neighbourhood import Neighbourhood
from kappaplace.data.place_images import PlaceImages
from kappaplace.data.positives import NoPositives
from kappaplace.data.protocols import PROTOCOLS, read_protocol
from kappaplace.data.readers.registry import READERS, read_layout
from kappaplace.data.split import SPLITS
from kappaplace.data.table_io import FORMATS, recorded_hash
from kappaplace.errors import KappaPlaceError

app = typer.Typer(
    no_args_is_help=True, help="Import, check, show and split collections of images with poses."
)


class SplitBy(str, Enum):
    session = "session"
    time = "time"
    area = "area"


_Table = Annotated[Path, typer.Argument(help="A table made by `data import`: .parquet or .csv.")]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
_Root = Annotated[Path | None, typer.Option(help="Where the images lie now, if they have moved.")]
_Policy = Annotated[
    NoPositives,
    typer.Option(help="Queries without positives: fail (count as failures), skip (leave out) or error."),
]


@app.command("import")
def import_(
    layout: Annotated[str, typer.Argument(help="A layout or a protocol; see `kappaplace data layouts`.")],
    folder: Annotated[Path, typer.Argument(help="The folder (or ROS bag) to read.")],
    out: Annotated[Path, typer.Option(help="The table to write: .parquet or .csv.")],
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="Option of the layout, name=value; repeatable.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the table (default: the folder's).")] = "",
    radius: Annotated[
        float | None, typer.Option(help="Metres within which references are positives.")
    ] = None,
    neighbourhood: Annotated[str, typer.Option(help="What is near: metres:25, frames:5 or self.")] = "",
    policy: _Policy = NoPositives.FAIL,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask whether guessed columns are right.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Read a folder into one table.

    \b
    kappaplace data import photos ~/walk --out walk.parquet
    kappaplace data import csv ~/drive -o csv=poses.csv --out drive.parquet
    kappaplace data import at-names ~/sf_xl -o split=test -o queries=v1 --out sfxl.parquet
    kappaplace data import pitts30k-test ~/pittsburgh --out pitts30k.parquet
    """
    if out.suffix.lower() not in FORMATS:
        raise KappaPlaceError(f"{out} is neither .parquet nor .csv: tables are kept in one of these formats.")
    options = _options(option or [])
    ask = _asker(yes, as_json)
    warnings: tuple[str, ...] = ()
    if layout in PROTOCOLS:
        table, check = read_protocol(layout, folder, ask=ask, **options)
        warnings = check.warnings
    elif layout in READERS:
        table = read_layout(layout, folder, ask=ask, **options)
    else:
        raise KappaPlaceError(
            f"{layout!r} is neither a layout ({', '.join(READERS)}) nor a protocol ({', '.join(PROTOCOLS)})."
        )
    table = _adjusted(table, name, radius, neighbourhood)
    table.save(out)
    _print_summary(summarize(table, policy) | {"table": str(out), "warnings": list(warnings)}, as_json)


@app.command()
def check(
    table: _Table,
    root: _Root = None,
    images: Annotated[bool, typer.Option(help="Look whether every image is there.")] = True,
    policy: _Policy = NoPositives.FAIL,
    as_json: _Json = False,
) -> None:
    """Tell what a table holds and what is wrong with it; exit code 1 if something is.

    \b
    kappaplace data check walk.parquet
    kappaplace data check pitts30k.parquet --root /disk/pittsburgh --policy error
    """
    opened = PlaceImages.open(table, root)
    found = find_problems(opened, images=images, recorded_hash=recorded_hash(table))
    _print_summary(summarize(opened, policy) | {"table": str(table)} | found, as_json)
    if found["problems"]:
        raise typer.Exit(1)


@app.command()
def show(
    table: _Table,
    out: Annotated[list[Path], typer.Option(help="The map to write: .png or .html; may be given twice.")],
    root: _Root = None,
) -> None:
    """Draw the map: references, queries, lines to positives, coverage.

    \b
    kappaplace data show walk.parquet --out walk.png --out walk.html
    """
    from kappaplace.data.show import show as draw

    opened = PlaceImages.open(table, root)
    for file in out:
        view = draw(opened, file)
        typer.echo(f"{file}: {view.sentence}")


@app.command()
def split(
    table: _Table,
    out: Annotated[Path, typer.Option(help="Folder for the parts: calibration, test (and train) tables.")],
    by: Annotated[SplitBy, typer.Option(help="What is kept whole.")] = SplitBy.session,
    calibration: Annotated[float, typer.Option(help="Share of the images for calibration.")] = 0.2,
    test: Annotated[float, typer.Option(help="Share of the images for test.")] = 0.2,
    gap: Annotated[
        float | None, typer.Option(help="Seconds: between sessions (600), or before a cut (60).")
    ] = None,
    block: Annotated[float | None, typer.Option(help="Area: side of the blocks in metres.")] = None,
    buffer: Annotated[
        float | None, typer.Option(help="Area: empty metres between parts (the radius).")
    ] = None,
    sessions: Annotated[
        str | None, typer.Option(help="Told apart by: auto, condition, time, folder.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Which sessions or blocks go where (0).")] = None,
    suffix: Annotated[str, typer.Option("--format", help="parquet or csv.")] = "parquet",
    as_json: _Json = False,
) -> None:
    """Make leakage-free query/reference and calibration splits from one collection.

    By session and by time, calibration and test are two sets of queries to the same references; by area,
    train, calibration and test are separate places with a buffer between them.

    \b
    kappaplace data split walks.parquet --by session --out walks/
    kappaplace data split city.parquet --by area --calibration 0.3 --test 0.3 --out city/
    """
    if f".{suffix}" not in FORMATS:
        raise KappaPlaceError(f"--format {suffix} is unknown; choose parquet or csv.")
    given = {"gap": gap, "block": block, "buffer": buffer, "source": sessions, "seed": seed}
    chosen = _split_options(by.value, given)
    result = SPLITS[by.value](PlaceImages.open(table), calibration=calibration, test=test, **chosen)
    answer: dict[str, Any] = {
        "by": by.value,
        "dropped": result.dropped,
        "notes": list(result.notes),
        "parts": {},
    }
    for name, part in result.parts.items():
        file = out / f"{name}.{suffix}"
        part.save(file)
        answer["parts"][name] = summarize(part) | {"table": str(file)}
    if as_json:
        typer.echo(json.dumps(answer))
        return
    for name, facts in answer["parts"].items():
        typer.echo(
            f"{name}: {facts['queries']:,} queries, {facts['references']:,} references → {facts['table']}"
        )
        typer.echo(f"  {facts['no_positives']}")
    typer.echo("; ".join([*result.notes, f"{result.dropped:,} images left out"]))


@app.command()
def layouts(as_json: _Json = False) -> None:
    """List the layouts that `data import` reads, with their options, and the named protocols."""
    if as_json:
        known = {
            r.name: {"summary": r.summary, "options": r.options, "extra": r.extra} for r in READERS.values()
        }
        protocols = {name: protocol.to_json() for name, protocol in PROTOCOLS.items()}
        typer.echo(json.dumps({"layouts": known, "protocols": protocols}))
        return
    for reader in READERS.values():
        extra = f" (extra: kappaplace[{reader.extra}])" if reader.extra else ""
        typer.secho(f"{reader.name}: {reader.summary}{extra}", bold=True)
        for key, meaning in reader.options.items():
            typer.echo(f"    -o {key}=…  {meaning}")
    typer.echo()
    for protocol in PROTOCOLS.values():
        counts = "no fixed counts"
        if protocol.queries is not None:
            trust = "verified" if protocol.verified else "not verified here"
            counts = f"{protocol.queries:,} queries, {protocol.references:,} references ({trust})"
        typer.echo(f"{protocol.name}: {counts}; {protocol.source}")


def _split_options(by: str, given: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, each of which must mean something for this kind of split."""
    meant = {
        "session": ("gap", "source", "seed"),
        "time": ("gap",),
        "area": ("block", "buffer", "source", "seed"),
    }
    chosen = {key: value for key, value in given.items() if value is not None}
    for key in chosen:
        if key not in meant[by]:
            flag = "sessions" if key == "source" else key
            raise KappaPlaceError(f"--{flag} has no meaning for --by {by}: leave it out.")
    return chosen


def _options(pairs: list[str]) -> dict[str, str]:
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise KappaPlaceError(f"--option {pair!r} lacks its value: write name=value.")
        options[key.replace("-", "_")] = value
    return options


def _asker(yes: bool, as_json: bool) -> Any:
    def ask(text: str) -> bool:
        typer.echo(text, err=True)
        return yes or as_json or not sys.stdin.isatty() or typer.confirm("Is that right?", default=True)

    return ask


def _adjusted(table: PlaceImages, name: str, radius: float | None, neighbourhood: str) -> PlaceImages:
    if radius is not None and table.protocol and radius != table.radius:
        raise KappaPlaceError(f"The protocol {table.protocol} fixes the radius at {table.radius:g} m.")
    changes: dict[str, Any] = {"name": name} if name else {}
    changes |= {"radius": radius} if radius is not None else {}
    changes |= {"neighbourhood": Neighbourhood.parse(neighbourhood)} if neighbourhood else {}
    return replace(table, **changes) if changes else table


def _print_summary(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(facts))
        return
    name = facts["name"] or "table"
    typer.secho(f"{name}: {facts['queries']:,} queries, {facts['references']:,} references", bold=True)
    typer.echo(
        f"  positions   {facts['frame']}, {facts['unposed']:,} unposed, extent {facts['extent_metres']} m"
    )
    typer.echo(f"  positives   {facts['positives']}, {facts['positives_per_query']:.1f} a query")
    typer.echo(f"  policy      {facts['no_positives']}")
    typer.echo(f"  near        {facts['neighbourhood']}")
    known = f"{facts['with_heading']:,} headings, {facts['with_timestamp']:,} times"
    typer.echo(f"  known       {known}, {facts['places']:,} places, {facts['conditions']:,} conditions")
    typer.echo(f"  hash        {facts['hash']}" + (f" ({facts['protocol']})" if facts["protocol"] else ""))
    typer.echo(f"  table       {facts['table']}")
    for warning in facts.get("warnings", []):
        typer.secho(f"  warning: {warning}", fg="yellow", err=True)
    for problem in facts.get("problems", []):
        typer.secho(f"  problem: {problem}", fg="red", err=True)
