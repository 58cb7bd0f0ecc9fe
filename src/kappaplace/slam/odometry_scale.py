"""How good odometry was on this very drive, as far as its closures can tell.

A pose graph weighs closures against the noise that odometry is stated to have. Some drives drift much less:
closures, good to a few metres, then pull poses away from where they were known better. The closures
themselves show it. Against odometry they leave the errors

    r ~ N(0, s²·A·Σ·Aᵀ + R)

to first order, where Σ is the stated noise of all steps, A carries it to the ends of the closures (they share
steps, so their errors go together) and R is the closures' own noise. The scale s of greatest likelihood is
taken, with two precautions:

* s is never above 1: a false closure looks like bad odometry, and must not gain weight by that.
* If s = 0 is not refuted (likelihood ratio, 5 %), closures say nothing that odometry does not know already,
  and it is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kappaplace.data import Poses, between
from kappaplace.slam.graph_factors import OdometryNoise, in_tangent_order, load_gtsam, to_gtsam
from kappaplace.slam.types import Closure

SCALES = np.concatenate([[0.0], np.geomspace(0.02, 1.0, 100)])
REFUTED = 2.706
"""Twice the log-likelihood ratio above which s = 0 is refuted: 5 %, as s cannot be below 0 (½χ²₀ + ½χ²₁)."""
MOST = 300
"""Closures that are looked at, evenly taken from all: one number is estimated, and a matrix is decomposed."""


def odometry_scale(odometry: Poses, closures: Sequence[Closure], noise: OdometryNoise) -> float:
    """What to multiply the stated noise with, in [0, 1]; 0: closures do not contradict odometry.

    1 without closures, for then there is nothing to learn it from.
    """
    if not closures:
        return 1.0
    taken = np.unique(np.linspace(0, len(closures) - 1, min(len(closures), MOST)).round().astype(int))
    share, error = _independent(odometry, [closures[row] for row in taken], noise)
    variance = 1.0 + SCALES[:, None] ** 2 * share
    likelihood = -0.5 * (np.log(variance) + error / variance).sum(axis=1)
    best = int(likelihood.argmax())
    if 2 * (likelihood[best] - likelihood[0]) < REFUTED:
        return 0.0
    return float(SCALES[best])


def _independent(odometry: Poses, closures: Sequence[Closure], noise: OdometryNoise) -> tuple[Poses, Poses]:
    """Errors of closures against odometry, turned so that they are independent and their own noise is 1.

    The variance that stated odometry adds to each, and each error squared.
    """
    # Seen from the first pose: far from the origin, differences of squares would lose their digits.
    poses = [to_gtsam(pose) for pose in between(odometry[0], odometry)]
    adjoint = np.stack([pose.AdjointMap() for pose in poses])
    sigma = np.stack([in_tangent_order(noise.sigma(step)) for step in between(odometry[:-1], odometry[1:])])
    carried = adjoint[1:] * sigma[:, None, :]
    # Noise of the steps up to each pose, seen from the origin: what two closures share is a difference of it.
    summed = np.concatenate([np.zeros_like(adjoint[:1]), np.cumsum(carried @ carried.swapaxes(1, 2), axis=0)])
    match, query = np.array([(closure.match, closure.query) for closure in closures]).T
    first, last = np.maximum(match[:, None], match), np.minimum(query[:, None], query)
    shared = np.where((last > first)[..., None, None], summed[last] - summed[first], 0.0)
    back = np.linalg.inv(adjoint[query])
    own = np.stack([in_tangent_order(closure.sigma) for closure in closures])
    whitened = back / own[..., None]
    size = own.size
    covariance = np.einsum("aij,abjk,blk->aibl", whitened, shared, whitened, optimize=True)
    share, turn = np.linalg.eigh(covariance.reshape(size, size))
    return np.maximum(share, 0.0), (turn.T @ (_residuals(poses, closures) / own).ravel()) ** 2


def _residuals(poses: Sequence[object], closures: Sequence[Closure]) -> Poses:
    """By how much odometry misses what each closure says, M×3 or M×6."""
    gtsam = load_gtsam()
    kind = gtsam.Pose2 if isinstance(poses[0], gtsam.Pose2) else gtsam.Pose3
    rows = []
    for closure in closures:
        driven = poses[closure.match].between(poses[closure.query])  # type: ignore[attr-defined]
        rows.append(kind.Logmap(to_gtsam(closure.relative).between(driven)))
    return np.stack(rows)
