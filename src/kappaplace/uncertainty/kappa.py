"""Scores from the concentration κ of descriptors, or from their variance.

**KappaPlace** is the inverse length of the κ-weighted sum (resultant) of query and match:
U = 1/‖κ_Q·z_Q + κ_R·z_R‖ = 1/√(κ_Q² + κ_R² + 2·κ_Q·κ_R·cosine). Two similar descriptors of high κ have a long
resultant and so a low uncertainty. With low κ the resultant is short even if the descriptors are similar.

**1/κ** of the query measures how noisy the image is, independent of its matches.

**Variance** is the variance of the query's descriptor that the model predicts (STUN, BTL, GNLL, MC dropout).
Each of these methods writes one number per descriptor into ``Embeddings.variance``: the mean σ² of STUN's
student, BTL's radius, the spread over dropout passes.

**Expected likelihood** measures how much the von Mises-Fisher densities of query and match overlap:
∫ vMF(z; μ_Q, κ_Q)·vMF(z; μ_R, κ_R) dz = C_d(κ_Q)·C_d(κ_R)/C_d(‖κ_Q·μ_Q + κ_R·μ_R‖). The uncertainty is the
negative logarithm, with the exact normalizer. Unlike with KappaPlace, two descriptors of high κ that
differ are more uncertain than two of low κ.
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
    """Return ‖κ_Q·z_Q + κ_R·z_R‖ of each query and its first k matches, N×k."""
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


KAPPA_FLOOR = 1.0  # from the paper: smaller κ means "no information", and its inverse would be very large


def _inverse_kappa(evidence: Evidence) -> Scores:
    return 1.0 / np.maximum(evidence.query_kappa, KAPPA_FLOOR)


INVERSE_KAPPA = Score("inverse-kappa", "1/κ", _inverse_kappa, needs=(QUERY_KAPPA,), one_sided=False)


def _variance(evidence: Evidence) -> Scores:
    return evidence.query_variance


VARIANCE = Score("variance", "Variance", _variance, needs=(QUERY_VARIANCE,), one_sided=False)


BLOCK = 1 << 14
"""Number of values per block: the series has many steps, and this many fit into the processor's cache."""


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
