"""What a map answers: where, how probable, and what to do with it.

Answers as files: JSON lines of text for programs, CSV for sheets, pairs for hloc.

An answer decided anew for the risk that a client accepts.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.decision import DecisionRule, decide_matches
from kappaplace.calibration.decision import rule_by_probability as by_probability
from kappaplace.calibration.expected import reject_risk, rule_for, stated_risk
from kappaplace.checks import percent, share
from kappaplace.errors import KappaPlaceError
from kappaplace.files import not_written, replace_file

SAME_VIEW = 60.0
"""Degrees within which two matches look the same way."""


@dataclass(frozen=True)
class Pose:
    """Where the query was taken, from the matches that agree with the best one."""

    x: float
    y: float
    heading: float
    """Degrees clockwise from north; NaN where the best match does not know its own."""
    spread: float
    """Root mean square distance of these matches from the estimate, in metres; 0 where only one took part,
    which says nothing of how far it is off."""
    matches: int
    """How many took part."""


@dataclass(frozen=True)
class Match:
    """One reference that resembles the query."""

    rank: int
    name: str
    x: float
    y: float
    heading: float
    time: float
    similarity: float
    kappa: float
    """Of the reference; NaN from a model without a kappa head."""
    uncertainty: float
    """Of this pair: U of KappaPlace, or 1 − cosine where there is no κ."""
    probability: float | None
    """That this pair shows one place; None without calibration, or where only best matches were labelled."""
    decision: str | None
    """Of the best match, that of the whole answer. Of another, by its own probability and never better than
    the answer, without any guarantee (`kappaplace.calibration.decision`). None where it is unknown."""
    reference: int
    """Its number in the map."""
    image: str
    """Where its image lay when it was embedded."""


@dataclass(frozen=True)
class Localization:
    """The answer to one query."""

    query: str
    kappa: float
    """Of the query; NaN from a model without a kappa head."""
    uncertainty: float
    """Of the query with its best match: the calibrated score, or U without a calibration."""
    probability: float | None
    """That the best match is right; None without calibration."""
    inside: float | None
    """Probability that the query was taken inside the map; None where that was not learnt."""
    decision: str | None
    """accept, doubtful or reject; None without calibration."""
    in_map: bool | None
    """False: probably not in this map; None where nothing is known of that."""
    pose: Pose | None
    matches: tuple[Match, ...]
    signals: dict[str, float]
    """Every score of the query that was at hand, higher = less certain."""
    notes: tuple[str, ...] = ()
    """What must be known to read the answer rightly."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time spent a query: embed, search, signals, decide."""
    calibration: str = ""
    """Fingerprint of the calibration that judged it; empty without one."""

    @property
    def sentence(self) -> str:
        """The answer in words."""
        if not self.matches:
            return "Nothing was found: there is no reference in the area asked for."
        said = f"Best match {self.matches[0].name}"
        if self.pose is not None:
            said += f" at ({self.pose.x:.1f}, {self.pose.y:.1f})"
            if self.pose.matches > 1:  # one alone says nothing of how far it may be off
                said += f" ± {self.pose.spread:.1f} m"
        if self.probability is not None:
            said += f", right with probability {self.probability:.2f}"
        if self.decision is not None:
            said += f": {self.decision}"
        return said + ("; probably not in this map." if self.in_map is False else ".")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: what is unknown is None."""
        return {**_plain(asdict(self)), "sentence": self.sentence}


def fused_pose(
    poses: NDArray[np.float64], weights: NDArray[np.float64], consistent: NDArray[np.bool_]
) -> Pose | None:
    """Weighted mean of the matches that agree with the best one; None where that one has no position.

    ``poses`` are K×4 (x, y, heading, time), the best match first.
    """
    used = consistent & np.isfinite(poses[:, :2]).all(axis=1)
    if not len(poses) or not used[0]:
        return None
    at, weight = poses[used], np.maximum(weights[used], 0.0)
    weight = weight / weight.sum() if weight.sum() > 0 else np.full(len(at), 1 / len(at))
    centre = weight @ at[:, :2]
    spread = math.sqrt(float(weight @ ((at[:, :2] - centre) ** 2).sum(axis=1)))
    turn = np.radians(at[:, 2])
    with np.errstate(invalid="ignore"):  # matches that look another way say nothing of the query's heading
        known = np.cos(turn - turn[0]) >= math.cos(math.radians(SAME_VIEW))
    heading = math.nan
    if known.any():
        east, north = weight[known] @ np.sin(turn[known]), weight[known] @ np.cos(turn[known])
        heading = math.degrees(math.atan2(east, north)) % 360.0
    return Pose(float(centre[0]), float(centre[1]), heading, spread, int(used.sum()))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


COLUMNS = (
    *("query", "rank", "name", "x", "y", "heading", "similarity", "kappa", "query_kappa", "uncertainty"),
    *("probability", "decision", "answer_probability", "inside", "pose_x", "pose_y", "pose_spread"),
    *("answer_uncertainty", "calibration"),
)


def write_csv(answers: Sequence[Localization], file: str | Path) -> None:
    """Write one row per match; what is unknown is an empty cell."""
    replace_file(Path(file), lambda part: _append(part, [",".join(COLUMNS)], answers))


class AnswerFile:
    """A CSV file to which answers are added as they come; a run that was stopped resumes there.

    Args:
        file: The file.
        calibration: Fingerprint of the calibration that the answers come from.

    Raises:
        KappaPlaceError: If the file holds something else, or answers of another calibration.
    """

    def __init__(self, file: Path, calibration: str) -> None:
        self.file = file
        self.answered: set[str] = set()
        """Queries that the file has answers of."""
        if file.exists():
            self._resume(calibration)
        else:
            write_csv([], file)

    def _resume(self, calibration: str) -> None:
        text = self.file.read_text(encoding="utf-8", errors="backslashreplace")
        rows = list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))  # without a half-written line
        if text and text.partition("\n")[0].strip() != ",".join(COLUMNS):
            raise KappaPlaceError(f"{self.file} is no file of answers. Choose another name, or remove it.")
        if any(row["calibration"] != calibration for row in rows):
            raise KappaPlaceError(
                f"{self.file} has answers of another calibration. Choose another name, or remove it."
            )
        last = rows[-1]["query"] if rows else ""  # perhaps not complete
        kept = [row for row in rows if row["query"] != last]
        self.answered = {row["query"] for row in kept}

        def write(part: Path) -> None:
            with open(part, "w", newline="", encoding="utf-8", errors="backslashreplace") as stream:
                writer = csv.DictWriter(stream, COLUMNS)
                writer.writeheader()
                writer.writerows(kept)

        replace_file(self.file, write)

    def add(self, answers: Sequence[Localization]) -> None:
        """Add answers at the end of the file."""
        _append(self.file, [], answers)


def _append(file: Path, head: Sequence[str], answers: Sequence[Localization]) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    text.writelines(f"{line}\r\n" for line in head)
    for answer in answers:
        writer.writerows(_rows(answer))
    try:
        with open(file, "a", newline="", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(text.getvalue())
    except OSError as error:
        raise not_written(file, error) from None


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


class Decided(NamedTuple):
    """An answer, the risk it was decided for, and whether that is promised."""

    answer: Localization
    max_risk: float | None
    guaranteed: bool


def decided(
    answer: Localization, calibration: Calibration | None, radius: float, max_risk: float | None = None
) -> Decided:
    """The answer as the calibration decided it, or decided anew for ``max_risk``.

    The rules are those of `localize`: thresholds for the best match; others by their own probability, never
    better than the best one, and never where both cannot be right.
    """
    if calibration is None or answer.probability is None or not answer.matches:
        return Decided(answer, None, False)
    own = calibration.rule
    if max_risk is None:
        return Decided(answer, None if own is None else stated_risk(own), own is not None and own.guaranteed)
    rule = rule_for(calibration, max_risk)
    if rule is own:
        return Decided(answer, max_risk, rule.guaranteed)
    top = rule.decide(uncertainty=[answer.uncertainty], probability=[answer.probability])[0].value
    said = f"Decided for a risk of {percent(max_risk)}; an estimate, nothing is proven for it."
    matches = _decided_matches(answer, match_rule(own, max_risk), top, radius)
    return Decided(
        replace(answer, decision=top, matches=matches, notes=(*answer.notes, said)), max_risk, False
    )


def match_rule(own: DecisionRule | None, max_risk: float) -> DecisionRule:
    """Thresholds on the probability of a single match."""
    rejecting = reject_risk(own)
    return by_probability(max_risk, rejecting if rejecting is not None and rejecting < 1 - max_risk else None)


def _decided_matches(answer: Localization, rule: DecisionRule, top: str, radius: float) -> tuple:
    first, rest = replace(answer.matches[0], decision=top), answer.matches[1:]
    if any(match.probability is None for match in answer.matches):  # only best matches were labelled
        return (first, *(replace(match, decision=None) for match in rest))
    best = answer.matches[0]
    apart = [[math.hypot(match.x - best.x, match.y - best.y) > 2 * radius for match in answer.matches]]
    pairs = [[match.probability for match in answer.matches]]
    made = decide_matches(rule, [top], [answer.probability], np.array(pairs), np.array(apart))[0]
    return tuple(
        replace(match, decision=each.value) for match, each in zip(answer.matches, made, strict=True)
    )
