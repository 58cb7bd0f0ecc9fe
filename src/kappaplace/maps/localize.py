"""Localize: embed, search, collect the signals, decide."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.model import Calibration
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.localization import Localization, Match, fused_pose
from kappaplace.maps.signals import Gatherer, MapEvidence, pair_features, query_features, usable_signals
from kappaplace.retrieval.engines import Circle
from kappaplace.types import Embeddings, Matches
from kappaplace.uncertainty.evidence import Scores
from kappaplace.uncertainty.registry import SCORES

NOT_CALIBRATED = (
    "The map is not calibrated, so there are no probabilities and no decisions; run `kappaplace calibrate`."
)
PRIOR = "Only the area asked for was searched; probabilities were calibrated on the whole map."
RERANKED = "Matches are ranked by probability; the answer's own probability was calibrated on similarity."
SAME_PLACE = 0.5
"""Below this probability of having been taken inside it, a query is said to be outside the map."""


@dataclass(frozen=True, eq=False)
class Judgement:
    """What a calibration says of some queries; all None without one."""

    uncertainty: Scores
    probability: Scores | None = None
    inside: Scores | None = None
    decision: list[str] | None = None
    pairs: Scores | None = None


def judge(evidence: MapEvidence, calibration: Calibration | None, outside_rate: float | None) -> Judgement:
    """Probabilities and decisions from the calibration, or the plain uncertainty without it."""
    if calibration is None:
        name = "kappaplace" if SCORES["kappaplace"].reason(evidence) is None else "cosine"
        return Judgement(SCORES[name].query(evidence))
    features = query_features(evidence, calibration.scores)
    pairs = None
    if calibration.pair_scores:
        pairs = calibration.pair_probability(pair_features(evidence, calibration.pair_scores), outside_rate)
    return Judgement(
        calibration.uncertainty(features),
        calibration.probability(features, outside_rate),
        calibration.inside_probability(features, outside_rate),
        None if calibration.rule is None else [decision.value for decision in calibration.decide(features)],
        pairs,
    )


def locate(
    gatherer: Gatherer,
    embeddings: Embeddings,
    names: Sequence[str],
    *,
    k: int,
    near: Circle | None = None,
    rerank: bool = False,
    calibration: Calibration | None = None,
    outside_rate: float | None = None,
    notes: Sequence[str] = (),
    seconds: dict[str, float] | None = None,
    images: Any = None,
) -> list[Localization]:
    """The answers to some queries that are embedded already."""
    if k < 1:
        raise KappaPlaceError(f"At least one match must be asked for, not {k}.")
    if not len(gatherer.store):
        raise KappaPlaceError(f"The map {gatherer.store.folder} is empty; add images to it first.")
    if rerank and (calibration is None or not calibration.pair_scores):
        raise KappaPlaceError(
            "Ranking by probability needs calibrated matches; run `kappaplace calibrate` first."
        )
    clock = _Clock(seconds, len(names))
    deep = gatherer.matches(np.asarray(embeddings.descriptor, np.float32), k, near)
    clock.lap("search")
    said = [*notes, *((PRIOR,) if near is not None and calibration is not None else ())]
    if not deep.indices.shape[1]:
        return [_nothing(name, kappa, said) for name, kappa in zip(names, _kappas(embeddings), strict=True)]
    evidence = gatherer.evidence(embeddings, deep, k, near, images=images)
    signals = {name: SCORES[name].query(evidence) for name in usable_signals(evidence)}
    clock.lap("signals")
    judged = judge(evidence, calibration, outside_rate)
    if rerank and judged.pairs is not None:
        said.append(RERANKED)
        evidence, judged = _reranked(gatherer, evidence, judged, calibration, outside_rate, images)
    if calibration is None:
        said.append(NOT_CALIBRATED)
    clock.lap("decide")
    poses = gatherer.store.gather("poses", evidence.references[evidence.matches.indices])
    near_top = _consistent(gatherer, evidence, poses)
    pair = _pair_uncertainty(evidence)
    answers = []
    for row, name in enumerate(names):
        answers.append(
            _answer(
                gatherer, row, name, evidence, judged, poses[row], near_top[row], pair[row], signals, said
            )
        )
    clock.lap("answer")
    return [_timed(answer, clock.seconds) for answer in answers]


def _reranked(
    gatherer: Gatherer,
    evidence: MapEvidence,
    judged: Judgement,
    calibration: Calibration | None,
    outside_rate: float | None,
    images: Any,
) -> tuple[MapEvidence, Judgement]:
    """The same matches, the most probable first; equal ones stay in the order of similarity."""
    assert judged.pairs is not None
    assert evidence.query is not None
    order = np.argsort(-judged.pairs, axis=1, kind="stable")
    matches = Matches(
        np.take_along_axis(evidence.references[evidence.matches.indices], order, 1),
        np.take_along_axis(evidence.matches.similarities, order, 1),
    )
    again = gatherer.of_matches(evidence.query, matches, evidence.outside, images)
    return again, judge(again, calibration, outside_rate)


def _consistent(gatherer: Gatherer, evidence: MapEvidence, poses: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which matches speak for the place of the best one: within the map's radius of it."""
    gap = poses[:, :, :2] - poses[:, :1, :2]
    radius = gatherer.store.manifest.radius
    with np.errstate(invalid="ignore"):
        return np.asarray((gap**2).sum(axis=2) <= radius**2)


