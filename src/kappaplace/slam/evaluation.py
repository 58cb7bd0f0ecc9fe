"""How good closures and trajectories are: precision, recall, and the errors of evo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.data import Poses, as_spatial, pose_matrices, wrap_angle
from kappaplace.errors import KappaPlaceError, MissingExtra
from kappaplace.slam.types import Closure

ARITHMETIC = 1e-3
"""Metres by which errors may differ without any closure, as optimisers stop where they stop."""


@dataclass(frozen=True)
class TrajectoryError:
    """Metres, root mean square."""

    absolute: float
    """After the best rigid alignment with the truth: how well the map holds together."""
    relative: float
    """Of the motion over ``delta`` metres: how well it holds locally."""
    delta: float


@dataclass(frozen=True)
class ClosureQuality:
    """What was accepted, and how much of what there was."""

    accepted: int
    false: int
    possible: int
    """Frames that show a place seen before, whether anything was proposed or not."""

    @property
    def precision(self) -> float:
        """Share of the accepted that are right; 1 where nothing was accepted."""
        return 1.0 - self.false / self.accepted if self.accepted else 1.0

    @property
    def recall(self) -> float:
        """Share of the frames that could be closed and were, rightly; NaN where there were none."""
        return (self.accepted - self.false) / self.possible if self.possible else float("nan")


def same_place(
    truth: Poses, a: NDArray[np.int64], b: NDArray[np.int64], radius: float = 12.0, degrees: float = 45.0
) -> NDArray[np.bool_]:
    """Whether frames show one place: near each other, looking the same way."""
    gap = truth[a] - truth[b]
    near = np.hypot(gap[..., 0], gap[..., 1]) <= radius
    return near & (np.abs(wrap_angle(gap[..., 2])) <= np.radians(degrees))


def closure_quality(accepted: NDArray[np.bool_], right: NDArray[np.bool_], possible: int) -> ClosureQuality:
    """Of proposals: which were accepted, which are right, and how many frames could have been closed."""
    taken, good = np.asarray(accepted, bool), np.asarray(right, bool)
    if taken.shape != good.shape or possible < int((taken & good).sum()):
        raise KappaPlaceError(
            f"{taken.shape} decisions, {good.shape} outcomes and {possible} possible closures do not fit "
            f"together."
        )
    return ClosureQuality(int(taken.sum()), int((taken & ~good).sum()), possible)


def recall_curve(
    confidence: NDArray[np.floating], right: NDArray[np.bool_], possible: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Recall and false closures when the most confident so many are accepted; ties are accepted together."""
    order = np.argsort(-np.asarray(confidence, np.float64), kind="stable")
    values, good = np.asarray(confidence, np.float64)[order], np.asarray(right, bool)[order]
    last = np.append(np.diff(values) != 0, True) if len(values) else np.zeros(0, bool)
    return np.cumsum(good)[last] / max(possible, 1), np.cumsum(~good)[last]


def false_at_recall(recall: NDArray[np.floating], false: NDArray[np.integer], wanted: float) -> float:
    """The fewest false closures with which a recall is reached; infinite where it never is."""
    enough = np.asarray(recall) >= wanted - 1e-12
    return float(np.asarray(false)[enough].min()) if enough.any() else float("inf")


def load_evo() -> None:
    """Evo, or one sentence."""
    try:
        import evo.core.metrics  # noqa: F401
    except ImportError:
        raise MissingExtra("Computing trajectory errors", "slam") from None


def trajectory_error(truth: Poses, estimate: Poses, *, delta: float = 50.0) -> TrajectoryError:
    """Absolute and relative trajectory error of evo, translation part."""
    load_evo()
    from evo.core import metrics
    from evo.core.trajectory import PosePath3D

    if len(truth) != len(estimate) or len(truth) < 3:
        raise KappaPlaceError(
            f"Trajectories are compared pose by pose: {len(truth)} of the truth, {len(estimate)} of the "
            f"estimate."
        )
    reference, found = (
        PosePath3D(poses_se3=list(pose_matrices(as_spatial(poses)))) for poses in (truth, estimate)
    )
    found.align(reference)
    absolute = _rmse(metrics.APE(metrics.PoseRelation.translation_part), reference, found)
    over = metrics.RPE(
        metrics.PoseRelation.translation_part, delta, metrics.Unit.meters, rel_delta_tol=0.2, all_pairs=False
    )
    try:
        relative = _rmse(over, reference, found)
    except metrics.MetricsException:  # a drive shorter than delta
        relative = float("nan")
    return TrajectoryError(absolute, relative, delta)


def _rmse(metric: Any, reference: Any, found: Any) -> float:
    from evo.core.metrics import StatisticsType

    metric.process_data((reference, found))
    return float(metric.get_statistic(StatisticsType.rmse))


def corrupted(before: Sequence[float], after: Sequence[float]) -> float:
    """Share of runs whose error has grown by closing loops; a millimetre is arithmetic, not harm."""
    grown = np.asarray(after, np.float64) > np.asarray(before, np.float64) + ARITHMETIC
    return float(grown.mean()) if len(grown) else float("nan")


def accepted_right(closures: Sequence[Closure], right: NDArray[np.bool_], possible: int) -> ClosureQuality:
    """Quality of the closer's own decisions."""
    return closure_quality(np.array([closure.accepted for closure in closures], bool), right, possible)
