"""What is learnt on a validation set: one combination of several scores, and a probability for each score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.scoring import score_set
from kappaplace.evaluation.sources import Retrieved
from kappaplace.metrics import success_at
from kappaplace.uncertainty.base import Score
from kappaplace.uncertainty.fused import Combination, features_of, fit_combination, fused
from kappaplace.uncertainty.registry import score_named


class Fitted(NamedTuple):
    """Fitted on validation queries, ready for any other set."""

    calibrations: dict[str, Combination]
    """Score → the logistic curve of that score alone."""
    combined: Score | None
    combination: Combination | None


def fit(retrieved: Retrieved, scores: Sequence[Score], names: Sequence[str] = ()) -> Fitted:
    """Calibrate every usable score on a validation set, and combine those named.

    Queries without positives count as failures here: the probability is that of being right.
    """
    parts = [score_named(name) for name in dict.fromkeys(names)]
    for part in parts:
        if reason := part.reason(retrieved.evidence):
            raise KappaPlaceError(f"{part.name} cannot be fused: {reason}")
    judged = score_set(retrieved, scores, policy="fail")
    right = success_at(judged.hits, 1)
    calibrations = {
        name: fit_combination(column.query[:, None], right, [name]) for name, column in judged.scores.items()
    }
    if not parts:
        return Fitted(calibrations, None, None)
    features = features_of(retrieved.evidence, parts)[judged.queries]
    combination = fit_combination(features, right, [part.name for part in parts])
    return Fitted(calibrations, fused(combination), combination)
