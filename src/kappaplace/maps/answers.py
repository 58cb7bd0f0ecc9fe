"""Answers as files: JSON lines of text for programs, CSV for sheets, pairs for hloc."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kappaplace.calibration.checks import share
from kappaplace.errors import KappaPlaceError
from kappaplace.files import replace_file
from kappaplace.maps.localization import Localization

COLUMNS = (
    *("query", "rank", "name", "x", "y", "heading", "similarity", "kappa", "query_kappa", "uncertainty"),
    *("probability", "decision", "answer_probability", "inside", "pose_x", "pose_y", "pose_spread"),
    *("answer_uncertainty", "calibration"),
)


def write_csv(answers: Sequence[Localization], file: str | Path) -> None:
    """One row a match; what is unknown is an empty cell."""

    def write(part: Path) -> None:
        with open(part, "w", newline="", encoding="utf-8", errors="backslashreplace") as stream:
            writer = csv.writer(stream)
            writer.writerow(COLUMNS)
            for answer in answers:
                writer.writerows(_rows(answer))

    replace_file(Path(file), write)


def _rows(answer: Localization) -> list[list[Any]]:
    pose = answer.pose
    estimate = (None, None, None) if pose is None else (pose.x, pose.y, pose.spread)
    rows = []
    for m in answer.matches:
        own = (m.rank, m.name, m.x, m.y, m.heading, m.similarity, m.kappa, answer.kappa, m.uncertainty)
        said = (m.probability, m.decision, answer.probability, answer.inside)
        judged = (answer.uncertainty, answer.calibration)
        rows.append([_cell(value) for value in (answer.query, *own, *said, *estimate, *judged)])
    return rows


def _cell(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value


def write_pairs(answers: Sequence[Localization], file: str | Path, *, least: float = 0.0) -> Path:
    """``query reference`` a line, as hloc reads it; beside it the same with probability and similarity.

    hloc takes two words a line and no more, so the numbers go to ``NAME.scores.txt``. Pairs of a probability
    below ``least`` are left out.
    """
    share(least, "least probability of a pair", ends=True)
    file = Path(file)
    pairs = [
        (answer.query, m.name, m.probability, m.similarity)
        for answer in answers
        for m in answer.matches
        if m.probability is None or m.probability >= least
    ]
    for query, reference, *_ in pairs:
        for name in (query, reference):
            if not name or name.split() != [name]:
                raise KappaPlaceError(
                    f"hloc tells names apart by spaces, and {name!r} holds one; rename the image."
                )
    plain = "".join(f"{query} {reference}\n" for query, reference, *_ in pairs)
    scored = "".join(
        f"{query} {reference} {'nan' if p is None else f'{p:.6f}'} {s:.6f}\n"
        for query, reference, p, s in pairs
    )
    beside = file.with_suffix(f".scores{file.suffix}")
    replace_file(beside, lambda part: part.write_bytes(_bytes(scored)))
    replace_file(file, lambda part: part.write_bytes(_bytes(plain)))
    return beside


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # names of files need not be UTF-8, and hloc opens them


def read_pairs(file: str | Path) -> list[tuple[str, str, float | None, float | None]]:
    """Query, reference, probability and similarity of each pair; plain hloc pairs have no numbers."""
    pairs: list[tuple[str, str, float | None, float | None]] = []
    try:
        lines = Path(file).read_bytes().decode("utf-8", "surrogateescape").split("\n")
        for line in filter(str.strip, lines):
            query, reference, *numbers = line.split()
            p, s = (float(number) for number in numbers) if numbers else (math.nan, math.nan)
            pairs.append((query, reference, None if math.isnan(p) else p, None if math.isnan(s) else s))
    except (OSError, ValueError) as error:
        raise KappaPlaceError(f"{file} cannot be read as pairs of images ({error}).") from None
    return pairs
