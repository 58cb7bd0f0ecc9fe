"""SUE: how far the poses of the best matches lie apart, weighted by how good the matches are.

With weights w_i ∝ exp(−slope·d_i) over the K best references and m = Σ w_i·x_i per axis,
SUE = mean over both axes of Σ w_i·cap(x_i − m)², in m². The method is spatial uncertainty estimation
(arXiv 2404.00546); log-SUE, log(SUE + 1e-10), is what the KappaPlace paper evaluates.

Two choices differ between the codes around: the slope of 350 is applied to the L2 distance (KappaPlace) or to
its square (STUN's code); and deviations are capped at 500 m to both sides, as the method says (our default),
or upwards only ("one-sided"), so that a match far to the south or west counts in full.

Place-aware margin: how far the top match stands above the best reference of any other place.

uncertainty = s_outside − s_1, never above 0, where s_outside is the highest similarity outside the
neighbourhood of the top match. PA compares with the second image, which mostly shows the same place; this
compares with the next place. Where the map has no other place, s_outside is −1, the far end of the sphere.

Aliasing: whether the query is closer to its match than the match is to the rest of its own map.

uncertainty = a(R_1) − s_1, where a(R) is the highest similarity of reference R to references outside its
neighbourhood: how easily this place is confused, known from the map alone. Where the map has no other place,
a is −1, the far end of the sphere.

z-score: by how many standard deviations the top similarity stands above those of the whole map.

uncertainty = −(s_1 − mean)/deviation, with mean and deviation of the query's similarities to a fixed random
sample of the references, or to all of them.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

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
LOG_FLOOR = 1e-10  # m²: the logarithm of matches that all lie in one spot


def sue(
    slope: float = 350.0,
    *,
    k: int = 10,
    distance: Distance = "l2",
    cap: Cap = "symmetric",
    cap_metres: float = 500.0,
    log: bool = False,
    name: str | None = None,
) -> Score:
    """SUE with these settings; where fewer than ``k`` matches were retrieved, it takes those there are."""
    if distance not in get_args(Distance) or cap not in get_args(Cap):
        raise KappaPlaceError(
            f"SUE has no distance {distance!r} with cap {cap!r}; choose l2 or squared, and symmetric or "
            "one-sided."
        )
    if not (slope >= 0 and k >= 2 and cap_metres > 0):
        raise KappaPlaceError(
            f"SUE needs slope ≥ 0, k ≥ 2 and a cap above 0 m; got {slope:g}, {k} and {cap_metres:g}."
        )

    def variance(evidence: Evidence) -> Scores:
        d = evidence.distances[:, :k]
        d = d**2 if distance == "squared" else d
        # Shifted by the nearest match: its weight is 1 before normalising, so not all can underflow.
        weights = np.exp(-slope * (d - d.min(axis=1, keepdims=True)))
        weights /= weights.sum(axis=1, keepdims=True)
        return _capped_variance(evidence.match_positions[:, :k], weights, cap, cap_metres)

    def query(evidence: Evidence) -> Scores:
        value = variance(evidence)
        return np.log(value + LOG_FLOOR) if log else value

    default = ("log-sue", "log SUE") if log else ("sue", "SUE")
    return Score(name or default[0], name or default[1], query, needs=(POSITIONS, at_least(2)))


def _capped_variance(positions: Scores, weights: Scores, cap: Cap, metres: float) -> Scores:
    """Mean of both axes' weighted variances; positions N×K×2, weights N×K."""
    origin = positions[:, :1]  # small numbers first: UTM northings have seven digits before the point
    offset = positions - origin
    mean = np.einsum("nk,nkc->nc", weights, offset)[:, None]
    lowest = -metres if cap == "symmetric" else -np.inf
    deviation = np.clip(offset - mean, lowest, metres)
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


ROUNDING = 1e-6  # a deviation below this share of the similarities is float32 noise


def z_score(sample: int | None = SAMPLE, *, seed: int = 0, name: str = "z-score") -> Score:
    """The z-score against ``sample`` references drawn without repetition; None: against all."""
    if sample is not None and sample < 2:
        raise KappaPlaceError(f"A z-score needs a sample of two references or more, got {sample}.")

    def query(evidence: Evidence) -> Scores:
        mean, deviation = evidence.background(_rows(evidence, sample, seed))
        top = evidence.cosines[:, 0]
        # Where all references are equally similar, the top one stands out by nothing.
        varied = deviation > ROUNDING * np.maximum(np.abs(mean), np.abs(top))
        return -np.divide(top - mean, deviation, out=np.zeros_like(mean), where=varied)

    label = "z-score" if name == "z-score" else name
    return Score(name, label, query, needs=(ALL_SIMILARITIES,), one_sided=False)


def _rows(evidence: Evidence, sample: int | None, seed: int) -> NDArray[np.int64] | None:
    """Return the rows to compare with; None for the references' own sample."""
    if (sample, seed) == (SAMPLE, 0):
        return None
    count = len(evidence.references)
    return draw(count, count if sample is None else sample, seed)


Z_SCORE = z_score()
