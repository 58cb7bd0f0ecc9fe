"""Localize: embed, search, collect the signals, decide."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.checks import percent
from kappaplace.calibration.match_decision import decide_matches
from kappaplace.calibration.model import Calibration
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.borrowed import borrowed_note
from kappaplace.maps.localization import Localization, Match, fused_pose
from kappaplace.maps.signals import (
    PATCH_SIGNALS,
    QUERY_SIGNALS,
    Gatherer,
    MapEvidence,
    pair_features,
    query_features,
    usable_signals,
)
from kappaplace.retrieval import Circle
from kappaplace.types import Embeddings, Matches
from kappaplace.uncertainty.evidence import Scores
from kappaplace.uncertainty.patches import AGREEMENT, COMPARED
from kappaplace.uncertainty.registry import SCORES

NOT_CALIBRATED = (
    "The map is not calibrated, so there are no probabilities and no decisions; run `kappaplace calibrate`."
)
PRIOR = (
    "Only the area asked for was searched; probabilities were calibrated on the whole map, so no risk is "
    "guaranteed here."
)
RERANKED = (
    "Matches are ranked by probability; the answer's own probability was calibrated on similarity, so no "
    "risk is guaranteed here."
)
MORE_OUTSIDE = (
    "Decisions were set for {then} of queries from outside the map, not for {now}: more of the accepted will "
    "be wrong; calibrate with --outside-rate."
)
VERIFIED = "The first {count} matches are ordered by how many of their cells agree with the query."
NOT_SO_CALIBRATED = (
    "Probabilities were calibrated {then}, and the query was asked {now}, so it has none: leave `verify` to "
    "the map and give it the image, or calibrate so."
)
NO_IMAGES = "Comparing matches cell by cell needs the query images themselves; give images, not embeddings."
NO_RANKING = (
    "Ranking by probability needs calibrated matches; run `kappaplace calibrate` with --queries or --self "
    "first (labels are of best matches alone)."
)
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
    borrowed: Calibration | None = None,
    outside_rate: float | None = None,
    notes: Sequence[str] = (),
    seconds: dict[str, float] | None = None,
    images: Any = None,
    verify: int | None = None,
) -> list[Localization]:
    """The answers to some queries that are embedded already.

    ``verify`` is how many matches are compared cell by cell; None: as many as when it was calibrated.
    ``borrowed`` is a calibration on other places; it stands in where the map has none and its scores are at
    hand.
    """
    judge_by = calibration or borrowed
    count = _compared(verify, judge_by, images)
    _check_request(gatherer, k, count, images, rerank, judge_by)
    clock = _Clock(seconds, len(names))
    deep = gatherer.matches(np.asarray(embeddings.descriptor, np.float32), k, near)
    clock.lap("search")
    said = [*notes, *((PRIOR,) if near is not None and judge_by is not None else ())]
    if not deep.indices.shape[1]:
        return [_nothing(name, kappa, said) for name, kappa in zip(names, _kappas(embeddings), strict=True)]
    agreement = None
    if count:
        try:
            deep, agreement = gatherer.verified(embeddings, deep, images, count)
            said.append(VERIFIED.format(count=count))
        except KappaPlaceError as error:
            if verify is not None or calibration is not None:
                raise
            count = 0  # nobody asked for it: without the map's images there is no borrowed probability
            said.append(f"Matches were not compared cell by cell: {error}")
        clock.lap("verify")
    evidence = gatherer.evidence(embeddings, deep, max(k, count), near, images=images, agreement=agreement)
    shown = (*QUERY_SIGNALS, *(PATCH_SIGNALS if count else ()))
    signals = {name: SCORES[name].query(evidence) for name in usable_signals(evidence, shown)}
    clock.lap("signals")
    if calibration is None and borrowed is not None and _speaks_of(borrowed, evidence, count):
        calibration = borrowed
        said.append(borrowed_note(borrowed))
    elif calibration is None:
        said.append(NOT_CALIBRATED)
    elif verified_by(calibration) != count:  # another order of matches, other signals: nothing is known of it
        said.append(_not_so_calibrated(calibration, count))
        calibration = None
    judged = judge(evidence, calibration, outside_rate)
    if rerank:
        if judged.pairs is None:
            raise KappaPlaceError(NO_RANKING)
        said.append(RERANKED)
        evidence = _reranked(gatherer, evidence, judged.pairs, deep, near, images)
        judged = judge(evidence, calibration, outside_rate)
    said += _doubts(calibration, outside_rate)
    clock.lap("decide")
    answers = _answers(gatherer, names, evidence, calibration, judged, signals, said)
    clock.lap("answer")
    by = "" if calibration is None else calibration.fingerprint
    return [
        replace(answer, matches=answer.matches[:k], seconds=dict(clock.seconds), calibration=by)
        for answer in answers
    ]


def _compared(verify: int | None, judge_by: Calibration | None, images: Any) -> int:
    """How many matches are compared cell by cell."""
    return verified_by(judge_by) if verify is None and images is not None else verify or 0


def check_compared(count: int) -> None:
    """Refuse a number of matches to compare that is none."""
    if count < 0:
        raise KappaPlaceError(f"A number of matches to compare cell by cell is 0 or more, not {count}.")


def _check_request(
    gatherer: Gatherer, k: int, compared: int, images: Any, rerank: bool, judge_by: Calibration | None
) -> None:
    if k < 1:
        raise KappaPlaceError(f"At least one match must be asked for, not {k}.")
    if not len(gatherer.store):
        raise KappaPlaceError(f"The map {gatherer.store.folder} is empty; add images to it first.")
    check_compared(compared)
    if compared and images is None:
        raise KappaPlaceError(NO_IMAGES)
    if rerank and (judge_by is None or not judge_by.pair_scores):
        raise KappaPlaceError(NO_RANKING)
    if rerank and judge_by is not None and verified_by(judge_by) != compared:
        raise KappaPlaceError(_not_so_calibrated(judge_by, compared))


def _doubts(calibration: Calibration | None, outside_rate: float | None) -> list[str]:
    """What the user must know of decisions."""
    if calibration is None or calibration.rule is None or outside_rate is None:
        return []
    then = calibration.right.fitted_rate if calibration.outside_rate is None else calibration.outside_rate
    if outside_rate <= then:
        return []
    return [MORE_OUTSIDE.format(then=percent(then), now=percent(outside_rate))]


def _answers(
    gatherer: Gatherer,
    names: Sequence[str],
    evidence: MapEvidence,
    calibration: Calibration | None,
    judged: Judgement,
    signals: dict[str, Scores],
    said: Sequence[str],
) -> list[Localization]:
    radius = gatherer.store.manifest.radius
    poses = gatherer.store.gather("poses", evidence.references[evidence.matches.indices])
    gap = _gaps(poses)
    decisions = _match_decisions(calibration, judged, gap > 2 * radius)
    pair = _pair_uncertainty(evidence)
    answers = []
    for row, name in enumerate(names):
        own = (poses[row], gap[row] <= radius, pair[row], None if decisions is None else decisions[row])
        answers.append(_answer(gatherer, row, name, evidence, judged, *own, signals, said))
    return answers


def verified_by(calibration: Calibration | None) -> int:
    """How many matches were compared cell by cell when it was fitted."""
    return 0 if calibration is None else int(calibration.facts.get("verify", 0))


def how_compared(count: int) -> str:
    """In words, how matches were ranked."""
    return f"with {count} matches compared cell by cell" if count else "without comparing cells"


def _not_so_calibrated(calibration: Calibration, count: int) -> str:
    return NOT_SO_CALIBRATED.format(then=how_compared(verified_by(calibration)), now=how_compared(count))


def _speaks_of(calibration: Calibration, evidence: MapEvidence, count: int) -> bool:
    """Whether all scores of a calibration from elsewhere are at hand here: with one match some are not."""
    if verified_by(calibration) != count:
        return False
    names = {*calibration.scores, *calibration.pair_scores}
    return all(name in SCORES and SCORES[name].reason(evidence) is None for name in names)


def _reranked(
    gatherer: Gatherer, evidence: MapEvidence, pairs: Scores, deep: Matches, near: Circle | None, images: Any
) -> MapEvidence:
    """The same matches, the most probable first; equal ones stay in the order of similarity.

    Another match may be the best one now, so the margin is that to the places other than its own.
    """
    assert evidence.query is not None
    order = np.argsort(-pairs, axis=1, kind="stable")
    count = order.shape[1]
    indices, similarities = deep.indices.copy(), deep.similarities.copy()
    indices[:, :count] = np.take_along_axis(deep.indices[:, :count], order, 1)
    similarities[:, :count] = np.take_along_axis(deep.similarities[:, :count], order, 1)
    known = evidence.memo.get(AGREEMENT)
    agreement = None
    if known is not None and known.shape == order.shape:
        agreement = np.take_along_axis(known, order, 1)
    again = Matches(indices, similarities)
    made = gatherer.evidence(evidence.query, again, count, near, images=images, agreement=agreement)
    made.memo[COMPARED] = evidence.memo.get(COMPARED, count)
    return made


def _gaps(poses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Metres between each match and the best one, N×K; NaN where a position is unknown."""
    gap = poses[:, :, :2] - poses[:, :1, :2]
    return np.asarray(np.hypot(gap[..., 0], gap[..., 1]))


