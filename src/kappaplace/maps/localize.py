"""Localization of embedded queries: search, re-rank, compute the signals, and decide."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.calibration import (
    PATCH_SIGNALS,
    QUERY_SIGNALS,
    Calibration,
    Judgment,
    judge,
    pair_features,
    plain_score,
    usable_signals,
)
from kappaplace.calibration.candidates import PlaceSet
from kappaplace.calibration.decision import decide_matches, match_probabilities
from kappaplace.calibration.domain import Domain
from kappaplace.calibration.radius import RadiusModel
from kappaplace.calibration.sources import shipped_note
from kappaplace.checks import percent
from kappaplace.data.geodesy import circle_in_frame, unproject
from kappaplace.data.near import Circle
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.answer import (
    CandidatePlace,
    CandidateSet,
    Localization,
    Match,
    best_pose,
    with_pose,
)
from kappaplace.maps.directions import CELL, direction_note
from kappaplace.maps.options import LocalizeOptions
from kappaplace.maps.references import MapReferences
from kappaplace.maps.store import MapStore
from kappaplace.retrieval.evidence import DEEP, Evidence, from_pool
from kappaplace.retrieval.patches import reordered
from kappaplace.retrieval.references import Floats, Queries
from kappaplace.uncertainty import SCORES

T = TypeVar("T")
Table: TypeAlias = Sequence[Sequence[T | None]]
"""Values of matches: one row per query, one value per match."""
NOT_CALIBRATED = (
    "The map is not calibrated, so there are no probabilities and no decisions. Run `kappaplace calibrate`."
)
PRIOR = (
    "Only part of the map was searched. Probabilities were calibrated on the whole map, so no risk is "
    "guaranteed, and no radius."
)
RERANKED = (
    "Matches are ordered by probability. The probability of the answer was calibrated for the order by "
    "similarity, so no risk is guaranteed."
)
MORE_OUTSIDE = (
    "Decision thresholds assume that {then} of the queries are out-of-map, not {now}, so more accepted "
    "answers will be incorrect. Recalibrate with --outside-rate."
)
VERIFIED = "The first {count} matches are ordered by how well their patches agree with the query."
NOT_SO_CALIBRATED = (
    "No probability: the map was calibrated {then}, but this query ran {now}. Pass images and leave `rerank` "
    "at its default, or recalibrate with this setting."
)
SHIPPED_NOT_SO = (
    "No probability: the shipped calibration needs patch matching of {count} matches. Pass images and leave "
    "`rerank` at its default, or run `kappaplace calibrate`."
)
OUTDATED_MAP = (
    "No probability: the map was calibrated with an earlier version of patch matching. Run `kappaplace "
    "calibrate` again."
)
OUTDATED_PLAIN = (
    "The map was calibrated with an earlier version of patch matching, so the answer uses a second "
    "calibration, which was fitted without patches. Run `kappaplace calibrate` again."
)
PLAIN = "Patches were not compared, so the answer uses a second calibration, which was fitted without them."
IN_MAP_ONLY = "Candidate sets hold for in-map queries only, because no calibration query was out-of-map."
UNLIKE = (
    "No probability, and not accepted: the query differs from the correctly answered queries of the "
    "calibration ({reason})."
)
UNLIKE_BANK = (
    "Too few labelled queries were answered correctly to detect queries that differ from them, so no risk is "
    "guaranteed."
)
NO_IMAGES = "Patch matching needs the query images. Pass images instead of embeddings, or rerank=0."
NO_RANKING = (
    "Matches cannot be ordered by probability, because the calibration covers only the best match. Run "
    "`kappaplace calibrate` with --queries or --self."
)
SAME_PLACE = 0.5
"""A query is reported as probably not in this map if its probability of being in-map is lower."""


@dataclass(frozen=True)
class Calibrations:
    """Calibrations that can convert the scores of a query to a probability."""

    own: Calibration | None = None
    """Calibration of the map."""
    shipped: Calibration | None = None
    """Shipped calibration of the model, used if the map is not calibrated and its scores can be computed."""
    bank: Domain | None = None
    """Correctly answered queries of other places, for a calibration with too few queries."""
    drifted: bool = False
    """Whether a monitor has detected that queries differ from those of the calibration."""


def locate(
    references: MapReferences,
    queries: Queries,
    names: Sequence[str],
    options: LocalizeOptions,
    calibrations: Calibrations = Calibrations(),  # frozen
    *,
    notes: Sequence[str] = (),
    seconds: dict[str, float] | None = None,
) -> list[Localization]:
    """Localize embedded queries.

    Args:
        references: References of the map.
        queries: Embeddings of the queries, with their images if patches are compared.
        names: Name of each query.
        options: Options of the localization.
        calibrations: Calibrations of the map and of its model.
        notes: Notes to include in every answer.
        seconds: Seconds per query that earlier stages took.

    Returns:
        One answer per query.

    Raises:
        KappaPlaceError: If the map is empty, or images or a calibration are needed but missing.
    """
    k, outside_rate, frame = options.k, options.outside_rate, references.store.manifest.frame
    area = None if options.area is None else circle_in_frame(options.area, frame)
    calibration, shipped, bank = calibrations.own, calibrations.shipped, calibrations.bank
    by_probability = options.order == "probability"
    count = _rerank_count(options.rerank, calibration or shipped, queries)
    _check_request(references, queries, count, calibration or shipped, by_probability)
    clock = _Clock(seconds, len(names))
    pool = references.search(queries.vectors, max(k, DEEP), area)
    clock.lap("search")
    remarks = [*notes, *((PRIOR,) if area is not None and (calibration or shipped) else ())]
    if not pool.indices.shape[1]:
        kappas = zip(names, _kappas(queries), strict=True)
        return [_no_match(name, kappa, remarks, frame) for name, kappa in kappas]
    evidence = None
    if count:
        try:
            evidence = from_pool(queries, references, pool, k, area=area, rerank=count)
            remarks.append(VERIFIED.format(count=count))
        except KappaPlaceError as error:
            if options.rerank is not None or (calibration is not None and calibration.plain is None):
                raise
            count = 0  # without patches, another calibration applies, or none is needed
            remarks.append(f"Matches were not re-ranked by patches: {error}")
        clock.lap("rerank")
    evidence = evidence or from_pool(queries, references, pool, k, area=area)
    shown = (*QUERY_SIGNALS, *(PATCH_SIGNALS if count else ()))
    signals = {name: SCORES[name].query(evidence) for name in usable_signals(evidence, shown)}
    clock.lap("signals")
    calibration, remark = _calibration_for(evidence, count, calibration, shipped)
    remarks += remark
    if by_probability:
        if calibration is None or not calibration.pair_scores:
            raise KappaPlaceError(NO_RANKING)
        remarks.append(RERANKED)
        features = pair_features(evidence, calibration.pair_scores)
        evidence = _reranked(evidence, calibration.pair_probability(features, outside_rate))
    judgment = judge(
        evidence,
        calibration,
        outside_rate=outside_rate,
        bank=bank,
        coverage=options.coverage,
        group=options.group,
    )
    # The rule was fitted without these options, and on queries without drift.
    if by_probability or area is not None or calibrations.drifted:
        sets = judgment.candidates
        if sets is not None:
            sets = tuple(replace(each, guaranteed=False) for each in sets)
        judgment = replace(judgment, guaranteed=None, candidates=sets)
    if calibration is not None and calibration.rule is not None and calibration.rule.guaranteed:
        domain = calibration.domain
        remarks += [UNLIKE_BANK] if domain is None or not domain.conclusive else []
    remarks += _outside_note(calibration, outside_rate)
    clock.lap("decide")
    radius = None if calibration is None or by_probability else calibration.radius
    if _more_outside(calibration, outside_rate):
        radius = None
    answers = _answers(references, names, evidence, calibration, judgment, signals, radius)
    if judgment.candidates is not None and options.coverage is not None:
        own_sets = _candidate_sets(references.store, judgment.candidates, options.coverage)
        answers = [replace(answer, candidates=own) for answer, own in zip(answers, own_sets, strict=True)]
        if calibration is not None and calibration.candidates and not calibration.candidates.outside:
            remarks.append(IN_MAP_ONLY)
    clock.lap("answer")
    return [
        replace(
            answer,
            matches=_by_probability(answer.matches)[:k] if by_probability else answer.matches[:k],
            notes=(*answer.notes, *remarks, *_direction_notes(references, answer, options.heading, area)),
            seconds=dict(clock.seconds),
            calibration="" if calibration is None else calibration.fingerprint,
        )
        for answer in answers
    ]


def _direction_notes(
    references: MapReferences, answer: Localization, heading: float | None, area: Circle | None
) -> list[str]:
    """Return a note if the map has no image that looks in the direction of the query."""
    if area is None and answer.pose is not None:
        area = (answer.pose.x, answer.pose.y, CELL * references.store.manifest.radius)
    note = "" if area is None or heading is None else direction_note(references, area, heading)
    return [note] if note else []


def _calibration_for(
    evidence: Evidence, count: int, own: Calibration | None, shipped: Calibration | None
) -> tuple[Calibration | None, list[str]]:
    """Return the calibration for this kind of comparison, and the notes on it for every answer."""
    if own is None and shipped is not None:
        if _applies(shipped, evidence, count):
            return shipped, [shipped_note(shipped)]
        if rerank_of(shipped) != count:
            return None, [SHIPPED_NOT_SO.format(count=rerank_of(shipped))]
    if own is None:
        return None, [NOT_CALIBRATED]
    if count == 0 and own.plain is not None:
        return own.plain, [OUTDATED_PLAIN if own.outdated else PLAIN]
    if own.outdated and count == own.rerank:
        return None, [OUTDATED_MAP]
    if rerank_of(own) == count:
        return own, []
    return None, [_not_so_calibrated(own, count)]  # another order of matches gives other scores


def _rerank_count(rerank: int | None, calibration: Calibration | None, queries: Queries) -> int:
    """Return the number of matches to re-rank by patch matching."""
    return rerank_of(calibration) if rerank is None and queries.images is not None else rerank or 0


def _check_request(
    references: MapReferences,
    queries: Queries,
    count: int,
    calibration: Calibration | None,
    by_probability: bool,
) -> None:
    references.store.check_not_empty()
    if count and queries.images is None:
        raise KappaPlaceError(NO_IMAGES)
    if by_probability and (calibration is None or not calibration.pair_scores):
        raise KappaPlaceError(NO_RANKING)
    if by_probability and calibration is not None and rerank_of(calibration) != count:
        raise KappaPlaceError(_not_so_calibrated(calibration, count))


def _outside_note(calibration: Calibration | None, outside_rate: float | None) -> list[str]:
    """Return a note if more queries are out-of-map than the decision thresholds assume."""
    if calibration is None or calibration.rule is None or not _more_outside(calibration, outside_rate):
        return []
    assert outside_rate is not None
    return [MORE_OUTSIDE.format(then=percent(_rate_of(calibration)), now=percent(outside_rate))]


def _rate_of(calibration: Calibration) -> float:
    """Return the fraction of out-of-map queries that a calibration assumes."""
    return calibration.right.fitted_rate if calibration.outside_rate is None else calibration.outside_rate


def _more_outside(calibration: Calibration | None, outside_rate: float | None) -> bool:
    """Return whether more queries are out-of-map than the calibration assumes."""
    return calibration is not None and outside_rate is not None and outside_rate > _rate_of(calibration)


def rerank_of(calibration: Calibration | None) -> int:
    """Return the number of matches to re-rank by patch matching for a calibration.

    It is 0 if the version of patch matching has changed and there is a calibration without it.
    """
    if calibration is None or (calibration.outdated and calibration.plain is not None):
        return 0
    return calibration.rerank


def reranking_text(count: int) -> str:
    """Describe in words how matches were ranked."""
    return f"with patch matching of {count} matches" if count else "without patch matching"


def _not_so_calibrated(calibration: Calibration, count: int) -> str:
    return NOT_SO_CALIBRATED.format(then=reranking_text(calibration.rerank), now=reranking_text(count))


def _applies(calibration: Calibration, evidence: Evidence, count: int) -> bool:
    """Return whether all scores of a shipped calibration can be computed. Some need several matches."""
    if rerank_of(calibration) != count:
        return False
    names = {*calibration.scores, *calibration.pair_scores}
    return all(name in SCORES and SCORES[name].reason(evidence) is None for name in names)


def _reranked(evidence: Evidence, pairs: Floats) -> Evidence:
    """Return the same matches, the most probable first. Ties stay in the order of similarity."""
    order = np.argsort(-pairs, axis=1, kind="stable")
    agreement = evidence.agreement
    if agreement is not None and agreement.shape != order.shape:
        agreement = evidence.match_agreement  # of all matches shown, since any of them may come first
    if agreement is not None:
        agreement = np.take_along_axis(agreement, order, 1)
    return replace(evidence, matches=reordered(evidence.matches, order), agreement=agreement)


def _by_probability(matches: tuple[Match, ...]) -> tuple[Match, ...]:
    """Return the best match, and the others sorted by their probability."""
    others = sorted(matches[1:], key=lambda match: -(match.probability or 0.0))
    return tuple(replace(match, rank=rank) for rank, match in enumerate((*matches[:1], *others), 1))


def _answers(
    references: MapReferences,
    names: Sequence[str],
    evidence: Evidence,
    calibration: Calibration | None,
    judgment: Judgment,
    signals: dict[str, Floats],
    radius_model: RadiusModel | None,
) -> list[Localization]:
    """Return one answer per query, without notes and times."""
    store, radius = references.store, references.store.manifest.radius
    poses = store.gather("poses", evidence.matches.indices)
    offsets = poses[:, :, :2] - poses[:, :1, :2]  # NaN if a position is unknown
    apart = np.hypot(offsets[..., 0], offsets[..., 1]) > 2 * radius
    decisions = _match_decisions(calibration, judgment, apart)
    probabilities = _match_probabilities(judgment, apart)
    kappas, matches = _kappas(evidence.queries), _matches(store, evidence, probabilities, poses, decisions)
    estimate = None if radius_model is None else radius_model.estimate(judgment.uncertainty, poses[:, 0, 2])
    answers = []
    for row, name in enumerate(names):
        reason = judgment.reasons[row] if judgment.reasons else ""
        remark = judgment.notes[row] if judgment.notes else ""
        valid = judgment.probability is not None and not reason
        inside = None if judgment.inside is None or reason else float(judgment.inside[row])
        answer = Localization(
            query=name,
            kappa=kappas[row],
            uncertainty=float(judgment.uncertainty[row]),
            probability=probabilities[row][0] if valid else None,
            inside=inside,
            decision=None if judgment.decision is None else judgment.decision[row],
            in_map=None if inside is None else inside >= SAME_PLACE,
            pose=None,
            matches=matches[row],
            signals={key: float(values[row]) for key, values in signals.items()},
            notes=tuple(filter(None, (UNLIKE.format(reason=reason) if reason else "", remark))),
            guaranteed=judgment.guaranteed is not None and bool(judgment.guaranteed[row]),
            frame=store.manifest.frame,
        )
        if radius_model is not None and estimate is not None and not reason:
            answer = replace(
                answer,
                radius=float(estimate.radius[row]) if np.isfinite(estimate.radius[row]) else None,
                radius_level=radius_model.level,
                radius_source=radius_model.source,
                covariance=tuple(map(tuple, estimate.covariance[row].tolist())),
                far=float(estimate.far[row]),
            )
        answers.append(with_pose(answer, best_pose(matches[row], radius)))
    return answers


def _candidate_sets(store: MapStore, sets: Sequence[PlaceSet], coverage: float) -> list[CandidateSet]:
    """Return candidate sets with names and positions."""
    answers = []
    for each in sets:
        rows = np.array(each.references, np.int64)
        positions = store.gather("poses", rows)[:, :2].tolist()
        places = tuple(
            CandidatePlace(store.name(row), x, y, row)
            for row, (x, y) in zip(rows.tolist(), positions, strict=True)
        )
        answers.append(CandidateSet(coverage, places, each.unmapped, each.guaranteed))
    return answers


def _match_decisions(
    calibration: Calibration | None, judgment: Judgment, apart: NDArray[np.bool_]
) -> Table[str]:
    """Return the decision on every match, N×K; None if it is unknown."""
    if judgment.decision is None or judgment.pairs is None or judgment.probability is None:
        return _best_only(judgment.decision, *apart.shape)
    assert calibration is not None
    assert calibration.rule is not None
    decisions = decide_matches(
        calibration.rule, judgment.decision, judgment.probability, judgment.pairs, apart
    )
    return [[decision.value for decision in row] for row in decisions]


def _match_probabilities(judgment: Judgment, apart: NDArray[np.bool_]) -> Table[float]:
    """Return the probability behind the decision on every match, N×K; None if it is unknown."""
    queries, count = apart.shape
    if judgment.probability is None:
        return _best_only(None, queries, count)
    if judgment.pairs is None:
        table = _best_only(judgment.probability.tolist(), queries, count)
    else:
        table = match_probabilities(judgment.probability, judgment.pairs, apart).tolist()
    return [[None] * count if reason else row for row, reason in zip(table, judgment.reasons, strict=True)]


def _best_only(values: Sequence[T] | None, queries: int, matches: int) -> Table[T]:
    """Return a table with a value for each best match, and None for all others."""
    return [[value, *[None] * (matches - 1)] for value in ([None] * queries if values is None else values)]


def _matches(
    store: MapStore,
    evidence: Evidence,
    probabilities: Table[float],
    poses: NDArray[np.float64],
    decisions: Table[str],
) -> list[tuple[Match, ...]]:
    """Return the matches of each query."""
    references, uncertainty = evidence.matches.indices, plain_score(evidence).match
    assert uncertainty is not None
    latitude, longitude = unproject(poses[:, :, :2].reshape(-1, 2), store.manifest.frame)
    columns = zip(
        references.tolist(),
        np.dstack([poses, latitude.reshape(references.shape), longitude.reshape(references.shape)]).tolist(),
        evidence.cosines.tolist(),
        store.gather("kappa", references).tolist(),
        uncertainty(evidence).tolist(),
        probabilities,
        decisions,
        strict=True,
    )
    return [
        tuple(
            Match(
                rank=rank,
                name=store.name(reference),
                x=x,
                y=y,
                heading=heading,
                time=time,
                similarity=similarity,
                kappa=kappa,
                uncertainty=score,
                probability=probability,
                decision=decision,
                reference=reference,
                image=store.image_path(reference),
                latitude=north,
                longitude=east,
            )
            for rank, (reference, place, similarity, kappa, score, probability, decision) in enumerate(
                zip(*row, strict=True), 1
            )
            for x, y, heading, time, north, east in (place,)
        )
        for row in columns
    ]


def _no_match(name: str, kappa: float, notes: Sequence[str], frame: str) -> Localization:
    unknown = Localization(name, kappa, math.nan, None, None, None, None, None, (), {}, tuple(notes))
    return replace(unknown, frame=frame)


def _kappas(queries: Queries) -> list[float]:
    embeddings = queries.embeddings
    if embeddings is None or embeddings.kappa is None:
        return [math.nan] * len(queries.vectors)
    return [float(kappa) for kappa in embeddings.kappa]


class _Clock:
    """Seconds per query that each stage takes."""

    def __init__(self, before: dict[str, float] | None, queries: int) -> None:
        self.seconds = dict(before or {})
        self._queries, self._last = max(queries, 1), time.perf_counter()

    def lap(self, stage: str) -> None:
        """Record the time since the previous stage."""
        now = time.perf_counter()
        self.seconds[stage] = (now - self._last) / self._queries
        self._last = now
