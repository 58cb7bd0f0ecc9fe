"""KappaPlace: inverse length of the κ-weighted resultant of query and reference.

U = 1/‖κ_Q·z_Q + κ_R·z_R‖ = 1/√(κ_Q² + κ_R² + 2·κ_Q·κ_R·cosine); of a query, with its top match.

Two sure descriptors that agree give a long resultant, hence a low uncertainty; two unsure ones a short one,
however well they happen to agree.

1/κ of the query alone: how noisy the image is, whatever it was matched with.

Variance of the query's own descriptor, as its model states it: STUN, BTL, GNLL and MC-dropout alike.

Each of these puts one scalar a descriptor into ``Embeddings.variance`` (the mean σ² of STUN's student, BTL's
radius, the spread over dropout passes …); the score is that scalar and nothing else.

Expected likelihood: how much the two von Mises-Fisher densities of query and reference overlap.

∫ vMF(z; μ_Q, κ_Q)·vMF(z; μ_R, κ_R) dz = C_d(κ_Q)·C_d(κ_R)/C_d(‖κ_Q·μ_Q + κ_R·μ_R‖), the product kernel of
two densities; the uncertainty is minus its logarithm, with the exact normaliser. Unlike the resultant alone
it asks for agreement: two sure descriptors that point apart overlap less than two unsure ones.
"""

from __future__ import annotations

import numpy as np
import torch

from kappaplace import vmf
from kappaplace.uncertainty.base import (
    DIM,
    QUERY_KAPPA,
    QUERY_VARIANCE,
    REFERENCE_KAPPA,
    Evidence,
    Score,
    Scores,
)


def resultants(evidence: Evidence, k: int) -> torch.Tensor:
    """‖κ_Q·z_Q + κ_R·z_R‖ of each query and its first k matches, N×k."""
    return vmf.resultant(
        torch.from_numpy(evidence.query_kappa[:, None]),
        torch.from_numpy(evidence.match_kappa[:, :k]),
        torch.from_numpy(evidence.cosines[:, :k]).clamp(-1.0, 1.0),
    )


def _resultant_of_matches(evidence: Evidence) -> Scores:
    return 1.0 / resultants(evidence, evidence.matches.indices.shape[1]).numpy()


def _resultant(evidence: Evidence) -> Scores:
    return 1.0 / resultants(evidence, 1).numpy()[:, 0]


KAPPAPLACE = Score(
    "kappaplace",
    "KappaPlace",
    _resultant,
    _resultant_of_matches,
    needs=(QUERY_KAPPA, REFERENCE_KAPPA),
    one_sided=False,
)


KAPPA_FLOOR = 1.0  # the paper's protocol: below this, κ says "no idea" and its inverse would explode


def _inverse_kappa(evidence: Evidence) -> Scores:
    return 1.0 / np.maximum(evidence.query_kappa, KAPPA_FLOOR)


INVERSE_KAPPA = Score("inverse-kappa", "1/κ", _inverse_kappa, needs=(QUERY_KAPPA,), one_sided=False)


def _variance(evidence: Evidence) -> Scores:
    return evidence.query_variance


VARIANCE = Score("variance", "Variance", _variance, needs=(QUERY_VARIANCE,), one_sided=False)


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


def _likelihood(evidence: Evidence) -> Scores:
    return _uncertainty(evidence, 1)[:, 0]


def _likelihood_of_matches(evidence: Evidence) -> Scores:
    return _uncertainty(evidence, evidence.matches.indices.shape[1])


EXPECTED_LIKELIHOOD = Score(
    "expected-likelihood",
    "Expected likelihood",
    _likelihood,
    _likelihood_of_matches,
    needs=(QUERY_KAPPA, REFERENCE_KAPPA, DIM),
    one_sided=False,
)
