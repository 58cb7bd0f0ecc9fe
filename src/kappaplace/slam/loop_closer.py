"""`LoopCloser`: frames in, closures out, each with a probability and a decision.

    closer = LoopCloser(calibration)
    for frame in drive:
        closure = closer.add(frame)
        if closure is not None and closure.accepted:
            graph.add(closure.match, closure.query, closure.relative, closure.sigma)

The proposal is the most similar frame that is not recent. Its probability is the calibrated probability of
its scores, updated by the odometry (`gates`). It is accepted if it is like the queries of the calibration,
stays within the risk limit, and has the support of enough recent proposals. If requested, the images must
also share one camera motion or enough of their patches. If the calibration was fitted with patch matching,
the most similar frames are re-ranked by patch matching first, and the best one is proposed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kappaplace import vmf
from kappaplace.calibration import PATCH_SIGNALS, Calibration, Decision, Judgment, features_of, judge
from kappaplace.checks import share, within
from kappaplace.data import (
    PLANAR,
    SPATIAL,
    Poses,
    Source,
    as_planar,
    between,
    check_poses,
    compose,
    identity_pose,
    pose_positions,
    wrap_angle,
)
from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval import CellCheck, Evidence, Pair, PatchMaps, Queries, by_agreement
from kappaplace.retrieval import Floats as Scores
from kappaplace.slam.gates import Proposal, covered_area, likelihood_ratio, support, update
from kappaplace.slam.growing_map import GrowingMap
from kappaplace.slam.types import Closure, Frame
from kappaplace.types import Embeddings
from kappaplace.uncertainty import GeometricCheck, score_named

UNCALIBRATED, RISK, LONELY = "not calibrated", "probability", "consistency"
GEOMETRY, CELLS, UNLIKE = "geometry", "cells", "unlike the calibration"
"""Reasons for a rejection."""


@dataclass(frozen=True)
class ClosingSettings:
    """Conditions for closing a loop; the defaults suit a forward-facing camera on a street."""

    max_risk: float | None = 0.01
    """Accept a closure if its probability is at least 1 − this value. None: use the calibration's rule."""
    outside_rate: float | None = None
    """Expected fraction of frames that show no earlier place. Default: the value used for calibration."""
    recent: float = 60.0
    """Minimum distance travelled, in metres, between the two frames; more than the camera can see ahead."""
    recent_frames: int = 50
    """Minimum number of frames between the two; used without odometry."""
    radius: float = 25.0
    """Distance in metres within which two frames show the same place, for margin and aliasing."""
    near_frames: int = 10
    """Number of frames within which two frames show the same place; used without odometry."""
    window: int = 4
    """Number of previous proposals that may support a closure."""
    least_support: int = 2
    """Number of them that must support it; 0 disables this check."""
    tolerance: float = 10.0
    """Largest distance in metres between a match and its prediction by odometry."""
    drift: float | None = 0.05
    """Odometry drift (standard deviation) as a fraction of the distance travelled; None ignores odometry."""
    fewest: int = 20
    """Number of frames that can be matched before the first proposal is made."""
    least_inliers: int | None = None
    """Minimum number of local features that fit one camera motion; None disables this check."""
    verify: int | None = None
    """Number of top matches to re-rank by patch matching. Default: the value used for calibration."""
    least_agreement: float | None = None
    """Minimum agreement of patches, in [0, 1]; None disables this check."""
    sigma: float = 3.0
    """Standard deviation of a typical closure in metres: the distance of two images of the same place."""
    sigma_angle: float = 0.1
    """Standard deviation of a typical closure in radians."""
    weights: tuple[float, float] = (0.1, 10.0)
    """Smallest and largest weight of a closure relative to a typical one."""

    def __post_init__(self) -> None:
        if self.max_risk is not None:
            share(self.max_risk, "max_risk")
        if self.least_support > self.window:
            raise KappaPlaceError(
                f"least_support is {self.least_support}, but only {self.window} proposals are compared. "
                "Pass a larger window."
            )
        for name in ("recent", "radius", "tolerance", "sigma", "sigma_angle", "drift"):
            value = getattr(self, name)
            if value is not None and not 0 < value < np.inf:
                raise KappaPlaceError(f"{name} must be above 0 and finite, got {value:g}.")
        for name, least in (("fewest", 2), ("least_inliers", 1), ("verify", 0)):
            value = getattr(self, name)
            if value is not None:
                within(value, name, least)
        for name in ("outside_rate", "least_agreement"):
            value = getattr(self, name)
            if value is not None:
                share(value, name, ends=True)


