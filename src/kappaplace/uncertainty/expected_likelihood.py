"""Expected likelihood: how much the two von Mises-Fisher densities of query and reference overlap.

∫ vMF(z; μ_Q, κ_Q)·vMF(z; μ_R, κ_R) dz = C_d(κ_Q)·C_d(κ_R)/C_d(‖κ_Q·μ_Q + κ_R·μ_R‖), the product kernel of
two densities; the uncertainty is minus its logarithm, with the exact normaliser. Unlike the resultant alone
it asks for agreement: two sure descriptors that point apart overlap less than two unsure ones.
"""

import torch

from kappaplace import vmf
from kappaplace.uncertainty.base import Evidence, Score, Scores
from kappaplace.uncertainty.kappaplace import resultants
from kappaplace.uncertainty.needs import DIM, QUERY_KAPPA, REFERENCE_KAPPA

BLOCK = 1 << 14
"""Values at a time: the series has many steps, and a block of this size stays in the processor's cache."""


def _log_normalizer(kappa: torch.Tensor, dim: int) -> Scores:
    parts = [vmf.log_normalizer(part, dim, exact=True) for part in kappa.reshape(-1).split(BLOCK)]
    return torch.cat(parts).reshape(kappa.shape).numpy()


def _uncertainty(evidence: Evidence, k: int) -> Scores:
    dim = evidence.dim
    of_query = _log_normalizer(torch.from_numpy(evidence.query_kappa), dim)[:, None]
    of_reference = _log_normalizer(torch.from_numpy(evidence.match_kappa[:, :k]), dim)
    of_product = _log_normalizer(resultants(evidence, k), dim)
    return of_product - of_query - of_reference


def _query(evidence: Evidence) -> Scores:
    return _uncertainty(evidence, 1)[:, 0]


def _match(evidence: Evidence) -> Scores:
    return _uncertainty(evidence, evidence.matches.indices.shape[1])


EXPECTED_LIKELIHOOD = Score(
    "expected-likelihood",
    "Expected likelihood",
    _query,
    _match,
    needs=(QUERY_KAPPA, REFERENCE_KAPPA, DIM),
    one_sided=False,
)
