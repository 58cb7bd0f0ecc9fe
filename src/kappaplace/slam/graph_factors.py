"""Odometry and closures as GTSAM factors, in 2D and 3D, with or without a robust kernel.

**Switchable constraints** (Sünderhauf and Protzel, 2012) give every closure a switch s. Its error is
multiplied by s, and a prior with information Φ pulls s to 1. For given poses the best switch is known, s =
Φ/(Φ + χ²), which leaves the Geman-McClure kernel on χ²:

    min over s of  s²·χ² + Φ·(1 − s)²  =  Φ·χ²/(Φ + χ²)

So no switch has to be optimized, and the minimum is the same. **DCS** (Agarwal et al., 2013) was derived
from it with s = min(1, 2Φ/(Φ + χ²)): closures within Φ count in full.
"""

from __future__ import annotations

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

    metres: float = 0.03
    """Metres per metre travelled."""
    least_metres: float = 0.02
    """Smallest value in metres for a step, however short."""
    angle: float = 0.006
    """Radians per step."""

    def times(self, scale: float) -> OdometryNoise:
        """Return the noise with all deviations multiplied by a factor."""
        return OdometryNoise(self.metres * scale, self.least_metres * scale, self.angle * scale)

    def sigma(self, step: Poses) -> Poses:
        """Return the deviations of a step: 3 numbers (x, y, yaw) or 6 (x, y, z, about x, y, z)."""
        metres = max(self.metres * float(np.linalg.norm(pose_positions(step))), self.least_metres)
        size = 2 if len(step) == PLANAR else 3
        return np.array([metres] * size + [self.angle] * (1 if size == 2 else 3))


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
        before: Its odometry.
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
        raise KappaPlaceError(
            "Kernels by probability need calibrated closures. Pass a calibration to LoopCloser."
        )
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
