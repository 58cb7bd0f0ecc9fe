"""Are the queries of a map still those it was calibrated for? A watch on κ and scores as answers come.

    monitor = MapMonitor.open("town.map")
    for image in camera:
        answer = monitor.watch([town.localize(image)])[0]   # with a note while queries have drifted
    monitor.save()

The monitor never writes into the map. Where it is saved, it goes on from there the next time.

Answers as a monitor sees them: the few numbers of each that are compared with the calibration.

They come from a `Localization`, from what ``localize --json`` printed (one object a line), or from the rows
of ``localize --csv``.
"""

from __future__ import annotations

import csv
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.drift import FALSE_ALARM, WINDOW, DriftMonitor, DriftWarning, MonitorState
from kappaplace.calibration.fit import DISTANCE
from kappaplace.errors import KappaPlaceError
from kappaplace.files import replace_file
from kappaplace.maps.answer import Localization
from kappaplace.maps.notes import monitor_file
from kappaplace.maps.store.manifest import read_manifest
from kappaplace.records import from_plain, to_plain

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


FORMAT = 1


class MapMonitor:
    """Compares incoming answers with the calibration of their map. Not for several threads at once."""

    def __init__(
        self,
        calibration: Calibration,
        *,
        window: int = WINDOW,
        false_alarm: float = FALSE_ALARM,
        file: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if calibration.sketch is None:
            raise KappaPlaceError("This calibration keeps nothing to compare queries with; calibrate again.")
        self.calibration, self.file, self._clock = calibration, file, clock
        # Damaged images of the map stand in for queries in self-calibration, and are spread otherwise.
        labelled = bool(calibration.facts.get("labelled", True))
        self.drift = DriftMonitor(calibration.sketch, window, false_alarm, shape=labelled)
        self.skipped = 0
        """Answers that found nothing at all, and so say nothing."""
        self.set_aside: Path | None = None
        """Where `save` puts what an earlier monitor saw under another calibration; None: there is none."""

    @classmethod
    def open(
        cls,
        folder: str | Path,
        file: str | Path | None = None,
        *,
        window: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> MapMonitor:
        """Watch a map, going on where ``file`` (by default ``MAP.monitor.json``) left off.

        After a new calibration it starts over; what was seen before is kept under another name.
        """
        record = read_manifest(folder).calibration
        if record is None:
            raise KappaPlaceError(
                f"The map {folder} is not calibrated, so there is nothing to compare queries with; run "
                "`kappaplace calibrate` first."
            )
        calibration = Calibration.from_dict(record["calibration"])
        file = monitor_file(folder) if file is None else Path(file)
        made = cls(calibration, window=window or WINDOW, file=file, clock=clock)
        if window is not None and window < 1:
            raise KappaPlaceError(f"A drift window holds at least one query, got {window}.")
        if file.exists():
            made._go_on(file, window)
        return made

    @property
    def drifting(self) -> tuple[DriftWarning, ...]:
        """The warnings that stand: those of the last full window."""
        return self.drift.drifting

    @property
    def note(self) -> str:
        """What an answer must say while queries have drifted; empty while all is well."""
        if not self.drifting:
            return ""
        moved = dict.fromkeys(f"{warning.signal} {warning.direction}" for warning in self.drifting)
        return (
            f"Queries no longer look like those of the calibration ({', '.join(moved)}): probabilities and "
            "decisions may not hold; calibrate again."
        )

    def feed(self, answers: Iterable[Localization]) -> list[DriftWarning]:
        """Take in answers as they come; the warnings of windows that they fill."""
        return self.take([observed_in(answer.to_dict(), answer.query) for answer in answers])

    def watch(self, answers: Iterable[Localization]) -> list[Localization]:
        """The same answers, with a note while queries have drifted."""
        answers = list(answers)
        self.feed(answers)
        note = self.note
        if not note:
            return answers
        return [a if note in a.notes else replace(a, notes=(*a.notes, note)) for a in answers]

    def take(self, observed: Iterable[Observed]) -> list[DriftWarning]:
        """The same as `feed` for what `monitor_inputs` read from a file of answers."""
        rows = []
        for each in observed:
            if not each.matches:
                self.skipped += 1
                continue
            if each.calibration != self.calibration.fingerprint:
                judged = "by another calibration" if each.calibration else "without a calibration"
                raise KappaPlaceError(
                    f"The answer to {each.where} was given {judged}, this monitor watches another; localize "
                    "again, or open the monitor again if the map was calibrated anew."
                )
            rows.append(each)
        names = list(self.drift.sketch.values)
        return self.drift.update({n: [row.value(n) for row in rows] for n in names}, self._clock())

    def save(self) -> None:
        """Keep what was seen, so that the next `open` goes on from here."""
        if self.file is None:
            raise KappaPlaceError("This monitor has no file to be kept in; give one.")
        if self.set_aside is not None and self.file.exists():
            try:
                os.replace(self.file, self.set_aside)
            except OSError as error:
                raise KappaPlaceError(
                    f"Cannot write {self.set_aside}: {os.strerror(error.errno or 0)}; nothing was changed."
                ) from None
            self.set_aside = None
        values = {
            "format": FORMAT,
            "calibration": self.calibration.fingerprint,
            "note": self.note,
            "monitor": to_plain(self.drift.state()),
        }
        text = json.dumps(values) + "\n"
        replace_file(self.file, lambda part: part.write_text(text, encoding="utf-8"))

    def _go_on(self, file: Path, window: int | None) -> None:
        sketch = self.drift.sketch
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            if values["format"] != FORMAT:
                raise KappaPlaceError(f"its format is {values['format']}, this version knows {FORMAT}")
            judged = str(values["calibration"])
            stored: dict[str, Any] = values["monitor"]
            if judged != self.calibration.fingerprint:
                self.set_aside = file.with_suffix(f".{judged}{file.suffix}")
                return
            self.drift = DriftMonitor.resume(from_plain(MonitorState, stored), sketch, shape=self.drift.shape)
        except (OSError, ValueError, KeyError, TypeError, KappaPlaceError) as error:
            raise KappaPlaceError(
                f"The monitor's file {file} cannot be read ({str(error).rstrip('.')}); remove it to start "
                "over, or name another with --state."
            ) from None
        if window is not None:
            self.drift.window = window
