"""Monitoring: compare κ and scores of answers with the calibration, and warn if the queries have drifted.

    monitor = MapMonitor.open("town.map")
    for image in camera:
        answer = monitor.watch([town.localize(image)])[0]   # has a note while queries have drifted
    monitor.save()

The monitor does not write to the map. Its state is a small file next to the map (``town.map`` has
``town.map.monitor.json``), from which it resumes. Every answer of the map repeats the warning in it. Answers
can be `Localization` objects, the output of ``localize --json`` (one object per line), or the rows of
``localize --csv``.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.drift import FALSE_ALARM, WINDOW, DriftMonitor, DriftWarning, MonitorState
from kappaplace.calibration.examples import DISTANCE
from kappaplace.calibration.expected import stated_risk
from kappaplace.calibration.martingale import Wealth, risk_alarm, update_risk
from kappaplace.checks import within
from kappaplace.errors import KappaPlaceError
from kappaplace.files import write_file
from kappaplace.maps.answer import Localization
from kappaplace.maps.store.manifest import read_manifest
from kappaplace.records import from_plain, to_plain

LINES = (".jsonl", ".ndjson", ".json")
_AGAIN = "Write the answers again with `kappaplace localize --json` or --csv"


@dataclass(frozen=True)
class Observation:
    """The scores of one answer."""

    name: str
    """Name of the query, or the line of the file."""
    calibration: str
    """Fingerprint of the calibration; empty without one."""
    matches: bool
    """Whether the answer has matches. It has none if the searched area has no references."""
    signals: Mapping[str, float | None]
    """Scores of the query; None if unknown."""

    def value(self, signal: str) -> float:
        """Return a score, or raise an error if it is unknown."""
        value = self.signals.get(signal)
        if value is None or not math.isfinite(value):
            raise KappaPlaceError(
                f"The answer {self.name} has no {signal}, which the monitor compares. {_AGAIN}."
            )
        return value


def observe(answer: Mapping[str, Any], name: str) -> Observation:
    """Return the scores of an answer as plain values (`Localization.to_dict`).

    Args:
        answer: The plain values.
        name: Name of the query, or the line of the file, for messages.

    Returns:
        The scores.

    Raises:
        KappaPlaceError: If the values are not an answer.
    """
    try:
        signals = {str(key): _number(value) for key, value in answer["signals"].items()}
        signals |= {"kappa": _number(answer["kappa"]), "uncertainty": _number(answer["uncertainty"])}
        signals[DISTANCE] = signals.get("cosine")
        return Observation(name, str(answer["calibration"]), bool(answer["matches"]), signals)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise KappaPlaceError(
            f"{name} is not an answer of a map ({type(error).__name__} {error}). {_AGAIN}."
        ) from None


def is_answer_file(file: Path) -> bool:
    """Return whether a file contains answers rather than images or a table of images."""
    if file.suffix.lower() in LINES:
        return True
    if file.suffix.lower() != ".csv":
        return False
    try:
        with open(file, encoding="utf-8-sig", newline="") as stream:
            return next(csv.reader(stream), [])[:2] == ["query", "rank"]
    except (OSError, UnicodeDecodeError, csv.Error):
        return False


def read_observations(file: Path) -> list[Observation]:
    """Read all answers of a file."""
    try:
        with open(file, encoding="utf-8-sig", newline="") as stream:
            if file.suffix.lower() == ".csv":
                return list(_rows(csv.DictReader(stream), str(file)))
            return list(read_answer_lines(stream, str(file)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise KappaPlaceError(f"The answers in {file} cannot be read ({error}). {_AGAIN}.") from None


def read_answer_lines(lines: Iterable[str], name: str) -> Iterator[Observation]:
    """Yield the answers of JSON lines. Empty lines are skipped."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                answer = json.loads(line)
            except ValueError as error:
                raise KappaPlaceError(f"{name} line {number} is not JSON ({error}). {_AGAIN}.") from None
            yield observe(answer, f"{name} line {number}")


def _rows(rows: csv.DictReader[str], name: str) -> Iterator[Observation]:
    """Yield the answers of CSV rows, using the row of each best match."""
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
            yield Observation(f"{name} line {number}", row["calibration"] or "", True, signals)
        except (KeyError, TypeError, ValueError) as error:
            raise KappaPlaceError(
                f"{name} line {number} is not an answer of a map ({type(error).__name__} {error}). {_AGAIN}."
            ) from None


def _number(value: str | float | None) -> float | None:
    return None if value is None or value == "" else float(value)


FORMAT = 1
YES, NO = ("yes", "true", "1"), ("no", "false", "0")


