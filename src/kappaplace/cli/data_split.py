"""`kappaplace data split`: leakage-free splits of one collection."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from kappaplace.data.check import summarize
from kappaplace.data.split import SPLITS, Split
from kappaplace.data.table import PlaceImages
from kappaplace.data.table_io import TABLE_FORMATS
from kappaplace.errors import KappaPlaceError

_PARTS = ("train", "calibration", "test")
# Kind of split → what each of its options is called there; any other option has no meaning for it.
_MEANT = {
    "session": ("gap", "source", "seed"),
    "time": ("gap",),
    "area": ("block", "buffer", "source", "seed"),
}


class SplitBy(str, Enum):
    session = "session"
    time = "time"
    area = "area"


def split(
    table: Annotated[Path, typer.Argument(help="A table made by `data import`: .parquet or .csv.")],
    out: Annotated[Path, typer.Option(help="Folder for the parts: calibration, test (and train) tables.")],
    by: Annotated[SplitBy, typer.Option(help="What is kept whole.")] = SplitBy.session,
    calibration: Annotated[float, typer.Option(help="Share of the images for calibration.")] = 0.2,
    test: Annotated[float, typer.Option(help="Share of the images for test.")] = 0.2,
    gap: Annotated[
        float | None,
        typer.Option(help="Seconds between sessions (600) or before a cut (60); frames for routes by time."),
    ] = None,
    block: Annotated[float | None, typer.Option(help="Area: side of the blocks in metres.")] = None,
    buffer: Annotated[
        float | None, typer.Option(help="Area: empty metres between parts (the radius).")
    ] = None,
    sessions: Annotated[
        str | None,
        typer.Option(help="Told apart by: auto (condition, else time), condition, time, folder."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Which sessions or blocks go where (0).")] = None,
    suffix: Annotated[str, typer.Option("--format", help="parquet or csv.")] = "parquet",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Make leakage-free query/reference and calibration splits from one collection.

    By session and by time, calibration and test are two sets of queries to the same references; by area,
    train, calibration and test are separate places with a buffer between them. Queries that the table came
    with are shared out between calibration and test in the proportion of the two shares.

    Examples:

        kappaplace data split walks.parquet --by session --out walks/

        kappaplace data split city.parquet --by area --calibration 0.3 --test 0.3 --out city/
    """
    if f".{suffix}" not in TABLE_FORMATS:
        raise KappaPlaceError(f"--format {suffix} is unknown; choose parquet or csv.")
    given = {"gap": gap, "block": block, "buffer": buffer, "source": sessions, "seed": seed}
    chosen = _split_options(by.value, given)
    result = SPLITS[by.value](PlaceImages.open(table), calibration=calibration, test=test, **chosen)
    _refuse_older_parts(out, {f"{name}.{suffix}" for name in result.parts})
    facts: dict[str, Any] = {}
    for name, part in result.parts.items():
        file = out / f"{name}.{suffix}"
        part.save(file)
        facts[name] = summarize(part) | {"table": str(file)}
    _print(by.value, result, facts, as_json)


def _split_options(by: str, given: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, each of which must mean something for this kind of split."""
    chosen = {key: value for key, value in given.items() if value is not None}
    for key in chosen:
        if key not in _MEANT[by]:
            flag = "sessions" if key == "source" else key
            raise KappaPlaceError(f"--{flag} has no meaning for --by {by}: leave it out.")
    return chosen


def _refuse_older_parts(out: Path, written: set[str]) -> None:
    """A part of an earlier split that would not be replaced holds images of the new parts: never both."""
    for name in (f"{part}{suffix}" for part in _PARTS for suffix in TABLE_FORMATS):
        if name not in written and (out / name).exists():
            raise KappaPlaceError(
                f"{out / name} is of an earlier split and would stay beside the new one, whose parts may "
                "share its images: remove it, or choose another folder with --out."
            )


def _print(by: str, result: Split, facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        answer = {"by": by, "dropped": result.dropped, "notes": list(result.notes), "parts": facts}
        typer.echo(json.dumps(answer))
        return
    for name, part in facts.items():
        counts = f"{part['queries']:,} queries, {part['references']:,} references"
        typer.echo(f"{name}: {counts} → {part['table']}")
        typer.echo(f"  {part['no_positives']}")
    typer.echo(
        "; ".join([*(n for n in result.notes if not _warns(n)), f"{result.dropped:,} images left out"])
    )
    for note in filter(_warns, result.notes):
        typer.secho(note, fg="yellow", err=True)


def _warns(note: str) -> bool:
    return note.startswith("warning:")
