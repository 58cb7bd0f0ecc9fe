"""Answers of a map: records, files, and decisions for another risk.

Answers are written as CSV for spreadsheets and as image pairs for hloc. `Localization.to_dict` gives JSON.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.decision import Decision, DecisionRule, decide_matches, rule_by_probability
from kappaplace.calibration.expected import reject_risk, rule_for, stated_risk
from kappaplace.checks import percent, share
from kappaplace.data.geodesy import unproject
from kappaplace.errors import KappaPlaceError
from kappaplace.files import not_written, write_file
from kappaplace.types import Json

SAME_VIEW = 60.0
"""Matches count as facing the same direction if their headings differ by at most this, in degrees."""
Cell: TypeAlias = "str | float | None"


@dataclass(frozen=True)
class Pose:
    """Estimated pose of a query: the pose of its best match."""

    x: float
    """Metres to the east in the frame of the map."""
    y: float
    """Metres to the north in the frame of the map."""
    heading: float
    """Degrees clockwise from north; NaN if the heading of the best match is unknown."""
    spread: float
    """Root mean square distance of the matches that agree, in metres. It depends on the number of matches and
    does not measure the error: `Localization.radius` does."""
    matches: int
    """Number of matches that agree: within the map's radius of the best one, and not rejected."""


@dataclass(frozen=True)
class Match:
    """A reference that resembles the query."""

    rank: int
    """Position in the list of matches, from 1."""
    name: str
    """Name of the reference in the map."""
    x: float
    """Metres to the east in the frame of the map; NaN if unknown."""
    y: float
    """Metres to the north in the frame of the map; NaN if unknown."""
    heading: float
    """Degrees clockwise from north; NaN if unknown."""
    time: float
    """Seconds since 1970; NaN if unknown."""
    similarity: float
    """Cosine similarity of the two descriptors."""
    kappa: float
    """κ of the reference; NaN from a model without a kappa head."""
    uncertainty: float
    """Uncertainty of this pair: U of KappaPlace, or 1 − cosine without κ."""
    probability: float | None
    """Probability that this match is correct, on which its decision is based. For the best match, it is the
    probability of the answer, based on all scores of the query. For the others, it is based on this pair
    alone, so it may be higher. None without a calibration, if only best matches were labelled, or if the
    query is unlike those of the calibration."""
    decision: str | None
    """accept, doubtful or reject. The best match has the decision of the answer. Other matches are decided by
    their own probability, never better than the answer and without a guarantee. None if unknown."""
    reference: int
    """Number of the reference in the map."""
    image: str
    """Path of the image when it was embedded."""
    latitude: float = math.nan
    """Degrees north (WGS 84); NaN if the position is unknown or the map has no location on Earth."""
    longitude: float = math.nan
    """Degrees east (WGS 84)."""


@dataclass(frozen=True)
class CandidatePlace:
    """A place that may be correct, given by its best match."""

    name: str
    """Name of the reference in the map."""
    x: float
    """Metres to the east in the frame of the map; NaN if unknown."""
    y: float
    """Metres to the north in the frame of the map; NaN if unknown."""
    reference: int
    """Number of the reference in the map."""


@dataclass(frozen=True)
class CandidateSet:
    """The smallest set of places that contains the correct one with a given probability."""

    coverage: float
    """The probability, an average over all queries."""
    places: tuple[CandidatePlace, ...]
    """The places, most probable first; references of the same place count once."""
    unmapped: bool
    """Whether the query may be out-of-map."""
    guaranteed: bool
    """Whether the coverage is guaranteed."""

    @property
    def sentence(self) -> str:
        """The set in words."""
        names = [place.name for place in self.places] + (["unmapped"] if self.unmapped else [])
        text = f"{percent(self.coverage)} candidate set: {', '.join(names)}"
        return f"{text}." if self.guaranteed else f"{text} (not guaranteed)."


