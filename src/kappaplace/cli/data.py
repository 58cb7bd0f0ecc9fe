"""`kappaplace data`: import, check, show and split collections of images with poses; write a synthetic
city."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from kappaplace.cli.options import AsJson, command
from kappaplace.data import (
    PROTOCOLS,
    READERS,
    TABLE_FORMATS,
    Neighborhood,
    NoPositives,
    PlaceImages,
    Protocol,
    SplitOptions,
    TableProblems,
    TableSummary,
    find_problems,
    get_protocol,
    read_layout,
    read_protocol,
    recorded_hash,
    split_table,
    summarize,
)
from kappaplace.errors import KappaPlaceError
from kappaplace.records import Help, to_plain
from kappaplace.types import Json

app = typer.Typer(
    no_args_is_help=True, help="Import, check, show and split collections of images with poses."
)

_Table = Annotated[Path, typer.Argument(help="Table written by `data import`: .parquet or .csv.")]
_Root = Annotated[Path | None, typer.Option(help="Folder of the images, if they have moved.")]
_POLICY = (
    "Policy for queries without positives: fail (count as failures), skip (exclude) or error. "
    "Default: the policy of the protocol, otherwise fail."
)
_Policy = Annotated[NoPositives | None, typer.Option(help=_POLICY)]


@dataclass(frozen=True)
class ImportOptions:
    """Options of `kappaplace data import`."""

    option: Annotated[
        list[str], Help("Option of the layout, as name=value; can be repeated.", ("--option", "-o"))
    ] = field(default_factory=list)
    name: Annotated[str, Help("Name of the table. Default: the name of the folder.")] = ""
    radius: Annotated[
        float | None,
        Help(
            "Maximum distance in metres between a query and a positive. "
            "Default: that of the layout, usually 25."
        ),
    ] = None
    neighborhood: Annotated[
        str,
        Help(
            "Which references show the same place: metres:25 (within 25 m), frames:5 (within 5 frames of "
            "the same route) or self (only the reference itself).",
            ("--neighborhood", "--neighbourhood"),
        ),
    ] = ""
    policy: Annotated[NoPositives | None, Help(_POLICY)] = None


@command(app, "import")
def import_(
    layout: Annotated[
        str, typer.Argument(help="Name of a layout or protocol; see `kappaplace data layouts`.")
    ],
    folder: Annotated[Path, typer.Argument(help="Folder (or ROS bag) to read.")],
    out: Annotated[Path, typer.Option(help="Table to write: .parquet or .csv.")],
    options: ImportOptions,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask to confirm guessed columns.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read a folder of images into one table.

    Examples:

        kappaplace data import photos ~/walk --out walk.parquet

        kappaplace data import csv ~/drive -o csv=poses.csv --out drive.parquet

        kappaplace data import at-names ~/sf_xl -o split=test -o queries=v1 --out sfxl.parquet

        kappaplace data import pitts30k-test ~/pittsburgh --out pitts30k.parquet
    """
    if out.suffix.lower() not in TABLE_FORMATS:
        raise KappaPlaceError(f'--out must be a .parquet or .csv file, got "{out}".')
    reader_options, ask = _reader_options(options.option), _asker(yes or as_json)
    warnings: tuple[str, ...] = ()
    if layout in PROTOCOLS:
        for flag, value in (("radius", options.radius), ("neighborhood", options.neighborhood or None)):
            if value is not None:
                raise KappaPlaceError(f"The protocol {layout} fixes the {flag}. Omit --{flag}.")
        table, checked = read_protocol(layout, folder, reader_options, ask=ask, table_name=options.name)
        warnings = checked.warnings
    elif layout in READERS:
        # checked here, because "folder" would be taken for the parameter of the reader
        for key in reader_options:
            if key not in READERS[layout].options:
                names = ", ".join(READERS[layout].options) or "none"
                raise KappaPlaceError(f'The layout {layout} has no option "{key}". Choose from: {names}.')
        table = _adjusted(read_layout(layout, folder, ask=ask, **reader_options), options)
    else:
        raise KappaPlaceError(
            f'Unknown layout or protocol "{layout}". Choose from: {", ".join([*READERS, *PROTOCOLS])}.'
        )
    # before writing, so that a failure leaves no file
    summary = summarize(table, _policy(table, options.policy))
    table.save(out)
    _print(table, summary, out, TableProblems((), warnings), as_json)


