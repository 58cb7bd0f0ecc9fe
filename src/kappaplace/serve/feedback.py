"""What happens to the answers of a map: labels of people, and drift of the queries.

Labels of people are stored apart from the labels of `kappaplace map label`: people choose which answers they
label, so these labels are not a random sample and cannot support a guarantee.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import Counter, OrderedDict
from pathlib import Path
from urllib.parse import quote

from kappaplace.calibration import SHOWN, Calibration
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, not_written
from kappaplace.maps import Localization, MapMonitor
from kappaplace.records import to_plain
from kappaplace.serve.problems import ApiError
from kappaplace.types import Json

REMEMBERED = 10_000
"""Number of answers that can still be labelled."""
MOST_BYTES = 64 << 20
"""Largest file of labels, so that visitors cannot fill the disk."""
MOST_WINDOWS = 50
LABELS = ("right", "wrong", "unknown")


class Feedback:
    """The latest answers of a map, their labels, and a drift monitor; all in memory except the labels."""

    def __init__(self, name: str, folder: Path | None) -> None:
        """Prepare the feedback of a map.

        Args:
            name: Name of the map.
            folder: Folder for labels; None to store none.
        """
        self.name = name
        self.file = None if folder is None else folder / f"{quote(name, safe='')}.labels.jsonl"
        self.counts: Counter[tuple[str, str]] = Counter()
        """Number of labels by decision and label since the start."""
        self._answers: OrderedDict[str, dict[str, Json]] = OrderedDict()
        self._monitor: MapMonitor | None = None
        self._lock = threading.Lock()

    def take(self, answer: Localization, calibration: Calibration | None, version: int) -> str:
        """Remember an answer and add it to the drift monitor.

        Args:
            answer: The answer.
            calibration: Calibration of the map.
            version: Version of the map.

        Returns:
            Id of the answer.
        """
        name = secrets.token_urlsafe(12)
        best, pose = answer.matches[0] if answer.matches else None, answer.pose
        self._answers[name] = {
            "map": self.name,
            "version": version,
            "calibration": answer.calibration,
            "decision": answer.decision,
            "probability": answer.probability,
            "reference": None if best is None else best.name,
            "x": None if pose is None else pose.x,
            "y": None if pose is None else pose.y,
        }
        if len(self._answers) > REMEMBERED:
            self._answers.popitem(last=False)
        self._watch(answer, calibration)
        return name

    def _watch(self, answer: Localization, calibration: Calibration | None) -> None:
        if calibration is None or calibration.sketch is None:
            self._monitor = None
            return
        if self._monitor is None or self._monitor.calibration.fingerprint != calibration.fingerprint:
            self._monitor = MapMonitor(calibration)
        try:
            self._monitor.feed([answer])
        except KappaPlaceError:  # without a score that the monitor compares
            self._monitor.skipped += 1

    def label(self, name: str, label: str) -> str:
        """Store the label of an answer.

        Args:
            name: Id of the answer.
            label: right, wrong or unknown.

        Returns:
            The decision on the answer.

        Raises:
            ApiError: If labels are disabled, or the answer is unknown.
        """
        if self.file is None:
            raise ApiError(403, "This service stores no labels. The operator can enable them with --labels.")
        answer = self._answers.get(name)
        if answer is None:
            message = "The service no longer remembers this answer. Localize the photo again."
            raise ApiError(404, message, code="unknown_answer")
        line = {"time": time.time(), "sample": "volunteered", "answer": name, "label": label, **answer}
        with self._lock:
            make_folder(self.file.parent)
            if self.file.exists() and self.file.stat().st_size > MOST_BYTES:
                raise ApiError(503, "The file of labels is full. Ask the operator to move it.")
            try:
                with open(self.file, "ab") as stream:
                    stream.write(json.dumps(line).encode() + b"\n")
            except OSError as error:
                raise not_written(self.file, error) from None
            decision = str(answer["decision"] or "undecided")
            self.counts[decision, label] += 1
        return decision

    def labels(self) -> dict[str, Json]:
        """Return the labels as `LabelsOut`."""
        stored = 0
        if self.file is not None and self.file.is_file():
            with open(self.file, "rb") as stream:
                stored = sum(1 for _ in stream)
        decisions = sorted({decision for decision, _ in self.counts})
        counts = {d: {label: self.counts[d, label] for label in LABELS} for d in decisions}
        return {"map": self.name, "stored": stored, "counts": counts}

    @property
    def drifting(self) -> bool:
        """Whether the last complete window has warnings."""
        return self._monitor is not None and bool(self._monitor.drifting)

    def drift(self, calibration: Calibration | None) -> dict[str, Json]:
        """Return the drift monitor as `DriftOut`.

        Args:
            calibration: Calibration of the map.

        Returns:
            Its windows, and the quantiles at calibration.
        """
        sketch = None if calibration is None else calibration.sketch
        if sketch is None or calibration is None:
            counts = dict.fromkeys(("window", "queries", "waiting"), 0)
            return {
                "map": self.name,
                "available": False,
                "drifting": False,
                **counts,
                "calibrated": {},
                "windows": [],
            }
        same = self._monitor is not None and self._monitor.calibration.fingerprint == calibration.fingerprint
        monitor = self._monitor if same and self._monitor is not None else MapMonitor(calibration)
        drift = monitor.drift
        return {
            "map": self.name,
            "available": True,
            "window": drift.window,
            "queries": drift.queries,
            "waiting": drift.waiting,
            "drifting": bool(drift.drifting),
            "calibrated": {name: _at(values) for name, values in sketch.values.items()},
            "windows": [to_plain(each) for each in list(drift.history)[-MOST_WINDOWS:]],
        }


def _at(points: tuple[float, ...]) -> list[float]:
    """Return the quantiles `SHOWN` of evenly spaced order statistics."""
    return [points[round(fraction * (len(points) - 1))] for fraction in SHOWN]
