"""Pose-graph optimization with GTSAM, after the drive or frame by frame (iSAM2).

The default kernel after the drive is graduated non-convexity (Yang et al., 2020): it starts from a convex
cost and ends with truncated least squares. `graph_factors` describes the other kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kappaplace.data import PLANAR, Poses, between, check_poses, compose
from kappaplace.errors import KappaPlaceError
from kappaplace.slam.graph_factors import (
    Kernel,
    OdometryNoise,
    closure_factor,
    estimated_poses,
    from_gtsam,
    load_gtsam,
    odometry_factor,
    odometry_scale,
    prior,
    to_gtsam,
)
from kappaplace.slam.types import Closure

if TYPE_CHECKING:
    import gtsam

INLIER = 0.99
"""Quantile of χ² at which errors are truncated: the fraction of correct closures that are kept."""
ITERATIONS = 100


def _graduated(
    graph: gtsam.NonlinearFactorGraph,
    start: gtsam.Values,
    settings: gtsam.LevenbergMarquardtParams,
    trusted: int,
) -> gtsam.Values:
    """Solve by graduated non-convexity (GNC); the first ``trusted`` factors (odometry) count as inliers."""
    gtsam = load_gtsam()
    options = gtsam.GncLMParams(settings)
    options.setLossType(gtsam.GncLossType.TLS)
    options.setKnownInliers(list(range(trusted)))
    solver = gtsam.GncLMOptimizer(graph, start, options)
    solver.setInlierCostThresholdsAtProbability(INLIER)
    return solver.optimize()


def optimize(
    odometry: Poses,
    closures: Sequence[Closure],
    *,
    noise: OdometryNoise | None = None,
    kernel: Kernel = "none",
    by_probability: bool = False,
    adapt: bool = True,
) -> Poses:
    """Compute the poses that fit odometry and closures best, by Levenberg-Marquardt from the odometry.

    Args:
        odometry: Raw poses of all frames, N×3 or N×7; the first one stays fixed.
        closures: Closures to use, whether marked as accepted or not.
        noise: Standard deviations of odometry. Default: `OdometryNoise()`.
        kernel: Robust kernel: none, cauchy, dcs, switchable or gnc.
        by_probability: Use the odds of each closure as the width of its kernel.
        adapt: Trust odometry more if closures show that it is better than specified (`odometry_scale`). If
            they do not contradict it at all, it is returned unchanged.

    Returns:
        The optimized poses, in the shape of ``odometry``.

    Raises:
        KappaPlaceError: If there are fewer than two poses, a closure does not fit them, the graph cannot be
            solved, or GTSAM is not installed.
    """
    gtsam, poses, noise = load_gtsam(), check_poses(odometry, "odometry"), noise or OdometryNoise()
    if poses.ndim != 2 or len(poses) < 2:
        raise KappaPlaceError(
            f"A pose graph needs at least two poses, got an array of shape {poses.shape}. Add frames."
        )
    for closure in closures:
        _check_closure(closure, poses.shape)
    if adapt:
        scale = odometry_scale(poses, closures, noise)
        if scale == 0:
            return poses.copy()
        noise = noise.times(scale)
    graph, start = gtsam.NonlinearFactorGraph(), gtsam.Values()
    graph.add(prior(poses[0]))
    for row, pose in enumerate(poses):
        start.insert(row, to_gtsam(pose))
        if row:
            graph.add(odometry_factor(row - 1, poses[row - 1], pose, noise))
    for closure in closures:
        graph.add(closure_factor(closure, kernel, by_probability=by_probability))
    settings = gtsam.LevenbergMarquardtParams()
    settings.setMaxIterations(ITERATIONS)
    try:
        if kernel == "gnc" and closures:
            result = _graduated(graph, start, settings, len(poses))
        else:
            result = gtsam.LevenbergMarquardtOptimizer(graph, start, settings).optimize()
    except RuntimeError as error:
        raise _unsolved(error) from None
    return estimated_poses(result, len(poses), poses.shape[1])


optimise = optimize
"""Earlier name of `optimize`."""


class IncrementalGraph:
    """Pose graph that is optimized during the drive: iSAM2 adds one frame at a time.

    The noise of odometry is used as specified, because it can be estimated only at the end of a drive.
    """

    def __init__(self, noise: OdometryNoise | None = None, kernel: Kernel = "none") -> None:
        """Start an empty graph.

        Args:
            noise: Standard deviations of odometry. Default: `OdometryNoise()`.
            kernel: Robust kernel: none, cauchy, dcs or switchable.

        Raises:
            KappaPlaceError: If the kernel is gnc, or GTSAM is not installed.
        """
        gtsam = load_gtsam()
        if kernel == "gnc":
            raise KappaPlaceError(
                "The kernel 'gnc' needs all closures together and cannot run frame by frame. "
                "Use none, cauchy, dcs or switchable."
            )
        settings = gtsam.ISAM2Params()
        # Relinearize with every frame; otherwise corrections after a closure wait for ten more frames.
        settings.relinearizeSkip = 1
        settings.setRelinearizeThreshold(0.01)
        self._solver = gtsam.ISAM2(settings)
        self.noise, self.kernel = noise or OdometryNoise(), kernel
        self.count = 0
        self._last: Poses | None = None

    def add(self, odometry: Poses, closure: Closure | None = None) -> None:
        """Add the next frame.

        Args:
            odometry: Raw pose of the frame, 3 or 7 numbers.
            closure: Closure of the frame; ignored unless it was accepted.

        Raises:
            KappaPlaceError: If a pose or closure does not fit the graph, or the graph cannot be solved.
        """
        gtsam, pose = load_gtsam(), check_poses(odometry, f"odometry of frame {self.count}")
        graph, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
        if self._last is None:
            graph.add(prior(pose))
            values.insert(0, to_gtsam(pose))
        else:
            graph.add(odometry_factor(self.count - 1, self._last, pose, self.noise))
            start = compose(self._at(self.count - 1, len(pose)), between(self._last, pose))
            values.insert(self.count, to_gtsam(start))
        accepted = closure is not None and closure.accepted
        if closure is not None and accepted:
            _check_closure(closure, (self.count + 1, len(pose)))
            graph.add(closure_factor(closure, self.kernel))
        try:
            self._solver.update(graph, values)
            if accepted:
                self._solver.update()  # one more step, because a closure moves the linearization point
        except RuntimeError as error:
            raise _unsolved(error) from None
        self._last, self.count = pose, self.count + 1

    @property
    def poses(self) -> Poses:
        """Current estimate of all poses, N×3 or N×7."""
        if self._last is None:
            raise KappaPlaceError("The pose graph is empty. Add frames first.")
        return estimated_poses(self._solver.calculateBestEstimate(), self.count, len(self._last))

    def _at(self, number: int, size: int) -> Poses:
        solver = self._solver
        estimate = solver.calculateEstimatePose2 if size == PLANAR else solver.calculateEstimatePose3
        return from_gtsam(estimate(number))


def _check_closure(closure: Closure, shape: tuple[int, ...]) -> None:
    if not 0 <= closure.match < closure.query < shape[0] or len(closure.relative) != shape[1]:
        raise KappaPlaceError(
            f"The closure of frames {closure.match} and {closure.query} does not fit {shape[0]} poses of "
            f"{shape[1]} numbers. Pass the odometry that was used to find the closures."
        )


def _unsolved(error: RuntimeError) -> KappaPlaceError:
    reason = str(error).strip().partition("\n")[0]
    return KappaPlaceError(f"The pose graph cannot be solved ({reason}). Check odometry and closures.")
