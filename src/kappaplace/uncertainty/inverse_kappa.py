"""1/κ of the query alone: how noisy the image is, whatever it was matched with."""

import numpy as np

from kappaplace.uncertainty.base import Evidence, Score, Scores
from kappaplace.uncertainty.needs import QUERY_KAPPA

KAPPA_FLOOR = 1.0  # the paper's protocol: below this, κ says "no idea" and its inverse would explode


def _query(evidence: Evidence) -> Scores:
    return 1.0 / np.maximum(evidence.query_kappa, KAPPA_FLOOR)


INVERSE_KAPPA = Score("inverse-kappa", "1/κ", _query, needs=(QUERY_KAPPA,), one_sided=False)