@app.command()
def check(
    table: _Table,
    root: _Root = None,
    images: Annotated[bool, typer.Option(help="Check that every image file exists.")] = True,
    decode: Annotated[
        bool, typer.Option("--decode", help="Decode every image, to find corrupt ones.")
    ] = False,
    policy: _Policy = None,
    as_json: AsJson = False,
) -> None:
    """Report the content of a table and its problems; exit with code 1 if there are any.

    Examples:

        kappaplace data check walk.parquet

        kappaplace data check walk.parquet --decode

        kappaplace data check pitts30k.parquet --root /disk/pittsburgh --policy error
    """
    images_of = PlaceImages.open(table, root)
    problems = find_problems(images_of, images=images, decode=decode, recorded_hash=recorded_hash(table))
    _print(images_of, summarize(images_of, _policy(images_of, policy)), table, problems, as_json)
    if problems.problems:
        raise typer.Exit(1)


@app.command()
def show(
    table: _Table, out: Annotated[Path, typer.Option(help="Image to write: .png.")], root: _Root = None
) -> None:
    """Draw a top view of a table: references, queries, lines from queries to positives, and coverage.

    Examples:

        kappaplace data show walk.parquet --out walk.png
    """
    from kappaplace.reports import write_table_map

    typer.echo(f"{out}: {write_table_map(PlaceImages.open(table, root), out).sentence}")


@command(app, "split")
def split(
    table: _Table,
    out: Annotated[
        Path, typer.Option(help="Folder for the tables: calibration, test and (with --by area) train.")
    ],
    options: SplitOptions,
    suffix: Annotated[Literal["parquet", "csv"], typer.Option("--format", help="Format of the tables.")] = (
        "parquet"
    ),
    as_json: AsJson = False,
) -> None:
    """Split one collection into tables for calibration and test without leaks.

    With `--by session` or `time`, calibration and test have different queries and the same references. With
    `--by area`, train, calibration and test are separate areas with a buffer between them. If the table has
    queries, they are divided between calibration and test in proportion to the two fractions.

    Examples:

        kappaplace data split walks.parquet --by session --out walks/

        kappaplace data split city.parquet --by area --calibration 0.3 --test 0.3 --out city/
    """
    result = split_table(PlaceImages.open(table), options)
    files = result.save(out, f".{suffix}")
    parts = {name: summarize(part) for name, part in result.parts.items()}
    if as_json:
        facts = {name: to_plain(part) | {"table": str(files[name])} for name, part in parts.items()}
        answer = {"by": options.by, "dropped": result.dropped, "notes": result.notes, "parts": facts}
        typer.echo(json.dumps(answer))
        return
    for name, part in parts.items():
        typer.echo(f"{name}: {part.queries:,} queries, {part.references:,} references → {files[name]}")
        typer.echo(f"  {part.no_positives}")
    warnings = [note for note in result.notes if note.startswith("warning:")]
    notes = [note for note in result.notes if note not in warnings]
    typer.echo("; ".join([*notes, f"{result.dropped:,} images dropped"]))
    for warning in warnings:
        typer.secho(warning, fg="yellow", err=True)


@app.command()
def city(
    out: Annotated[Path, typer.Option(help="Folder to write; a second run adds only missing images.")],
    seed: Annotated[
        int, typer.Option(help="Random seed of the city; the same seed gives the same bytes.")
    ] = 0,
    size: Annotated[int, typer.Option(help="Width and height of the images in pixels.")] = 128,
    blocks: Annotated[int, typer.Option(help="Building blocks per side of each district.")] = 3,
    queries: Annotated[
        int, typer.Option(help="Number of queries in each of the districts val and test.")
    ] = 400,
    as_json: AsJson = False,
) -> None:
    """Write a synthetic city in the file layout of CosPlace: train, val and test districts.

    Examples:

        kappaplace data city --out city

        kappaplace data city --out big --blocks 8 --size 256 --seed 3

        kappaplace data import at-names city/test --out test.parquet
    """
    from kappaplace_city import SPLITS, SyntheticCity, write_city

    world = SyntheticCity(seed, (blocks, blocks))
    views = {split: world.views(split, queries=queries) for split in SPLITS}
    folder = write_city(world, out, size, views=views)
    counts = {
        split: {"references": int((~part.is_query).sum()), "queries": int(part.is_query.sum())}
        for split, part in views.items()
    }
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), "seed": seed, "size": size, "images": counts}))
        return
    for name, count in counts.items():
        typer.echo(f"{name:<5} {count['references']:>6,} references {count['queries']:>6,} queries")
    typer.echo(f"Written to {folder}; {folder / 'conditions.csv'} lists how each image is degraded.")


