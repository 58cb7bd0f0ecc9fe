"""KappaPlace: inverse length of the κ-weighted resultant of query and reference.

U = 1/‖κ_Q·z_Q + κ_R·z_R‖ = 1/√(κ_Q² + κ_R² + 2·κ_Q·κ_R·cosine); of a query, with its top match.

Two sure descriptors that agree give a long resultant, hence a low uncertainty; two unsure ones a short one,
however well they happen to agree.
"""

import torch

from kappaplace import vmf
from kappaplace.uncertainty.base import Evidence, Score, Scores
from kappaplace.uncertainty.needs import QUERY_KAPPA, REFERENCE_KAPPA


def resultants(evidence: Evidence, k: int) -> torch.Tensor:
    """‖κ_Q·z_Q + κ_R·z_R‖ of each query and its first k matches, N×k."""
    return vmf.resultant(
        torch.from_numpy(evidence.query_kappa[:, None]),
        torch.from_numpy(evidence.match_kappa[:, :k]),
        torch.from_numpy(evidence.cosines[:, :k]).clamp(-1.0, 1.0),
    )


def _match(evidence: Evidence) -> Scores:
    return 1.0 / resultants(evidence, evidence.matches.indices.shape[1]).numpy()


def _query(evidence: Evidence) -> Scores:
    return 1.0 / resultants(evidence, 1).numpy()[:, 0]


KAPPAPLACE = Score(
    "kappaplace", "KappaPlace", _query, _match, needs=(QUERY_KAPPA, REFERENCE_KAPPA), one_sided=False
)
