"""`kappaplace map localize`: estimate where images were taken, with probabilities and decisions."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kappaplace.cli.options import MapEncoder, MapFolder
from kappaplace.errors import KappaPlaceError
from kappaplace.files import check_target
from kappaplace.maps import LocalizeOptions, OnError
from kappaplace.records import Help

if TYPE_CHECKING:
    from kappaplace.data import Circle
    from kappaplace.maps import Localization, Match, PlaceMap

BAR = 6
COLORS = {"accept": "green", "doubtful": "yellow", "reject": "red"}
OUTCOMES = {"accept": "accepted", "doubtful": "doubtful", "reject": "rejected", None: "without a decision"}


@dataclass(frozen=True)
class SearchOptions:
    """Engine that searches the references."""

    engine: Annotated[str, Help("Search engine: auto, exact, ivf-pq, milvus or postgres.")] = "auto"
    uri: Annotated[str, Help("URL of the database, for milvus and postgres.")] = ""
    collection: Annotated[str, Help("Collection or table of the database. Default: the name of the map.")] = (
        ""
    )


@dataclass(frozen=True)
class AnswerOutput:
    """Options for printing answers and writing them to files."""

    csv: Annotated[
        Path | None, Help("CSV file for the answers, one row per match. Run the command again to resume.")
    ] = None
    html: Annotated[Path | None, Help("HTML page to write, with a map and the matches.")] = None
    verbose: Annotated[
        bool, Help("Also show κ and uncertainty of every match, and the time of each stage.", ("--verbose",))
    ] = False
    as_json: Annotated[bool, Help("Print one JSON object per query.", ("--json",))] = False


def localize(
    place_map: MapFolder,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE…", help="Image files, or folders of them.")],
    options: LocalizeOptions,
    area: Annotated[
        str,
        typer.Option(
            "--area",
            "--near",
            help="Search only this circle: LAT,LON,RADIUS (degrees, metres) or X,Y,RADIUS (metres).",
        ),
    ] = "",
    on_error: Annotated[
        OnError, typer.Option(help="Action for an unreadable image: skip (report it and continue) or stop.")
    ] = "skip",
    *,
    output: AnswerOutput,
    search: SearchOptions,
    encoder: MapEncoder,
) -> None:
    """Estimate where images were taken. Answers are printed as soon as they are ready.

    Examples:

        kappaplace localize town.map query.jpg

        kappaplace localize town.map drive/ --csv answers.csv --html answers.html

        kappaplace localize town.map query.jpg --area 37.7695,-122.4252,100 -k 5 --json
    """
    from kappaplace.maps import AnswerFile
    from kappaplace.progress import track
    from kappaplace.retrieval import EngineOptions

    for file in (output.csv, output.html):
        if file is not None:
            check_target(file)
    engine_options = EngineOptions(uri=search.uri or None, collection=search.collection)
    opened = encoder.open(place_map, search.engine, engine_options)
    csv = output.csv
    options = replace(options, area=_area(area, opened.manifest.frame))
    files = _files(images)
    calibration = opened.calibration or opened.borrowed
    table = None if csv is None else AnswerFile(csv, "" if calibration is None else calibration.fingerprint)
    todo = files if table is None else [file for file in files if file not in table.answered]
    if len(todo) < len(files):
        done = len(files) - len(todo)
        typer.echo(f"{csv} has answers for {done:,} images; {len(todo):,} remain.", err=True)
    answers: list[Localization] = []
    problems: list[str] = []
    show_matches = output.verbose or len(files) == 1
    with track("Localizing", len(todo)) as bar:
        for part in _answers(opened, todo, options, encoder.batch_size, on_error, problems):
            answers += part
            if table is not None:
                table.add(part)
            if output.as_json:
                typer.echo("\n".join(json.dumps(answer.to_dict()) for answer in part))
            else:
                _show(part, show_matches, output.verbose)
            bar.advance(len(part))
    if output.html is not None:
        from kappaplace.reports import write_answers

        write_answers(opened, answers, output.html)
    if problems and len(problems) == len(files):
        raise KappaPlaceError(problems[0])
    for problem in problems:
        typer.secho(f"Skipped: {problem}", fg="yellow", err=True)
    if not output.as_json:
        _show_end(answers, opened.references.engine.why if output.verbose else "", len(problems))


def _answers(
    opened: PlaceMap,
    files: Sequence[str],
    options: LocalizeOptions,
    batch_size: int,
    on_error: OnError,
    problems: list[str],
) -> Iterator[list[Localization]]:
    """Yield the answers of one batch at a time; unreadable images are skipped and added to ``problems``."""
    arguments = asdict(options)
    for start in range(0, len(files), batch_size):
        part = list(files[start : start + batch_size])
        try:
            yield opened.localize(part, batch_size=batch_size, **arguments)
        except KappaPlaceError:
            if on_error == "stop":
                raise
            readable = _readable(opened, part, problems)
            if len(readable) == len(part):  # every image can be read, so the error has another cause
                raise
            if readable:
                yield opened.localize(readable, batch_size=batch_size, **arguments)


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
    """Return the image files; a folder contributes all images below it."""
    from kappaplace.data import images_or_error

    files: list[str] = []
    for image in images:
        files += [str(image / path) for path in images_or_error(image)] if image.is_dir() else [str(image)]
    return files


def _area(text: str, frame: str) -> Circle | None:
    """Return a circle in the frame of the map, from metres or from degrees."""
    if not text:
        return None
    try:
        first, second, radius = (float(part) for part in text.split(","))
    except ValueError:
        raise KappaPlaceError(
            f'--area must be three numbers, LAT,LON,RADIUS or X,Y,RADIUS, got "{text}".'
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
            line = f"{escape(answer.query)}: [{color}]{escape(answer.sentence)}[/{color}]"
            console.print(line, soft_wrap=True, highlight=False)
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
    for column in table.columns:  # in a narrow terminal, only names are folded
        column.no_wrap, column.overflow = column.header != "match", "fold"
    for match in answer.matches:
        table.add_row(*(escape(cell) for cell in _cells(match, calibrated, verbose)))
    console.print(table)
    if verbose:
        times = ", ".join(f"{stage} {1000 * seconds:.1f}" for stage, seconds in answer.seconds.items())
        console.print(f"κ of the query {answer.kappa:.3g}; milliseconds: {times}", style="dim")


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
        parts = [f"{counts[key]:,} {outcome}" for key, outcome in OUTCOMES.items() if key or counts[key]]
        parts += [f"{skipped:,} unreadable"] if skipped else []
        console.print(", ".join(parts))


def _cells(match: Match, calibrated: bool, verbose: bool) -> list[str]:
    last = [bar(max(match.similarity, 0.0))]
    if calibrated:
        probability = match.probability
        shown = "–" if probability is None else f"{bar(probability)} {probability:.2f}"
        last = [shown, match.decision or "–"]
    position = ["–" if math.isnan(value) else f"{value:.1f}" for value in (match.x, match.y)]
    if verbose:
        digits = ".0f" if match.kappa >= 100 else ".3g"
        kappa = "–" if math.isnan(match.kappa) else f"{match.kappa:{digits}}"
        last = [kappa, f"{match.uncertainty:.2g}", *last]
    return [str(match.rank), match.name, *position, f"{match.similarity:.3f}", *last]


def bar(fraction: float) -> str:
    """Return a bar of blocks for a value from 0 to 1."""
    full = round(BAR * min(max(fraction, 0.0), 1.0))
    return "█" * full + "░" * (BAR - full)
