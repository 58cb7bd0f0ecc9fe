"""Answers for images in order: each is fused with the answers to the images before and after it.

The place of an image is the most probable one of a `HistogramFilter` over the places of the map. Its
probability is the geometric mean of two numbers: the probability that the camera is on the map, and the mean
probability of the matches that confirm the place, over the image and its neighbors (`WINDOW`). Either alone
is worse (benchmarks/sequences.py). No risk is guaranteed, because images of a sequence depend on each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from scipy.sparse import csr_matrix

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.expected import stated_risk
from kappaplace.checks import Floats, Rows, percent
from kappaplace.data.geodesy import unproject
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.answer import Localization, Match, best_pose, decided_matches, match_rule, with_pose
from kappaplace.maps.sequence import (
    Estimate,
    HistogramFilter,
    Likelihood,
    WalkMotion,
    likelihood,
    nearby,
    place_matrix,
)
from kappaplace.maps.store import MapStore
from kappaplace.vmf import resultant

WINDOW = 5
"""Number of images before and after an image that confirm its place."""
STEPS = 1.5
"""Standard deviation of the motion, in typical distances between two images."""
CONFIDENT, FEWEST = 0.5, 5
"""The distance between images is estimated from at least this many pairs of answers of this probability."""
CELLS = 4
"""References in the same square, this many per radius, are one place."""
APART = 1e7
"""Metres between the routes of a map without positions, whose frames count as metres."""
FUSED = (
    "The answer is fused with those to {count} other images of the sequence. It is accepted from a "
    "probability of {accept}; no risk is guaranteed for sequences."
)


class Follower:
    """Follows a camera through a map. `OpenMap.follow` creates one, `OpenMap.localize_sequence` uses it.

    Args:
        store: Stored version of the map.
        calibration: Calibration that the answers have.
        step: Typical distance in metres between two consecutive images. Default: estimated from the answers.

    Raises:
        KappaPlaceError: If the map has no positions and no frame numbers, or no calibration.
    """

    def __init__(self, store: MapStore, calibration: Calibration | None, step: float | None = None) -> None:
        if calibration is None:
            raise KappaPlaceError(
                f"A sequence needs probabilities, and the map {store.folder} has no calibration. Run "
                "`kappaplace calibrate`."
            )
        own = calibration.rule
        self.store, self.step, self.rule = store, step, match_rule(own, stated_risk(own) if own else 0.1)
        points, self.radius = _coordinates(store)
        known = np.flatnonzero(np.isfinite(points).all(axis=1))
        cells = np.floor(points[known] * (CELLS / self.radius))  # routes are too far apart for integers
        number = np.unique(cells, axis=0, return_inverse=True)[1].ravel()
        self.state = np.full(len(points), -1)
        self.state[known] = number
        counts = np.bincount(number).astype(np.float64)
        sums = [np.bincount(number, points[known, axis]) for axis in (0, 1)]
        self.centers = np.stack(sums, 1) / counts[:, None]
        self.points, self._members = points, known[np.argsort(number, kind="stable")]
        self._starts = np.concatenate([[0], np.cumsum(counts).astype(np.int64)])
        place = place_matrix(nearby(self.centers, self.radius, self.radius / 2))
        self._motion: tuple[float, csr_matrix] = (math.nan, place)
        self.filter = HistogramFilter(WalkMotion(self.centers, self.radius), place)
        self._gaps: list[float] = []
        self._last: tuple[Floats, float] | None = None
        self._support: list[float] = []

    def add(self, answer: Localization, descriptor: Floats) -> Localization:
        """Fuse the answer to the next image with those to earlier ones.

        Args:
            answer: Answer to the image alone.
            descriptor: Descriptor of the image.

        Returns:
            The fused answer.
        """
        if self._last is not None:
            self.filter.advance(self._matrix())
        self._note_gap(answer)
        self.filter.weigh(self._likelihood(answer))
        estimate = self.filter.estimate
        best, confirmed = self._confirm(answer, estimate)
        self._support = [*self._support, confirmed][-WINDOW - 1 :]
        support = _weighted(np.array(self._support), len(self._support) - 1)
        return self._fused(answer, descriptor, estimate, best, support)

    def fuse(self, answers: Sequence[Localization], descriptors: Floats) -> list[Localization]:
        """Fuse the answers to all images of a sequence, each with those before and after it.

        Args:
            answers: Answers to the single images, in order.
            descriptors: Descriptors of the images, N×D.

        Returns:
            The fused answers, in order.
        """
        for answer in answers:
            self._note_gap(answer)
        estimates = list(self.filter.smooth(self._images(answers)))
        confirmed = [self._confirm(*pair) for pair in zip(answers, estimates, strict=True)]
        values = np.array([value for _, value in confirmed])
        return [
            self._fused(answer, descriptors[row], estimates[row], confirmed[row][0], _weighted(values, row))
            for row, answer in enumerate(answers)
        ]

    def _images(
        self, answers: Sequence[Localization]
    ) -> Iterator[tuple[csr_matrix | None, Likelihood | None]]:
        for row, answer in enumerate(answers):
            yield self._matrix() if row else None, self._likelihood(answer)

    def _note_gap(self, answer: Localization) -> None:
        """Record the distance between the best matches of two consecutive images."""
        match, probability = answer.matches[0] if answer.matches else None, answer.probability or 0.0
        here = None if match is None else self.points[match.reference]
        if here is not None and self._last is not None and min(probability, self._last[1]) >= CONFIDENT:
            gap = float(np.hypot(*(here - self._last[0])))
            self._gaps += [gap] if math.isfinite(gap) else []
        self._last = (np.full(2, np.nan) if here is None else here, probability)

    def _matrix(self) -> csr_matrix:
        """Return the motion matrix of a step."""
        if self.step is not None:
            meters = STEPS * self.step
        elif len(self._gaps) < FEWEST:
            meters = self.radius
        else:  # at least a cell: a camera that stands may start to move
            meters = max(STEPS * float(np.median(self._gaps)), self.radius / CELLS)
        before = self._motion[0]
        if not 0.8 <= meters / before <= 1.25:  # not for every small change of the estimate
            self._motion = (meters, WalkMotion(self.centers, meters).matrix())
        return self._motion[1]

    def _likelihood(self, answer: Localization) -> Likelihood | None:
        references, probabilities = _probable(answer)
        states = self.state[references]
        usable = states >= 0
        if answer.probability is None or not usable.any():
            return None
        return likelihood(self.filter.place, states[usable], probabilities[usable])

    def _confirm(self, answer: Localization, estimate: Estimate) -> tuple[int, float]:
        """Return the rank of the match that shows a place (−1: none), and its probability."""
        references, probabilities = _probable(answer)
        apart = self.points[references] - self.centers[estimate.frame]
        near = np.hypot(apart[:, 0], apart[:, 1]) <= self.radius
        if not near.any():
            return -1, 0.0
        best = 0 if near[0] else int(np.argmax(np.where(near, probabilities, -1.0)))
        return best, float(probabilities[near].max())

    def _fused(
        self, answer: Localization, descriptor: Floats, estimate: Estimate, best: int, support: float
    ) -> Localization:
        """Return the answer at the place of an estimate."""
        matches = list(answer.matches)
        first = matches.pop(best) if best >= 0 else self._match(answer, descriptor, estimate.frame)
        probability = math.sqrt((1 - estimate.outside) * support)
        decision = self.rule.decide(probability=[probability])[0].value
        ordered = [replace(first, probability=probability), *matches]
        ordered = [replace(match, rank=rank) for rank, match in enumerate(ordered, 1)]
        note = FUSED.format(count=2 * WINDOW, accept=percent(self.rule.accept_at))
        fused = replace(
            with_pose(answer, None) if best else answer,  # the radius is that of the best match
            uncertainty=1 - probability,
            probability=probability,
            inside=1 - estimate.outside,
            in_map=estimate.outside <= 0.5,
            decision=decision,
            matches=tuple(ordered),
            notes=(*answer.notes, note),
            guaranteed=False,
        )
        radius = self.store.manifest.radius
        fused = replace(fused, matches=decided_matches(fused, self.rule, decision, radius))
        return with_pose(fused, best_pose(fused.matches, radius))

    def _match(self, answer: Localization, descriptor: Floats, state: int) -> Match:
        """Return the reference of a place that is most similar to the image."""
        rows = self._members[self._starts[state] : self._starts[state + 1]]
        cosines = np.asarray(self.store.descriptors[rows] @ np.asarray(descriptor, np.float32), np.float64)
        best = int(np.argmax(cosines))
        row = int(rows[best])
        x, y, heading, time = self.store.gather("poses", rows[best : best + 1])[0].tolist()
        latitude, longitude = unproject(np.array([[x, y]]), self.store.manifest.frame)
        cosine, kappa = float(cosines[best]), float(self.store.gather("kappa", rows)[best])
        agreement = resultant(answer.kappa, kappa, min(cosine, 1.0)).item()
        return Match(
            rank=1,
            name=self.store.name(row),
            x=x,
            y=y,
            heading=heading,
            time=time,
            similarity=cosine,
            kappa=kappa,
            uncertainty=1 - cosine if math.isnan(agreement) else 1 / agreement,
            probability=None,
            decision=None,
            reference=row,
            image=self.store.image_path(row),
            latitude=float(latitude[0]),
            longitude=float(longitude[0]),
        )


def _coordinates(store: MapStore) -> tuple[Floats, float]:
    """Return the position of each reference, or its frame and route, and the radius of a place."""
    near, positions = store.manifest.near, np.asarray(store.positions, np.float64)
    if np.isfinite(positions).all(axis=1).any():
        return positions, store.manifest.radius
    if near.kind != "frames":
        raise KappaPlaceError(
            f"A sequence needs positions or frame numbers, and the map {store.folder} has none. Build it "
            "from images with positions, or with --neighborhood frames:N."
        )
    frames, routes = np.asarray(store.whole("routes").T[::-1], np.float64)
    return np.stack([frames, routes * APART], axis=1), max(near.value, 1.0)


def _probable(answer: Localization) -> tuple[Rows, Floats]:
    """Return the references of the matches, and the probability of the answer shared out among them."""
    references = np.array([match.reference for match in answer.matches], np.int64)
    values = [match.probability for match in answer.matches]
    shares = np.array([0.0 if value is None else value for value in values])
    if not len(shares) or answer.probability is None:
        return references, np.zeros(len(references))
    if any(value is None for value in values) or not shares.max() > 0:  # only best matches were labelled
        shares = np.eye(1, len(shares))[0]
    return references, shares / shares.max() * answer.probability


def _weighted(values: Floats, row: int) -> float:
    """Return the mean of the values around a row, weighted by how close they are."""
    rows = np.arange(max(0, row - WINDOW), min(len(values), row + WINDOW + 1))
    weights = np.exp(-0.5 * ((rows - row) / (WINDOW / 2)) ** 2)
    return float(weights @ values[rows] / weights.sum())