@dataclass(frozen=True)
class Localization:
    """The answer to one query."""

    query: str
    """Name of the query: its path, or its number."""
    kappa: float
    """κ of the query; NaN from a model without a kappa head."""
    uncertainty: float
    """Calibrated score of the query and its best match; U of KappaPlace without a calibration."""
    probability: float | None
    """Probability that the best match is correct; None without a calibration."""
    inside: float | None
    """Probability that the query is in-map; None if the calibration does not estimate it."""
    decision: str | None
    """accept, doubtful or reject; None without a calibration."""
    in_map: bool | None
    """False if the query is probably out-of-map; None if that is unknown."""
    pose: Pose | None
    """Estimated pose; None if the position of the best match is unknown."""
    matches: tuple[Match, ...]
    """The matches, best first."""
    signals: dict[str, float]
    """All scores that could be computed for the query; higher means less certain."""
    notes: tuple[str, ...] = ()
    """Facts that are needed to interpret the answer."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds per query that each stage took: embed, search, rerank, signals, decide, answer."""
    calibration: str = ""
    """Fingerprint of the calibration; empty without one."""
    guaranteed: bool = False
    """Whether the risk of accepting this answer is guaranteed."""
    latitude: float | None = None
    """Degrees north of the estimated position (WGS 84); None without a pose, or in a local frame."""
    longitude: float | None = None
    """Degrees east of the estimated position (WGS 84)."""
    frame: str = ""
    """Frame of x and y: EPSG codes, or "local" for metres without a location on Earth."""
    time: float | None = None
    """Time of the image of a sequence in seconds since 1970; None if unknown."""
    radius: float | None = None
    """The true position is at most this many metres from the pose with probability ``radius_level``; None if
    no such radius is known."""
    radius_level: float | None = None
    """Probability of the radius; None without a calibrated radius."""
    radius_source: str | None = None
    """What the radius was calibrated on: "labels" (labelled queries), or "map" (the map's own images, which
    guarantees nothing). None without a calibrated radius."""
    covariance: tuple[tuple[float, float, float], ...] | None = None
    """Covariance of east, north (metres) and heading (radians, clockwise), 3×3, if the answer is not far
    off."""
    far: float | None = None
    """Probability that the answer is far off, so that the covariance does not apply."""
    candidates: CandidateSet | None = None
    """Candidate set; None unless a coverage was requested."""

    @property
    def sentence(self) -> str:
        """The answer in words."""
        if not self.matches:
            return "No match: the searched area has no references."
        text = f"Best match {self.matches[0].name}"
        if self.pose is not None:
            text += f" at {self.place}"
        if self.probability is not None:
            text += f", correct with probability {self.probability:.2f}"
        if self.decision is not None:
            text += f": {self.decision}"
        return text + ("; probably not in this map." if self.in_map is False else ".")

    @property
    def place(self) -> str:
        """The estimated position with its radius in words; empty if it is unknown."""
        if self.pose is None:
            return ""
        if self.latitude is None or self.longitude is None:
            text = f"({self.pose.x:.1f}, {self.pose.y:.1f})"
        else:
            text = f"{self.latitude:.5f}, {self.longitude:.5f}"
        if self.radius is None or self.radius_level is None:
            return f"{text} (radius unknown)"
        estimated = ", estimated" if self.radius_source != "labels" else ""
        return f"{text} (within {_meters(self.radius)} m: {percent(self.radius_level)}{estimated})"

    def to_dict(self) -> dict[str, Any]:
        """Convert the answer to plain values for JSON.

        Returns:
            The fields and the ``sentence``. Unknown values are None; ``candidates`` is omitted if it is.
        """
        values = {key: _plain(value) for key, value in asdict(self).items()}
        if self.candidates is None:
            del values["candidates"]
        return {**values, "sentence": self.sentence}


def best_pose(matches: Sequence[Match], radius: float) -> Pose | None:
    """Return the pose of the best match.

    Means of the matches that agree with it were farther from the truth (docs/maps.md, "Position").

    Args:
        matches: The matches, best first.
        radius: Distance in metres up to which a match agrees with the best one.

    Returns:
        The pose; None if there is no match, or the best one is rejected or has no position.
    """
    if not matches or matches[0].decision == Decision.REJECT or not math.isfinite(matches[0].x):
        return None
    best = matches[0]
    gaps = [math.hypot(m.x - best.x, m.y - best.y) for m in matches if m.decision != Decision.REJECT]
    near = [gap for gap in gaps if gap <= radius]  # not if a position is unknown
    spread = math.sqrt(sum(gap**2 for gap in near) / len(near))
    return Pose(best.x, best.y, best.heading, spread, len(near))


def _meters(value: float) -> str:
    """Return a distance rounded up, so that a radius keeps its probability."""
    return f"{math.ceil(value):,}" if value >= 10 else f"{math.ceil(10 * value) / 10:g}"


