"""Answers as a monitor sees them: the few numbers of each that are compared with the calibration.

They come from a `Localization`, from what ``localize --json`` printed (one object a line), or from the rows
of ``localize --csv``.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kappaplace.calibration.examples import DISTANCE
from kappaplace.errors import KappaPlaceError

LINES = (".jsonl", ".ndjson", ".json")
_AGAIN = "write it with `kappaplace localize --json`, or --csv, of this version"


@dataclass(frozen=True)
class Observed:
    """The signals of one answer."""

    where: str
    """The query, or the line that it was read from."""
    calibration: str
    """Fingerprint of what judged it; empty: nothing did."""
    matches: bool
    """False where the area asked for held no reference."""
    signals: Mapping[str, float | None]

    def value(self, name: str) -> float:
        """One signal, which must be there and finite."""
        found = self.signals.get(name)
        if found is None or not math.isfinite(found):
            raise KappaPlaceError(
                f"The answer to {self.where} says nothing of {name}, which the calibration watches; {_AGAIN}."
            )
        return found


def observed_in(answer: Mapping[str, Any], where: str) -> Observed:
    """From an answer as plain values (`Localization.to_dict`)."""
    try:
        signals = {str(name): _number(value) for name, value in answer["signals"].items()}
        signals |= {"kappa": _number(answer["kappa"]), "uncertainty": _number(answer["uncertainty"])}
        signals[DISTANCE] = signals.get("cosine")
        return Observed(where, str(answer["calibration"]), bool(answer["matches"]), signals)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise KappaPlaceError(
            f"{where} is not an answer of a map ({type(error).__name__} {error}); {_AGAIN}."
        ) from None


def holds_answers(file: Path) -> bool:
    """Whether a file holds answers, not images or a table of them."""
    if file.suffix.lower() in LINES:
        return True
    if file.suffix.lower() != ".csv":
        return False
    try:
        with open(file, encoding="utf-8-sig", newline="") as stream:
            return next(csv.reader(stream), [])[:2] == ["query", "rank"]
    except (OSError, UnicodeDecodeError):
        return False


def read_observed(file: Path) -> list[Observed]:
    """All answers of a file."""
    try:
        with open(file, encoding="utf-8-sig", newline="") as stream:
            if file.suffix.lower() == ".csv":
                return list(_rows(csv.DictReader(stream), str(file)))
            return list(from_lines(stream, str(file)))
    except (OSError, UnicodeDecodeError) as error:
        raise KappaPlaceError(f"The answers in {file} cannot be read ({error}).") from None


def from_lines(lines: Iterable[str], name: str) -> Iterator[Observed]:
    """One JSON object a line; empty lines are nothing."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                answer = json.loads(line)
            except ValueError as error:
                raise KappaPlaceError(f"Line {number} of {name} is not JSON ({error}); {_AGAIN}.") from None
            yield observed_in(answer, f"line {number} of {name}")


def _rows(rows: csv.DictReader[str], name: str) -> Iterator[Observed]:
    """The row of each query's best match."""
    for number, row in enumerate(rows, 2):
        try:
            if int(row["rank"]) != 1:
                continue
            similarity = _number(row["similarity"])
            signals = {
                "kappa": _number(row["query_kappa"]),
                DISTANCE: None if similarity is None else 1 - similarity,
                "uncertainty": _number(row["answer_uncertainty"]),
            }
            yield Observed(f"line {number} of {name}", row["calibration"] or "", True, signals)
        except (KeyError, TypeError, ValueError) as error:
            raise KappaPlaceError(
                f"Line {number} of {name} is not an answer of a map ({type(error).__name__} {error}); "
                f"{_AGAIN}."
            ) from None


def _number(value: Any) -> float | None:
    return None if value is None or value == "" else float(value)
