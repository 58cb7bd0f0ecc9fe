"""From retrieval results to the numbers that judge them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kappaplace.metrics.calibration import BOTH_TAILS, UPPER_TAIL, ReliabilityCurve, reliability_curve
from kappaplace.metrics.retrieval import recall_at, success_at
from kappaplace.metrics.selective import auroc
from kappaplace.uncertainty.base import Evidence, Score, Scores

KS = (1, 5, 10)


@dataclass(frozen=True, eq=False)
class ScoreResult:
    """One score, judged."""

    score: Score
    uncertainty: Scores
    """Per query, N."""
    curves: dict[int, ReliabilityCurve]
    """Reliability at each K."""
    auroc: float
    """Of success at K = 1."""

    @property
    def ece(self) -> dict[int, float]:
        """ECE@K in the paper's protocol."""
        return {k: curve.error for k, curve in self.curves.items()}


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Recall of a retrieval and the quality of every score on it."""

    hits: NDArray[np.bool_]
    """Whether each match is a positive, N×K."""
    recall: dict[int, float]
    scores: tuple[ScoreResult, ...]

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "queries": len(self.hits),
            "recall": {f"R@{k}": value for k, value in self.recall.items()},
            "scores": {
                result.score.name: {
                    **{f"ECE@{k}": v for k, v in result.ece.items()},
                    # JSON has no NaN: None says that all queries were right, or all wrong.
                    "AUROC": None if math.isnan(result.auroc) else result.auroc,
                }
                for result in self.scores
            },
        }


def evaluate(evidence: Evidence, hits: NDArray[np.bool_], scores: list[Score]) -> Evaluation:
    """Judge scores on one retrieval; ``hits`` says which matches are positives."""
    ks = [k for k in KS if k <= hits.shape[1]]
    success = {k: success_at(hits, k) for k in ks}
    results = []
    for score in scores:
        uncertainty = score.query(evidence)
        clamp = UPPER_TAIL if score.one_sided else BOTH_TAILS
        curves = {k: reliability_curve(uncertainty, success[k], clamp) for k in ks}
        results.append(ScoreResult(score, uncertainty, curves, auroc(uncertainty, success[1])))
    return Evaluation(hits, {k: recall_at(hits, k) for k in ks}, tuple(results))
