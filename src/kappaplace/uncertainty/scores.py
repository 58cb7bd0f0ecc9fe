"""Scores from the matches: their similarities and patches, their places, and the concentration κ.

**L2** is the distance of query and match, the baseline that every system has. **Cosine** is 1 − similarity,
half of the squared L2 distance of unit vectors. **PA** is the ratio d1/d2 of the distances to the best and
the second match.

**TLD** are three scores based on "Through the lens of doubt" (arXiv 2510.13464): similarity distribution,
ratio spread and statistical uncertainty. The first measures how well the top match is separated, the second
how much other matches compete, and the third combines both. The paper has no formulas, so these are our own,
and results may differ from published ones. With similarities s_1 ≥ … ≥ s_K, and mean m and standard deviation
σ of s_2 … s_K:

- similarity distribution: σ/(σ + s_1 − m) = 1/(1 + z), z = (s_1 − m)/σ;
- ratio spread: mean of (1 + s_i)/(1 + s_1) over i = 2 … K, cosines shifted so that no ratio is negative;
- statistical uncertainty: the geometric mean of the two.

All are between 0 and 1, and 1 if the top match is not better than the others.

**Patches** is 1 − agreement: how many patches of two feature maps are mutual nearest neighbors and agree on
one shift, weighted by their similarity (`kappaplace.retrieval.agreement`). **Patch margin** is the best
agreement with a match of another place among the first ten, minus the agreement with the top match. Both need
the images, but no second network and no keypoints.

**SUE** (spatial uncertainty estimation, arXiv 2404.00546) is the weighted variance of the positions of the
best matches. The K best references have weights w_i ∝ exp(−slope·d_i), and m = Σ w_i·x_i per axis. SUE is the
mean over both axes of Σ w_i·cap(x_i − m)², in m². The KappaPlace paper evaluates log-SUE, log(SUE + 1e-10).
Implementations differ in two points. The slope of 350 is applied to the L2 distance (KappaPlace) or to its
square (STUN's code). Deviations are limited to ±500 m, as published (the default here), or only upwards
("one-sided").

**Margin** is s_outside − s_1 (at most 0), where s_outside is the highest similarity outside the neighborhood
of the top match. PA compares with the second image, which usually shows the same place; the margin compares
with the next place. If the map has no other place, s_outside is −1.

**Aliasing** is a(R_1) − s_1, where a(R) is the highest similarity of reference R to references outside its
neighborhood. It measures how easily a place is confused with others. If the map has no other place, a is −1.

**z-score** is −(s_1 − mean)/deviation. Mean and standard deviation are those of the query's similarities to a
fixed random sample of the references.

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

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace import vmf
from kappaplace.checks import choice, within
from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.references import SAMPLE, draw
from kappaplace.uncertainty.base import (
    ALL_SIMILARITIES,
    DIM,
    IMAGES,
    NEIGHBORHOOD,
    OUTSIDE,
    PATCH_MAPS,
    POSITIONS,
    QUERY_KAPPA,
    QUERY_VARIANCE,
    REFERENCE_DESCRIPTORS,
    REFERENCE_KAPPA,
    Evidence,
    Score,
    Scores,
    at_least,
)

L2 = Score("l2", "L2", lambda e: e.distances[:, 0], lambda e: e.distances)
COSINE = Score("cosine", "Cosine", lambda e: 1.0 - e.cosines[:, 0], lambda e: 1.0 - e.cosines)


def _pa(evidence: Evidence) -> Scores:
    first, second = evidence.distances[:, 0], evidence.distances[:, 1]
    # Two references at distance 0 cannot be distinguished, so the ratio is 1.
    return np.divide(first, second, out=np.ones_like(first), where=second > 0)


PA = Score("pa", "PA", _pa, needs=(at_least(2),))


def _similarity_distribution(evidence: Evidence) -> Scores:
    top, others = evidence.cosines[:, 0], evidence.cosines[:, 1:]
    spread = others.std(axis=1)
    gap = np.maximum(top - others.mean(axis=1), 0.0)
    # If all similarities are equal, the top match is not separated and the score is 1.
    return np.divide(spread, spread + gap, out=np.ones_like(spread), where=spread + gap > 0)


def _ratio_spread(evidence: Evidence) -> Scores:
    top, others = 1.0 + evidence.cosines[:, 0], 1.0 + evidence.cosines[:, 1:].mean(axis=1)
    return np.divide(others, top, out=np.ones_like(top), where=top > 0)


def _statistical_uncertainty(evidence: Evidence) -> Scores:
    return np.sqrt(np.maximum(_similarity_distribution(evidence) * _ratio_spread(evidence), 0.0))


# Three matches are required, because a single other match has no standard deviation.
TLD_DISTRIBUTION = Score(
    "tld-distribution", "TLD distribution", _similarity_distribution, needs=(at_least(3),), one_sided=False
)
TLD_RATIO_SPREAD = Score(
    "tld-ratio-spread", "TLD ratio spread", _ratio_spread, needs=(at_least(2),), one_sided=False
)
TLD_STATISTICAL = Score(
    "tld-statistical", "TLD statistical", _statistical_uncertainty, needs=(at_least(3),), one_sided=False
)


def _patch_margin(evidence: Evidence) -> Scores:
    agreement = evidence.competing_agreement
    competing = evidence.matches.indices[:, : agreement.shape[1]]
    near = evidence.references.near(evidence.top[:, None], competing)
    return np.where(near, 0.0, agreement).max(axis=1) - agreement[:, 0]


PATCHES = Score(
    "patches",
    "Patches",
    lambda e: 1.0 - e.competing_agreement[:, 0],
    lambda e: 1.0 - e.match_agreement,
    needs=(IMAGES, PATCH_MAPS),
)
PATCH_MARGIN = Score(
    "patch-margin", "Patch margin", _patch_margin, needs=(IMAGES, PATCH_MAPS, NEIGHBORHOOD), one_sided=False
)


Distance = Literal["l2", "squared"]
Cap = Literal["symmetric", "one-sided"]
LOG_FLOOR = 1e-10  # in m², because the variance is 0 if all matches are at the same position


def sue(
    slope: float = 350.0,
    *,
    k: int = 10,
    distance: Distance = "l2",
    cap: Cap = "symmetric",
    cap_meters: float = 500.0,
    log: bool = False,
    name: str | None = None,
) -> Score:
    """Return the score SUE with these settings.

    Args:
        slope: Decay of the weights with the distance of descriptors.
        k: Number of matches; if fewer were retrieved, all of them are used.
        distance: Distance of descriptors: l2 or squared.
        cap: Whether deviations are limited in both directions (symmetric) or only upwards (one-sided).
        cap_meters: Limit of the deviation of a position from the mean, in metres.
        log: Whether to return the logarithm.
        name: Name of the score. Default: sue, or log-sue.

    Returns:
        The score.

    Raises:
        KappaPlaceError: If a setting is not valid.
    """
    choice(distance, Distance, "distance")
    choice(cap, Cap, "cap")
    within(slope, "slope", 0)
    within(k, "k", 2)
    if not cap_meters > 0:
        raise KappaPlaceError(f"cap_meters must be above 0, got {cap_meters:g}.")

    def variance(evidence: Evidence) -> Scores:
        d = evidence.distances[:, :k]
        d = d**2 if distance == "squared" else d
        # Distances are relative to the nearest match, whose weight is then 1, so not all weights underflow.
        weights = np.exp(-slope * (d - d.min(axis=1, keepdims=True)))
        weights /= weights.sum(axis=1, keepdims=True)
        return _capped_variance(evidence.match_positions[:, :k], weights, cap, cap_meters)

    def query(evidence: Evidence) -> Scores:
        value = variance(evidence)
        return np.log(value + LOG_FLOOR) if log else value

    default = ("log-sue", "log SUE") if log else ("sue", "SUE")
    return Score(name or default[0], name or default[1], query, needs=(POSITIONS, at_least(2)))


def _capped_variance(positions: Scores, weights: Scores, cap: Cap, meters: float) -> Scores:
    """Return the mean of the weighted variances of both axes; positions N×K×2, weights N×K."""
    # Relative, for precision: UTM northings have seven digits before the decimal point.
    origin = positions[:, :1]
    offset = positions - origin
    mean = np.einsum("nk,nkc->nc", weights, offset)[:, None]
    lowest = -meters if cap == "symmetric" else -np.inf
    deviation = np.clip(offset - mean, lowest, meters)
    return np.einsum("nk,nkc->n", weights, deviation**2) / 2.0


SUE = sue()
LOG_SUE = sue(log=True)


NOTHING_OUTSIDE = -1.0


def _margin(evidence: Evidence) -> Scores:
    outside = evidence.best_outside
    return np.where(np.isneginf(outside), NOTHING_OUTSIDE, outside) - evidence.cosines[:, 0]


MARGIN = Score("margin", "Margin", _margin, needs=(NEIGHBORHOOD, OUTSIDE), one_sided=False)


def _aliasing(evidence: Evidence) -> Scores:
    alias = evidence.best_alias
    return np.where(np.isneginf(alias), NOTHING_OUTSIDE, alias) - evidence.cosines[:, 0]


ALIASING = Score(
    "aliasing", "Aliasing", _aliasing, needs=(REFERENCE_DESCRIPTORS, NEIGHBORHOOD), one_sided=False
)


ROUNDING = 1e-6  # a standard deviation below this fraction of the similarities is float32 noise


def z_score(sample: int | None = SAMPLE, *, seed: int = 0, name: str = "z-score") -> Score:
    """Return the z-score with these settings.

    Args:
        sample: Number of references to compare with, sampled without replacement. None for all references.
        seed: Random seed for the sample.
        name: Name of the score.

    Returns:
        The score.

    Raises:
        KappaPlaceError: If the sample is smaller than two.
    """
    within(2 if sample is None else sample, "sample", 2)

    def query(evidence: Evidence) -> Scores:
        mean, deviation = evidence.background(_rows(evidence, sample, seed))
        top = evidence.cosines[:, 0]
        # If all references are equally similar, the z-score is 0.
        varied = deviation > ROUNDING * np.maximum(np.abs(mean), np.abs(top))
        return -np.divide(top - mean, deviation, out=np.zeros_like(mean), where=varied)

    label = "z-score" if name == "z-score" else name
    return Score(name, label, query, needs=(ALL_SIMILARITIES,), one_sided=False)


def _rows(evidence: Evidence, sample: int | None, seed: int) -> NDArray[np.int64] | None:
    """Return the rows to compare with; None for the default sample of the references."""
    if (sample, seed) == (SAMPLE, 0):
        return None
    count = len(evidence.references)
    return draw(count, count if sample is None else sample, seed)


Z_SCORE = z_score()


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
"""Number of values per block, which fit into the cache of the processor, because the series has many
steps."""


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
