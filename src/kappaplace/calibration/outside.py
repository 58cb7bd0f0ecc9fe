"""Out-of-map queries: convert probabilities from the fraction a at calibration to an expected fraction b.

An out-of-map query is always answered incorrectly, an in-map query sometimes. Let f_in and f_out be the
densities of the score s of the two kinds, and r(s) = P(correct | s, inside). At a fraction a,

    P_a(correct | s) = (1 − a) f_in r / ((1 − a) f_in + a f_out) = r(s) · q_a(s),  q_a(s) = P_a(inside | s).

Only q depends on the fraction, if f_in, f_out and r do not change ("the same robot leaves the map more
often"). Bayes' rule gives odds q_b = odds q_a · ((1 − b)/b)/((1 − a)/a), and so

    P_b(correct | s) = r(s) · q_b(s)                                                    (exact)

If there are labelled queries of both kinds, r is calibrated on in-map queries and q on all queries. Both
decrease with the uncertainty, and so does their product. Without out-of-map queries, f_out is unknown. It is
then replaced by the density of incorrect in-map queries. The same rule is applied to correct and incorrect
answers. The fractions of correct answers are ρ(1 − a) and ρ(1 − b), with ρ = P(correct | inside)
                                                                                        (approximate)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.calibrators import LEAST_QUERIES, Calibrator, fit_calibrator
from kappaplace.checks import Floats, Rows, booleans, finite, outcomes, share
from kappaplace.errors import KappaPlaceError


def shift_prior(probability: Any, fitted: float, stated: float) -> Floats:
    """Convert the probability of a class to another prior, by Bayes' rule.

    Args:
        probability: Probabilities of the class, any shape.
        fitted: Fraction of the class for which the probabilities were fitted.
        stated: Fraction of the class to convert to.

    Returns:
        Probabilities of the same shape.

    Raises:
        KappaPlaceError: If a value is not between 0 and 1.

    >>> shift_prior(np.array([0.5, 0.9]), 0.5, 0.1).round(3)
    array([0.1, 0.5])
    """
    p = finite(probability, "probabilities")
    if p.size and (p.min() < 0 or p.max() > 1):
        raise KappaPlaceError(f"Probabilities must be between 0 and 1, got {p.min():g} to {p.max():g}.")
    share(fitted, "fraction at calibration")
    share(stated, "expected fraction", ends=True)
    up, down = p * (stated / fitted), (1 - p) * ((1 - stated) / (1 - fitted))
    total = up + down  # 0 only if the probability is 1 and the expected fraction 0
    return np.divide(up, total, out=np.full_like(p, stated), where=total > 0)


@dataclass(frozen=True)
class OutsideAware:
    """Probability of a correct answer (or match), for any fraction of out-of-map queries."""

    right: Calibrator
    """Calibrator of correctness, fitted on in-map queries if there is ``inside``, otherwise on all queries.
    """
    inside: Calibrator | None
    """Calibrator of being inside the map; None without examples of both kinds."""
    fitted_rate: float
    """Fraction of out-of-map queries for which the probabilities were fitted."""
    right_rate: float
    """Fraction of correct answers among in-map queries."""

    def __post_init__(self) -> None:
        share(self.fitted_rate, "fraction of out-of-map queries", ends=True)
        share(self.right_rate, "fraction of correct answers", ends=True)

    def probability(self, uncertainty: Any, rate: float | None = None) -> Floats:
        """Return the probability of being correct, for a fraction of out-of-map queries (default: as
        fitted)."""
        right = self.right.probability(uncertainty)
        if self.inside is not None:
            inside = self.inside_probability(uncertainty, rate)
            assert inside is not None
            return right * inside
        if rate is None:
            return right
        fitted = self.right_rate * (1 - self.fitted_rate)
        return shift_prior(right, fitted, self.right_rate * (1 - _rate(rate)))

    def inside_probability(self, uncertainty: Any, rate: float | None = None) -> Floats | None:
        """Return the probability of being inside the map; None if it was not fitted."""
        if self.inside is None:
            # If every in-map query was correct, "correct" and "inside" are the same event.
            alike = self.right_rate == 1 and self.fitted_rate > 0
            return self.probability(uncertainty, rate) if alike else None
        q = self.inside.probability(uncertainty)
        return q if rate is None else shift_prior(q, 1 - self.fitted_rate, 1 - _rate(rate))


def fit_outside_aware(
    uncertainty: NDArray[np.floating],
    success: NDArray[np.bool_],
    outside: NDArray[np.bool_] | None = None,
    *,
    calibrator: str = "best",
    groups: NDArray[Any] | None = None,
    seed: int = 0,
) -> OutsideAware:
    """Fit probabilities of queries, or of single matches.

    Args:
        uncertainty: One value per query (N); higher is less certain.
        success: Whether each query was answered correctly (N).
        outside: Which queries have no correct reference in the map (N). Default: none.
        calibrator: A name of `CALIBRATORS`, or "best".
        groups: Query of each match, which cross-validation never splits. Default: one group per value.
        seed: Random seed for cross-validation.

    Returns:
        The fitted probabilities.

    Raises:
        KappaPlaceError: If an out-of-map query is marked as correct, or all queries are out-of-map.
    """
    values, right = outcomes(uncertainty, success)
    out = np.zeros(len(right), bool) if outside is None else booleans(outside, right.shape, "out-of-map mask")
    if (right & out).any():
        raise KappaPlaceError(
            f"{int((right & out).sum()):,} queries are marked as correct and as out-of-map. "
            "A query without a correct reference cannot be correct."
        )
    if out.all():
        raise KappaPlaceError("All queries are out-of-map. Calibration needs in-map queries, too.")
    rate, right_rate = float(out.mean()), float(right[~out].mean())
    wrong_inside = int((~right & ~out).sum())
    few = min(int(out.sum()), int((~out).sum())) < LEAST_QUERIES
    # Without incorrect in-map queries, "correct" and "inside" are the same event, so one calibrator is
    # enough.
    if few or not wrong_inside or not right.any():
        fitted = fit_calibrator(calibrator, values, right, groups=groups, seed=seed)
        return OutsideAware(fitted, None, rate, right_rate)
    inner = None if groups is None else np.asarray(groups)[~out]
    return OutsideAware(
        fit_calibrator(calibrator, values[~out], right[~out], groups=inner, seed=seed),
        fit_calibrator(calibrator, values, ~out, groups=groups, seed=seed),
        rate,
        right_rate,
    )


def thin_to_rate(outside: NDArray[np.bool_], rate: float, seed: int = 0, *, slack: float = 1e-4) -> Rows:
    """Sample queries at random, with an expected fraction of out-of-map queries.

    The number of out-of-map queries is random (binomial), as in a real sample, so that the tests of
    `control_risk` remain exact. The sample is as large as the two kinds allow, except with probability
    ``slack``, which a guarantee must subtract from its confidence.

    Args:
        outside: Which queries are out-of-map (N).
        rate: Expected fraction of out-of-map queries.
        seed: Random seed.
        slack: Probability that there are too few queries of one kind.

    Returns:
        Rows of the sample, ascending.
    """
    from scipy.stats import binom

    out = booleans(outside, np.shape(outside), "out-of-map mask")
    if out.ndim != 1 or not len(out):
        raise KappaPlaceError(f"The out-of-map mask must be 1-D and not empty, got shape {out.shape}.")
    b = _rate(rate)
    rng = np.random.default_rng(seed)
    from_outside, from_inside = (rng.permutation(np.flatnonzero(kind)) for kind in (out, ~out))
    low, high = 0, len(out)
    while low < high:  # bisection of the largest size that both kinds allow
        size = (low + high + 1) // 2
        short = binom.sf(len(from_outside), size, b) + binom.cdf(size - len(from_inside) - 1, size, b)
        low, high = (size, high) if short <= slack else (low, size - 1)
    drawn = int(np.clip(rng.binomial(low, b), low - len(from_inside), len(from_outside)))
    return np.sort(np.concatenate([from_outside[:drawn], from_inside[: low - drawn]]))


def _rate(rate: float) -> float:
    if not 0 <= float(rate) < 1:
        raise KappaPlaceError(
            f"The fraction of out-of-map queries must be at least 0 and below 1, got {rate}."
        )
    return float(rate)
