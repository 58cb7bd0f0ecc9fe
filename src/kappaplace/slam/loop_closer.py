"""`LoopCloser`: frames in, closures out, each with a probability and a decision.

    closer = LoopCloser(calibration)
    for frame in drive:
        closure = closer.add(frame)
        if closure is not None and closure.accepted:
            graph.add(closure.match, closure.query, closure.relative, closure.sigma)

A proposal is the most similar frame that is not recent. Its probability is the calibrated one of its scores,
times what odometry thinks of it (`plausibility`). It is accepted when that keeps to the risk, enough of the
last proposals agree with it, and, if asked for, the images share one camera motion or enough of their cells.
With a calibration that was fitted so (``verify``), the first matches are compared cell by cell before: the
one that agrees most is proposed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kappaplace import vmf
from kappaplace.calibration import PATCH_SIGNALS, Calibration, Decision, features_of
from kappaplace.data import (
    PLANAR,
    SPATIAL,
    Poses,
    as_planar,
    between,
    check_poses,
    compose,
    identity_pose,
    pose_positions,
    wrap_angle,
)
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import verified_by
from kappaplace.retrieval import CellCheck, Evidence, Pair, PatchMaps, Queries, reordered
from kappaplace.retrieval import Floats as Scores
from kappaplace.slam.gates import Proposal, covered_area, likelihood_ratio, support, updated
from kappaplace.slam.growing_map import GrowingMap
from kappaplace.slam.types import Closure, Frame
from kappaplace.types import Embeddings
from kappaplace.uncertainty import SCORES, GeometricCheck, score_named

UNCALIBRATED, RISK, LONELY = "not calibrated", "probability", "consistency"
GEOMETRY, CELLS = "geometry", "cells"
"""Why a closure was rejected."""


@dataclass(frozen=True)
class ClosingSettings:
    """When a loop is closed; the defaults suit a forward camera on a street."""

    max_risk: float | None = 0.01
    """Accept from a probability of 1 − this. None: by the calibration's own rule, which may be proven."""
    outside_rate: float | None = None
    """Share of frames that show nothing seen before; None: as the calibration has it."""
    recent: float = 60.0
    """Metres of the way within which frames are no closure; more than can be seen ahead."""
    recent_frames: int = 50
    """The same where there is no odometry."""
    radius: float = 25.0
    """Metres within which two frames show one place, for margin and aliasing."""
    near_frames: int = 10
    """The same where there is no odometry."""
    window: int = 4
    """Proposals before this one that may support it."""
    least_support: int = 2
    """So many of them must; 0: every frame stands for itself."""
    tolerance: float = 10.0
    """Metres by which matches may differ from what was driven."""
    drift: float | None = 0.05
    """Deviation of odometry as a share of the way, by which a closure is plausible or not; None: do not ask
    it.
    """
    fewest: int = 20
    """Frames that a map needs before it is asked."""
    least_inliers: int | None = None
    """Local features that must fit one camera motion; None: nobody looks."""
    verify: int | None = None
    """Matches that are compared cell by cell before one is proposed; None: as when it was calibrated."""
    least_agreement: float | None = None
    """Share of cells that must agree on one shift; None: nobody looks."""
    sigma: float = 3.0
    """Metres of standard deviation of a typical closure: as far as two images of one place lie apart."""
    sigma_angle: float = 0.1
    """The same in radians."""
    weights: tuple[float, float] = (0.1, 10.0)
    """Least and largest weight of a closure against a typical one."""

    def __post_init__(self) -> None:
        share = self.max_risk
        if share is not None and not 0 < share < 1:
            raise KappaPlaceError(f"The risk of a closure lies between 0 and 1, got {share:g}.")
        if self.least_support > self.window:
            raise KappaPlaceError(
                f"{self.least_support} proposals cannot agree among the last {self.window}; widen the window."
            )
        lengths = (self.recent, self.radius, self.tolerance, self.sigma, self.sigma_angle)
        if not all(0 < length < np.inf for length in lengths) or self.fewest < 2:
            raise KappaPlaceError(
                "Distances of loop closing must be above 0 and finite, and a map has 2 frames or more."
            )
        if self.drift is not None and not 0 < self.drift < np.inf:
            raise KappaPlaceError(f"Odometry drifts by a share of the way above 0, got {self.drift:g}.")
        if self.outside_rate is not None and not 0 <= self.outside_rate < 1:
            raise KappaPlaceError(
                f"The share of frames from nowhere seen before lies in [0, 1), got {self.outside_rate:g}."
            )
        if self.least_inliers is not None and self.least_inliers < 1:
            raise KappaPlaceError(f"A number of inliers is 1 or more, not {self.least_inliers}.")
        if self.verify is not None and self.verify < 0:
            raise KappaPlaceError(
                f"A number of matches to compare cell by cell is 0 or more, not {self.verify}."
            )
        if self.least_agreement is not None and not 0 < self.least_agreement <= 1:
            raise KappaPlaceError(
                f"A share of cells that agree lies between 0 and 1, got {self.least_agreement:g}."
            )


