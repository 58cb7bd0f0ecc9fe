"""Pose-graph optimisation with GTSAM: all at once, or frame by frame (iSAM2).

Graduated non-convexity (Yang et al., 2020): from a convex cost to truncated least squares, all at once.

Odometry and closures as GTSAM factors, in the plane and in space, plain or under a robust kernel.

**Switchable constraints** (Sünderhauf and Protzel, 2012) give every closure a switch s: its error counts s
times, and a prior of the information Φ holds s at 1. For given poses the best switch is known, s = Φ/(Φ +
χ²), and what is left is a kernel on χ², that of Geman and McClure:

    min over s of  s²·χ² + Φ·(1 − s)²  =  Φ·χ²/(Φ + χ²)

So no switch has to be solved for, and the minimum is the same. **DCS** (Agarwal et al., 2013) was derived
from it with s = min(1, 2Φ/(Φ + χ²)): closures within Φ count in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kappaplace.data import PLANAR, Poses, between, check_poses, compose
from kappaplace.errors import KappaPlaceError
from kappaplace.slam.graph_factors import (
    Kernel,
    OdometryNoise,
    closure_factor,
    from_gtsam,
    load_gtsam,
    odometry_factor,
    prior,
    to_gtsam,
)
from kappaplace.slam.odometry_scale import odometry_scale
from kappaplace.slam.types import Closure

INLIER = 0.99
"""Share of right closures whose error is to be kept: the quantile of χ² that truncates."""


def graduated(graph: Any, start: Any, settings: Any, trusted: int) -> Any:
    """Solved by GNC; the first so many factors (odometry) are beyond doubt."""
    gtsam = load_gtsam()
    terms = gtsam.GncLMParams(settings)
    terms.setLossType(gtsam.GncLossType.TLS)
    terms.setKnownInliers(list(range(trusted)))
    solver = gtsam.GncLMOptimizer(graph, start, terms)
    solver.setInlierCostThresholdsAtProbability(INLIER)
    return solver.optimize()


ITERATIONS = 100


def optimise(
    odometry: Poses,
    closures: Sequence[Closure],
    *,
    noise: OdometryNoise | None = None,
    kernel: Kernel = "none",
    by_probability: bool = False,
    adapt: bool = True,
) -> Poses:
    """The poses that fit odometry and closures best, N×3 or N×7; the first one stays.

    Closures are taken as they are given, accepted or not. Levenberg-Marquardt from the odometry.
    ``adapt`` trusts odometry more where closures show that it was better than stated (`odometry_scale`);
    where they do not contradict it at all, it comes back as it was.
    """
    gtsam, poses, noise = load_gtsam(), check_poses(odometry, "odometry"), noise or OdometryNoise()
    if poses.ndim != 2 or len(poses) < 2:
        raise KappaPlaceError(f"A pose graph needs two poses or more, got an array of shape {poses.shape}.")
    known = [_known(closure, poses.shape) for closure in closures]
    if adapt:
        scale = odometry_scale(poses, known, noise)
        if scale == 0:
            return poses.copy()
        noise = noise.times(scale)
    graph, start = gtsam.NonlinearFactorGraph(), gtsam.Values()
    graph.add(prior(poses[0]))
    for row, pose in enumerate(poses):
        start.insert(row, to_gtsam(pose))
        if row:
            graph.add(odometry_factor(row - 1, poses[row - 1], pose, noise))
    for closure in known:
        graph.add(closure_factor(closure, kernel, by_probability=by_probability))
    settings = gtsam.LevenbergMarquardtParams()
    settings.setMaxIterations(ITERATIONS)
    try:
        if kernel == "gnc" and known:
            found = graduated(graph, start, settings, len(poses))
        else:
            found = gtsam.LevenbergMarquardtOptimizer(graph, start, settings).optimize()
    except RuntimeError as error:
        raise _unsolved(error) from None
    return from_gtsam(found, len(poses), poses.shape[1])


class IncrementalGraph:
    """The same while driving: iSAM2 takes in one frame after the other and corrects what a closure
    changes. Odometry is trusted as stated throughout: how good it was is known at the end only.
    """

    def __init__(
        self, noise: OdometryNoise | None = None, kernel: Kernel = "none", *, by_probability: bool = False
    ):
        gtsam = load_gtsam()
        if kernel == "gnc":
            raise KappaPlaceError(
                "GNC looks at all closures together, not frame by frame; choose none, cauchy, dcs or "
                "switchable."
            )
        settings = gtsam.ISAM2Params()
        # Looked at again with every frame, or corrections after a closure would wait for ten more.
        settings.relinearizeSkip = 1
        settings.setRelinearizeThreshold(0.01)
        self._solver = gtsam.ISAM2(settings)
        self.noise, self.kernel, self.by_probability = noise or OdometryNoise(), kernel, by_probability
        self.count = 0
        self._last: Poses | None = None

    def add(self, odometry: Poses, closure: Closure | None = None) -> None:
        """The next frame, and the closure it gave, if any; a closure that was not accepted is left out."""
        gtsam, pose = load_gtsam(), check_poses(odometry, f"odometry of frame {self.count}")
        graph, fresh = gtsam.NonlinearFactorGraph(), gtsam.Values()
        if self._last is None:
            graph.add(prior(pose))
            fresh.insert(0, to_gtsam(pose))
        else:
            graph.add(odometry_factor(self.count - 1, self._last, pose, self.noise))
            believed = compose(self._at(self.count - 1, len(pose)), between(self._last, pose))
            fresh.insert(self.count, to_gtsam(believed))
        if closure is not None and closure.accepted:
            known = _known(closure, (self.count + 1, len(pose)))
            graph.add(closure_factor(known, self.kernel, by_probability=self.by_probability))
        try:
            self._solver.update(graph, fresh)
            if closure is not None and closure.accepted:
                self._solver.update()  # one more step: a closure moves what it was linearised at
        except RuntimeError as error:
            raise _unsolved(error) from None
        self._last, self.count = pose, self.count + 1

    @property
    def poses(self) -> Poses:
        """As believed now, N×3 or N×7."""
        if self._last is None:
            raise KappaPlaceError("The pose graph is empty; add frames first.")
        return from_gtsam(self._solver.calculateBestEstimate(), self.count, len(self._last))

    def _at(self, number: int, size: int) -> Poses:
        if size == PLANAR:
            pose = self._solver.calculateEstimatePose2(number)
            return np.array([pose.x(), pose.y(), pose.theta()])
        pose = self._solver.calculateEstimatePose3(number)
        turned = pose.rotation().toQuaternion()
        return np.array([*pose.translation(), turned.x(), turned.y(), turned.z(), turned.w()])


def _known(closure: Closure, shape: tuple[int, ...]) -> Closure:
    if not 0 <= closure.match < closure.query < shape[0] or len(closure.relative) != shape[1]:
        raise KappaPlaceError(
            f"The closure of frames {closure.match} and {closure.query} does not fit {shape[0]} poses of "
            f"{shape[1]} "
            "numbers; give the odometry that the closures were found with."
        )
    return closure


def _unsolved(error: RuntimeError) -> KappaPlaceError:
    reason = str(error).strip().partition("\n")[0]
    return KappaPlaceError(f"The pose graph cannot be solved ({reason}); check odometry and closures.")
