"""``kappaplace localize``: where was this, how probable is it, and what to do with the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kappaplace.errors import KappaPlaceError

if TYPE_CHECKING:
    from kappaplace.maps.answer import Localization, Match

BAR = 6
COLOURS = {"accept": "green", "doubtful": "yellow", "reject": "red"}


def localize(
    place_map: Annotated[Path, typer.Argument(metavar="MAP", help="A map made by `map build`.")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE…", help="Images, or one folder of them.")],
    k: Annotated[int, typer.Option(help="Matches a query.")] = 10,
    near: Annotated[str, typer.Option(help="Search only within R metres of X, Y: X,Y,R.")] = "",
    rerank: Annotated[bool, typer.Option(help="Rank matches by probability.")] = False,
    outside_rate: Annotated[
        float | None, typer.Option(help="Share of queries expected from outside the map.")
    ] = None,
    verify: Annotated[
        int | None,
        typer.Option(help="Matches compared cell by cell and ordered by it; as calibrated unless stated."),
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write one row a match.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with the map and the matches.")] = None,
    engine: Annotated[str, typer.Option(help="auto, exact, ivf-pq, milvus, postgres.")] = "auto",
    uri: Annotated[str, typer.Option(help="Address of a database engine.")] = "",
    collection: Annotated[
        str, typer.Option(help="Collection or table there; the name of the map unless stated.")
    ] = "",
    model: Annotated[str, typer.Option(help="The map's model, if it does not lie where it did.")] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.")] = "",
    batch_size: Annotated[int, typer.Option(help="Images embedded together.")] = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a query.")] = False,
) -> None:
    """Find where images were taken.

    Examples:

        kappaplace localize town.map query.jpg

        kappaplace localize town.map drive/ --csv answers.csv --html answers.html

        kappaplace localize town.map query.jpg --near 550700,4180050,100 --k 5 --json
    """
    from kappaplace.maps import PlaceMap

    given = {"uri": uri, "collection": collection}
    options: dict[str, Any] = {what: value for what, value in given.items() if value}
    opened = PlaceMap.open(place_map, model or None, device=device or None, engine=engine, **options)
    answers = opened.localize(
        _files(images),
        k,
        near=_near(near),
        rerank=rerank,
        outside_rate=outside_rate,
        verify=verify,
        batch_size=batch_size,
    )
    if csv is not None:
        from kappaplace.maps.answer import write_csv

        write_csv(answers, csv)
    if html is not None:
        from kappaplace.reports import write_answers

        write_answers(opened, answers, html)
    if as_json:
        for answer in answers:
            typer.echo(json.dumps(answer.to_dict()))
    else:
        _show(answers, opened.references.engine.why)


def _files(images: list[Path]) -> list[str]:
    """Image files; a folder stands for those below it."""
    from kappaplace.data.readers.layout import images_or_error

    files: list[str] = []
    for image in images:
        files += [str(image / path) for path in images_or_error(image)] if image.is_dir() else [str(image)]
    return files


def _near(text: str) -> tuple[tuple[float, float], float] | None:
    if not text:
        return None
    try:
        x, y, radius = (float(part) for part in text.split(","))
    except ValueError:
        raise KappaPlaceError(
            f"--near takes three numbers, X,Y,R in metres of the map's frame, not {text!r}."
        ) from None
    return (x, y), radius


def _show(answers: Sequence[Localization], search: str) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    for answer in answers:
        colour = COLOURS.get(answer.decision or "", "bold")
        console.print(f"[bold]{escape(answer.query)}[/bold]")
        console.print(f"[{colour}]{escape(answer.sentence)}[/{colour}]")
        if not answer.matches:
            continue
        calibrated = answer.matches[0].probability is not None
        last = ("probability", "decision") if calibrated else ("",)
        # No lines between columns: names, coordinates and decisions shall fit into a terminal of 80 letters.
        slim: Any = {"box": SIMPLE_HEAD, "show_edge": False, "pad_edge": False, "padding": 0}
        table = Table("", "match", "x", "y", "cosine", "κ", "U", *last, **slim)
        for column in table.columns:  # where there is too little room, names alone are folded
            column.no_wrap, column.overflow = column.header != "match", "fold"
        for match in answer.matches:
            table.add_row(*(escape(cell) for cell in _cells(match, calibrated)))
        console.print(table)
        took = ", ".join(f"{stage} {1000 * seconds:.1f}" for stage, seconds in answer.seconds.items())
        console.print(f"κ of the query {answer.kappa:.3g}; milliseconds: {took}", style="dim")
    for note in dict.fromkeys(note for answer in answers for note in answer.notes):
        console.print(escape(note), style="dim")
    console.print(f"Search {escape(search)}.", style="dim")


def _cells(match: Match, calibrated: bool) -> list[str]:
    last = [bar(max(match.similarity, 0.0))]
    if calibrated:
        known = "–" if match.probability is None else f"{bar(match.probability)} {match.probability:.2f}"
        last = [known, match.decision or "–"]
    where = [f"{v:.1f}" if v == v else "–" for v in (match.x, match.y)]  # NaN is not itself
    kappa = "–" if match.kappa != match.kappa else f"{match.kappa:{'.0f' if match.kappa >= 100 else '.3g'}}"
    similarity, uncertainty = f"{match.similarity:.3f}", f"{match.uncertainty:.2g}"
    return [str(match.rank), match.name, *where, similarity, kappa, uncertainty, *last]


def bar(share: float) -> str:
    """How full a bar is, in blocks."""
    full = round(BAR * min(max(share, 0.0), 1.0))
    return "█" * full + "░" * (BAR - full)
