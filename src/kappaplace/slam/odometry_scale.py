"""The noise of odometry on one drive, estimated from its closures.

A pose graph weighs closures against the specified noise of odometry. On some drives odometry drifts much
less. Then closures, which are accurate to a few metres, pull poses away from better positions. The closures
reveal this. Compared with odometry they have the errors

    r ~ N(0, s²·A·Σ·Aᵀ + R)

to first order. Σ is the specified noise of all steps, A propagates it to the ends of the closures, and R is
the noise of the closures. Closures share steps, so their errors are correlated. The scale s is estimated by
maximum likelihood, with two precautions:

* s is at most 1: a false closure looks like bad odometry and must not gain weight that way.
* If s = 0 is not rejected (likelihood ratio test, 5%), closures add nothing to odometry, which is left
unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kappaplace.data import Poses, between
from kappaplace.slam.graph_factors import OdometryNoise, in_tangent_order, load_gtsam, to_gtsam
from kappaplace.slam.types import Closure

if TYPE_CHECKING:
    import gtsam

SCALES = np.concatenate([[0.0], np.geomspace(0.02, 1.0, 100)])
"""Candidates for s."""
REJECTED = 2.706
"""Twice the log-likelihood ratio above which s = 0 is rejected: 5%, as s cannot be below 0 (½χ²₀ + ½χ²₁)."""
MOST = 300
"""Largest number of closures, evenly sampled: they determine one number, and a matrix is decomposed."""


def odometry_scale(odometry: Poses, closures: Sequence[Closure], noise: OdometryNoise) -> float:
    """Estimate the factor for the specified noise of odometry.

    Args:
        odometry: Raw poses of all frames, N×3 or N×7.
        closures: Closures to learn from.
        noise: Specified noise of odometry.

    Returns:
        A factor in [0, 1]; 0 if closures do not contradict odometry, 1 without closures.
    """
    if not closures:
        return 1.0
    rows = np.unique(np.linspace(0, len(closures) - 1, min(len(closures), MOST)).round().astype(int))
    gain, error = _independent(odometry, [closures[row] for row in rows], noise)
    variance = 1.0 + SCALES[:, None] ** 2 * gain
    likelihood = -0.5 * (np.log(variance) + error / variance).sum(axis=1)
    best = int(likelihood.argmax())
    if 2 * (likelihood[best] - likelihood[0]) < REJECTED:
        return 0.0
    return float(SCALES[best])


def _independent(odometry: Poses, closures: Sequence[Closure], noise: OdometryNoise) -> tuple[Poses, Poses]:
    """Rotate the errors of closures against odometry so that they are independent, with unit noise of their
    own.

    Returns the variance that the specified odometry noise adds to each, and each error squared.
    """
    # Relative to the first pose: far from the origin, differences of squares would lose their digits.
    poses = [to_gtsam(pose) for pose in between(odometry[0], odometry)]
    adjoint = np.stack([pose.AdjointMap() for pose in poses])
    sigma = np.stack([in_tangent_order(noise.sigma(step)) for step in between(odometry[:-1], odometry[1:])])
    steps = adjoint[1:] * sigma[:, None, :]
    # Noise of the steps up to each pose, seen from the origin: two closures share a difference of it.
    total = np.concatenate([np.zeros_like(adjoint[:1]), np.cumsum(steps @ steps.swapaxes(1, 2), axis=0)])
    match, query = np.array([(closure.match, closure.query) for closure in closures]).T
    first, last = np.maximum(match[:, None], match), np.minimum(query[:, None], query)
    shared = np.where((last > first)[..., None, None], total[last] - total[first], 0.0)
    back = np.linalg.inv(adjoint[query])
    own = np.stack([in_tangent_order(closure.sigma) for closure in closures])
    whitened = back / own[..., None]
    size = own.size
    covariance = np.einsum("aij,abjk,blk->aibl", whitened, shared, whitened, optimize=True)
    gain, turn = np.linalg.eigh(covariance.reshape(size, size))
    return np.maximum(gain, 0.0), (turn.T @ (_residuals(poses, closures) / own).ravel()) ** 2


def _residuals(poses: Sequence[gtsam.Pose2 | gtsam.Pose3], closures: Sequence[Closure]) -> Poses:
    """Return the difference between odometry and each closure, M×3 or M×6."""
    gtsam = load_gtsam()
    kind = gtsam.Pose2 if isinstance(poses[0], gtsam.Pose2) else gtsam.Pose3
    rows = []
    for closure in closures:
        motion = poses[closure.match].between(poses[closure.query])
        rows.append(kind.Logmap(to_gtsam(closure.relative).between(motion)))
    return np.stack(rows)
