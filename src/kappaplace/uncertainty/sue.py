"""SUE: how far the poses of the best matches lie apart, weighted by how good the matches are.

With weights w_i ∝ exp(−slope·d_i) over the K best references and m = Σ w_i·x_i per axis,
SUE = mean over both axes of Σ w_i·cap(x_i − m)², in m². The method is spatial uncertainty estimation
(arXiv 2404.00546); log-SUE, log(SUE + 1e-10), is what the KappaPlace paper evaluates.

Two choices differ between the codes around: the slope of 350 is applied to the L2 distance (KappaPlace) or to
its square (STUN's code); and deviations are capped at 500 m to both sides, as the method says (our default),
or upwards only ("one-sided"), so that a match far to the south or west counts in full.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from kappaplace.errors import KappaPlaceError
from kappaplace.uncertainty.base import Evidence, Score, Scores
from kappaplace.uncertainty.needs import POSITIONS, at_least

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
