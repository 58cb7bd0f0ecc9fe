"""Odometry and closures as GTSAM factors, in 2D and 3D, and the noise of odometry on one drive.

**Switchable constraints** (Sünderhauf and Protzel, 2012) give every closure a switch s. The error of the
closure is multiplied by s, and a prior with information Φ pulls s to 1. For given poses the best switch is
known, s = Φ/(Φ + χ²), which leaves the Geman-McClure kernel on χ²:

    min over s of  s²·χ² + Φ·(1 − s)²  =  Φ·χ²/(Φ + χ²)

So no switch has to be optimized, and the minimum is the same. **DCS** (Agarwal et al., 2013) was derived
from it with s = min(1, 2Φ/(Φ + χ²)): closures within Φ count in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Literal

import numpy as np

from kappaplace.data import PLANAR, Poses, between, pose_positions
from kappaplace.errors import KappaPlaceError, MissingExtra
from kappaplace.slam.types import Closure

if TYPE_CHECKING:
    import gtsam


Kernel = Literal["none", "cauchy", "dcs", "switchable", "gnc"]
KERNELS: tuple[Kernel, ...] = ("none", "cauchy", "dcs", "switchable", "gnc")
ODDS = (0.01, 100.0)
"""Smallest and largest odds that a kernel accepts as its width."""


@dataclass(frozen=True)
class OdometryNoise:
    """Standard deviations of one odometry step."""

    meters: float = 0.03
    """Metres per metre travelled."""
    least_meters: float = 0.02
    """Smallest value in metres for a step, however short."""
    angle: float = 0.006
    """Radians per step."""

    def times(self, scale: float) -> OdometryNoise:
        """Return the noise with all deviations multiplied by a factor."""
        return OdometryNoise(self.meters * scale, self.least_meters * scale, self.angle * scale)

    def sigma(self, step: Poses) -> Poses:
        """Return the deviations of a step: 3 numbers (x, y, yaw) or 6 (x, y, z, about x, y, z)."""
        meters = max(self.meters * float(np.linalg.norm(pose_positions(step))), self.least_meters)
        size = 2 if len(step) == PLANAR else 3
        return np.array([meters] * size + [self.angle] * (1 if size == 2 else 3))


def load_gtsam() -> ModuleType:
    """Import GTSAM, or raise an error that names the missing extra."""
    try:
        import gtsam
    except ImportError:
        raise MissingExtra("Pose graph optimization", "slam") from None
    return gtsam


def to_gtsam(pose: Poses) -> gtsam.Pose2 | gtsam.Pose3:
    """Convert one pose."""
    gtsam = load_gtsam()
    if len(pose) == PLANAR:
        return gtsam.Pose2(*(float(number) for number in pose))
    x, y, z, qx, qy, qz, qw = (float(number) for number in pose)
    return gtsam.Pose3(gtsam.Rot3.Quaternion(qw, qx, qy, qz), np.array([x, y, z]))


def from_gtsam(pose: gtsam.Pose2 | gtsam.Pose3) -> Poses:
    """Convert one pose back."""
    if isinstance(pose, load_gtsam().Pose2):
        return np.array([pose.x(), pose.y(), pose.theta()])
    turn = pose.rotation().toQuaternion()
    return np.array([*pose.translation(), turn.x(), turn.y(), turn.z(), turn.w()])


def estimated_poses(values: gtsam.Values, count: int, size: int) -> Poses:
    """Return the first ``count`` poses of an estimate, N×3 or N×7 by ``size``."""
    read = values.atPose2 if size == PLANAR else values.atPose3
    return np.array([from_gtsam(read(row)) for row in range(count)])


def prior(pose: Poses) -> gtsam.NonlinearFactor:
    """Return the factor that fixes the first pose."""
    gtsam = load_gtsam()
    kind = gtsam.PriorFactorPose2 if len(pose) == PLANAR else gtsam.PriorFactorPose3
    return kind(0, to_gtsam(pose), gtsam.noiseModel.Isotropic.Sigma(3 if len(pose) == PLANAR else 6, 1e-4))


def odometry_factor(number: int, before: Poses, after: Poses, noise: OdometryNoise) -> gtsam.NonlinearFactor:
    """Return the factor for the motion from one frame to the next.

    Args:
        number: Index of the first frame.
        before: Odometry of the first frame.
        after: Odometry of the next frame.
        noise: Standard deviations of a step.

    Returns:
        The factor between both frames.
    """
    step = between(before, after)
    return _between(number, number + 1, step, _diagonal(noise.sigma(step)))


def closure_factor(
    closure: Closure, kernel: Kernel = "none", *, by_probability: bool = False
) -> gtsam.NonlinearFactor:
    """Return the factor of a closure.

    Args:
        closure: The closure.
        kernel: Robust kernel, one of `KERNELS`.
        by_probability: Use the odds of the closure, p/(1 − p), as the width of the kernel. For switches this
            is the information Φ of their prior: a likely closure may disagree more before it is switched off.

    Returns:
        The factor between both frames.

    Raises:
        KappaPlaceError: If the kernel is unknown or cannot be used by probability.
    """
    gtsam = load_gtsam()
    model = _diagonal(closure.sigma)
    width = width_of(closure, by_probability)
    kernels = gtsam.noiseModel.mEstimator
    if kernel == "cauchy":
        # Beyond √width standard deviations the cost grows only with the logarithm.
        model = gtsam.noiseModel.Robust.Create(kernels.Cauchy.Create(float(np.sqrt(width))), model)
    elif kernel == "dcs":
        model = gtsam.noiseModel.Robust.Create(kernels.DCS.Create(width), model)
    elif kernel == "switchable":
        model = gtsam.noiseModel.Robust.Create(kernels.GemanMcClure.Create(float(np.sqrt(width))), model)
    elif kernel == "gnc" and by_probability:
        raise KappaPlaceError(
            "The kernel 'gnc' has one threshold for all closures. Use kernel='dcs' with by_probability=True."
        )
    else:
        kernel_named(kernel)
    return _between(closure.match, closure.query, closure.relative, model)


def kernel_named(name: str) -> Kernel:
    """Return the kernel with this name, or raise an error that lists all kernels."""
    for kernel in KERNELS:
        if kernel == name:
            return kernel
    raise KappaPlaceError(f"Unknown kernel '{name}'. Choose from: {', '.join(KERNELS)}.")


def width_of(closure: Closure, by_probability: bool) -> float:
    """Return the width of a kernel: 1, or the odds of the closure."""
    if not by_probability:
        return 1.0
    if closure.probability is None:
        raise KappaPlaceError("by_probability needs calibrated closures. Pass a calibration to LoopCloser.")
    probability = min(max(closure.probability, 1e-9), 1 - 1e-9)
    return float(np.clip(probability / (1 - probability), *ODDS))


def _between(first: int, second: int, relative: Poses, model: gtsam.noiseModel.Base) -> gtsam.NonlinearFactor:
    gtsam = load_gtsam()
    kind = gtsam.BetweenFactorPose2 if len(relative) == PLANAR else gtsam.BetweenFactorPose3
    return kind(first, second, to_gtsam(relative), model)


def in_tangent_order(sigma: Poses) -> Poses:
    """Reorder deviations for GTSAM: rotations before translations in 3D, after them in 2D."""
    return sigma if len(sigma) == 3 else np.concatenate([sigma[3:], sigma[:3]])


def _diagonal(sigma: Poses) -> gtsam.noiseModel.Base:
    return load_gtsam().noiseModel.Diagonal.Sigmas(in_tangent_order(sigma))


SCALES = np.concatenate([[0.0], np.geomspace(0.02, 1.0, 100)])
"""Candidates for s."""
REJECTED = 2.706
"""Twice the log-likelihood ratio above which s = 0 is rejected at the 5% level. Because s cannot be below 0,
its distribution is ½χ²₀ + ½χ²₁."""
MOST = 300
"""Largest number of closures to use, evenly sampled, because the time grows with its third power."""


def odometry_scale(odometry: Poses, closures: Sequence[Closure], noise: OdometryNoise) -> float:
    """Estimate the factor for the specified noise of odometry on one drive.

    On some drives odometry drifts much less than specified. Then closures, which are accurate to a few
    metres, pull poses away from better positions. The errors of closures against odometry reveal this:

        r ~ N(0, s²·A·Σ·Aᵀ + R)

    to first order. Σ is the specified noise of all steps, and R the noise of the closures. A propagates Σ to
    the ends of the closures. Closures share steps, so their errors are correlated. The scale s is the maximum
    of the likelihood, with two precautions:

    * s is at most 1: a false closure looks like bad odometry and must not gain weight that way.
    * If s = 0 is not rejected (likelihood ratio test, 5%), closures add nothing to odometry.

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
    """Transform the errors of closures against odometry to independent errors with unit noise of the
    closures.

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
