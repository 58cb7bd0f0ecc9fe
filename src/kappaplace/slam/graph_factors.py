"""Odometry and closures as GTSAM factors, in the plane and in space, plain or under a robust kernel.

**Switchable constraints** (Sünderhauf and Protzel, 2012) give every closure a switch s: its error counts s
times, and a prior of the information Φ holds s at 1. For given poses the best switch is known, s = Φ/(Φ +
χ²), and what is left is a kernel on χ², that of Geman and McClure:

    min over s of  s²·χ² + Φ·(1 − s)²  =  Φ·χ²/(Φ + χ²)

So no switch has to be solved for, and the minimum is the same. **DCS** (Agarwal et al., 2013) was derived
from it with s = min(1, 2Φ/(Φ + χ²)): closures within Φ count in full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kappaplace.data import PLANAR, Poses, between, pose_positions
from kappaplace.errors import KappaPlaceError, MissingExtra
from kappaplace.slam.types import Closure

Kernel = Literal["none", "cauchy", "dcs", "switchable", "gnc"]


KERNELS: tuple[Kernel, ...] = ("none", "cauchy", "dcs", "switchable", "gnc")


ODDS = (0.01, 100.0)
"""Least and largest odds that a kernel takes as its width."""


@dataclass(frozen=True)
class OdometryNoise:
    """Standard deviations of one step; what the makers of odometry state, or what a drive has shown."""

    metres: float = 0.03
    """A metre driven."""
    least_metres: float = 0.02
    """Of a step, however short."""
    angle: float = 0.006
    """Radians a step."""

    def times(self, scale: float) -> OdometryNoise:
        """So many times as much of all of it."""
        return OdometryNoise(self.metres * scale, self.least_metres * scale, self.angle * scale)

    def sigma(self, step: Poses) -> Poses:
        """3 numbers (x, y, yaw) or 6 (x, y, z, about x, y, z) of one step."""
        metres = max(self.metres * float(np.linalg.norm(pose_positions(step))), self.least_metres)
        return np.array(
            [metres] * 2 + [self.angle] if len(step) == PLANAR else [metres] * 3 + [self.angle] * 3
        )


def load_gtsam() -> Any:
    """GTSAM, or one sentence."""
    try:
        import gtsam
    except ImportError:
        raise MissingExtra("Pose graph optimization", "slam") from None
    return gtsam


def to_gtsam(pose: Poses) -> Any:
    """A Pose2 or Pose3."""
    gtsam = load_gtsam()
    if len(pose) == PLANAR:
        return gtsam.Pose2(*(float(number) for number in pose))
    x, y, z, qx, qy, qz, qw = (float(number) for number in pose)
    return gtsam.Pose3(gtsam.Rot3.Quaternion(qw, qx, qy, qz), np.array([x, y, z]))


def from_gtsam(values: Any, count: int, size: int) -> Poses:
    """The first so many poses of an estimate."""
    if size == PLANAR:
        found = (values.atPose2(row) for row in range(count))
        return np.array([[pose.x(), pose.y(), pose.theta()] for pose in found])
    rows = []
    for row in range(count):
        pose = values.atPose3(row)
        turned = pose.rotation().toQuaternion()
        rows.append([*pose.translation(), turned.x(), turned.y(), turned.z(), turned.w()])
    return np.array(rows)


def prior(pose: Poses) -> Any:
    """The first pose stays where it is."""
    gtsam = load_gtsam()
    kind = gtsam.PriorFactorPose2 if len(pose) == PLANAR else gtsam.PriorFactorPose3
    return kind(0, to_gtsam(pose), gtsam.noiseModel.Isotropic.Sigma(3 if len(pose) == PLANAR else 6, 1e-4))


def odometry_factor(number: int, before: Poses, after: Poses, noise: OdometryNoise) -> Any:
    """What was driven from one frame to the next."""
    step = between(before, after)
    return _between(number, number + 1, step, _diagonal(noise.sigma(step)))


def closure_factor(closure: Closure, kernel: Kernel = "none", *, by_probability: bool = False) -> Any:
    """What a closure says.

    ``by_probability`` makes the odds of the closure, p/(1 − p), the width of the kernel. For switches that is
    the information Φ of their prior, so that a likely closure may disagree more before it is switched off.
    """
    gtsam = load_gtsam()
    model = _diagonal(closure.sigma)
    width = width_of(closure, by_probability)
    makers = gtsam.noiseModel.mEstimator
    if kernel == "cauchy":
        # Beyond √width standard deviations the cost grows with the logarithm only.
        model = gtsam.noiseModel.Robust.Create(makers.Cauchy.Create(float(np.sqrt(width))), model)
    elif kernel == "dcs":
        model = gtsam.noiseModel.Robust.Create(makers.DCS.Create(width), model)
    elif kernel == "switchable":
        model = gtsam.noiseModel.Robust.Create(makers.GemanMcClure.Create(float(np.sqrt(width))), model)
    elif kernel == "gnc" and by_probability:
        raise KappaPlaceError("GNC has one threshold for all closures; by probability there is dcs.")
    elif kernel not in KERNELS:
        raise KappaPlaceError(f"Unknown kernel '{kernel}'; choose among: {', '.join(KERNELS)}.")
    return _between(closure.match, closure.query, closure.relative, model)


def width_of(closure: Closure, by_probability: bool) -> float:
    """Of a kernel: 1, or the odds of the closure."""
    if not by_probability:
        return 1.0
    if closure.probability is None:
        raise KappaPlaceError(
            "Kernels by probability need calibrated closures; give the closer a calibration."
        )
    sure = min(max(closure.probability, 1e-9), 1 - 1e-9)
    return float(np.clip(sure / (1 - sure), *ODDS))


def _between(first: int, second: int, relative: Poses, model: Any) -> Any:
    gtsam = load_gtsam()
    kind = gtsam.BetweenFactorPose2 if len(relative) == PLANAR else gtsam.BetweenFactorPose3
    return kind(first, second, to_gtsam(relative), model)


def in_tangent_order(sigma: Poses) -> Poses:
    """GTSAM has rotations before translations in space, and after them in the plane."""
    return sigma if len(sigma) == 3 else np.concatenate([sigma[3:], sigma[:3]])


def _diagonal(sigma: Poses) -> Any:
    return load_gtsam().noiseModel.Diagonal.Sigmas(in_tangent_order(sigma))
