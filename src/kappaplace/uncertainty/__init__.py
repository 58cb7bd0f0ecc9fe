"""Uncertainty scores, higher = less certain: one small file a method, one registry.

All scores by name, and which of them some evidence allows.
"""

from __future__ import annotations

from collections.abc import Iterable

from kappaplace.errors import KappaPlaceError
from kappaplace.uncertainty.geometric import GEOMETRIC
from kappaplace.uncertainty.images import PATCH_MARGIN, PATCHES
from kappaplace.uncertainty.kappa import EXPECTED_LIKELIHOOD, INVERSE_KAPPA, KAPPAPLACE, VARIANCE
from kappaplace.uncertainty.matches import COSINE, L2, PA, TLD_DISTRIBUTION, TLD_RATIO_SPREAD, TLD_STATISTICAL
from kappaplace.uncertainty.places import ALIASING, LOG_SUE, MARGIN, SUE, Z_SCORE
from kappaplace.uncertainty.score import Evidence, Score

# The order of tables: from the match list alone, with poses, from the model's own doubt, from the whole map,
# from the images.
SCORES: dict[str, Score] = {
    score.name: score
    for score in (
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


def score_named(name: str) -> Score:
    """A score by its name; an unknown one is answered with those known.

    >>> import numpy as np
    >>> from kappaplace.retrieval.references import MatrixReferences, Queries
    >>> from kappaplace.retrieval.retrieve import retrieve
    >>> queries = Queries(similarities=np.array([[0.5, 0.75]], np.float32))
    >>> score_named("cosine").match(retrieve(queries, MatrixReferences(count=2), k=2)).tolist()
    [[0.25, 0.5]]
    """
    try:
        return SCORES[name]
    except KeyError:
        raise KappaPlaceError(f"Unknown score '{name}'; choose among: {', '.join(SCORES)}.") from None


def available(scores: Iterable[Score], evidence: Evidence) -> tuple[list[Score], dict[str, str]]:
    """The scores that this evidence allows, and for each of the others one sentence that says why not."""
    usable, left_out = [], {}
    for score in scores:
        reason = score.reason(evidence)
        if reason is None:
            usable.append(score)
        else:
            left_out[score.name] = reason
    return usable, left_out
