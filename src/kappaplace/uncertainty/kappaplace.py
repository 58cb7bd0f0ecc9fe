"""KappaPlace: inverse length of the κ-weighted resultant of query and reference.

Two sure descriptors that agree give a long resultant, hence a low uncertainty; two unsure ones a short one,
however well they happen to agree.
"""

import torch

from kappaplace import vmf
from kappaplace.uncertainty.base import Evidence, Score, Scores


def _match(evidence: Evidence) -> Scores:
    resultant = vmf.resultant(
        torch.from_numpy(evidence.query_kappa[:, None]),
        torch.from_numpy(evidence.match_kappa),
        torch.from_numpy(evidence.matches.similarities).double().clamp(-1.0, 1.0),
    )
    return 1.0 / resultant.numpy()


def _query(evidence: Evidence) -> Scores:
    return _match(evidence)[:, 0]


KAPPAPLACE = Score("kappaplace", "KappaPlace", _query, _match, needs_kappa=True, one_sided=False)
