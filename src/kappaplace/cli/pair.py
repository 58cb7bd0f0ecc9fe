"""`kappaplace pair`: the probability that two images show the same place, for one pair or a list."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kappaplace.checks import share
from kappaplace.cli.options import AsJson
from kappaplace.errors import KappaPlaceError
from kappaplace.files import check_target
from kappaplace.maps import PairOptions
from kappaplace.records import Help

if TYPE_CHECKING:
    from kappaplace.maps import PairAnswer, PlaceMap


@dataclass(frozen=True)
class PairList:
    """A list of pairs, and what is written for it."""

    pairs: Annotated[
        Path | None,
        Help(
            "List of pairs: CSV (two columns of image names), or text with two names per line, as for hloc "
            "and COLMAP."
        ),
    ] = None
    images: Annotated[Path | None, Help("Folder of the images in the list. Default: the current one.")] = None
    out: Annotated[Path | None, Help("File to write: .csv with all values, or .txt for hloc and COLMAP.")] = (
        None
    )
    min_probability: Annotated[float, Help("Omit pairs with a lower probability from --out.")] = 0.0
    picture: Annotated[
        Path | None, Help("Figure of one pair to write, with lines between the matched patches.")
    ] = None
    fit: Annotated[
        Path | None,
        Help("Calibration to fit on the list and write (.json). Its column same is 1 for the same place."),
    ] = None

    def __post_init__(self) -> None:
        share(self.min_probability, "--min-probability", ends=True)


def pair(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[IMAGE IMAGE]", help="Two images.", show_default=False)
    ] = None,
    place_map: Annotated[
        Path | None,
        typer.Option("--map", help="Map of the area: its other places make the probability more accurate."),
    ] = None,
    model: Annotated[
        str, typer.Option(help="Model: a folder, weights file or name. Default: the pretrained model.")
    ] = "",
    *,
    listed: PairList,
    options: PairOptions,
    as_json: AsJson = False,
) -> None:
    """Return the probability that two images show the same place.

    Examples:

        kappaplace pair a.jpg b.jpg --picture evidence.png

        kappaplace pair --pairs pairs.csv --images photos/ --out answers.csv

        kappaplace pair --pairs pairs.txt --images photos/ --min-probability 0.9 --out kept.txt
    """
    from kappaplace.maps import PlaceMap, compare_pairs, read_pairs, save_answers

    files = list(files or [])
    if (len(files) != 2) == (listed.pairs is None):
        raise KappaPlaceError(f"Pass two images, or a list with --pairs, got {len(files)} images.")
    for file in (listed.out, listed.picture, listed.fit):
        if file is not None:
            check_target(file)
    if listed.picture is not None and listed.pairs is not None:
        raise KappaPlaceError("--picture draws one pair. Pass two images instead of --pairs.")
    opened = None if place_map is None else PlaceMap.open(place_map, model or None)
    if listed.pairs is None:
        names, labels = [(str(files[0]), str(files[1]))], list[bool]()
    else:
        names, labels = read_pairs(listed.pairs)
    root = listed.images if listed.pairs is not None and listed.images is not None else Path()
    pairs = [(str(root / a), str(root / b)) for a, b in names]
    if listed.fit is not None:
        _fit(pairs, labels, model, options, opened, listed.fit)
        return
    options = replace(options, evidence=listed.picture is not None)
    answers = compare_pairs(pairs, model or None, options, place_map=opened)
    answers = [replace(answer, a=a, b=b) for answer, (a, b) in zip(answers, names, strict=True)]
    kept = [answer for answer in answers if (answer.probability or 0.0) >= listed.min_probability]
    if listed.picture is not None:
        _draw(pairs[0], answers[0], listed.picture)
    if listed.out is not None:
        save_answers(kept, listed.out)
    if as_json:
        typer.echo("\n".join(json.dumps(answer.to_dict()) for answer in kept))
        return
    _show(answers, len(kept), listed)


def _show(answers: Sequence[PairAnswer], kept: int, listed: PairList) -> None:
    if listed.out is None:
        for answer in answers:
            typer.echo(answer.sentence)
    if len(answers) == 1 and answers[0].signals:
        answer = answers[0]
        typer.echo(f"similarity {answer.similarity:.3f}, patches that agree {answer.patches:.0%}")
    notes = [answer for answer in answers if answer.note]
    if len(answers) > 1:
        for note in list(dict.fromkeys(answer.note for answer in notes))[:5]:
            typer.secho(note, fg="yellow", err=True)
    if listed.out is not None:
        unknown = f"; {len(notes):,} have no probability" if notes else ""
        typer.echo(f"Wrote {kept:,} of {len(answers):,} pairs to {listed.out}{unknown}.")


def _draw(pair: tuple[str, str], answer: PairAnswer, file: Path) -> None:
    from kappaplace.reports import draw_evidence

    if answer.evidence is None:
        raise KappaPlaceError(answer.note or "The picture needs a model with patch maps. Choose another one.")
    draw_evidence(*pair, answer.evidence).save(file)


def _fit(
    pairs: Sequence[tuple[str, str]],
    labels: Sequence[bool],
    model: str,
    options: PairOptions,
    opened: PlaceMap | None,
    file: Path,
) -> None:
    from kappaplace.calibration import save_pairs
    from kappaplace.maps import calibrate_pairs

    if not labels:
        raise KappaPlaceError("--fit needs a CSV list with a column same (1 or 0). Add it to --pairs.")
    calibration = calibrate_pairs(pairs, labels, model or None, options, place_map=opened)
    save_pairs(calibration, file)
    typer.echo(f"Fitted on {calibration.facts['pairs']:,} pairs. Use it with --calibration {file}.")