def with_pose(answer: Localization, pose: Pose | None) -> Localization:
    """Return the answer with another pose, and its position in degrees.

    Args:
        answer: The answer.
        pose: The pose in the frame of the answer; None if it is unknown, and so is its radius.

    Returns:
        The answer with the pose.
    """
    if pose is None:
        unknown = replace(answer, pose=None, latitude=None, longitude=None, covariance=None, far=None)
        return replace(unknown, radius=None, radius_level=None, radius_source=None)
    degrees = unproject(np.array([[pose.x, pose.y]]), answer.frame)
    latitude, longitude = (float(value[0]) if np.isfinite(value[0]) else None for value in degrees)
    return replace(answer, pose=pose, latitude=latitude, longitude=longitude)


def _plain(value: Json) -> Json:
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


COLUMNS = (
    *("query", "rank", "name", "x", "y", "heading", "similarity", "kappa", "query_kappa", "uncertainty"),
    *("probability", "decision", "answer_probability", "inside", "pose_x", "pose_y", "pose_spread"),
    *("answer_uncertainty", "calibration", "latitude", "longitude", "answer_latitude", "answer_longitude"),
    *("frame", "radius", "radius_level", "radius_source", "far"),
)
FIRST_COLUMNS = COLUMNS[: COLUMNS.index("calibration") + 1]
"""Columns of files that earlier versions wrote, which can be resumed, too."""


def write_csv(answers: Sequence[Localization], file: str | Path) -> None:
    """Write one row per match. Unknown values become empty cells."""
    write_file(Path(file), _csv([COLUMNS, *(row for answer in answers for row in _rows(answer))]))


class AnswerFile:
    """A CSV file that answers are appended to. An interrupted run resumes there.

    Args:
        file: Path of the file. It is created if it does not exist.
        calibration: Fingerprint of the calibration of the answers.

    Raises:
        KappaPlaceError: If the file is not a file of answers, or has answers of another calibration.
    """

    def __init__(self, file: Path, calibration: str) -> None:
        self.file = file
        self.answered: set[str] = set()
        """Names of the queries that have answers in the file."""
        if file.exists():
            self._resume(calibration)
        else:
            write_csv([], file)

    def _resume(self, calibration: str) -> None:
        text = self.file.read_text(encoding="utf-8", errors="backslashreplace")
        rows = list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))  # without an incomplete line
        if text and text.partition("\n")[0].strip() not in (",".join(COLUMNS), ",".join(FIRST_COLUMNS)):
            raise KappaPlaceError(f"{self.file} is not a file of answers. Choose another name, or remove it.")
        if any(row["calibration"] != calibration for row in rows):
            raise KappaPlaceError(
                f"{self.file} has answers of another calibration. Choose another name, or remove it."
            )
        last = rows[-1]["query"] if rows else ""  # the rows of the last query may be incomplete
        complete = [row for row in rows if row["query"] != last]
        self.answered = {row["query"] for row in complete}
        rows_again = ([row.get(column, "") for column in COLUMNS] for row in complete)
        write_file(self.file, _csv([COLUMNS, *rows_again]))

    def add(self, answers: Sequence[Localization]) -> None:
        """Append answers to the file."""
        data = _csv([row for answer in answers for row in _rows(answer)])
        try:
            with open(self.file, "ab") as stream:
                stream.write(data)
        except OSError as error:
            raise not_written(self.file, error) from None


