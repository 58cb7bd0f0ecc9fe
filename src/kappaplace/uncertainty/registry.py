"""All scores by name."""

from __future__ import annotations

from kappaplace.errors import KappaPlaceError
from kappaplace.uncertainty.base import Score
from kappaplace.uncertainty.inverse_kappa import INVERSE_KAPPA
from kappaplace.uncertainty.kappaplace import KAPPAPLACE
from kappaplace.uncertainty.l2 import L2
from kappaplace.uncertainty.pa import PA

SCORES: dict[str, Score] = {score.name: score for score in (L2, PA, INVERSE_KAPPA, KAPPAPLACE)}


def score_named(name: str) -> Score:
    """A score by its name; an unknown one is answered with those known."""
    try:
        return SCORES[name]
    except KeyError:
        raise KappaPlaceError(f"Unknown score '{name}'; choose among: {', '.join(SCORES)}.") from None
