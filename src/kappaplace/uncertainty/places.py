"""Scores that compare places: positions of the matches, or similarities to the rest of the map.

**SUE** (spatial uncertainty estimation, arXiv 2404.00546) is the weighted variance of the positions of the
best matches. The K best references have weights w_i ∝ exp(−slope·d_i), and m = Σ w_i·x_i per axis. SUE is the
mean over both axes of Σ w_i·cap(x_i − m)², in m². The KappaPlace paper evaluates log-SUE, log(SUE + 1e-10).
Implementations differ in two points. The slope of 350 is applied to the L2 distance (KappaPlace) or to its
square (STUN's code). Deviations are limited to ±500 m, as published (the default here), or only upwards
("one-sided").

**Margin** is s_outside − s_1 (at most 0), where s_outside is the highest similarity outside the neighborhood
of the top match. PA compares with the second image, which usually shows the same place; the margin compares
with the next place. If the map has no other place, s_outside is −1.

**Aliasing** is a(R_1) − s_1, where a(R) is the highest similarity of reference R to references outside its
neighborhood. It measures how easily a place is confused with others. If the map has no other place, a is −1.

**z-score** is −(s_1 − mean)/deviation. Mean and standard deviation are those of the query's similarities to a
fixed random sample of the references.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kappaplace.checks import choice, within
from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.references import SAMPLE, draw
from kappaplace.uncertainty.base import (
    ALL_SIMILARITIES,
    NEIGHBORHOOD,
    OUTSIDE,
    POSITIONS,
    REFERENCE_DESCRIPTORS,
    Evidence,
    Score,
    Scores,
    at_least,
)

Distance = Literal["l2", "squared"]
Cap = Literal["symmetric", "one-sided"]
LOG_FLOOR = 1e-10  # in m², because the variance is 0 if all matches are at the same position


def sue(
    slope: float = 350.0,
    *,
    k: int = 10,
    distance: Distance = "l2",
    cap: Cap = "symmetric",
    cap_meters: float = 500.0,
    log: bool = False,
    name: str | None = None,
) -> Score:
    """Return the score SUE with these settings.

    Args:
        slope: Decay of the weights with the distance of descriptors.
        k: Number of matches; if fewer were retrieved, all of them are used.
        distance: Distance of descriptors: l2 or squared.
        cap: Whether deviations are limited in both directions (symmetric) or only upwards (one-sided).
        cap_meters: Limit of the deviation of a position from the mean, in metres.
        log: Whether to return the logarithm.
        name: Name of the score. Default: sue, or log-sue.

    Returns:
        The score.

    Raises:
        KappaPlaceError: If a setting is not valid.
    """
    choice(distance, Distance, "distance")
    choice(cap, Cap, "cap")
    within(slope, "slope", 0)
    within(k, "k", 2)
    if not cap_meters > 0:
        raise KappaPlaceError(f"cap_meters must be above 0, got {cap_meters:g}.")

    def variance(evidence: Evidence) -> Scores:
        d = evidence.distances[:, :k]
        d = d**2 if distance == "squared" else d
        # Distances are relative to the nearest match, whose weight is then 1, so not all weights underflow.
        weights = np.exp(-slope * (d - d.min(axis=1, keepdims=True)))
        weights /= weights.sum(axis=1, keepdims=True)
        return _capped_variance(evidence.match_positions[:, :k], weights, cap, cap_meters)

    def query(evidence: Evidence) -> Scores:
        value = variance(evidence)
        return np.log(value + LOG_FLOOR) if log else value

    default = ("log-sue", "log SUE") if log else ("sue", "SUE")
    return Score(name or default[0], name or default[1], query, needs=(POSITIONS, at_least(2)))


def _capped_variance(positions: Scores, weights: Scores, cap: Cap, meters: float) -> Scores:
    """Return the mean of the weighted variances of both axes; positions N×K×2, weights N×K."""
    # Relative, for precision: UTM northings have seven digits before the decimal point.
    origin = positions[:, :1]
    offset = positions - origin
    mean = np.einsum("nk,nkc->nc", weights, offset)[:, None]
    lowest = -meters if cap == "symmetric" else -np.inf
    deviation = np.clip(offset - mean, lowest, meters)
    return np.einsum("nk,nkc->n", weights, deviation**2) / 2.0


SUE = sue()
LOG_SUE = sue(log=True)


NOTHING_OUTSIDE = -1.0


def _margin(evidence: Evidence) -> Scores:
    outside = evidence.best_outside
    return np.where(np.isneginf(outside), NOTHING_OUTSIDE, outside) - evidence.cosines[:, 0]


MARGIN = Score("margin", "Margin", _margin, needs=(NEIGHBORHOOD, OUTSIDE), one_sided=False)


def _aliasing(evidence: Evidence) -> Scores:
    alias = evidence.best_alias
    return np.where(np.isneginf(alias), NOTHING_OUTSIDE, alias) - evidence.cosines[:, 0]


ALIASING = Score(
    "aliasing", "Aliasing", _aliasing, needs=(REFERENCE_DESCRIPTORS, NEIGHBORHOOD), one_sided=False
)


ROUNDING = 1e-6  # a standard deviation below this fraction of the similarities is float32 noise


def z_score(sample: int | None = SAMPLE, *, seed: int = 0, name: str = "z-score") -> Score:
    """Return the z-score with these settings.

    Args:
        sample: Number of references to compare with, sampled without replacement. None for all references.
        seed: Random seed for the sample.
        name: Name of the score.

    Returns:
        The score.

    Raises:
        KappaPlaceError: If the sample is smaller than two.
    """
    within(2 if sample is None else sample, "sample", 2)

    def query(evidence: Evidence) -> Scores:
        mean, deviation = evidence.background(_rows(evidence, sample, seed))
        top = evidence.cosines[:, 0]
        # If all references are equally similar, the z-score is 0.
        varied = deviation > ROUNDING * np.maximum(np.abs(mean), np.abs(top))
        return -np.divide(top - mean, deviation, out=np.zeros_like(mean), where=varied)

    label = "z-score" if name == "z-score" else name
    return Score(name, label, query, needs=(ALL_SIMILARITIES,), one_sided=False)


def _rows(evidence: Evidence, sample: int | None, seed: int) -> NDArray[np.int64] | None:
    """Return the rows to compare with; None for the default sample of the references."""
    if (sample, seed) == (SAMPLE, 0):
        return None
    count = len(evidence.references)
    return draw(count, count if sample is None else sample, seed)


Z_SCORE = z_score()
