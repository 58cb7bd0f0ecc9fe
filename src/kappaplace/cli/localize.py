"""``kappaplace map localize``: where an image was taken, how probable that is, and what to do with it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kappaplace.cli.options import BatchSize, Device, MapFolder, MapModel
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import LocalizeOptions, OnError

if TYPE_CHECKING:
    from kappaplace.data import Circle
    from kappaplace.maps import Localization, Match, PlaceMap

BAR = 6
COLORS = {"accept": "green", "doubtful": "yellow", "reject": "red"}
OUTCOMES = {"accept": "accepted", "doubtful": "doubtful", "reject": "rejected", None: "without a decision"}


def localize(
    place_map: MapFolder,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE…", help="Image files, or folders of them.")],
    options: LocalizeOptions,
    area: Annotated[
        str,
        typer.Option(
            "--area",
            "--near",
            help="Search only this circle: LAT,LON,RADIUS in meters, or X,Y,RADIUS in the map's own meters.",
        ),
    ] = "",
    on_error: Annotated[
        OnError, typer.Option(help="What to do with an unreadable image: list and skip it, or stop.")
    ] = "skip",
    csv: Annotated[
        Path | None,
        typer.Option(help="CSV file to write, one row per match. A stopped run resumes."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="HTML page to write, with map and matches.")] = None,
    engine: Annotated[
        str, typer.Option(help="Search engine: auto, exact, ivf-pq, milvus or postgres.")
    ] = "auto",
    uri: Annotated[str, typer.Option(help="Address of the database.")] = "",
    collection: Annotated[
        str, typer.Option(help="Collection or table of the database. Default: the name of the map.")
    ] = "",
    model: MapModel = "",
    device: Device = "",
    batch_size: BatchSize = 32,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show every match with its κ and uncertainty, and the times.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per query.")] = False,
) -> None:
    """Find where images were taken. Answers are printed as they come.

    Examples:

        kappaplace localize town.map query.jpg

        kappaplace localize town.map drive/ --csv answers.csv --html answers.html

        kappaplace localize town.map query.jpg --area 37.7695,-122.4252,100 -k 5 --json
    """
    from kappaplace.maps import AnswerFile, PlaceMap
    from kappaplace.progress import track
    from kappaplace.retrieval import EngineOptions

    opened = PlaceMap.open(
        place_map,
        model or None,
        device=device or None,
        engine=engine,
        engine_options=EngineOptions(uri=uri or None, collection=collection),
    )
    options = replace(options, area=_area(area, opened.manifest.frame))
    files = _files(images)
    judged_by = opened.calibration or opened.borrowed
    table = None if csv is None else AnswerFile(csv, "" if judged_by is None else judged_by.fingerprint)
    todo = files if table is None else [file for file in files if file not in table.answered]
    if len(todo) < len(files):
        done = len(files) - len(todo)
        typer.echo(f"{csv} has answers of {done:,} images; {len(todo):,} are left.", err=True)
    answers: list[Localization] = []
    problems: list[str] = []
    show_matches = verbose or len(files) == 1
    with track("Localizing", len(todo)) as bar:
        for part in _answers(opened, todo, options, batch_size, on_error, problems):
            answers += part
            if table is not None:
                table.add(part)
            if as_json:
                typer.echo("\n".join(json.dumps(answer.to_dict()) for answer in part))
            else:
                _show(part, show_matches, verbose)
            bar.advance(len(part))
    if html is not None:
        from kappaplace.reports import write_answers

        write_answers(opened, answers, html)
    if problems and len(problems) == len(files):
        raise KappaPlaceError(problems[0])
    for problem in problems:
        typer.secho(f"Skipped: {problem}", fg="yellow", err=True)
    if not as_json:
        _show_end(answers, opened.references.engine.why if verbose else "", len(problems))


def _answers(
    opened: PlaceMap,
    files: Sequence[str],
    options: LocalizeOptions,
    batch_size: int,
    on_error: OnError,
    problems: list[str],
) -> Iterator[list[Localization]]:
    """Yield answers in parts of one batch; images that cannot be read are left out and told."""
    asked = asdict(options)
    for start in range(0, len(files), batch_size):
        part = list(files[start : start + batch_size])
        try:
            yield opened.localize(part, batch_size=batch_size, **asked)
        except KappaPlaceError:
            if on_error == "stop":
                raise
            readable = _readable(opened, part, problems)
            if len(readable) == len(part):  # it was not the images
                raise
            if readable:
                yield opened.localize(readable, batch_size=batch_size, **asked)


def _readable(opened: PlaceMap, files: Sequence[str], problems: list[str]) -> list[str]:
    readable = []
    for file in files:
        try:
            opened.model.preprocessing.image(file)
        except KappaPlaceError as error:
            problems.append(str(error))
        else:
            readable.append(file)
    return readable


def _files(images: list[Path]) -> list[str]:
    """Image files; a folder stands for those below it."""
    from kappaplace.data import images_or_error

    files: list[str] = []
    for image in images:
        files += [str(image / path) for path in images_or_error(image)] if image.is_dir() else [str(image)]
    return files


def _area(text: str, frame: str) -> Circle | None:
    """A circle in the frame of a map, from meters or from degrees."""
    if not text:
        return None
    try:
        first, second, radius = (float(part) for part in text.split(","))
    except ValueError:
        raise KappaPlaceError(
            f"--area needs three numbers, LAT,LON,RADIUS or X,Y,RADIUS, got {text!r}."
        ) from None
    if frame != "local" and abs(first) <= 90 and abs(second) <= 180:
        from kappaplace.data import project_point

        first, second = project_point(first, second, frame)
    return first, second, radius


def _show(answers: Sequence[Localization], matches: bool, verbose: bool) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    for answer in answers:
        color = COLORS.get(answer.decision or "", "bold")
        if not matches:
            said = f"{escape(answer.query)}: [{color}]{escape(answer.sentence)}[/{color}]"
            console.print(said, soft_wrap=True, highlight=False)
            continue
        console.print(f"[bold]{escape(answer.query)}[/bold]")
        console.print(f"[{color}]{escape(answer.sentence)}[/{color}]")
        if answer.matches:
            _show_matches(answer, verbose)


def _show_matches(answer: Localization, verbose: bool) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console, calibrated = Console(), answer.matches[0].probability is not None
    names = ["", "match", "x", "y", "cosine", *(("κ", "U") if verbose else ())]
    names += ["probability", "decision"] if calibrated else [""]
    # No lines between columns: names, coordinates and decisions fit into a terminal of 80 characters.
    table = Table(*names, box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    for column in table.columns:  # where there is too little room, names alone are folded
        column.no_wrap, column.overflow = column.header != "match", "fold"
    for match in answer.matches:
        table.add_row(*(escape(cell) for cell in _cells(match, calibrated, verbose)))
    console.print(table)
    if verbose:
        took = ", ".join(f"{stage} {1000 * seconds:.1f}" for stage, seconds in answer.seconds.items())
        console.print(f"κ of the query {answer.kappa:.3g}; milliseconds: {took}", style="dim")


def _show_end(answers: Sequence[Localization], search: str, skipped: int) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    for note in dict.fromkeys(note for answer in answers for note in answer.notes):
        console.print(escape(note), style="dim")
    if search:
        console.print(f"Search {escape(search)}.", style="dim")
    if len(answers) + skipped > 1:
        counts = Counter(answer.decision for answer in answers)
        said = [f"{counts[key]:,} {words}" for key, words in OUTCOMES.items() if key or counts[key]]
        said += [f"{skipped:,} unreadable"] if skipped else []
        console.print(", ".join(said))


def _cells(match: Match, calibrated: bool, verbose: bool) -> list[str]:
    last = [bar(max(match.similarity, 0.0))]
    if calibrated:
        known = "–" if match.probability is None else f"{bar(match.probability)} {match.probability:.2f}"
        last = [known, match.decision or "–"]
    where = [f"{v:.1f}" if v == v else "–" for v in (match.x, match.y)]  # NaN is not itself
    if verbose:
        kappa = (
            "–" if match.kappa != match.kappa else f"{match.kappa:{'.0f' if match.kappa >= 100 else '.3g'}}"
        )
        last = [kappa, f"{match.uncertainty:.2g}", *last]
    return [str(match.rank), match.name, *where, f"{match.similarity:.3f}", *last]


def bar(share: float) -> str:
    """Return a bar of blocks."""
    full = round(BAR * min(max(share, 0.0), 1.0))
    return "█" * full + "░" * (BAR - full)
