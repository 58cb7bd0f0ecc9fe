"""All scores by name, and which of them some evidence allows."""

from __future__ import annotations

from collections.abc import Iterable

from kappaplace.errors import KappaPlaceError
from kappaplace.uncertainty.aliasing import ALIASING
from kappaplace.uncertainty.base import Evidence, Score
from kappaplace.uncertainty.cosine import COSINE
from kappaplace.uncertainty.expected_likelihood import EXPECTED_LIKELIHOOD
from kappaplace.uncertainty.geometric import GEOMETRIC
from kappaplace.uncertainty.inverse_kappa import INVERSE_KAPPA
from kappaplace.uncertainty.kappaplace import KAPPAPLACE
from kappaplace.uncertainty.l2 import L2
from kappaplace.uncertainty.margin import MARGIN
from kappaplace.uncertainty.pa import PA
from kappaplace.uncertainty.patches import PATCH_MARGIN, PATCHES
from kappaplace.uncertainty.sue import LOG_SUE, SUE
from kappaplace.uncertainty.tld import TLD_DISTRIBUTION, TLD_RATIO_SPREAD, TLD_STATISTICAL
from kappaplace.uncertainty.variance import VARIANCE
from kappaplace.uncertainty.z_score import Z_SCORE

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