def _csv(rows: Sequence[Sequence[Cell]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "backslashreplace")


def _rows(answer: Localization) -> list[list[Cell]]:
    pose = answer.pose
    estimate = (None, None, None) if pose is None else (pose.x, pose.y, pose.spread)
    own = (answer.probability, answer.inside, *estimate, answer.uncertainty, answer.calibration)
    radius = (answer.frame, answer.radius, answer.radius_level, answer.radius_source, answer.far)
    rows = []
    for m in answer.matches:
        place = (answer.query, m.rank, m.name, m.x, m.y, m.heading, m.similarity, m.kappa, answer.kappa)
        degrees = (m.latitude, m.longitude, answer.latitude, answer.longitude)
        values = (*place, m.uncertainty, m.probability, m.decision, *own, *degrees, *radius)
        rows.append([_cell(value) for value in values])
    return rows


def _cell(value: Cell) -> Cell:
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value


def write_pairs(answers: Sequence[Localization], file: str | Path, *, least: float = 0.0) -> Path:
    """Write image pairs for hloc, one ``query reference`` per line.

    hloc accepts exactly two words per line. Therefore, probabilities and similarities go to a second file
    with the same pairs, ``NAME.scores.txt``.

    Args:
        answers: Answers whose matches are written.
        file: Path of the pairs file.
        least: Omit matches with a lower probability.

    Returns:
        Path of the second file.

    Raises:
        KappaPlaceError: If an image name contains a space, or ``least`` is not between 0 and 1.
    """
    share(least, "least probability of a pair", ends=True)
    file = Path(file)
    plain, scored = [], []
    for answer in answers:
        for m in answer.matches:
            if m.probability is not None and m.probability < least:
                continue
            pair, probability = pair_line(answer.query, m.name), m.probability
            plain.append(f"{pair}\n")
            number = "nan" if probability is None else f"{probability:.6f}"
            scored.append(f"{pair} {number} {m.similarity:.6f}\n")
    scores = file.with_suffix(f".scores{file.suffix}")
    for path, lines in ((scores, scored), (file, plain)):
        data = "".join(lines).encode("utf-8", "surrogateescape")  # names of image files need not be UTF-8
        write_file(path, data)
    return scores


def pair_line(first: str, second: str) -> str:
    """Return a line of a list of pairs for hloc or COLMAP; raise an error if a name contains a space."""
    for name in (first, second):
        if not name or name.split() != [name]:
            raise KappaPlaceError(
                f"Image names for hloc must not contain spaces, got {name!r}. Rename the image."
            )
    return f"{first} {second}"


class DecidedAnswer(NamedTuple):
    """A decision for a given risk."""

    answer: Localization
    max_risk: float | None
    """Risk that the decision is for; None without a decision."""
    guaranteed: bool
    """Whether the risk is guaranteed."""


def decide_answer(
    answer: Localization, calibration: Calibration | None, radius: float, max_risk: float | None = None
) -> DecidedAnswer:
    """Decide an answer for a risk.

    The rules are those of `PlaceMap.localize`. The best match is decided by thresholds. Other matches are
    decided by their own probability, never better than the best one.

    Args:
        answer: Answer of a map.
        calibration: Calibration of the answer.
        radius: Distance in metres within which two images show the same place.
        max_risk: Accepted risk. Default: the risk of the calibration.

    Returns:
        The answer with its decisions, and their risk.
    """
    if calibration is None or answer.probability is None or not answer.matches:
        return DecidedAnswer(answer, None, False)
    plain = calibration.plain
    if plain is not None and answer.calibration == plain.fingerprint:
        calibration = plain
    own = calibration.rule
    if max_risk is None:
        return DecidedAnswer(answer, None if own is None else stated_risk(own), answer.guaranteed)
    rule = rule_for(calibration, max_risk)
    if rule is own:
        return DecidedAnswer(answer, max_risk, answer.guaranteed)
    top = rule.decide(uncertainty=[answer.uncertainty], probability=[answer.probability])[0].value
    note = f"Decided for a risk of {percent(max_risk)}. This is an estimate, not a guarantee."
    matches = decided_matches(answer, match_rule(own, max_risk), top, radius)
    pose = best_pose(matches, radius)
    notes = (*answer.notes, note)
    decided_answer = replace(answer, decision=top, matches=matches, notes=notes, guaranteed=False)
    return DecidedAnswer(with_pose(decided_answer, pose), max_risk, False)


def match_rule(own: DecisionRule | None, max_risk: float) -> DecisionRule:
    """Return thresholds on the probability of a single match."""
    reject = reject_risk(own)
    return rule_by_probability(max_risk, reject if reject is not None and reject < 1 - max_risk else None)


def decided_matches(answer: Localization, rule: DecisionRule, top: str, radius: float) -> tuple[Match, ...]:
    """Decide the matches of an answer.

    Args:
        answer: The answer.
        rule: Thresholds on the probability of a match.
        top: Decision on the best match; no other is better.
        radius: Distance in metres within which two images show the same place.

    Returns:
        The matches with their decisions.
    """
    best, others = answer.matches[0], answer.matches[1:]
    if any(match.probability is None for match in answer.matches):  # only best matches were labelled
        return (replace(best, decision=top), *(replace(match, decision=None) for match in others))
    apart = [[math.hypot(match.x - best.x, match.y - best.y) > 2 * radius for match in answer.matches]]
    pairs = [[match.probability for match in answer.matches]]
    decisions = decide_matches(
        rule, [top], np.array([answer.probability], float), np.array(pairs, float), apart
    )[0]
    return tuple(
        replace(match, decision=each.value) for match, each in zip(answer.matches, decisions, strict=True)
    )