class LoopCloser:
    """Loop closing on one drive: proposes closures and decides which ones to accept."""

    def __init__(
        self,
        calibration: Calibration | None = None,
        settings: ClosingSettings | None = None,
        *,
        embed: Callable[[Sequence[Source]], Embeddings] | None = None,
        patch_maps: PatchMaps | None = None,
        agreements: Mapping[Pair, float] | None = None,
        scores: tuple[str, ...] = (),
    ) -> None:
        """Start a drive.

        Args:
            calibration: Calibration of closures. Default: everything is proposed and nothing is accepted.
            settings: Conditions for closing a loop. Default: `ClosingSettings()`.
            embed: Function that embeds a list of images (`model.embed`), for frames without a descriptor.
            patch_maps: Patch features of images (`retrieval.patches.patch_maps_of`), required for patch
                matching.
            agreements: Patch agreement of pairs (frame, earlier frame) from an earlier run.
            scores: Names of scores that are also computed and kept in ``features``, to fit a calibration
                later.

        Raises:
            KappaPlaceError: If patch matching is needed but not possible, or differs from the calibration.
        """
        self.calibration, self.settings = calibration, settings or ClosingSettings()
        if self.settings.max_risk is None and calibration is not None and calibration.rule is None:
            raise KappaPlaceError(
                "The calibration has no decision rule. Pass max_risk, or calibrate with a maximum risk."
            )
        self.embed = embed
        self.map = GrowingMap(self.settings.radius, self.settings.near_frames)
        self.closures: list[Closure] = []
        """All proposals, accepted or not."""
        self.features: list[Scores] = []
        """The ``scores`` of each proposal."""
        self.scores = scores
        self._scores = tuple(score_named(name) for name in scores)
        self._check = GeometricCheck() if self.settings.least_inliers is not None else None
        self.rerank = self._matches_to_rerank()
        """Number of matches that are re-ranked by patch matching."""
        if not self.rerank and set(scores) & set(PATCH_SIGNALS):
            raise KappaPlaceError(
                "Patch scores need matches to re-rank. Pass settings=ClosingSettings(verify=10)."
            )
        self.cells: CellCheck | None = None
        """Patch agreements; None without patch matching."""
        if self.rerank or self.settings.least_agreement is not None:
            if patch_maps is None:
                raise KappaPlaceError(
                    "Patch matching needs a model with patch features (ResNet, EfficientNet-Lite). "
                    "Pass patch_maps=patch_maps_of(model)."
                )
            self.cells = CellCheck(patch_maps, agreements)
        self._recent: deque[Proposal] = deque(maxlen=self.settings.window)
        self._odometry: list[Poses] = []
        self._concentrations: list[float] = []
        self._last_accepted: Proposal | None = None

    @property
    def accepted(self) -> list[Closure]:
        """Accepted closures."""
        return [closure for closure in self.closures if closure.accepted]

    @property
    def odometry(self) -> Poses:
        """Raw odometry of all frames, N×3 or N×7."""
        return np.stack(self._odometry)

    def add(self, frame: Frame) -> Closure | None:
        """Add the next frame of the drive.

        Args:
            frame: Image or descriptor with its odometry; all frames of a drive must be of the same kind.

        Returns:
            The proposed closure; None if there is no earlier frame to propose.

        Raises:
            KappaPlaceError: If the frame lacks a required value or does not fit the previous ones.
        """
        descriptor, kappa = self._embedding(frame)
        number, pose, distance = len(self.map), None, float(len(self.map))
        if frame.odometry is not None:
            raw = check_poses(frame.odometry, f"odometry of frame {number}")
            pose, distance = self._position(raw)
        self.map.append(descriptor, kappa, pose, distance, frame.time, frame.name)
        if pose is not None:
            self._odometry.append(raw)
        if self._check is not None:
            self._check.remember(number, frame.image)
        if self.cells is not None:
            self.cells.images.append(frame.image)
        count = self.candidate_count(number)
        if count < self.settings.fewest:
            return None
        query = Embeddings(descriptor[None].astype(np.float32), None if kappa is None else np.array([kappa]))
        queries, images = Queries(query), None
        if self.rerank and self.cells is not None:
            images = self.cells.images
            queries = Queries(query, images[number : number + 1], self.cells.patch_maps)
        evidence = self.map.evidence(queries, count, max(2, self.rerank), images)
        closure = self._decide(number, self._reranked(number, evidence) if self.rerank else evidence)
        self.closures.append(closure)
        self._recent.append(Proposal(closure.query, closure.match))
        if closure.accepted and pose is not None:
            # The match is a better estimate of the position than odometry, so later poses continue from it.
            self.map.poses[number] = compose(self.map.poses[closure.match], closure.relative)
            self._last_accepted = Proposal(closure.query, closure.match)
        return closure

    def candidate_count(self, number: int) -> int:
        """Count the frames that are old enough to be proposed.

        Args:
            number: Index of the query frame.

        Returns:
            Number of frames at the start of the drive that can be proposed.
        """
        if not self.map.pose_size:
            return max(0, number - self.settings.recent_frames)
        distance = self.map.distance
        return int(np.searchsorted(distance, distance[number] - self.settings.recent, side="right"))

    def _matches_to_rerank(self) -> int:
        """Return the number of matches to re-rank, which must be the number of the calibration."""
        if self.calibration is not None:
            self.calibration.check_patches()
        calibrated = 0 if self.calibration is None else self.calibration.rerank
        if self.settings.verify is None:
            return calibrated
        if self.calibration is not None and self.settings.verify != calibrated:
            raise KappaPlaceError(
                f"verify must be {calibrated}, as in the calibration, got {self.settings.verify}. Omit it, "
                "or recalibrate."
            )
        return self.settings.verify

    def _reranked(self, number: int, evidence: Evidence) -> Evidence:
        """Sort the matches by patch agreement, as a map does."""
        assert self.cells is not None  # created together with ``rerank``
        agreement = self.cells.agreement(number, evidence.matches.indices[0].tolist())[None]
        matches, agreement = by_agreement(evidence.matches, agreement)
        return replace(evidence, matches=matches, agreement=agreement)

    def _embedding(self, frame: Frame) -> tuple[NDArray[np.float32], float | None]:
        if frame.descriptor is not None:
            return np.asarray(frame.descriptor, np.float32), frame.kappa
        if frame.image is None:
            raise KappaPlaceError(f"Frame {len(self.map)} has no descriptor and no image. Pass one of them.")
        if self.embed is None:
            raise KappaPlaceError(
                f"Frame {len(self.map)} has no descriptor. Pass the model: LoopCloser(…, embed=model.embed)."
            )
        embedding = self.embed([frame.image])
        kappa = None if embedding.kappa is None else float(embedding.kappa[0])
        return np.asarray(embedding.descriptor[0]), kappa

    def _position(self, odometry: Poses) -> tuple[Poses, float]:
        """Return estimated pose and distance travelled: the last estimate plus the motion since then."""
        if not self._odometry:
            if len(self.map):
                raise KappaPlaceError(
                    f"Frame {len(self.map)} has odometry, but earlier frames have none. Pass it for every "
                    "frame."
                )
            return odometry, 0.0
        if odometry.shape != self._odometry[-1].shape:
            raise KappaPlaceError(
                f"Odometry must be planar or spatial for all frames, got {len(odometry)} numbers after "
                f"{len(self._odometry[-1])}. Pass 3 (planar) or 7 (spatial) numbers for every frame."
            )
        step = between(self._odometry[-1], odometry)
        distance = float(self.map.distance[-1] + np.linalg.norm(pose_positions(step)))
        return compose(self.map.poses[-1], step), distance

    def _decide(self, number: int, evidence: Evidence) -> Closure:
        match, similarity = int(evidence.top[0]), float(evidence.cosines[0, 0])
        judgment = judge(evidence, self.calibration, outside_rate=self.settings.outside_rate)
        probability = None if judgment.probability is None else float(judgment.probability[0])
        if probability is not None and self.map.pose_size and self.settings.drift is not None:
            probability = update(probability, self._plausibility(number, match, self.settings.drift))
        if self._scores:
            self.features.append(features_of(evidence, self._scores)[0])
        odometry = self._odometry if self.map.pose_size else None
        supporters = support(
            Proposal(number, match), self._recent, odometry, self.map.poses, self.settings.tolerance
        )
        agreement = None if evidence.agreement is None else float(evidence.agreement[0, 0])
        reason, inliers = self._reason(judgment, probability, supporters), None
        if not reason and self.cells is not None and self.settings.least_agreement is not None:
            agreement = float(self.cells.agreement(number, [match])[0])
            reason = "" if agreement >= self.settings.least_agreement else CELLS
        if not reason and self._check is not None:
            inliers = self._check.inliers(number, match)
            if inliers is None:
                raise KappaPlaceError(
                    "The geometric check needs the image of every frame. Pass images, or omit least_inliers."
                )
            assert self.settings.least_inliers is not None
            reason = "" if inliers >= self.settings.least_inliers else GEOMETRY
        concentration = self._concentration(evidence)
        weight = self._weight(concentration)
        if not reason and np.isfinite(concentration):
            self._concentrations.append(concentration)
        size = self.map.pose_size or PLANAR
        return Closure(
            query=number,
            match=match,
            similarity=similarity,
            uncertainty=float(judgment.uncertainty[0]),
            probability=probability,
            concentration=concentration,
            support=supporters,
            inliers=inliers,
            accepted=not reason,
            reason=reason,
            relative=identity_pose(size),
            sigma=self._sigma(size, weight),
            weight=weight,
            agreement=agreement,
        )

    def _plausibility(self, number: int, match: int, drift: float) -> float:
        """Return how much more likely the estimated positions are if the closure is correct."""
        traveled = self.map.distance
        distance = float(traveled[number] - traveled[match])
        if self._last_accepted is not None:  # the estimate continues from the last closure
            query, other = self._last_accepted
            distance = float(traveled[number] - traveled[query] + abs(traveled[other] - traveled[match]))
        a, b = as_planar(self.map.poses[[number, match]])
        displacement = float(np.hypot(*(a - b)[:2]))
        turn = float(wrap_angle(a[2] - b[2]))
        area = covered_area(self.map.poses[: self.candidate_count(number)])
        spread = self.settings.tolerance / 2
        return likelihood_ratio(displacement, distance, area, drift=drift, spread=spread, turn=turn)

    def _reason(self, judgment: Judgment, probability: float | None, supporters: int) -> str:
        if probability is None:
            return UNCALIBRATED
        if judgment.reasons[0]:
            return UNLIKE
        limit = self.settings.max_risk
        if judgment.decision != [Decision.ACCEPT.value] if limit is None else probability < 1 - limit:
            return RISK
        return "" if supporters >= self.settings.least_support else LONELY

    def _concentration(self, evidence: Evidence) -> float:
        if not self.map.has_kappa:
            return float("nan")
        own, other = float(evidence.query_kappa[0]), float(evidence.match_kappa[0, 0])
        cosine = float(np.clip(evidence.cosines[0, 0], -1.0, 1.0))
        return float(vmf.resultant(own, other, cosine))

    def _weight(self, concentration: float) -> float:
        """Return the information relative to a typical closure.

        If a descriptor turns by an angle δ/ℓ over δ metres, the log-density κ·cos(δ/ℓ) has the curvature
        κ/ℓ² at its maximum. So the information about the position is proportional to the concentration. ℓ is
        unknown, so the median of the drive so far has weight 1.
        """
        if not np.isfinite(concentration) or not self._concentrations:
            return 1.0
        typical = float(np.median(self._concentrations))
        return float(np.clip(concentration / typical, *self.settings.weights))

    def _sigma(self, size: int, weight: float) -> Poses:
        meters, angle = self.settings.sigma / np.sqrt(weight), self.settings.sigma_angle / np.sqrt(weight)
        return np.array([meters] * 2 + [angle] if size != SPATIAL else [meters] * 3 + [angle] * 3)