class LoopCloser:
    """Keeps the map of one drive and proposes closures; see the top of this file."""

    def __init__(
        self,
        calibration: Calibration | None = None,
        settings: ClosingSettings | None = None,
        *,
        embed: Callable[[Any], Embeddings] | None = None,
        patch_maps: PatchMaps | None = None,
        compared: Mapping[Pair, float] | None = None,
        scores: tuple[str, ...] = (),
    ) -> None:
        """``embed`` turns a list of images into embeddings (`model.embed`), for frames without descriptor.

        ``patch_maps`` (`cells.patch_maps_of`) is needed to compare cells, ``compared`` is what is known.
        ``scores`` are computed beside those of the calibration and kept in `features`, to fit one later.
        Without a calibration everything is proposed and nothing accepted.
        """
        self.calibration, self.settings = calibration, settings or ClosingSettings()
        self.embed = embed
        self.map = GrowingMap(self.settings.radius, self.settings.near_frames)
        self.closures: list[Closure] = []
        """Every proposal, accepted or not."""
        self.features: list[Scores] = []
        """The ``scores`` of each proposal."""
        self.scores = scores
        self._scores = tuple(score_named(name) for name in scores)
        self._check = GeometricCheck() if self.settings.least_inliers is not None else None
        self.verify = self._compared_matches()
        if not self.verify and set(scores) & set(PATCH_SIGNALS):
            raise KappaPlaceError("Scores of cells need matches to compare: ClosingSettings(verify=10).")
        self.cells: CellCheck | None = None
        """What was compared cell by cell, where it was."""
        if self.verify or self.settings.least_agreement is not None:
            if patch_maps is None:
                raise KappaPlaceError(
                    "Comparing cells needs a model that shows its stages (ResNet, EfficientNet-Lite): "
                    "LoopCloser(…, patch_maps=patch_maps_of(model))."
                )
            self.cells = CellCheck(patch_maps, compared)
        self._last: deque[Proposal] = deque(maxlen=self.settings.window)
        self._odometry: list[Poses] = []
        self._typical = _RunningMedian()
        self._closed: Proposal | None = None

    @property
    def accepted(self) -> list[Closure]:
        return [closure for closure in self.closures if closure.accepted]

    @property
    def odometry(self) -> Poses:
        """What odometry said, N×3 or N×7."""
        return np.stack(self._odometry)

    def add(self, frame: Frame) -> Closure | None:
        """Take in the next frame; the proposal, if there is anything to propose."""
        descriptor, kappa = self._embedded(frame)
        number, pose, way = len(self.map), None, float(len(self.map))
        if frame.odometry is not None:
            stated = check_poses(frame.odometry, f"odometry of frame {number}")
            pose, way = self._place(stated)
        self.map.append(descriptor, kappa, pose, way, frame.time, frame.name)
        if pose is not None:
            self._odometry.append(stated)
        if self._check is not None:
            self._check.remember(number, frame.image)
        if self.cells is not None:
            self.cells.images.append(frame.image)
        first = self.askable(number)
        if first < self.settings.fewest:
            return None
        query = Embeddings(descriptor[None].astype(np.float32), None if kappa is None else np.array([kappa]))
        queries, images = Queries(query), None
        if self.verify and self.cells is not None:
            images = self.cells.images
            queries = Queries(query, images[number : number + 1], self.cells.patch_maps)
        evidence = self.map.evidence(queries, first, max(2, self.verify), images)
        closure = self._judge(number, self._verified(number, evidence) if self.verify else evidence)
        self.closures.append(closure)
        self._last.append(Proposal(closure.query, closure.match))
        if closure.accepted and pose is not None:
            # Where the camera is again is better known than odometry says: from here on, go on from there.
            self.map.poses[number] = compose(self.map.poses[closure.match], closure.relative)
            self._closed = Proposal(closure.query, closure.match)
        return closure

    def _compared_matches(self) -> int:
        """How many matches are compared cell by cell; a calibration speaks of none other."""
        then, now = verified_by(self.calibration), self.settings.verify
        if now is None:
            return then
        if self.calibration is not None and now != then:
            raise KappaPlaceError(
                f"Closures were calibrated with {then} matches compared cell by cell, not with {now}; leave "
                "`verify` to the calibration, or calibrate anew."
            )
        return now

    def _verified(self, number: int, evidence: Evidence) -> Evidence:
        """The same matches by how many of their cells agree, as a map has them."""
        assert self.cells is not None  # made with ``verify``
        found = self.cells.agreement(number, evidence.matches.indices[0].tolist())[None]
        order = np.argsort(-found, axis=1, kind="stable")
        return replace(
            evidence,
            matches=reordered(evidence.matches, order),
            agreement=np.take_along_axis(found, order, 1),
        )

    def _embedded(self, frame: Frame) -> tuple[np.ndarray, float | None]:
        if frame.descriptor is not None:
            return np.asarray(frame.descriptor, np.float32), frame.kappa
        if frame.image is None or self.embed is None:
            raise KappaPlaceError(
                f"Frame {len(self.map)} has no descriptor"
                + (
                    " and no image."
                    if frame.image is None
                    else "; give the model: LoopCloser(…, embed=model.embed)."
                )
            )
        made = self.embed([frame.image])
        return np.asarray(made.descriptor[0]), None if made.kappa is None else float(made.kappa[0])

    def _place(self, odometry: Poses) -> tuple[Poses, float]:
        """Believed pose and metres travelled: the last belief, and what was driven since."""
        if not self._odometry:
            if len(self.map):
                raise KappaPlaceError("Odometry begins in the middle of the drive; give it with every frame.")
            return odometry, 0.0
        if odometry.shape != self._odometry[-1].shape:
            raise KappaPlaceError("Odometry must be planar or spatial throughout, not both.")
        step = between(self._odometry[-1], odometry)
        way = float(self.map.way[-1] + np.linalg.norm(pose_positions(step)))
        return compose(self.map.poses[-1], step), way

    def askable(self, number: int) -> int:
        """How many of the first frames are old enough to be a closure."""
        if not self.map.pose_size:
            return max(0, number - self.settings.recent_frames)
        return int(np.searchsorted(self.map.way, self.map.way[number] - self.settings.recent, side="right"))

    def _judge(self, number: int, evidence: Evidence) -> Closure:
        match, similarity = int(evidence.top[0]), float(evidence.cosines[0, 0])
        uncertainty, probability, by_rule = self._probability(evidence)
        if probability is not None and self.map.pose_size and self.settings.drift is not None:
            probability = updated(probability, self._plausible(number, match, self.settings.drift))
        if self._scores:
            self.features.append(features_of(evidence, self._scores)[0])
        odometry = self._odometry if self.map.pose_size else None
        agreeing = support(
            Proposal(number, match), self._last, odometry, self.map.poses, self.settings.tolerance
        )
        agreement = None if evidence.agreement is None else float(evidence.agreement[0, 0])
        reason, inliers = self._reason(probability, by_rule, agreeing), None
        if not reason and self.cells is not None and self.settings.least_agreement is not None:
            agreement = float(self.cells.agreement(number, [match])[0])
            reason = "" if agreement >= self.settings.least_agreement else CELLS
        if not reason and self._check is not None:
            inliers = self._check.inliers(number, match)
            if inliers is None:
                raise KappaPlaceError(
                    "The geometric check needs the image of every frame; give them, or leave it out."
                )
            assert self.settings.least_inliers is not None
            reason = "" if inliers >= self.settings.least_inliers else GEOMETRY
        concentration = self._concentration(evidence)
        weight = self._weight(concentration)
        if not reason:
            self._typical.add(concentration)
        size = self.map.pose_size or PLANAR
        return Closure(
            query=number,
            match=match,
            similarity=similarity,
            uncertainty=uncertainty,
            probability=probability,
            concentration=concentration,
            support=agreeing,
            inliers=inliers,
            accepted=not reason,
            reason=reason,
            relative=identity_pose(size),
            sigma=self._sigma(size, weight),
            weight=weight,
            agreement=agreement,
        )

    def _probability(self, evidence: Evidence) -> tuple[float, float | None, bool | None]:
        """Uncertainty, probability, and whether the calibration's own rule accepts, if it is asked."""
        if self.calibration is None:
            name = "kappaplace" if self.map.has_kappa else "cosine"
            return float(SCORES[name].query(evidence)[0]), None, None
        features = features_of(evidence, [score_named(name) for name in self.calibration.scores])
        uncertainty = float(self.calibration.uncertainty(features)[0])
        probability = float(self.calibration.probability(features, self.settings.outside_rate)[0])
        if self.settings.max_risk is not None:
            return uncertainty, probability, None
        return uncertainty, probability, bool(self.calibration.decide(features)[0] == Decision.ACCEPT)

    def _plausible(self, number: int, match: int, drift: float) -> float:
        """How much likelier the believed positions are if the closure is right."""
        way = self.map.way
        driven = float(way[number] - way[match])
        if self._closed is not None:  # belief goes on from the last closure
            query, other = self._closed
            driven = float(way[number] - way[query] + abs(way[other] - way[match]))
        here, there = as_planar(self.map.poses[[number, match]])
        displacement = float(np.hypot(*(here - there)[:2]))
        turned = float(wrap_angle(here[2] - there[2]))
        area = covered_area(self.map.poses[: self.askable(number)])
        spread = self.settings.tolerance / 2
        return likelihood_ratio(displacement, driven, area, drift=drift, spread=spread, turned=turned)

    def _reason(self, probability: float | None, by_rule: bool | None, agreeing: int) -> str:
        if probability is None:
            return UNCALIBRATED
        limit = self.settings.max_risk
        sure = by_rule if limit is None else probability >= 1 - limit
        if not sure:
            return RISK
        return "" if agreeing >= self.settings.least_support else LONELY

    def _concentration(self, evidence: Evidence) -> float:
        if not self.map.has_kappa:
            return float("nan")
        own, other = float(evidence.query_kappa[0]), float(evidence.match_kappa[0, 0])
        cosine = float(np.clip(evidence.cosines[0, 0], -1.0, 1.0))
        return float(vmf.resultant(own, other, cosine))

    def _weight(self, concentration: float) -> float:
        """Information against a typical closure.

        If a descriptor turns by an angle δ/ℓ over δ metres, the log-density κ·cos(δ/ℓ) has the curvature
        κ/ℓ² at its top: the information about the position grows with the concentration itself. ℓ is
        unknown, so a typical closure of this drive stands for 1.
        """
        typical = self._typical.value
        if not np.isfinite(concentration) or typical is None:
            return 1.0
        return float(np.clip(concentration / typical, *self.settings.weights))

    def _sigma(self, size: int, weight: float) -> Poses:
        metres, angle = self.settings.sigma / np.sqrt(weight), self.settings.sigma_angle / np.sqrt(weight)
        return np.array([metres] * 2 + [angle] if size != SPATIAL else [metres] * 3 + [angle] * 3)


@dataclass
class _RunningMedian:
    """Of all values so far; a drive has few closures, so that sorting them does not matter."""

    values: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        if np.isfinite(value):
            self.values.append(value)

    @property
    def value(self) -> float | None:
        return float(np.median(self.values)) if self.values else None
