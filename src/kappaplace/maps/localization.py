"""What a map answers: where, how probable, and what to do with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    the answer, without any guarantee (`kappaplace.calibration.match_decision`). None where it is unknown."""
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