def read_outcomes(file: str | Path) -> list[bool]:
    """Read whether accepted answers were incorrect.

    Args:
        file: CSV file with the column ``correct`` (yes or no). If it has the column ``decision``, rows with
            another decision than accept are ignored.

    Returns:
        One value per accepted answer.

    Raises:
        KappaPlaceError: If the file cannot be read, or a value is neither yes nor no.
    """
    try:
        with open(file, encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise KappaPlaceError(f"Cannot read the outcomes {file} ({error}). Pass a CSV file.") from None
    wrong = []
    for number, row in enumerate(rows, 2):
        if row.get("decision") not in (None, "", "accept"):
            continue
        word = str(row.get("correct") or "").strip().lower()
        if word not in (*YES, *NO):
            raise KappaPlaceError(
                f"{file} line {number} needs yes or no in the column 'correct', got {word!r}. Correct it."
            )
        wrong.append(word in NO)
    return wrong


class MapMonitor:
    """Comparison of answers with the calibration of their map. It is not thread-safe.

    Args:
        calibration: Calibration of the map.
        window: Number of queries per comparison.
        false_alarm: Probability of a false warning per window.
        file: File for `save`.
        clock: Function that returns the time in seconds since 1970.

    Raises:
        KappaPlaceError: If the calibration has no reference statistics.
    """

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
            raise KappaPlaceError(
                "This calibration has no reference statistics for monitoring. Calibrate the map again."
            )
        self.calibration, self.file, self._clock = calibration, file, clock
        # Self-calibration uses degraded images, whose distribution differs from that of real queries.
        labeled = bool(calibration.facts.get("labelled", True))
        self.drift = DriftMonitor(calibration.sketch, window, false_alarm, shape=labeled)
        self.outcomes: Wealth | None = None
        """E-process of the risk, from outcomes of accepted answers; None without outcomes."""
        self.skipped = 0
        """Number of answers without matches, which are not compared."""
        self.set_aside: Path | None = None
        """File to which `save` moves the state of an earlier calibration; None if there is none."""

    @classmethod
    def open(
        cls,
        folder: str | Path,
        file: str | Path | None = None,
        *,
        window: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> MapMonitor:
        """Open the monitor of a map, and resume it from its file.

        After a new calibration the monitor starts from the beginning, and `save` renames the earlier state.

        Args:
            folder: Folder of the map.
            file: File of the monitor's state. Default: ``MAP.monitor.json``.
            window: Number of queries per comparison. Default: the value in the file, or 200.
            clock: Function that returns the time in seconds since 1970.

        Returns:
            The monitor.

        Raises:
            KappaPlaceError: If the map is not calibrated, or the file is damaged.
        """
        record = read_manifest(folder).calibration
        if record is None:
            raise KappaPlaceError(
                f"The map {folder} is not calibrated, which monitoring needs. Run `kappaplace calibrate` "
                "first."
            )
        calibration = Calibration.from_dict(record["calibration"])
        file = monitor_file(folder) if file is None else Path(file)
        monitor = cls(calibration, window=window or WINDOW, file=file, clock=clock)
        within(1 if window is None else window, "window", 1)
        if file.exists():
            monitor._resume(file, window)
        return monitor

    @property
    def drifting(self) -> tuple[DriftWarning, ...]:
        """Warnings of the last complete window, and alarms that stay until the map is calibrated again."""
        return (*self.drift.drifting, *self.drift.alarms)

    @property
    def risk_alarm(self) -> str:
        """Message if the outcomes contradict the risk limit; it stays until the map is calibrated again."""
        return "" if self.outcomes is None else risk_alarm(self.outcomes, self._max_risk())

    def add_outcomes(self, wrong: Sequence[bool]) -> str:
        """Add outcomes of accepted answers that have become known.

        Args:
            wrong: Whether each accepted answer was incorrect. Which outcomes become known must not depend on
                them.

        Returns:
            The alarm; empty if the outcomes do not contradict the risk limit.

        Raises:
            KappaPlaceError: If the calibration has no decisions.
        """
        self.outcomes = update_risk(self.outcomes, wrong, self._max_risk())
        return self.risk_alarm

    def _max_risk(self) -> float:
        if self.calibration.rule is None:
            raise KappaPlaceError(
                "This calibration has no decisions, so there is no risk to monitor. Calibrate with a risk."
            )
        return stated_risk(self.calibration.rule)

    @property
    def note(self) -> str:
        """Note for answers while queries have drifted; empty otherwise."""
        if alarm := self.risk_alarm:
            return alarm
        if not self.drifting:
            return ""
        changes = dict.fromkeys(f"{warning.signal} {warning.direction}" for warning in self.drifting)
        return (
            f"Queries differ from those of the calibration ({', '.join(changes)}), so probabilities and "
            "decisions may be wrong. Calibrate again."
        )

    def feed(self, answers: Iterable[Localization]) -> list[DriftWarning]:
        """Add answers.

        Args:
            answers: Answers of the map, in order.

        Returns:
            Warnings of the windows that they complete.

        Raises:
            KappaPlaceError: If an answer is of another calibration.
        """
        return self.take([observe(answer.to_dict(), answer.query) for answer in answers])

    def watch(self, answers: Iterable[Localization]) -> list[Localization]:
        """Add answers, and return them with a note while queries have drifted.

        Args:
            answers: Answers of the map, in order.

        Returns:
            The answers.

        Raises:
            KappaPlaceError: If an answer is of another calibration.
        """
        answers = list(answers)
        self.feed(answers)
        note = self.note
        if not note:
            return answers
        return [
            replace(a, guaranteed=False, notes=a.notes if note in a.notes else (*a.notes, note))
            for a in answers
        ]

    def take(self, observed: Iterable[Observation]) -> list[DriftWarning]:
        """Add answers that were read from a file.

        Args:
            observed: Scores of the answers, in order.

        Returns:
            Warnings of the windows that they complete.

        Raises:
            KappaPlaceError: If an answer is of another calibration, or lacks a score.
        """
        rows = []
        for each in observed:
            if not each.matches:
                self.skipped += 1
                continue
            if each.calibration != self.calibration.fingerprint:
                source = "from another calibration" if each.calibration else "without a calibration"
                raise KappaPlaceError(
                    f"The answer {each.name} is {source}. Localize again, or reopen the monitor if the "
                    "map was calibrated again."
                )
            rows.append(each)
        names = list(self.drift.sketch.values)
        return self.drift.update({n: [row.value(n) for row in rows] for n in names}, self._clock())

    def save(self) -> None:
        """Save the state, so that the next `open` resumes it.

        Raises:
            KappaPlaceError: If the monitor has no file, or it cannot be written.
        """
        if self.file is None:
            raise KappaPlaceError("This monitor has no file. Pass file=… when you create it.")
        if self.set_aside is not None and self.file.exists():
            try:
                os.replace(self.file, self.set_aside)
            except OSError as error:
                raise KappaPlaceError(
                    f"Cannot write {self.set_aside}: {os.strerror(error.errno or 0)}. Nothing was changed."
                ) from None
            self.set_aside = None
        values = {
            "format": FORMAT,
            "calibration": self.calibration.fingerprint,
            "note": self.note,
            "monitor": to_plain(self.drift.state()),
        }
        if self.outcomes is not None:
            values["outcomes"] = to_plain(self.outcomes)
        write_file(self.file, json.dumps(values) + "\n")

    def _resume(self, file: Path, window: int | None) -> None:
        sketch = self.drift.sketch
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            if values["format"] != FORMAT:
                raise KappaPlaceError(f"its format is {values['format']}, this version supports {FORMAT}")
            calibration, state = str(values["calibration"]), values["monitor"]
            if not re.fullmatch("[0-9a-f]{1,64}", calibration):
                raise KappaPlaceError(f"{calibration[:40]!r} does not identify a calibration")
            if calibration != self.calibration.fingerprint:
                self.set_aside = file.with_suffix(f".{calibration}{file.suffix}")
                return
            self.drift = DriftMonitor.resume(from_plain(MonitorState, state), sketch, shape=self.drift.shape)
            if "outcomes" in values:
                self.outcomes = from_plain(Wealth, values["outcomes"])
        except (OSError, ValueError, KeyError, TypeError, KappaPlaceError) as error:
            raise KappaPlaceError(
                f"The monitor's file {file} cannot be read ({str(error).rstrip('.')}). Delete it to start "
                "again, or pass another file with --state."
            ) from None
        if window is not None:
            self.drift.window = window


def monitor_file(folder: str | Path) -> Path:
    """Return the default file of a map's monitor."""
    return Path(os.path.abspath(folder) + ".monitor.json")


def drift_note(folder: str | Path, calibration: str) -> str:
    """Return the monitor's warning about this calibration; empty if there is none."""
    file = monitor_file(folder)
    try:
        stat = os.stat(file)
    except OSError:
        return ""
    note, watched = _stored(str(file), stat.st_mtime_ns, stat.st_size)
    return note if watched == calibration else ""


@lru_cache(maxsize=64)
def _stored(file: str, changed: int, size: int) -> tuple[str, str]:
    """Return the stored note and the fingerprint of its calibration. The cache reads the file again only if
    it has changed."""
    try:
        values = json.loads(Path(file).read_text(encoding="utf-8"))
        return str(values["note"]), str(values["calibration"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", ""  # the monitor reports a damaged file; it must not stop answers
