"""Calibration of a map on labelled queries: the signals of `localize`, and whether the answer was right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.model import Calibration, fit_calibration
from kappaplace.calibration.splits import thin_to_places
from kappaplace.data.place_images import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.place_map import PlaceMap
from kappaplace.maps.signals import PAIR_SIGNALS, MapEvidence, pair_features, query_features, usable_signals
from kappaplace.maps.sources import into_frame
from kappaplace.progress import track
from kappaplace.uncertainty.registry import SCORES

SCORES_FOR_TOP = ("cosine", "margin", "aliasing", "z-score", "inverse-kappa")
"""What the best combination is made of; κ is left out where the model has none."""
MATCHES = 10
"""Matches of each query that the second calibrator, of pairs, learns from."""
BLOCK = 64
FEWEST = 20
"""Queries of different places below which there is nothing to learn from."""


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


@dataclass
class Examples:
    """Queries with outcomes, as they come in blocks."""

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
        outside: NDArray[np.bool_],
        groups: NDArray[np.int64] | None = None,
    ) -> None:
        """One block of queries; the first one says which scores there are."""
        if not self.scores:
            self.scores = tuple(usable_signals(evidence, SCORES_FOR_TOP))
            self.pair_scores = tuple(usable_signals(evidence, PAIR_SIGNALS))
        self.features.append(query_features(evidence, self.scores))
        self.pairs.append(pair_features(evidence, self.pair_scores))
        self.right.append(right)
        self.outside.append(outside)
        if SCORES["inverse-kappa"].reason(evidence) is None:
            self.kappa.append(evidence.query_kappa)
        if groups is not None:
            self.groups.append(groups)

    def fit(self, terms: Terms, labelled: bool, facts: dict[str, Any]) -> Calibration:
        """A calibration of the top match and of pairs, with the decisions asked for."""
        right = np.concatenate(self.right)
        features = np.concatenate(self.features)
        signals = {"cosine": features[:, self.scores.index("cosine")]}
        if len(self.kappa) == len(self.features):
            signals["kappa"] = np.concatenate(self.kappa)
        both = bool(right.any()) and not bool(right.all())
        return fit_calibration(
            features,
            right[:, 0],
            self.scores,
            pair_features=np.concatenate(self.pairs) if both else None,
            pair_success=right if both else None,
            pair_scores=self.pair_scores if both else (),
            outside=np.concatenate(self.outside),
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


def calibrate_map(place_map: PlaceMap, table: PlaceImages, terms: Terms | None = None) -> Calibration:
    """Fit on labelled queries and keep the result with the map.

    ``table`` holds queries with positions, or with positives given by name; a table without any query is
    taken to hold nothing else. Along a route one query a place is kept, for neighbours fail together.
    """
    terms = terms or Terms()
    queries, positives = _labelled(place_map, table)
    rows = np.arange(len(queries))
    if positives is None and terms.thin:
        rows = thin_to_places(queries.positions, place_map.manifest.radius)
    if len(rows) < FEWEST:
        raise KappaPlaceError(
            f"The {len(queries):,} labelled queries lie at {len(rows):,} places farther apart than "
            f"{place_map.manifest.radius:g} m, calibration needs {FEWEST} or more; label queries of more "
            "places, or do without thinning (--no-thin) if they were taken independently of each other."
        )
    examples = Examples()
    with track("Calibrating", len(rows)) as bar:
        for part in _blocks(rows):
            made = place_map.embed(queries.image_paths(part))
            deep = place_map.gatherer.matches(made.descriptor, MATCHES)
            evidence = place_map.gatherer.evidence(made, deep, MATCHES)
            found = evidence.references[evidence.matches.indices]
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
    facts = {"origin": origin, "thinned": thinned, "table": table.content_hash}
    calibration = examples.fit(terms, True, facts)
    keep(place_map, calibration, origin)
    return calibration


def keep(place_map: PlaceMap, calibration: Calibration, origin: str) -> None:
    """Store a calibration with the map, and whether it promises anything."""
    guaranteed = calibration.rule is not None and calibration.rule.guaranteed
    place_map.calibrate_with(calibration, origin, guarantee=guaranteed)


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
    with np.errstate(invalid="ignore"):
        right = np.asarray((gap**2).sum(axis=2) <= radius**2)
    outside = [not len(search.within((x, y, radius))) for x, y in positions.tolist()]
    return right, np.array(outside)


def _blocks(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(rows), BLOCK):
        yield rows[start : start + BLOCK]
