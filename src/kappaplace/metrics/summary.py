"""Every metric of a score, or of a probability, at once: sorted once, so that a bootstrap stays quick."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kappaplace.metrics.acceptance import acceptance_curve
from kappaplace.metrics.probability import BINS, brier_parts, debiased_ece, equal_mass_ece, log_loss
from kappaplace.metrics.selective import RISKS
from kappaplace.metrics.smooth import smooth_ece


def score_summary(uncertainty: NDArray[np.floating], success: NDArray[np.bool_]) -> dict[str, float]:
    """All metrics that no monotone re-scaling of the uncertainty can move.

    >>> score_summary(np.array([0.1, 0.2]), np.array([True, False]))["AUROC"]
    1.0
    """
    curve = acceptance_curve(uncertainty, success)
    return {
        "AUROC": curve.auroc,
        "AUC-PR": curve.auc_pr,
        "AUC-PR random": curve.successes / curve.queries,
        "R@100%P": curve.recall_at_full_precision,
        "AURC": curve.aurc,
        "E-AURC": curve.e_aurc,
        "AUGRC": curve.augrc,
        **{f"coverage@{risk:.0%}": curve.coverage_at(risk) for risk in RISKS},
    }


def probability_summary(
    probability: NDArray[np.floating], success: NDArray[np.bool_], bins: int = BINS
) -> dict[str, float]:
    """All metrics of calibrated probabilities.

    >>> probability_summary(np.array([0.5, 0.5]), np.array([True, False]))["Brier"]
    0.25
    """
    parts = brier_parts(probability, success, bins)
    return {
        "smooth ECE": smooth_ece(probability, success),
        "equal-mass ECE": equal_mass_ece(probability, success, bins),
        "debiased ECE": debiased_ece(probability, success, bins),
        "Brier": parts.score,
        "Brier reliability": parts.reliability,
        "Brier resolution": parts.resolution,
        "Brier uncertainty": parts.uncertainty,
        "Brier within": parts.within,
        "log-loss": log_loss(probability, success),
    }
