"""Calibration of a map on labelled queries: the signals of `localize`, and whether the answer was right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.checks import checked_seed, share
from kappaplace.calibration.model import Calibration, fit_calibration
from kappaplace.calibration.outside import thin_to_rate
from kappaplace.calibration.splits import split_queries, thin_to_places
from kappaplace.data.near import within
from kappaplace.data.place_images import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.localize import check_compared, verified_by
from kappaplace.maps.monitor_inputs import DISTANCE
from kappaplace.maps.place_map import PlaceMap
from kappaplace.maps.signals import (
    PAIR_SIGNALS,
    PATCH_SIGNALS,
    MapEvidence,
    pair_features,
    query_features,
    usable_signals,
)
from kappaplace.maps.sources import into_frame, is_same_image
from kappaplace.metrics import mass_bins
from kappaplace.progress import track
from kappaplace.uncertainty.patches import AGREEMENT
from kappaplace.uncertainty.registry import SCORES

SCORES_FOR_TOP = ("cosine", "margin", "aliasing", "z-score", "inverse-kappa")
"""What the best combination is made of; κ is left out where the model has none."""
MATCHES = 10
"""Matches of each query that the second calibrator, of pairs, learns from."""
BLOCK = 64
FEWEST = 20
"""Queries of different places below which there is nothing to learn from."""
EACH_BIN = 20
"""Queries in a bin of the reliability that is kept with a calibration."""
NOT_THINNED = (
    "The labelled queries were not thinned to one a place: it holds only if no two of them show one place."
)


@dataclass(frozen=True)
class Terms:
    """What a calibration shall promise."""

    max_risk: float = 0.05
    confidence: float = 0.95
    outside_rate: float | None = None
    calibrator: str = "best"
    thin: bool = True
    """Keep one labelled query a place: neighbours fail together, and the promise counts independent ones."""
    seed: int = 0
    verify: int | None = None
    """Matches that are compared cell by cell and ordered by it, here and whenever the map is asked; None: as
    when the matches were found that labels speak of, else none."""

    def __post_init__(self) -> None:
        """Told at once, not after an hour of embedding."""
        share(self.max_risk, "risk")
        share(self.confidence, "confidence")
        if self.outside_rate is not None:
            share(self.outside_rate, "stated share", ends=True)
        checked_seed(self.seed)
        check_compared(self.verify or 0)


@dataclass
class Examples:
    """Queries with outcomes, as they come in blocks."""

    best_only: bool = False
    """Outcomes are known of best matches alone: nothing is learnt of pairs, or of queries from outside."""
    scores: tuple[str, ...] = ()
    pair_scores: tuple[str, ...] = ()
    features: list[NDArray[np.float64]] = field(default_factory=list)
    pairs: list[NDArray[np.float64]] = field(default_factory=list)
    right: list[NDArray[np.bool_]] = field(default_factory=list)
    """Whether each match is right, N×K."""
    outside: list[NDArray[np.bool_]] = field(default_factory=list)
    kappa: list[NDArray[np.float64]] = field(default_factory=list)
    groups: list[NDArray[np.int64]] = field(default_factory=list)

    def add(
        self,
        evidence: MapEvidence,
        right: NDArray[np.bool_],
        outside: NDArray[np.bool_] | None,
        groups: NDArray[np.int64] | None = None,
    ) -> None:
        """One block of queries; the first one says which scores there are."""
        if not self.scores:
            verified = AGREEMENT in evidence.memo
            of_query = (*SCORES_FOR_TOP, *(PATCH_SIGNALS if verified else ()))
            self.scores = tuple(usable_signals(evidence, of_query))
            self.pair_scores = tuple(
                usable_signals(evidence, (*PAIR_SIGNALS, *(("patches",) if verified else ())))
            )
        self.features.append(query_features(evidence, self.scores))
        self.pairs.append(pair_features(evidence, self.pair_scores))
        self.right.append(right)
        if outside is not None:
            self.outside.append(outside)
        if SCORES["inverse-kappa"].reason(evidence) is None:
            self.kappa.append(evidence.query_kappa)
        if groups is not None:
            self.groups.append(groups)

    def fit(self, terms: Terms, labelled: bool, facts: dict[str, Any]) -> Calibration:
        """A calibration of the top match and of pairs, with the decisions asked for."""
        right = np.concatenate(self.right)
        features = np.concatenate(self.features)
        signals = {DISTANCE: features[:, self.scores.index("cosine")]}
        if len(self.kappa) == len(self.features):
            signals["kappa"] = np.concatenate(self.kappa)
        both = not self.best_only and bool(right.any()) and not bool(right.all())
        return fit_calibration(
            features,
            right[:, 0],
            self.scores,
            pair_features=np.concatenate(self.pairs) if both else None,
            pair_success=right if both else None,
            pair_scores=self.pair_scores if both else (),
            outside=np.concatenate(self.outside) if self.outside else None,
            outside_rate=terms.outside_rate,
            calibrator=terms.calibrator,
            max_risk=terms.max_risk,
            confidence=terms.confidence,
            labelled=labelled,
            groups=np.concatenate(self.groups) if self.groups else None,
            seed=terms.seed,
            signals=signals,
            facts=facts,
        )

    def judged(self, terms: Terms, calibration: Calibration) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Probabilities and outcomes of the examples that the probabilities were not fitted on.

        Those from outside are thinned to the share that the terms state, so that both belong together.
        """
        right = np.concatenate(self.right)[:, 0]
        outside = np.concatenate(self.outside) if self.outside else np.zeros(len(right), dtype=bool)
        groups = np.concatenate(self.groups) if self.groups else None
        rows = split_queries(len(right), groups, terms.seed).threshold
        if terms.outside_rate is not None and outside[rows].any():
            rows = rows[thin_to_rate(outside[rows], terms.outside_rate, terms.seed)]
        features = np.concatenate(self.features)[rows]
        return calibration.probability(features, terms.outside_rate), right[rows]

    def reliability(self, terms: Terms, calibration: Calibration) -> list[list[float]]:
        """Stated probability, share that was right and count of each bin, of the same examples."""
        stated, right = self.judged(terms, calibration)
        curve = mass_bins(stated, right, max(3, min(10, len(right) // EACH_BIN)))
        return [part.tolist() for part in (curve.probability, curve.observed, curve.counts)]


def calibrate_map(place_map: PlaceMap, table: PlaceImages, terms: Terms | None = None) -> Calibration:
    """Fit on labelled queries and keep the result with the map.

    ``table`` holds queries with positions, or with positives given by name; a table without any query is
    taken to hold nothing else. Along a route one query a place is kept, for neighbours fail together; where
    their positions are not known, or thinning is not wanted, the promise says so.
    """
    terms = terms or Terms()
    queries, positives = _labelled(place_map, table)
    rows = np.arange(len(queries))
    apart = terms.thin and bool(queries.posed.all())
    if apart:
        rows = thin_to_places(queries.positions, place_map.manifest.radius)
    if len(rows) < FEWEST:
        raise KappaPlaceError(
            f"The {len(queries):,} labelled queries lie at {len(rows):,} places farther apart than "
            f"{place_map.manifest.radius:g} m, calibration needs {FEWEST} or more; label queries of more "
            "places, or do without thinning (--no-thin) if they were taken independently of each other."
        )
    examples, verify = Examples(), terms.verify or 0
    with track("Calibrating", len(rows)) as bar:
        for part in _blocks(rows):
            images = queries.image_paths(part)
            evidence = look(place_map, images, verify)
            found = evidence.references[evidence.matches.indices]
            _refuse_own(place_map, images, found[:, 0])
            if positives is None:
                right, outside = _by_position(place_map, queries.positions[part], found)
            else:
                right = np.stack(
                    [np.isin(f, positives[q]) for f, q in zip(found, part.tolist(), strict=True)]
                )
                outside = np.array([len(positives[q]) == 0 for q in part.tolist()])
            examples.add(evidence, right, outside)
            bar.advance(len(part))
    origin = f"{len(rows):,} labelled queries of {table.name or 'a table'}"
    thinned = len(queries) - len(rows)
    facts = {"origin": origin, "thinned": thinned, "table": table.content_hash, "verify": verify}
    calibration = examples.fit(terms, True, facts)
    if calibration.rule is not None and not apart:
        said = (*calibration.rule.assumptions, NOT_THINNED)
        calibration = replace(calibration, rule=replace(calibration.rule, assumptions=said))
    keep(place_map, calibration, origin, reliability=examples.reliability(terms, calibration))
    return calibration


def _refuse_own(place_map: PlaceMap, images: list[str], best: NDArray[np.int64]) -> None:
    """An image that finds itself is right whatever the map is worth, and would prove what does not hold."""
    paths = [place_map.store.image_path(reference) for reference in best.tolist()]
    own = [image for image, path in zip(images, paths, strict=True) if is_same_image(image, path)]
    if own:
        raise KappaPlaceError(
            f"Some labelled queries are images of the map itself (for instance {own[0]}), which find "
            "themselves; calibrate on queries that the map has not seen, or with --self."
        )


def look(place_map: PlaceMap, images: list[str], verify: int = 0) -> MapEvidence:
    """What the map knows of some queries, as `localize` sees it."""
    made, gatherer = place_map.embed(images), place_map.gatherer
    deep = gatherer.matches(made.descriptor, MATCHES)
    if not verify:
        return gatherer.evidence(made, deep, MATCHES)
    deep, agreement = gatherer.verified(made, deep, images, verify)
    return gatherer.evidence(made, deep, max(MATCHES, verify), images=images, agreement=agreement)


def keep(place_map: PlaceMap, calibration: Calibration, origin: str, **facts: Any) -> None:
    """Store a calibration with the map, whether it promises anything, and what else is known of it."""
    guaranteed = calibration.rule is not None and calibration.rule.guaranteed
    place_map.calibrate_with(calibration, origin, guarantee=guaranteed, **facts)


def no_longer_compared(before: Calibration | None, now: Calibration) -> str:
    """One sentence where matches were compared cell by cell so far and are no longer, else nothing."""
    count = verified_by(before)
    if not count or verified_by(now):
        return ""
    return (
        f"So far {count} matches of a query were compared cell by cell, from now on none are; calibrate with "
        f"--verify {count} to keep that."
    )


def _labelled(place_map: PlaceMap, table: PlaceImages) -> tuple[PlaceImages, list[NDArray[np.int64]] | None]:
    """The queries, and for each its right references where the table names them."""
    manifest = place_map.manifest
    queries = table.queries if len(table.query_rows) else table
    if table.given_positives is not None and len(table.query_rows):
        named = place_map.store.find(table.references.paths.tolist())
        if (named < 0).all():
            raise KappaPlaceError(
                f"The table {table.name} names its right answers, but none of its references is in the map "
                f"{place_map.folder}; was the map built from another folder or with a prefix?"
            )
        lists = [named[table.given_positives.of(q)] for q in range(len(queries))]
        return queries, [part[part >= 0] for part in lists]
    posed = np.flatnonzero(queries.posed)
    if not len(posed) or manifest.unposed == manifest.count:
        raise KappaPlaceError(
            "Labelled queries need positions, and so does the map, or positives given by name; "
            f"{len(posed):,} of {len(queries):,} queries have one."
        )
    return into_frame(queries.select(posed), manifest.frame, empty=False), None


def _by_position(
    place_map: PlaceMap, positions: NDArray[np.float64], found: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each match lies within the radius of its query, and which queries have no such reference."""
    radius, search = place_map.manifest.radius, place_map.gatherer.search
    gap = place_map.store.positions[found] - positions[:, None, :]
    right = within([gap[..., 0], gap[..., 1]], radius)
    outside = [not len(search.within((x, y, radius))) for x, y in positions.tolist()]
    return right, np.array(outside)


def _blocks(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(rows), BLOCK):
        yield rows[start : start + BLOCK]
