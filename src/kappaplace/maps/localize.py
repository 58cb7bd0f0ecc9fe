"""Localize: embed, search, collect the signals, decide."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.calibration import (
    PATCH_SIGNALS,
    QUERY_SIGNALS,
    Calibration,
    Judgement,
    judge,
    plain_score,
    usable_signals,
)
from kappaplace.calibration.decision import decide_matches
from kappaplace.calibration.sources import borrowed_note
from kappaplace.checks import percent
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.answer import Localization, Match, fused_pose
from kappaplace.maps.options import LocalizeOptions
from kappaplace.maps.references import MapReferences
from kappaplace.retrieval.evidence import Evidence
from kappaplace.retrieval.patches import reordered
from kappaplace.retrieval.references import Floats, Queries
from kappaplace.retrieval.retrieve import DEEP, from_pool
from kappaplace.uncertainty import SCORES

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
    "Probabilities were calibrated {then}, and the query was asked {now}, so it has none: leave `rerank` to "
    "the map and give it the image, or calibrate so."
)
NO_IMAGES = "Comparing matches cell by cell needs the query images themselves; give images, not embeddings."
NO_RANKING = (
    "Ranking by probability needs calibrated matches; run `kappaplace calibrate` with --queries or --self "
    "first (labels are of best matches alone)."
)
SAME_PLACE = 0.5
"""Below this probability of having been taken inside it, a query is said to be outside the map."""


def locate(
    references: MapReferences,
    queries: Queries,
    names: Sequence[str],
    options: LocalizeOptions,
    *,
    calibration: Calibration | None = None,
    borrowed: Calibration | None = None,
    notes: Sequence[str] = (),
    seconds: dict[str, float] | None = None,
) -> list[Localization]:
    """Answer queries that are embedded already.

    Args:
        references: The map.
        queries: Embeddings, and images if patches are compared.
        names: Of the queries.
        options: How they are answered.
        calibration: That of the map.
        borrowed: One of other places, used if the map has none and all of its scores are known.
        notes: What every answer must say.
        seconds: Time spent before, per query.

    Returns:
        One answer per query.
    """
    k, area, outside_rate = options.k, options.area, options.outside_rate
    judge_by, images = calibration or borrowed, queries.images
    count = _compared(options.rerank, judge_by, images)
    by_probability = options.order == "probability"
    _check_request(references, count, images, by_probability, judge_by)
    clock = _Clock(seconds, len(names))
    pool = references.search(queries.vectors, max(k, DEEP), area)
    clock.lap("search")
    said = [*notes, *((PRIOR,) if area is not None and judge_by is not None else ())]
    if not pool.indices.shape[1]:
        return [_nothing(name, kappa, said) for name, kappa in zip(names, _kappas(queries), strict=True)]
    evidence = None
    if count:
        try:
            evidence = from_pool(queries, references, pool, k, area=area, rerank=count)
            said.append(VERIFIED.format(count=count))
        except KappaPlaceError as error:
            if options.rerank is not None or calibration is not None:
                raise
            count = 0  # nobody asked for it: without the map's images there is no borrowed probability
            said.append(f"Matches were not compared cell by cell: {error}")
        clock.lap("rerank")
    evidence = evidence or from_pool(queries, references, pool, k, area=area)
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
    judged = judge(evidence, calibration, outside_rate=outside_rate)
    if by_probability:
        if judged.pairs is None:
            raise KappaPlaceError(NO_RANKING)
        said.append(RERANKED)
        evidence = _reranked(evidence, judged.pairs)
        judged = judge(evidence, calibration, outside_rate=outside_rate)
    said += _doubts(calibration, outside_rate)
    clock.lap("decide")
    answers = _answers(references, names, evidence, calibration, judged, signals, said)
    clock.lap("answer")
    by = "" if calibration is None else calibration.fingerprint
    return [
        replace(answer, matches=answer.matches[:k], seconds=dict(clock.seconds), calibration=by)
        for answer in answers
    ]


def _compared(rerank: int | None, judge_by: Calibration | None, images: object) -> int:
    """How many matches are compared patch by patch."""
    return verified_by(judge_by) if rerank is None and images is not None else rerank or 0


def _check_request(
    references: MapReferences,
    compared: int,
    images: object,
    by_probability: bool,
    judge_by: Calibration | None,
) -> None:
    if not len(references.store):
        raise KappaPlaceError(f"The map {references.store.folder} is empty; add images to it first.")
    if compared and images is None:
        raise KappaPlaceError(NO_IMAGES)
    if by_probability and (judge_by is None or not judge_by.pair_scores):
        raise KappaPlaceError(NO_RANKING)
    if by_probability and judge_by is not None and verified_by(judge_by) != compared:
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
    references: MapReferences,
    names: Sequence[str],
    evidence: Evidence,
    calibration: Calibration | None,
    judged: Judgement,
    signals: dict[str, Floats],
    said: Sequence[str],
) -> list[Localization]:
    radius = references.store.manifest.radius
    poses = references.store.gather("poses", evidence.matches.indices)
    gap = _gaps(poses)
    decisions = _match_decisions(calibration, judged, gap > 2 * radius)
    pair = _pair_uncertainty(evidence)
    answers = []
    for row, name in enumerate(names):
        own = (poses[row], gap[row] <= radius, pair[row], None if decisions is None else decisions[row])
        answers.append(_answer(references, row, name, evidence, judged, *own, signals, said))
    return answers


def verified_by(calibration: Calibration | None) -> int:
    """How many matches were compared cell by cell when it was fitted."""
    return 0 if calibration is None else calibration.rerank


def how_compared(count: int) -> str:
    """In words, how matches were ranked."""
    return f"with {count} matches compared cell by cell" if count else "without comparing cells"


def _not_so_calibrated(calibration: Calibration, count: int) -> str:
    return NOT_SO_CALIBRATED.format(then=how_compared(verified_by(calibration)), now=how_compared(count))


def _speaks_of(calibration: Calibration, evidence: Evidence, count: int) -> bool:
    """Whether all scores of a calibration from elsewhere are at hand here: with one match some are not."""
    if verified_by(calibration) != count:
        return False
    names = {*calibration.scores, *calibration.pair_scores}
    return all(name in SCORES and SCORES[name].reason(evidence) is None for name in names)


def _reranked(evidence: Evidence, pairs: Floats) -> Evidence:
    """Return the same matches, the most probable first; equal ones stay in the order of similarity.

    Another match may be the best one now, so the margin is that to the places other than its own.
    """
    order = np.argsort(-pairs, axis=1, kind="stable")
    agreement = evidence.agreement
    if agreement is not None and agreement.shape != order.shape:
        agreement = evidence.match_agreement  # of all that are shown, since any of them may come first
    if agreement is not None:
        agreement = np.take_along_axis(agreement, order, 1)
    return replace(evidence, matches=reordered(evidence.matches, order), agreement=agreement)


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


def _pair_uncertainty(evidence: Evidence) -> Floats:
    match = plain_score(evidence).match
    assert match is not None
    return match(evidence)


def _answer(
    references: MapReferences,
    row: int,
    name: str,
    evidence: Evidence,
    judged: Judgement,
    poses: NDArray[np.float64],
    consistent: NDArray[np.bool_],
    pair: Floats,
    decisions: NDArray[np.object_] | None,
    signals: dict[str, Floats],
    notes: Sequence[str],
) -> Localization:
    store, rows = references.store, evidence.matches.indices[row]
    kappa = store.gather("kappa", rows)
    similarity = evidence.cosines[row]
    probability = None if judged.probability is None else float(judged.probability[row])
    decision = None if judged.decision is None else judged.decision[row]
    # Where only best matches were labelled, nothing is known of the others.
    said: list[str | None] = [decision] + [None] * (len(rows) - 1)
    sure: list[float | None] = [probability] + [None] * (len(rows) - 1)
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
        for rank, reference in enumerate(rows.tolist())
    )
    inside = None if judged.inside is None else float(judged.inside[row])
    return Localization(
        query=name,
        kappa=_kappas(evidence.queries)[row],
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


def _kappas(queries: Queries) -> list[float]:
    embeddings = queries.embeddings
    if embeddings is None or embeddings.kappa is None:
        return [math.nan] * len(queries.vectors)
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
