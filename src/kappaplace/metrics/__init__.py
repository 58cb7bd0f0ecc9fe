"""Metrics: functions on arrays, without files or plots.

A higher uncertainty means that a query is less certain; success is one boolean per query (or per pair). An
undefined metric is NaN, for example if all queries are correct. Invalid input (NaN scores, different lengths)
raises a ``KappaPlaceError``.
"""

# fmt: off
# isort: off
from kappaplace.metrics.bootstrap import (
    MOST_RESAMPLES, ROUTE_BLOCK, Comparison, Interval, Replicates, Resampling, bootstrap, bootstrap_many,
    compare, holm, paired_bootstrap,
)
from kappaplace.metrics.calibration import (
    BOTH_TAILS, NO_CLAMP, UPPER_TAIL, EceSurface, ReliabilityCurve, clamp_tails, ece_surface,
    expected_calibration_error, match_calibration_error, match_pairs, reliability_curve,
)
from kappaplace.metrics.probability import (
    BrierParts, MassBins, brier, brier_parts, debiased_ece, equal_mass_ece, log_loss, mass_bins,
)
from kappaplace.metrics.retrieval import LEAST_CLUSTERS, binomial_interval, clustered_interval
from kappaplace.metrics.retrieval import (
    KS, average_precision_at, mean_average_precision_at, recall_at, success_at,
)
from kappaplace.metrics.selective import (
    RISKS, AcceptanceCurve, acceptance_curve, auc_pr, augrc, auroc, aurc, coverage_at_risk, e_aurc,
    random_auc_pr, recall_at_full_precision,
)
from kappaplace.metrics.probability import smooth_ece
from kappaplace.metrics.summary import (
    CONSTANT, ECE_NOTE, PERFECT, TIED, Pooled, mean_cosine, pool, pooled, probability_summary,
    reference_metrics, score_flaw, score_summary, tied_fraction,
)

__all__ = [
    "BOTH_TAILS", "CONSTANT", "ECE_NOTE", "KS", "LEAST_CLUSTERS", "MOST_RESAMPLES", "NO_CLAMP", "PERFECT",
    "RISKS", "ROUTE_BLOCK", "TIED", "UPPER_TAIL", "AcceptanceCurve", "BrierParts", "Comparison",
    "EceSurface", "Interval", "MassBins", "Pooled", "ReliabilityCurve", "Replicates", "Resampling",
    "acceptance_curve", "auc_pr", "augrc", "aurc", "auroc", "average_precision_at", "binomial_interval",
    "bootstrap", "bootstrap_many", "brier", "brier_parts", "clamp_tails", "clustered_interval", "compare",
    "coverage_at_risk", "debiased_ece", "e_aurc", "ece_surface", "equal_mass_ece",
    "expected_calibration_error", "holm", "log_loss", "mass_bins", "match_calibration_error",
    "match_pairs", "mean_average_precision_at", "mean_cosine", "paired_bootstrap", "pool", "pooled",
    "probability_summary", "random_auc_pr", "recall_at", "recall_at_full_precision", "reference_metrics",
    "reliability_curve", "score_flaw", "score_summary", "smooth_ece", "success_at", "tied_fraction",
]
# fmt: on
