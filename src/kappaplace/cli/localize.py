"""`kappaplace map localize`: estimate where images were taken, with probabilities and decisions."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kappaplace.checks import within
from kappaplace.cli.options import MapEncoder, MapFolder
from kappaplace.errors import KappaPlaceError
from kappaplace.files import check_target
from kappaplace.maps import LocalizeOptions, OnError, SequenceOptions, area_of
from kappaplace.records import Help, Setting

if TYPE_CHECKING:
    from rich.console import Console

    from kappaplace.data import SequenceImage, Source
    from kappaplace.maps import Localization, Match, PlaceMap

BAR = 6
COLORS = {"accept": "green", "doubtful": "yellow", "reject": "red"}
OUTCOMES = {"accept": "accepted", "doubtful": "doubtful", "reject": "rejected", None: "without a decision"}


@dataclass(frozen=True)
class SearchOptions:
    """Engine that searches the references."""

    engine: Annotated[str, Help("Search engine: auto, exact, ivf-pq, milvus or postgres.")] = "auto"
    uri: Annotated[str, Setting("URL of the database, for milvus and postgres.")] = ""
    collection: Annotated[
        str, Setting("collection or table of the database. Default: the name of the map.")
    ] = ""


@dataclass(frozen=True)
class QueryInput(SequenceOptions):
    """Options for reading the images."""

    on_error: Annotated[
        OnError, Help("Action for an unreadable image: skip (report it and continue) or stop.")
    ] = "skip"
    sequence: Annotated[
        bool,
        Help(
            "Localize the images together, as those of one camera in this order. IMAGE is then a folder, a "
            "video, a ROS bag, the number of a camera, or the URL of a stream.",
            ("--sequence",),
        ),
    ] = False
    every: Annotated[float, Setting("seconds between two images of a video, a bag or a stream.")] = 1.0
    start: Annotated[
        str,
        Setting("time of the first frame of a video, such as 2026-05-01T10:00:00+02:00. Default: unknown."),
    ] = ""
    image_topic: Annotated[str, Setting("image topic of a bag. Default: the only one.")] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self.every, "--every", 0, 86_400)
        try:
            datetime.fromisoformat(self.start or "2026-05-01")
        except ValueError:
            raise KappaPlaceError(
                f"--start must be a date and time such as 2026-05-01T10:00:00+02:00, got '{self.start}'."
            ) from None


@dataclass(frozen=True)
class AnswerOutput:
    """Options for printing answers and writing them to files."""

    csv: Annotated[
        Path | None, Help("CSV file for the answers, one row per match. Run the command again to resume.")
    ] = None
    out: Annotated[
        Path | None,
        Help("File of positions to write: .geojson, .gpx, .kml, .mcap (ROS 2), or .csv like --csv."),
    ] = None
    html: Annotated[Path | None, Help("HTML page to write, with a map and the matches.")] = None
    verbose: Annotated[
        bool, Help("Also show κ and uncertainty of every match, and the time of each stage.", ("--verbose",))
    ] = False
    as_json: Annotated[bool, Help("Print one JSON object per query.", ("--json",))] = False


def localize(
    place_map: MapFolder,
    images: Annotated[list[str], typer.Argument(metavar="IMAGE…", help="Image files, or folders of them.")],
    options: LocalizeOptions,
    area: Annotated[
        str,
        typer.Option(
            "--area",
            "--near",
            help="Search only this circle: LAT,LON,RADIUS (degrees, metres) or X,Y,RADIUS (metres).",
        ),
    ] = "",
    *,
    queries: QueryInput,
    output: AnswerOutput,
    search: SearchOptions,
    encoder: MapEncoder,
) -> None:
    """Estimate where images were taken. Answers are printed as soon as they are ready.

    Examples:

        kappaplace localize town.map query.jpg

        kappaplace localize town.map drive/ --csv answers.csv --html answers.html

        kappaplace localize town.map drive/ --out drive.gpx

        kappaplace localize town.map query.jpg --area 37.7695,-122.4252,100m -k 5 --json

        kappaplace localize town.map --sequence walk.mp4 --every 0.5 --out walk.gpx
    """
    from kappaplace.maps import AnswerFile, check_positions_file, write_positions
    from kappaplace.progress import track
    from kappaplace.retrieval import EngineOptions

    for file in (output.csv, output.out, output.html):
        if file is not None:
            check_target(file)
    if queries.sequence and output.csv is not None and output.csv.exists():
        raise KappaPlaceError(
            f"The file {output.csv} already exists, and --sequence cannot resume an earlier run. "
            "Choose another --csv file, or delete this one."
        )
    engine_options = EngineOptions(uri=search.uri or None, collection=search.collection)
    opened = encoder.open(place_map, search.engine, engine_options)
    csv, out = output.csv, output.out
    if out is not None:
        check_positions_file(out, opened.manifest.frame)
        csv, out = (out, None) if csv is None and out.suffix.lower() == ".csv" else (csv, out)
    options = replace(options, area=area_of(area) if area else None)
    files = images if queries.sequence else _files(images)
    calibration = opened.calibration or opened.borrowed
    table = None if csv is None else AnswerFile(csv, "" if calibration is None else calibration.fingerprint)
    todo = files if table is None else [file for file in files if file not in table.answered]
    if len(todo) < len(files):
        done = len(files) - len(todo)
        typer.echo(f"{csv} has answers for {done:,} images; {len(todo):,} remain.", err=True)
    answers: list[Localization] = []
    problems: list[str] = []
    show_matches = output.verbose or (len(files) == 1 and not queries.sequence)
    read = sequence_answers if queries.sequence else _answers
    with track("Localizing", 0 if queries.sequence else len(todo)) as bar:
        for part in read(opened, todo, options, queries, encoder.batch_size, problems):
            answers += part
            if table is not None:
                table.add(part)
            if output.as_json:
                typer.echo("\n".join(json.dumps(answer.to_dict()) for answer in part))
            else:
                _show(part, show_matches, output.verbose)
            bar.advance(len(part))
    if out is not None:
        write_positions(answers, out, opened.manifest.radius)
    if output.html is not None:
        from kappaplace.reports import write_answers

        write_answers(opened, answers, output.html)
    if problems and not answers:
        raise KappaPlaceError(problems[0])
    for problem in problems:
        typer.secho(f"Skipped: {problem}", fg="yellow", err=True)
    if not output.as_json:
        _show_end(answers, opened.references.engine.why if output.verbose else "", len(problems))


def _answers(
    opened: PlaceMap,
    files: Sequence[str],
    options: LocalizeOptions,
    queries: QueryInput,
    batch_size: int,
    problems: list[str],
) -> Iterator[list[Localization]]:
    """Yield the answers of one batch at a time; unreadable images are skipped and added to ``problems``."""
    for start in range(0, len(files), batch_size):
        part = list(files[start : start + batch_size])
        try:
            answers = opened.localize(part, options, batch_size=batch_size)
        except KappaPlaceError:
            if queries.on_error == "stop":
                raise
            readable = _readable(opened, part, problems)
            if len(readable) == len(part):  # every image can be read, so the error has another cause
                raise
            answers = opened.localize(readable, options, batch_size=batch_size) if readable else []
        yield answers


def sequence_answers(
    opened: PlaceMap,
    sources: Sequence[str],
    options: LocalizeOptions,
    queries: QueryInput,
    batch_size: int,
    problems: list[str],
) -> Iterator[list[Localization]]:
    """Yield the answers of a sequence; those of a stream one by one, until it ends or until Ctrl-C."""
    from kappaplace.data import is_stream, sequence_images

    start = None if not queries.start else datetime.fromisoformat(queries.start).timestamp()

    def frames() -> Iterator[SequenceImage]:
        return sequence_images(sources, queries.every, queries.image_topic, start)

    if not is_stream(sources[0]):
        try:
            yield _fused(opened, frames(), options, queries, batch_size)
            return
        except KappaPlaceError:
            if queries.on_error == "stop" or not isinstance(next(frames()).image, str):
                raise
            files = list(frames())
            readable = set(_readable(opened, [str(frame.image) for frame in files], problems))
            if len(readable) == len(files):
                raise
        if readable:
            kept = iter([frame for frame in files if frame.image in readable])
            yield _fused(opened, kept, options, queries, batch_size)
        return
    follower = opened.follow(queries.step)
    with suppress(KeyboardInterrupt):
        for frame in frames():
            answers = opened.localize_sequence([frame.image], options, follower=follower)
            yield [_named(answers[0], frame)]


def _fused(
    opened: PlaceMap,
    frames: Iterator[SequenceImage],
    options: LocalizeOptions,
    queries: QueryInput,
    batch_size: int,
) -> list[Localization]:
    """Return the answers of a whole sequence."""
    seen: list[SequenceImage] = []

    def images() -> Iterator[Source]:
        for frame in frames:
            seen.append(frame._replace(image=""))  # the images are not kept
            yield frame.image

    answers = opened.localize_sequence(images(), options, queries, batch_size=batch_size)
    return [_named(*pair) for pair in zip(answers, seen, strict=True)]


def _named(answer: Localization, frame: SequenceImage) -> Localization:
    return replace(answer, query=frame.name, time=frame.time)


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


def _files(images: Sequence[str]) -> list[str]:
    """Return the image files; a folder contributes all images below it."""
    from kappaplace.data import images_or_error

    files: list[str] = []
    for image in map(Path, images):
        files += [str(image / path) for path in images_or_error(image)] if image.is_dir() else [str(image)]
    return files


def _show(answers: Sequence[Localization], matches: bool, verbose: bool) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    for answer in answers:
        color = COLORS.get(answer.decision or "", "bold")
        if not matches:
            line = f"{escape(answer.query)}: [{color}]{escape(answer.sentence)}[/{color}]"
            console.print(line, soft_wrap=True, highlight=False)
            _show_candidates(console, answer)
            continue
        console.print(f"[bold]{escape(answer.query)}[/bold]")
        console.print(f"[{color}]{escape(answer.sentence)}[/{color}]")
        _show_candidates(console, answer)
        if answer.matches:
            _show_matches(answer, verbose)


def _show_candidates(console: Console, answer: Localization) -> None:
    from rich.markup import escape

    if answer.candidates is not None:
        console.print(escape(answer.candidates.sentence), soft_wrap=True, highlight=False)


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
