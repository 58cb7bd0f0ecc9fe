"""`kappaplace data`: import any collection of images with poses, check it, look at it, split it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from kappaplace.cli import data_split
from kappaplace.data.check import find_problems, summarize
from kappaplace.data.near import Neighborhood
from kappaplace.data.positives import NoPositives
from kappaplace.data.protocols import PROTOCOLS, Protocol, get_protocol, read_protocol
from kappaplace.data.readers import READERS, read_layout
from kappaplace.data.table import PlaceImages
from kappaplace.data.table_io import TABLE_FORMATS, recorded_hash
from kappaplace.errors import KappaPlaceError

app = typer.Typer(
    no_args_is_help=True, help="Import, check, show and split collections of images with poses."
)


_Table = Annotated[Path, typer.Argument(help="A table made by `data import`: .parquet or .csv.")]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
_Root = Annotated[Path | None, typer.Option(help="Where the images lie now, if they have moved.")]
_Policy = Annotated[
    NoPositives | None,
    typer.Option(
        help="Queries without positives: fail (count as failures), skip (leave out) or error; "
        "by default the protocol's, else fail."
    ),
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
    neighborhood: Annotated[
        str,
        typer.Option("--neighborhood", "--neighbourhood", help="What is near: metres:25, frames:5 or self."),
    ] = "",
    policy: _Policy = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask whether guessed columns are right.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Read a folder into one table.

    Examples:

        kappaplace data import photos ~/walk --out walk.parquet

        kappaplace data import csv ~/drive -o csv=poses.csv --out drive.parquet

        kappaplace data import at-names ~/sf_xl -o split=test -o queries=v1 --out sfxl.parquet

        kappaplace data import pitts30k-test ~/pittsburgh --out pitts30k.parquet
    """
    if out.suffix.lower() not in TABLE_FORMATS:
        raise KappaPlaceError(f"{out} is neither .parquet nor .csv: tables are kept in one of these formats.")
    if layout in PROTOCOLS:
        _refuse_changes(layout, radius, neighborhood)
    elif layout not in READERS:
        raise KappaPlaceError(
            f"{layout!r} is neither a layout ({', '.join(READERS)}) nor a protocol ({', '.join(PROTOCOLS)})."
        )
    options, ask = _options(option or []), _asker(yes, as_json)
    warnings: tuple[str, ...] = ()
    if layout in PROTOCOLS:
        table, checked = read_protocol(layout, folder, options, ask=ask, table_name=name)
        warnings = checked.warnings
    else:
        _check_options(layout, options)
        table = _adjusted(read_layout(layout, folder, ask=ask, **options), name, radius, neighborhood)
    # The summary comes first: a policy that is not met must leave the table that was there alone.
    facts = summarize(table, _policy(table, policy)) | _protocol_facts(table)
    table.save(out)
    _print_summary(facts | {"table": str(out), "warnings": list(warnings)}, as_json)


@app.command()
def check(
    table: _Table,
    root: _Root = None,
    images: Annotated[bool, typer.Option(help="Look whether every image is there.")] = True,
    decode: Annotated[
        bool, typer.Option("--decode", help="Decode every image, to find corrupt ones.")
    ] = False,
    policy: _Policy = None,
    as_json: _Json = False,
) -> None:
    """Tell what a table holds and what is wrong with it; exit code 1 if something is.

    Examples:

        kappaplace data check walk.parquet

        kappaplace data check walk.parquet --decode

        kappaplace data check pitts30k.parquet --root /disk/pittsburgh --policy error
    """
    opened = PlaceImages.open(table, root)
    found = find_problems(opened, images=images, decode=decode, recorded_hash=recorded_hash(table))
    facts = summarize(opened, _policy(opened, policy)) | _protocol_facts(opened)
    _print_summary(facts | {"table": str(table)} | found, as_json)
    if found["problems"]:
        raise typer.Exit(1)


