"""z-score: by how many standard deviations the top similarity stands above those of the whole map.

uncertainty = −(s_1 − mean)/deviation, with mean and deviation of the query's similarities to a fixed random
sample of the references, or to all of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.references import SAMPLE, draw
from kappaplace.uncertainty.base import Evidence, Score, Scores
from kappaplace.uncertainty.needs import ALL_SIMILARITIES

ROUNDING = 1e-6  # a deviation below this share of the similarities is float32 noise


def z_score(sample: int | None = SAMPLE, *, seed: int = 0, name: str = "z-score") -> Score:
    """The z-score against ``sample`` references drawn without repetition; None: against all."""
    if sample is not None and sample < 2:
        raise KappaPlaceError(f"A z-score needs a sample of two references or more, got {sample}.")

    def query(evidence: Evidence) -> Scores:
        mean, deviation = evidence.background(_rows(evidence, sample, seed))
        top = evidence.cosines[:, 0]
        # Where all references are equally similar, the top one stands out by nothing.
        varied = deviation > ROUNDING * np.maximum(np.abs(mean), np.abs(top))
        return -np.divide(top - mean, deviation, out=np.zeros_like(mean), where=varied)

    label = "z-score" if name == "z-score" else name
    return Score(name, label, query, needs=(ALL_SIMILARITIES,), one_sided=False)


def _rows(evidence: Evidence, sample: int | None, seed: int) -> NDArray[np.int64] | None:
    """Return the rows to compare with; None for the references' own sample."""
    if (sample, seed) == (SAMPLE, 0):
        return None
    count = len(evidence.references)
    return draw(count, count if sample is None else sample, seed)


Z_SCORE = z_score()
