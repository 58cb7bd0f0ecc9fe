"""Scores from the concentration κ of descriptors, or from their variance.

**KappaPlace** is the inverse length of the κ-weighted sum (resultant) of query and match: U = 1/‖κ_Q·z_Q +
κ_R·z_R‖ = 1/√(κ_Q² + κ_R² + 2·κ_Q·κ_R·cosine). Two similar descriptors of high κ have a long resultant and so
a low uncertainty. With low κ the resultant is short even if the descriptors are similar.

**1/κ** of the query measures how noisy the image is, independent of its matches.

**Variance** is the variance of the query's descriptor that the model predicts (STUN, BTL, GNLL, MC dropout).
Each of these methods provides one number per descriptor as ``Embeddings.variance``, such as the mean σ² of
STUN's student.

**Expected likelihood** measures how much the von Mises-Fisher densities of query and match overlap: ∫ vMF(z;
μ_Q, κ_Q)·vMF(z; μ_R, κ_R) dz = C_d(κ_Q)·C_d(κ_R)/C_d(‖κ_Q·μ_Q + κ_R·μ_R‖). The uncertainty is the negative
logarithm, with the exact normalizer. Unlike with KappaPlace, two different descriptors of high κ are more
uncertain than two of low κ.
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


def resultants(evidence: Evidence, k: int | None = None) -> torch.Tensor:
    """Return ‖κ_Q·z_Q + κ_R·z_R‖ of each query and its first k matches (default: all), N×k."""
    return vmf.resultant(
        torch.from_numpy(evidence.query_kappa[:, None]),
        torch.from_numpy(evidence.match_kappa[:, :k]),
        torch.from_numpy(evidence.cosines[:, :k]).clamp(-1.0, 1.0),
    )


KAPPAPLACE = Score(
    "kappaplace",
    "KappaPlace",
    lambda e: 1.0 / resultants(e, 1).numpy()[:, 0],
    lambda e: 1.0 / resultants(e).numpy(),
    needs=(QUERY_KAPPA, REFERENCE_KAPPA),
    one_sided=False,
)


KAPPA_FLOOR = 1.0  # as in the paper: a smaller κ means "no information", and its inverse would be very large


INVERSE_KAPPA = Score(
    "inverse-kappa",
    "1/κ",
    lambda e: 1.0 / np.maximum(e.query_kappa, KAPPA_FLOOR),
    needs=(QUERY_KAPPA,),
    one_sided=False,
)
VARIANCE = Score("variance", "Variance", lambda e: e.query_variance, needs=(QUERY_VARIANCE,), one_sided=False)


BLOCK = 1 << 14
"""Number of values per block, which fit into the cache of the processor: the series has many steps."""


def _log_normalizer(kappa: torch.Tensor, dim: int) -> Scores:
    parts = [vmf.log_normalizer(part, dim, exact=True) for part in kappa.reshape(-1).split(BLOCK)]
    return torch.cat(parts).reshape(kappa.shape).numpy()


def _negative_log_likelihood(evidence: Evidence, k: int | None = None) -> Scores:
    dim = evidence.dim
    of_query = _log_normalizer(torch.from_numpy(evidence.query_kappa), dim)[:, None]
    of_reference = _log_normalizer(torch.from_numpy(evidence.match_kappa[:, :k]), dim)
    of_product = _log_normalizer(resultants(evidence, k), dim)
    return of_product - of_query - of_reference


EXPECTED_LIKELIHOOD = Score(
    "expected-likelihood",
    "Expected likelihood",
    lambda e: _negative_log_likelihood(e, 1)[:, 0],
    _negative_log_likelihood,
    needs=(QUERY_KAPPA, REFERENCE_KAPPA, DIM),
    one_sided=False,
)