@app.command()
def layouts(as_json: AsJson = False) -> None:
    """List the layouts that `data import` reads, with their options, and the protocols."""
    if as_json:
        readers = {
            r.name: {"summary": r.summary, "options": r.options, "extra": r.extra} for r in READERS.values()
        }
        protocols = {name: protocol.to_json() for name, protocol in PROTOCOLS.items()}
        typer.echo(json.dumps({"layouts": readers, "protocols": protocols}))
        return
    for reader in READERS.values():
        extra = f' (extra "{reader.extra}")' if reader.extra else ""
        typer.secho(f"{reader.name}: {reader.summary}{extra}", bold=True)
        for key, meaning in reader.options.items():
            typer.echo(f"    -o {key}=…  {meaning}")
    typer.echo()
    for protocol in PROTOCOLS.values():
        trust = "verified" if protocol.verified else "not verified"
        counts = f"{protocol.queries:,} queries, {protocol.references:,} references ({trust})"
        typer.secho(f"{protocol.name}: {counts}; {protocol.source}", bold=True)
        typer.echo(f"    {_protocol_text(protocol)}")
        for key in protocol.options:
            typer.echo(f"    -o {key}=…")


def _reader_options(pairs: list[str]) -> dict[str, str]:
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise KappaPlaceError(f'--option needs name=value, got "{pair}".')
        options[key.replace("-", "_")] = value
    return options


def _asker(agreed: bool) -> Callable[[str], bool]:
    def ask(text: str) -> bool:
        typer.echo(text, err=True)
        return agreed or not sys.stdin.isatty() or typer.confirm("Is this correct?", default=True)

    return ask


def _adjusted(table: PlaceImages, options: ImportOptions) -> PlaceImages:
    """Apply the user's choices; a neighborhood in metres follows the radius unless the user passes one."""
    table = table if options.radius is None else table.with_radius(options.radius)
    table = replace(table, name=options.name) if options.name else table
    near = options.neighborhood
    return replace(table, neighborhood=Neighborhood.parse(near)) if near else table


def _policy(table: PlaceImages, policy: NoPositives | None) -> NoPositives:
    if policy is not None:
        return policy
    return get_protocol(table.protocol).no_positives if table.protocol in PROTOCOLS else NoPositives.FAIL


def _protocol_text(protocol: Protocol) -> str:
    return (
        f"{protocol.split} split, positives within {protocol.radius:g} m, images {protocol.resize_text()}, "
        f"queries without positives: {protocol.no_positives.value}"
        + (f"; {protocol.note}" * bool(protocol.note))
    )


def _print(
    table: PlaceImages, summary: TableSummary, file: Path, problems: TableProblems, as_json: bool
) -> None:
    protocol = PROTOCOLS.get(table.protocol)
    if as_json:
        facts: dict[str, Json] = {**to_plain(summary), "table": str(file)}
        if protocol is not None:
            facts |= {"resize": protocol.resize, "images": protocol.resize_text()}
        typer.echo(json.dumps(facts | to_plain(problems)))
        return
    counts = f"{summary.queries:,} queries, {summary.references:,} references"
    typer.secho(f"{summary.name or 'table'}: {counts}", bold=True)
    width, height = summary.extent_meters
    lines = {
        "positions": f"{summary.frame}, {summary.unposed:,} without, extent {width:g} × {height:g} m",
        "positives": f"{summary.positives}, {summary.positives_per_query:.1f} per query",
        "policy": summary.no_positives,
        "near": summary.neighborhood,
        "images": "" if protocol is None else protocol.resize_text(),
        "metadata": f"{summary.with_heading:,} headings, {summary.with_timestamp:,} times, "
        f"{summary.places:,} places, {summary.conditions:,} conditions",
        "hash": summary.hash + (f" ({summary.protocol})" if summary.protocol else ""),
        "table": str(file),
    }
    for label, text in lines.items():
        if text:
            typer.echo(f"  {label:<11} {text}")
    for warning in problems.warnings:
        typer.secho(f"  warning: {warning}", fg="yellow", err=True)
    for problem in problems.problems:
        typer.secho(f"  problem: {problem}", fg="red", err=True)
    for message in problems.corrupt or ():
        typer.echo(f"    {message}", err=True)
