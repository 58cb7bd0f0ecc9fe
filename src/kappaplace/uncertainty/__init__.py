"""Uncertainty scores by name; higher is less certain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kappaplace.errors import KappaPlaceError
from kappaplace.uncertainty.base import Evidence, Need, Score, Scores, at_least
from kappaplace.uncertainty.geometric import GEOMETRIC, GeometricCheck, Verification, geometric
from kappaplace.uncertainty.scores import (
    ALIASING,
    COSINE,
    EXPECTED_LIKELIHOOD,
    INVERSE_KAPPA,
    KAPPAPLACE,
    L2,
    LOG_SUE,
    MARGIN,
    PA,
    PATCH_MARGIN,
    PATCHES,
    SUE,
    TLD_DISTRIBUTION,
    TLD_RATIO_SPREAD,
    TLD_STATISTICAL,
    VARIANCE,
    Z_SCORE,
    sue,
    z_score,
)

__all__ = [
    "SCORES", "Evidence", "GeometricCheck", "Need", "Score", "Scores", "Verification", "at_least",
    "available", "geometric", "list_scores", "match_score", "score", "score_named", "sue", "z_score",
]  # fmt: skip

# The order of the rows in tables: scores from matches, positions, κ, the whole map, images.
SCORES: dict[str, Score] = {
    each.name: each
    for each in (
        L2,
        COSINE,
        PA,
        TLD_DISTRIBUTION,
        TLD_RATIO_SPREAD,
        TLD_STATISTICAL,
        SUE,
        LOG_SUE,
        VARIANCE,
        INVERSE_KAPPA,
        KAPPAPLACE,
        EXPECTED_LIKELIHOOD,
        MARGIN,
        ALIASING,
        Z_SCORE,
        PATCHES,
        PATCH_MARGIN,
        GEOMETRIC,
    )
}


VARIANTS: dict[str, Score] = {
    each.name: each
    for each in (
        sue(cap="one-sided", name="sue-one-sided"),
        sue(cap="one-sided", log=True, name="log-sue-one-sided"),
        sue(distance="squared", name="sue-squared"),
        replace(VARIANCE, name="variance-upper", label="Variance, upper clamp", one_sided=True),
    )
}
"""Variants of scores as other projects compute them. They are computed only on request."""


def list_scores() -> list[str]:
    """List the names of the default scores, in the order of tables.

    Returns:
        Names for `score`, `match_score` and ``kappaplace evaluate --scores``.
    """
    return list(SCORES)


def score(name: str, evidence: Evidence) -> Scores:
    """Compute an uncertainty score of each query.

    Args:
        name: Name of the score, see `list_scores`.
        evidence: The matches that `retrieve` returns.

    Returns:
        Uncertainty per query, shape N; higher is less certain.

    Raises:
        KappaPlaceError: If there is no such score, or the evidence lacks one of its inputs.

    >>> import numpy as np
    >>> from kappaplace.retrieval import MatrixReferences, Queries, retrieve
    >>> queries = Queries(similarities=np.array([[0.5, 0.75]], np.float32))
    >>> score("cosine", retrieve(queries, MatrixReferences(count=2), k=2)).tolist()
    [0.25]
    """
    return score_named(name).query(evidence)


def match_score(name: str, evidence: Evidence) -> Scores:
    """Compute an uncertainty score of each match.

    Args:
        name: Name of the score, see `list_scores`.
        evidence: The matches that `retrieve` returns.

    Returns:
        Uncertainty per match, shape N×K; higher is less certain.

    Raises:
        KappaPlaceError: If there is no such score, if it rates queries only, or if the evidence lacks one of
            its inputs.
    """
    formula = score_named(name).match
    if formula is None:
        raise KappaPlaceError(f"The score '{name}' rates queries only. Call score() instead.")
    return formula(evidence)


def score_named(name: str) -> Score:
    """Return the score with this name.

    Args:
        name: Name of the score, see `list_scores`.

    Returns:
        The score.

    Raises:
        KappaPlaceError: If there is no such score.
    """
    match = SCORES.get(name) or VARIANTS.get(name)
    if match is None:
        raise KappaPlaceError(
            f"Unknown score '{name}'. Choose from: {', '.join(SCORES)}. Variants of other projects are "
            f"{', '.join(VARIANTS)}."
        )
    return match


def available(scores: Iterable[Score], evidence: Evidence) -> tuple[list[Score], dict[str, str]]:
    """Split scores into those that can be computed from this evidence, and those whose input is missing.

    Args:
        scores: Scores to try, such as ``SCORES.values()``.
        evidence: The matches that `retrieve` returns.

    Returns:
        The usable scores, and the reason by name for each score that is not usable.
    """
    usable, missing = [], {}
    for each in scores:
        reason = each.reason(evidence)
        if reason is None:
            usable.append(each)
        else:
            missing[each.name] = reason
    return usable, missing