def _match_decisions(
    calibration: Calibration | None, judged: Judgement, apart: NDArray[np.bool_]
) -> NDArray[np.object_] | None:
    """Decisions on every match, N×K; None where only the best one, or none, can be decided on."""
    if judged.decision is None or judged.pairs is None or judged.probability is None:
        return None
    assert calibration is not None
    assert calibration.rule is not None
    return decide_matches(calibration.rule, judged.decision, judged.probability, judged.pairs, apart)


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
    decisions: NDArray[np.object_] | None,
    signals: dict[str, Scores],
    notes: Sequence[str],
) -> Localization:
    store = gatherer.store
    references = evidence.references[evidence.matches.indices[row]]
    kappa = store.gather("kappa", references)
    similarity = evidence.cosines[row]
    probability = None if judged.probability is None else float(judged.probability[row])
    decision = None if judged.decision is None else judged.decision[row]
    # Where only best matches were labelled, nothing is known of the others.
    said: list[str | None] = [decision] + [None] * (len(references) - 1)
    sure: list[float | None] = [probability] + [None] * (len(references) - 1)
    if decisions is not None:
        said = [each.value for each in decisions]
    if judged.pairs is not None:
        sure = [float(each) for each in judged.pairs[row]]
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
            probability=sure[rank],
            decision=said[rank],
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
        probability=probability,
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


class _Clock:
    """Seconds a query of each stage."""

    def __init__(self, before: dict[str, float] | None, queries: int) -> None:
        self.seconds = dict(before or {})
        self._queries, self._last = max(queries, 1), time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = (now - self._last) / self._queries
        self._last = now
