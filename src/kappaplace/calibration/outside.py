"""Queries from outside the map: from the share a among the calibration queries to a stated share b.

A query from outside is always wrong, one from inside may be. With f_in and f_out the densities of the score s
of both kinds and r(s) = P(right | s, inside), at a share a of queries from outside

    P_a(right | s) = (1 − a) f_in r / ((1 − a) f_in + a f_out) = r(s) · q_a(s),    q_a(s) = P_a(inside | s).

What changes with the share is q alone; f_in, f_out and r stay, which is the assumption ("the same robot, but
it leaves the map more often"). Bayes' rule gives odds q_b = odds q_a · ((1 − b)/b)/((1 − a)/a), hence

    P_b(right | s) = r(s) · q_b(s)                                                      (exact)

With labelled queries of both kinds, r is calibrated on those from inside and q on all. Both fall with the
uncertainty, so their product does. Without queries from outside, f_out is unknown; it is then taken to be the
density of wrong queries from inside, and the same rule is applied to right against wrong, with the shares of
right ones ρ(1 − a) and ρ(1 − b), where ρ = P(right | inside)                             (approximate)

That is the better guess of the two at hand: the other, that they look like right ones, would make
the score useless.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from kappaplace.calibration.calibrators import LEAST_QUERIES, Calibrator, fit_calibrator
from kappaplace.checks import Floats, Rows, booleans, finite, outcomes, share
from kappaplace.errors import KappaPlaceError


def shift_prior(probability: Any, fitted: float, stated: float) -> Floats:
    """The probability of a class whose share was ``fitted`` and is ``stated``, by Bayes' rule.

    >>> shift_prior(np.array([0.5, 0.9]), 0.5, 0.1).round(3)
    array([0.1, 0.5])
    """
    p = finite(probability, "probabilities")
    if p.size and (p.min() < 0 or p.max() > 1):
        raise KappaPlaceError(f"Probabilities lie between 0 and 1, got {p.min():g} to {p.max():g}.")
    share(fitted, "share at calibration")
    share(stated, "stated share", ends=True)
    up, down = p * (stated / fitted), (1 - p) * ((1 - stated) / (1 - fitted))
    total = up + down  # 0 only where a sure class is said never to occur
    return np.divide(up, total, out=np.full_like(p, stated), where=total > 0)


@dataclass(frozen=True)
class OutsideAware:
    """Probability of being right, for any share of queries (or pairs of such) from outside the map."""

    right: Calibrator
    """Of being right; among queries from inside where ``inside`` is given, else among all."""
    inside: Calibrator | None
    """Of being inside the map; None without examples of both kinds."""
    fitted_rate: float
    """Share of queries from outside among those that were fitted on."""
    right_rate: float
    """Share of right ones among the queries from inside."""

    def __post_init__(self) -> None:
        share(self.fitted_rate, "share of queries from outside", ends=True)
        share(self.right_rate, "share of right queries", ends=True)

    def probability(self, uncertainty: Any, rate: float | None = None) -> Floats:
        """Of being right; ``rate`` is the share of queries from outside, None: as fitted."""
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
        """Of having been taken inside the map; None where that was not learnt."""
        if self.inside is None:
            # Where every query from inside was right, being right and being inside are one and the same.
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
    """From one uncertainty and outcome a query; ``outside`` marks those without any positive in the map.

    The same for pairs: ``groups`` then names the query of each, which cross-validation keeps together.
    """
    values, right = outcomes(uncertainty, success)
    out = (
        np.zeros(len(right), bool) if outside is None else booleans(outside, right.shape, "marks of outside")
    )
    if (right & out).any():
        raise KappaPlaceError(
            f"{int((right & out).sum()):,} queries are marked as right and as outside the map; "
            "a query without any positive cannot be right."
        )
    if out.all():
        raise KappaPlaceError("All queries are from outside the map; calibration needs some from inside.")
    rate, right_rate = float(out.mean()), float(right[~out].mean())
    wrong_inside = int((~right & ~out).sum())
    few = min(int(out.sum()), int((~out).sum())) < LEAST_QUERIES
    # With no wrong query from inside, right and inside are one and the same: one calibrator says it all.
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
    """Rows, ascending, that look like a random sample with this share of queries from outside the map.

    How many come from outside is drawn as it would be in such a sample (binomial, not fixed), so that the
    exact tests of `control_risk` remain exact; the sample is as large as both kinds allow but for a chance of
    ``slack``, which a guarantee must add to its own.
    """
    out = booleans(outside, np.shape(outside), "marks of outside")
    if out.ndim != 1 or not len(out):
        raise KappaPlaceError(f"Marks of outside are one boolean a query, got the shape {out.shape}.")
    b = _rate(rate)
    rng = np.random.default_rng(seed)
    from_outside, from_inside = (rng.permutation(np.flatnonzero(kind)) for kind in (out, ~out))
    low, high = 0, len(out)
    while low < high:  # the largest size that both kinds allow
        size = (low + high + 1) // 2
        short = binom.sf(len(from_outside), size, b) + binom.cdf(size - len(from_inside) - 1, size, b)
        low, high = (size, high) if short <= slack else (low, size - 1)
    drawn = int(np.clip(rng.binomial(low, b), low - len(from_inside), len(from_outside)))
    return np.sort(np.concatenate([from_outside[:drawn], from_inside[: low - drawn]]))


def _rate(rate: float) -> float:
    if not 0 <= float(rate) < 1:
        raise KappaPlaceError(
            f"The share of queries from outside the map must be at least 0 and below 1, got {rate}."
        )
    return float(rate)
