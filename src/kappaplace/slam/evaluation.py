"""Quality of loop closures and trajectories: precision, recall, and trajectory errors from evo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kappaplace.data import Near, Poses, as_spatial, pose_matrices, wrap_angle
from kappaplace.errors import KappaPlaceError, MissingExtra

if TYPE_CHECKING:
    from evo.core.metrics import PE
    from evo.core.trajectory import PosePath3D

ARITHMETIC = 1e-3
"""Tolerance in metres for comparing errors, because optimizers stop slightly before the minimum."""


@dataclass(frozen=True)
class TrajectoryError:
    """Root mean square errors of a trajectory, in metres."""

    absolute: float
    """Error after the best rigid alignment with the ground truth (global consistency)."""
    relative: float
    """Error of the motion over ``delta`` metres (local consistency)."""
    delta: float
    """Distance in metres over which ``relative`` is measured."""


@dataclass(frozen=True)
class ClosureQuality:
    """Counts of accepted, false and possible closures."""

    accepted: int
    """Number of accepted closures."""
    false: int
    """Number of accepted closures that are incorrect."""
    possible: int
    """Number of frames that show an earlier place, with or without a proposal."""

    @property
    def precision(self) -> float:
        """Fraction of accepted closures that are correct; 1 if none was accepted."""
        return 1.0 - self.false / self.accepted if self.accepted else 1.0

    @property
    def recall(self) -> float:
        """Fraction of possible closures that were accepted correctly; NaN if none was possible."""
        return (self.accepted - self.false) / self.possible if self.possible else float("nan")


def same_place(
    truth: Poses, a: NDArray[np.int64], b: NDArray[np.int64], radius: float = 12.0, degrees: float = 45.0
) -> NDArray[np.bool_]:
    """Check which pairs of frames show the same place: close to each other, with a similar heading.

    Args:
        truth: True planar poses of all frames, N×3.
        a: Frame indices; broadcast with ``b``.
        b: Frame indices.
        radius: Largest distance in metres.
        degrees: Largest difference in heading.

    Returns:
        One mark per pair, in the broadcast shape of ``a`` and ``b``.
    """
    turn = wrap_angle(truth[a, 2] - truth[b, 2])
    return Near.meters(truth[:, :2], radius)(a, b) & (np.abs(turn) <= np.radians(degrees))


def closure_quality(accepted: NDArray[np.bool_], correct: NDArray[np.bool_], possible: int) -> ClosureQuality:
    """Count accepted and false closures.

    Args:
        accepted: Whether each proposal was accepted, N.
        correct: Whether each proposal shows the same place, N.
        possible: Number of frames that could have been closed.

    Returns:
        The counts, with precision and recall.

    Raises:
        KappaPlaceError: If the shapes differ, or more correct closures were accepted than are possible.
    """
    accepted, correct = np.asarray(accepted, bool), np.asarray(correct, bool)
    if accepted.shape != correct.shape or possible < int((accepted & correct).sum()):
        raise KappaPlaceError(
            f"accepted and correct must have the same shape, got {accepted.shape} and {correct.shape}. "
            f"possible ({possible}) must be at least the number of correct accepted closures."
        )
    return ClosureQuality(int(accepted.sum()), int((accepted & ~correct).sum()), possible)


def recall_curve(
    confidence: NDArray[np.floating], correct: NDArray[np.bool_], possible: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Compute recall and false closures for every threshold on a confidence.

    Args:
        confidence: Confidence of each proposal, N; ties are accepted together.
        correct: Whether each proposal shows the same place, N.
        possible: Number of frames that could have been closed.

    Returns:
        Recall and number of false closures per threshold, most confident first.
    """
    order = np.argsort(-np.asarray(confidence, np.float64), kind="stable")
    values, correct = np.asarray(confidence, np.float64)[order], np.asarray(correct, bool)[order]
    last = np.append(np.diff(values) != 0, True) if len(values) else np.zeros(0, bool)
    return np.cumsum(correct)[last] / max(possible, 1), np.cumsum(~correct)[last]


def false_at_recall(recall: NDArray[np.floating], false: NDArray[np.integer], target: float) -> float:
    """Return the smallest number of false closures at a recall.

    Args:
        recall: Recall per threshold, from `recall_curve`.
        false: False closures per threshold.
        target: Recall to reach.

    Returns:
        The number of false closures; infinite if the recall is never reached.
    """
    enough = np.asarray(recall) >= target - 1e-12
    return float(np.asarray(false)[enough].min()) if enough.any() else float("inf")


def load_evo() -> None:
    """Import evo, or raise an error that names the missing extra."""
    try:
        import evo.core.metrics  # noqa: F401
    except ImportError:
        raise MissingExtra("Computing trajectory errors", "slam") from None


def trajectory_error(truth: Poses, estimate: Poses, *, delta: float = 50.0) -> TrajectoryError:
    """Compute the absolute and relative trajectory error with evo, for the translation.

    Args:
        truth: True poses, N×3 or N×7.
        estimate: Estimated poses of the same frames.
        delta: Distance in metres over which the relative error is measured.

    Returns:
        Both errors; the relative one is NaN if the drive is shorter than ``delta``.

    Raises:
        KappaPlaceError: If the number of poses differs or is below 3, or evo is not installed.
    """
    load_evo()
    from evo.core import metrics
    from evo.core.trajectory import PosePath3D

    if len(truth) != len(estimate) or len(truth) < 3:
        raise KappaPlaceError(
            f"Trajectories are compared pose by pose, got {len(truth)} true and {len(estimate)} estimated "
            f"poses. Pass the same frames for both, three or more."
        )
    reference, aligned = (
        PosePath3D(poses_se3=list(pose_matrices(as_spatial(poses)))) for poses in (truth, estimate)
    )
    aligned.align(reference)
    absolute = _rmse(metrics.APE(metrics.PoseRelation.translation_part), reference, aligned)
    over_delta = metrics.RPE(
        metrics.PoseRelation.translation_part, delta, metrics.Unit.meters, rel_delta_tol=0.2, all_pairs=False
    )
    try:
        relative = _rmse(over_delta, reference, aligned)
    except metrics.MetricsException:  # a drive shorter than delta
        relative = float("nan")
    return TrajectoryError(absolute, relative, delta)


def _rmse(metric: PE, reference: PosePath3D, estimate: PosePath3D) -> float:
    from evo.core.metrics import StatisticsType

    metric.process_data((reference, estimate))
    return float(metric.get_statistic(StatisticsType.rmse))


def corrupted(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the fraction of runs in which closing loops increased the error.

    Args:
        before: Error of each run without closures, in metres.
        after: Error of each run with closures; growth up to a millimetre is ignored as rounding.

    Returns:
        The fraction in [0, 1]; NaN without runs.
    """
    grown = np.asarray(after, np.float64) > np.asarray(before, np.float64) + ARITHMETIC
    return float(grown.mean()) if len(grown) else float("nan")