def _pair_uncertainty(evidence: MapEvidence) -> Scores:
    name = "kappaplace" if SCORES["kappaplace"].reason(evidence) is None else "cosine"
    match = SCORES[name].match
    assert match is not None
    return match(evidence)


def _answer(
    gatherer: Gatherer,
    row: int,
    name: str,
    evidence: MapEvidence,
    judged: Judgement,
    poses: NDArray[np.float64],
    consistent: NDArray[np.bool_],
    pair: Scores,
    signals: dict[str, Scores],
    notes: Sequence[str],
) -> Localization:
    store = gatherer.store
    references = evidence.references[evidence.matches.indices[row]]
    kappa = store.gather("kappa", references)
    similarity = evidence.cosines[row]
    decision = None if judged.decision is None else judged.decision[row]
    # Without a calibration, how similar a match is says best how much to trust it.
    weights = similarity if judged.pairs is None else judged.pairs[row]
    matches = tuple(
        Match(
            rank=rank + 1,
            name=store.name(reference),
            x=float(poses[rank, 0]),
            y=float(poses[rank, 1]),
            heading=float(poses[rank, 2]),
            time=float(poses[rank, 3]),
            similarity=float(similarity[rank]),
            kappa=float(kappa[rank]),
            uncertainty=float(pair[rank]),
            probability=None if judged.pairs is None else float(judged.pairs[row, rank]),
            decision=decision if rank == 0 else None,
            reference=reference,
            image=store.image_path(reference),
        )
        for rank, reference in enumerate(references.tolist())
    )
    assert evidence.query is not None
    inside = None if judged.inside is None else float(judged.inside[row])
    return Localization(
        query=name,
        kappa=_kappas(evidence.query)[row],
        uncertainty=float(judged.uncertainty[row]),
        probability=None if judged.probability is None else float(judged.probability[row]),
        inside=inside,
        decision=decision,
        in_map=None if inside is None else inside >= SAME_PLACE,
        pose=fused_pose(poses, weights, consistent),
        matches=matches,
        signals={key: float(values[row]) for key, values in signals.items()},
        notes=tuple(notes),
    )


def _nothing(name: str, kappa: float, notes: Sequence[str]) -> Localization:
    return Localization(name, kappa, math.nan, None, None, None, None, None, (), {}, tuple(notes))


def _kappas(embeddings: Embeddings) -> list[float]:
    if embeddings.kappa is None:
        return [math.nan] * len(embeddings.descriptor)
    return [float(kappa) for kappa in embeddings.kappa]


def _timed(answer: Localization, seconds: dict[str, float]) -> Localization:
    return replace(answer, seconds=dict(seconds))


class _Clock:
    """Seconds a query of each stage."""

    def __init__(self, before: dict[str, float] | None, queries: int) -> None:
        self.seconds = dict(before or {})
        self._queries, self._last = max(queries, 1), time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = (now - self._last) / self._queries
        self._last = now
