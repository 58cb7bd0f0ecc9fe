"""The probability that a map would give for each match, as a score of an evaluation.

A map sorts the first matches by their patches, and its calibration then gives each match one probability. The
row "Calibrated" has these probabilities for the matches of the evaluation, which are in the order of their
similarity. The calibration is the one that is shipped with the model, or is fitted on ``--fit-on``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kappaplace.calibration.calibration import Calibration, judge
from kappaplace.calibration.decision import match_probabilities
from kappaplace.calibration.fit import examples_of, fit_calibration
from kappaplace.calibration.options import RERANK, CalibrateOptions
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.inputs import Retrieved
from kappaplace.evaluation.results import ScoreColumns
from kappaplace.retrieval.retrieve import from_pool
from kappaplace.uncertainty.base import Evidence

CALIBRATED = "calibrated"
NOT_SHIPPED = "The model has no shipped calibration. Pass --fit-on TABLE to fit one on other queries."
OTHER_INPUTS = "The calibration needs inputs that are missing: {reason}"


def wants_calibrated(scores: str) -> bool:
    """Return whether ``--scores`` includes the calibrated probability: by default, "all", or by its name."""
    names = [name.strip() for name in scores.split(",")]
    return names in ([""], ["all"]) or CALIBRATED in names


def fit_calibrated(retrieved: Retrieved) -> Calibration | None:
    """Fit the calibration of a map on a validation set.

    Args:
        retrieved: The validation set after retrieval.

    Returns:
        Probabilities without thresholds; None if all answers are correct, or none, or too few.
    """
    queries, references = retrieved.evidence.queries, retrieved.evidence.references
    patches = queries.patch_maps is not None and queries.images is not None
    count = min(RERANK, len(references) // 4) if patches else 0
    try:
        evidence = _compared(retrieved, count)
        right = retrieved.positives.hits(evidence.matches.indices)
        examples = examples_of(evidence, right, retrieved.positives.counts == 0)
        return fit_calibration(examples, CalibrateOptions(max_risk=None))
    except KappaPlaceError:
        return None


def calibrated_score(retrieved: Retrieved, calibration: Calibration | None) -> ScoreColumns | str:
    """Return the probabilities of a map as a score, or the reason why there are none.

    Args:
        retrieved: The dataset after retrieval.
        calibration: The calibration of the model; its domain is ignored, because every query gets a value.

    Returns:
        One probability per query and match, in the order of the matches.
    """
    if calibration is None:
        return NOT_SHIPPED
    try:
        evidence = _compared(retrieved, calibration.rerank)
        judgment = judge(evidence, replace(calibration, domain=None))
    except KappaPlaceError as error:
        return OTHER_INPUTS.format(reason=error)
    assert judgment.probability is not None
    if judgment.pairs is None:
        return OTHER_INPUTS.format(reason="probabilities of single matches.")
    table, rows = retrieved.table, evidence.matches.indices
    apart = np.zeros(rows.shape, bool)
    if table is not None:
        positions = table.positions[table.reference_rows][rows]
        gap = positions - positions[:, :1]
        apart = np.hypot(gap[..., 0], gap[..., 1]) > 2 * table.radius  # False if a position is unknown
    probability = match_probabilities(judgment.probability, judgment.pairs, apart)
    # Sorted by patches, the matches are the same ones: find each match of the evaluation among them.
    shown = retrieved.evidence.matches.indices
    place = (shown[:, :, None] == rows[:, None, :]).argmax(axis=2)
    own = np.take_along_axis(probability, place, axis=1)
    return ScoreColumns(CALIBRATED, "Calibrated", 1 - own[:, 0], 1 - own, False, own[:, 0])


def _compared(retrieved: Retrieved, rerank: int) -> Evidence:
    """Return the evidence as a map computes it: the first matches are sorted by their patches."""
    evidence = retrieved.evidence
    pool = evidence.matches if evidence.pool is None else evidence.pool
    k = evidence.matches.indices.shape[1]
    return from_pool(evidence.queries, evidence.references, pool, k, rerank=rerank)