@app.command()
def show(
    table: _Table,
    out: Annotated[Path, typer.Option(help="The image to write, as .png.")],
    root: _Root = None,
) -> None:
    """Draw the map: references, queries, lines to positives, coverage.

    Examples:

        kappaplace data show walk.parquet --out walk.png
    """
    from kappaplace.reports import write_table_map as draw

    typer.echo(f"{out}: {draw(PlaceImages.open(table, root), out).sentence}")


app.command("split")(data_split.split)


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
        trust = "verified" if protocol.verified else "not verified here"
        counts = f"{protocol.queries:,} queries, {protocol.references:,} references ({trust})"
        typer.secho(f"{protocol.name}: {counts}; {protocol.source}", bold=True)
        typer.echo(f"    {_protocol_text(protocol)}")
        for key in protocol.options:
            typer.echo(f"    -o {key}=…")


def _options(pairs: list[str]) -> dict[str, str]:
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise KappaPlaceError(f"--option {pair!r} lacks its value: write name=value.")
        options[key.replace("-", "_")] = value
    return options


def _check_options(layout: str, options: dict[str, str]) -> None:
    """Before they become keywords: a name such as `folder` would pass for a parameter of the reader."""
    known = READERS[layout].options
    for key in options:
        if key not in known:
            names = ", ".join(known) or "none"
            raise KappaPlaceError(f"Layout {layout} has no option {key!r}; it has {names}.")


def _asker(yes: bool, as_json: bool) -> Any:
    def ask(text: str) -> bool:
        typer.echo(text, err=True)
        return yes or as_json or not sys.stdin.isatty() or typer.confirm("Is that right?", default=True)

    return ask


def _refuse_changes(protocol: str, radius: float | None, neighborhood: str) -> None:
    """What a protocol fixes cannot be given, not even with the same value: nothing is left to say."""
    for flag, given in (("radius", radius is not None), ("neighborhood", bool(neighborhood))):
        if given:
            raise KappaPlaceError(f"The protocol {protocol} fixes the {flag}: leave --{flag} out.")


def _adjusted(table: PlaceImages, name: str, radius: float | None, neighborhood: str) -> PlaceImages:
    """The table with what the user stated; a neighbourhood in metres follows the radius unless stated."""
    table = table if radius is None else table.with_radius(radius)
    changes: dict[str, Any] = {"name": name} if name else {}
    changes |= {"neighborhood": Neighborhood.parse(neighborhood)} if neighborhood else {}
    return replace(table, **changes) if changes else table


def _policy(table: PlaceImages, given: NoPositives | None) -> NoPositives:
    if given is not None:
        return given
    return get_protocol(table.protocol).no_positives if table.protocol in PROTOCOLS else NoPositives.FAIL


def _protocol_facts(table: PlaceImages) -> dict[str, Any]:
    """What the protocol asks of an evaluation beyond the table: the resizing of images."""
    protocol = PROTOCOLS.get(table.protocol)
    return {} if protocol is None else {"resize": protocol.resize, "images": protocol.resize_text()}


def _protocol_text(protocol: Protocol) -> str:
    return (
        f"{protocol.split} split, positives within {protocol.radius:g} m, images {protocol.resize_text()}, "
        f"queries without positives: {protocol.no_positives.value}"
        + (f"; {protocol.note}" * bool(protocol.note))
    )


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
    if "images" in facts:
        typer.echo(f"  images      {facts['images']}")
    known = f"{facts['with_heading']:,} headings, {facts['with_timestamp']:,} times"
    typer.echo(f"  known       {known}, {facts['places']:,} places, {facts['conditions']:,} conditions")
    typer.echo(f"  hash        {facts['hash']}" + (f" ({facts['protocol']})" if facts["protocol"] else ""))
    typer.echo(f"  table       {facts['table']}")
    for warning in facts.get("warnings", []):
        typer.secho(f"  warning: {warning}", fg="yellow", err=True)
    for problem in facts.get("problems", []):
        typer.secho(f"  problem: {problem}", fg="red", err=True)
    for sentence in facts.get("corrupt", []):
        typer.echo(f"    {sentence}", err=True)
