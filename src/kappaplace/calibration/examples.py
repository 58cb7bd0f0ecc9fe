"""Queries with outcomes, collected in blocks: what every calibration is fitted on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.calibration import (
    PAIR_SIGNALS,
    PATCH_SIGNALS,
    Calibration,
    fit_calibration,
    pair_features,
    query_features,
    usable_signals,
)
from kappaplace.calibration.outside import thin_to_rate
from kappaplace.calibration.splits import split_queries
from kappaplace.checks import checked_seed, share
from kappaplace.errors import KappaPlaceError
from kappaplace.metrics.probability import mass_bins
from kappaplace.records import Help
from kappaplace.retrieval.evidence import Evidence
from kappaplace.uncertainty import SCORES

SCORES_FOR_TOP = ("cosine", "margin", "aliasing", "z-score", "inverse-kappa")
"""What the best combination is made of; κ is left out if the model has none."""
EACH_BIN = 20
"""Queries in a bin of the reliability that is kept with a calibration."""
DISTANCE = "cosine distance"
"""The score `cosine` by a name that says which way is worse, for messages that people read."""


def check_compared(count: int) -> None:
    """Refuse a number of matches to compare that is none."""
    if count < 0:
        raise KappaPlaceError(f"A number of matches to compare cell by cell is 0 or more, not {count}.")


@dataclass(frozen=True)
class CalibrateOptions:
    """How a calibration is fitted and what it guarantees.

    Raises:
        KappaPlaceError: If a value is out of range.
    """

    max_risk: Annotated[float, Help("Maximum error rate among accepted answers.")] = 0.05
    confidence: Annotated[float, Help("Confidence level of the risk guarantee.")] = 0.95
    outside_rate: Annotated[
        float | None,
        Help("Expected fraction of out-of-map queries. Default: the fraction among the labelled queries."),
    ] = None
    rerank: Annotated[
        int | None,
        Help(
            "Number of top matches to re-rank by patch matching, now and whenever the map is queried "
            "(10 works well). Default: the number used for the labels, or 0."
        ),
    ] = None
    thin: Annotated[bool, Help("Use only one labelled query per place.")] = True
    """Neighbouring queries fail together; the guarantee counts independent ones."""
    seed: Annotated[int, Help("Random seed for the data split and the image degradation.")] = 0
    calibrator: str = "best"
    """A name of `CALIBRATORS`, or "best"."""

    def __post_init__(self) -> None:
        share(self.max_risk, "risk")
        share(self.confidence, "confidence")
        if self.outside_rate is not None:
            share(self.outside_rate, "stated share", ends=True)
        checked_seed(self.seed)
        check_compared(self.rerank or 0)


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
        evidence: Evidence,
        right: NDArray[np.bool_],
        outside: NDArray[np.bool_] | None,
        groups: NDArray[np.int64] | None = None,
    ) -> None:
        """One block of queries; the first one says which scores there are."""
        if not self.scores:
            verified = evidence.agreement is not None
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

    def fit(self, options: CalibrateOptions, labelled: bool, facts: dict[str, Any]) -> Calibration:
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
            outside_rate=options.outside_rate,
            calibrator=options.calibrator,
            max_risk=options.max_risk,
            confidence=options.confidence,
            labelled=labelled,
            groups=np.concatenate(self.groups) if self.groups else None,
            seed=options.seed,
            signals=signals,
            facts=facts,
        )

    def judged(
        self, options: CalibrateOptions, calibration: Calibration
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Probabilities and outcomes of the examples that the probabilities were not fitted on.

        Those from outside are thinned to the share that the options state, so that both belong together.
        """
        right = np.concatenate(self.right)[:, 0]
        outside = np.concatenate(self.outside) if self.outside else np.zeros(len(right), dtype=bool)
        groups = np.concatenate(self.groups) if self.groups else None
        rows = split_queries(len(right), groups, options.seed).threshold
        if options.outside_rate is not None and outside[rows].any():
            rows = rows[thin_to_rate(outside[rows], options.outside_rate, options.seed)]
        features = np.concatenate(self.features)[rows]
        return calibration.probability(features, options.outside_rate), right[rows]

    def reliability(self, options: CalibrateOptions, calibration: Calibration) -> list[list[float]]:
        """Stated probability, share that was right and count of each bin, of the same examples."""
        stated, right = self.judged(options, calibration)
        curve = mass_bins(stated, right, max(3, min(10, len(right) // EACH_BIN)))
        return [part.tolist() for part in (curve.probability, curve.observed, curve.counts)]
