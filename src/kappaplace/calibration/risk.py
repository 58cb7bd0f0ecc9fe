"""Thresholds on the uncertainty that keep the fraction of errors among accepted answers below a limit.

The selective risk of a threshold t is R(t) = P(incorrect | uncertainty ≤ t). `control_risk` returns the
largest threshold of a sequence, chosen without looking at outcomes, for which R(t) ≤ ``max_risk`` is
established at the given confidence. In at most 1 − confidence of all calibrations, the risk of the returned
threshold is above ``max_risk``.

**Why the tests are exact, though the number of accepted queries is random.** Queries are independent samples
of (uncertainty, correct). The thresholds are at ranks k fixed beforehand: u is the (k+1)-th smallest
uncertainty, and the accepted queries are strictly below u. Given u and the number of queries below u (ties
included), these queries are independent samples of all queries with an uncertainty below u. Their number of
errors is therefore Binomial(accepted, R), where R is the risk of future queries below u. So
P(Binomial(accepted, max_risk) ≤ errors) is a p-value of "R > max_risk". It is valid for every number of
accepted queries, because this number does not depend on outcomes.

**Why several tests do not add up.** ``fixed-sequence`` goes from strict to lax and stops at the first test
that fails. A false claim is only possible if the first false threshold passes, which has a probability of at
most 1 − confidence. The thresholds are quantiles of the same sample, so the position of the first false
threshold is random too. This does not change the result if R crosses ``max_risk`` only once, at u*. Accepted
queries below u* are then incorrect with probability max_risk, and those above u* more often. ``multi-start``,
the default, starts two walks at different thresholds, each with half of the level. A few early errors, such
as one incorrect label, then end only one of them. With too few queries, there is one walk. ``bonferroni``
tests every threshold at its part of the level and holds for any shape of R.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression
from scipy.special import betainc, betaincinv
from scipy.stats import binom

from kappaplace.checks import Floats, Rows, choice, outcomes, percent, share
from kappaplace.errors import KappaPlaceError

METHODS = ("fixed-sequence", "multi-start", "bonferroni")
COMFORT = (0.25, 0.9)
"""A single walk starts where a score with a quarter of the allowed risk would pass in nine of ten cases."""
STRICTEST = 0.25
"""Largest quantile at which a single walk starts, unless it accepts too few queries to pass."""
GROWTH = 1.1
"""Each threshold of the sequence accepts about a tenth more than the one before."""
STARTS = 2
"""Number of walks of ``multi-start``, if there are enough queries for each of them. More walks do not
help."""
MOST = 20
"""A message does not name a number of labels above this multiple of the sample."""
SIMULATIONS = 200
"""Number of simulated samples that decide whether a number of labels is enough."""
SUFFICIENT = 0.95
"""Fraction of the simulated samples that must support the guarantee. It is above 0.9, because the sample only
estimates how often new queries are incorrect."""
RESOLVED = 10
"""Number of queries below which the sample cannot resolve how often the most confident ones are incorrect."""
SPARE = 1.25
"""Each number of labels that is tried is this many times the one before. The sample's own was too small."""

EXCHANGEABLE = (
    "Holds for queries that are drawn like the labelled ones and independent of each other (on a route: one "
    "query per place). The labelled queries were not used to fit the score or its calibrator."
)
ONE_CROSSING = (
    "The guarantee assumes that the error rate of accepted answers crosses the limit only once as the "
    "threshold grows."
)


class RiskRefused(KappaPlaceError):
    """Raised if the sample cannot support the guarantee.

    Args:
        message: Text of the error.
        needed: Number of queries that might support it.
        row: Row of the most confident incorrect query.
        lowest: Lowest risk that the sample supports.
    """

    def __init__(
        self, message: str, needed: int | None, row: int | None = None, lowest: float | None = None
    ) -> None:
        super().__init__(message)
        self.needed = needed
        """Number of queries that might support the guarantee. None if not even `MOST` times as many would."""
        self.row = row
        """Row of the most confident incorrect query. None if the cause is too few queries."""
        self.lowest = lowest
        """Lowest risk that the sample supports, in whole percent. None if it was not searched, or there is
        none."""

    @property
    def higher(self) -> str:
        """Advice to allow a higher risk, with the lowest one that the sample supports."""
        return "allow a higher risk" if self.lowest is None else f"allow a risk of {percent(self.lowest)}"


@dataclass(frozen=True)
class RiskThreshold:
    """A threshold and its guarantee."""

    threshold: float
    """Largest uncertainty that is accepted; finite."""
    coverage: float
    """Fraction of the labelled queries that the threshold accepts."""
    accepted: int
    errors: int
    """Number of accepted labelled queries that are incorrect."""
    bound: float
    """Upper bound of the risk at the level of the test (Clopper–Pearson)."""
    max_risk: float
    confidence: float
    method: str
    assumptions: str
    """Conditions of the guarantee, in sentences."""


def needed_acceptances(max_risk: float, confidence: float = 0.95) -> int:
    """Return the fewest accepted queries that establish a risk if all of them are correct.

    Args:
        max_risk: Maximum fraction of errors among the accepted.
        confidence: Confidence level of the guarantee.

    Returns:
        Number of queries.

    >>> needed_acceptances(0.05), needed_acceptances(0.01)
    (59, 299)
    """
    return _fewest(share(max_risk, "risk"), 1 - share(confidence, "confidence"))


def control_risk(
    uncertainty: NDArray[np.floating],
    success: NDArray[np.bool_],
    max_risk: float = 0.05,
    confidence: float = 0.95,
    method: str = "multi-start",
    *,
    below: float | None = None,
    slack: float = 0.0,
) -> RiskThreshold:
    """Find the largest threshold whose selective risk is at most ``max_risk``; see the head of this file.

    The guarantees of all thresholds that pass hold together, so ``below`` may select any of them.

    Args:
        uncertainty: One value per query (N); higher is less certain.
        success: Whether each query was answered correctly (N).
        max_risk: Maximum fraction of errors among the accepted.
        confidence: Confidence level of the guarantee.
        method: Method to test thresholds: a name of `METHODS`.
        below: Only consider thresholds below this value.
        slack: Part of 1 − confidence that was used for other steps.

    Returns:
        The threshold, which is finite: no uncertainty beyond the largest one seen is accepted.

    Raises:
        RiskRefused: If no threshold passes.

    >>> rng = np.random.default_rng(0)
    >>> uncertainty = rng.random(1000)
    >>> control_risk(uncertainty, rng.random(1000) > uncertainty**4, 0.05).coverage
    0.532
    """
    scores, right = outcomes(uncertainty, success)
    choice(method, METHODS, "method")
    share(max_risk, "risk")
    alpha = 1 - share(confidence, "confidence") - slack
    fewest = _fewest(max_risk, _level(len(scores), max_risk, alpha, method)[0])
    if fewest > len(scores):
        raise _too_few(len(scores), max_risk, confidence, fewest)
    order = np.argsort(scores, kind="stable")
    wrong = np.concatenate([[0], np.cumsum(~right[order])])

    def passed(risk: float) -> tuple[NDArray[np.bool_], Floats, Rows, float]:
        held, thresholds, accepted, level = _test(scores[order], wrong, risk, alpha, method)
        return held & (thresholds < (np.inf if below is None else below)), thresholds, accepted, level

    held, thresholds, accepted, level = passed(max_risk)
    if not held.any():
        higher = (risk / 100 for risk in range(int(100 * max_risk) + 1, 100))
        raise _refused(
            wrong,
            int(order[int(np.argmax(~right[order]))]) if not right.all() else None,
            max_risk,
            confidence,
            _enough(wrong, max_risk, alpha, method),
            next((risk for risk in higher if passed(risk)[0].any()), None),
        )
    last = int(np.flatnonzero(held)[-1])
    count, wrongs = int(accepted[last]), int(wrong[accepted[last]])
    bound = 1.0 if wrongs == count else float(betaincinv(wrongs + 1, count - wrongs, 1 - level))
    assumptions = EXCHANGEABLE if method == "bonferroni" else f"{EXCHANGEABLE} {ONE_CROSSING}"
    return RiskThreshold(
        float(thresholds[last]),
        count / len(scores),
        count,
        wrongs,
        bound,
        float(max_risk),
        float(confidence),
        method,
        assumptions,
    )


def _test(
    ordered: Floats, wrong: Rows, max_risk: float, alpha: float, method: str
) -> tuple[NDArray[np.bool_], Floats, Rows, float]:
    """Return which thresholds pass, the thresholds, how many queries each accepts, and their level."""
    queries = len(ordered)
    level, walks = _level(queries, max_risk, alpha, method)
    ranks = _ranks(_first(queries, max_risk, level, walks == 1), queries)
    thresholds, accepted = _below_ranks(ordered, ranks)
    passes = _binomial_cdf(wrong[accepted], accepted, max_risk) <= level
    # Ties may leave too few queries strictly below, and then nothing is tested.
    possible = accepted >= _fewest(max_risk, level)
    return _walk(passes, possible, _starts(len(ranks), walks)), thresholds, accepted, level


def _fewest(max_risk: float, level: float) -> int:
    """Return the smallest k with (1 − max_risk)^k ≤ level."""
    keep = 1 - max_risk
    count = max(1, int(np.ceil(np.log(level) / np.log(keep))))
    # Because of rounding, the result may be off by one.
    while count > 1 and keep ** (count - 1) <= level:
        count -= 1
    while keep**count > level:
        count += 1
    return count


@lru_cache
def _first(queries: int, max_risk: float, level: float, one_walk: bool) -> int:
    """Return how many queries the strictest threshold accepts.

    The smallest number that can pass the test allows no error. With a true risk of 1% and a limit of 5%,
    about every second sample has an error among them. This error would end the walk at its first threshold.
    If there are enough queries, a single walk therefore starts at a number that allows a few errors.
    """
    fewest = _fewest(max_risk, level)
    room = min(int(STRICTEST * queries), 10 * fewest)  # ten times as many is always enough
    if not one_walk or room <= fewest:
        return fewest
    counts = np.arange(fewest, room + 1)
    allowed = binom.ppf(level, counts, max_risk)  # the last number of errors that passes, or the one after
    allowed -= _binomial_cdf(allowed, counts, max_risk) > level
    easing, chance = COMFORT
    comfortable = _binomial_cdf(allowed, counts, easing * max_risk) >= chance
    return int(counts[np.argmax(comfortable)]) if comfortable.any() else room


def _ranks(first: int, queries: int) -> Rows:
    """Return how many queries each threshold accepts, from ``first`` to all in steps of a tenth."""
    if first > queries:
        return np.empty(0, dtype=np.int64)
    steps = int(np.ceil(np.log(queries / first) / np.log(GROWTH)))
    return np.unique(np.append(np.floor(first * GROWTH ** np.arange(steps)), queries).astype(np.int64))


def _level(queries: int, max_risk: float, level: float, method: str) -> tuple[float, int]:
    """Return the level of one walk, and the number of walks; 0 if every threshold is tested separately."""
    if method == "bonferroni":
        # A lower level starts later and has fewer thresholds, so this divides by slightly too many.
        return level / max(1, len(_ranks(_fewest(max_risk, level), queries))), 0
    walks = 1
    while (
        method == "multi-start" and walks < STARTS and 2 * _fewest(max_risk, level / (walks + 1)) <= queries
    ):
        walks += 1
    return level / walks, walks


def _starts(thresholds: int, walks: int) -> Rows:
    """Return the positions in the sequence at which the walks begin."""
    if not walks:
        return np.arange(thresholds)
    return np.unique(np.arange(walks) * thresholds // walks)


def _below_ranks(ordered: Floats, ranks: Rows) -> tuple[Floats, Rows]:
    """Return for each rank the threshold just below the next uncertainty, and how many are not above it."""
    queries = len(ordered)
    following = np.append(ordered, np.inf)[ranks]
    accepted = np.searchsorted(ordered, following, side="left")
    accepted[ranks == queries] = queries
    thresholds = np.where(ranks == queries, ordered[-1], np.nextafter(following, -np.inf))
    return thresholds, accepted


def _walk(passes: NDArray[np.bool_], possible: NDArray[np.bool_], starts: Rows) -> NDArray[np.bool_]:
    """Return the thresholds that a walk reaches from its start without a failed test."""
    held = np.zeros(len(passes), dtype=bool)
    failed = np.flatnonzero(possible & ~passes)
    for start in starts:
        stop = failed[failed >= start]
        held[start : stop[0] if len(stop) else len(passes)] = True
    return held & possible


def _too_few(queries: int, max_risk: float, confidence: float, needed: int) -> RiskRefused:
    return RiskRefused(
        f"{claim(max_risk, confidence)} needs at least {needed:,} queries to set thresholds on, all "
        f"accepted "
        f"and correct, got {queries:,}. Label more, or allow a higher risk.",
        needed,
    )


def _refused(
    wrong: Rows,
    row: int | None,
    max_risk: float,
    confidence: float,
    needed: int | None,
    lowest: float | None,
) -> RiskRefused:
    """Return the error with the number of queries that would be enough, if new ones are like these.

    Args:
        wrong: Number of incorrect ones among the 0, 1, …, N most confident queries.
        row: Row of the most confident incorrect query.
        max_risk: Maximum fraction of errors among the accepted.
        confidence: Confidence level of the guarantee.
        needed: Number of queries that would be enough.
        lowest: Lowest risk that the queries support.
    """
    queries = len(wrong) - 1
    refusal = RiskRefused("", needed, row, lowest)
    if needed is not None:
        text = f"from these {queries:,} queries. About {needed:,} would be enough, or {refusal.higher}."
    else:
        count = np.arange(min(RESOLVED, queries), queries + 1)
        rate = float((wrong[count] / count).min())
        text = f"even with {MOST}× as many queries like these, because too many of the most confident ones "
        if rate >= max_risk:
            text = f"with any number of labels, because even the most confident queries in {percent(rate)} "
        text += f"are incorrect. {refusal.higher.capitalize()}, or use a better score."
    refusal.args = (f"{claim(max_risk, confidence)} cannot be guaranteed {text}",)
    return refusal


def _enough(wrong: Rows, max_risk: float, alpha: float, method: str) -> int | None:
    """Return about the smallest number of queries with which most simulated samples pass.

    New queries are incorrect as often as those of the sample, which has half an error more, to be on the safe
    side. The error rate is assumed not to fall as the uncertainty grows (isotonic regression). So a single
    incorrect label among the most confident answers is taken for chance.

    Args:
        wrong: Number of incorrect ones among the 0, 1, …, N most confident queries of the sample.
        max_risk: Maximum fraction of errors among the accepted.
        alpha: Level of all tests together.
        method: A name of `METHODS`.
    """
    queries = len(wrong) - 1
    rates = isotonic_regression(np.diff(wrong).astype(float)).x + 0.5 / queries
    errors = np.concatenate([[0.0], np.cumsum(rates)])
    size = float(queries)
    while (size := SPARE * size) <= MOST * queries:
        if _granted(errors, int(np.ceil(size)), max_risk, alpha, method) >= SUFFICIENT:
            return int(np.ceil(size))
    return None


def _granted(errors: Floats, queries: int, max_risk: float, alpha: float, method: str) -> float:
    """Return the fraction of simulated samples, with this many queries, for which a threshold passes.

    Args:
        errors: Expected number of incorrect ones among the 0, 1, …, N most confident queries of the sample.
        queries: Number of queries per simulated sample.
        max_risk: Maximum fraction of errors among the accepted.
        alpha: Level of all tests together.
        method: A name of `METHODS`.
    """
    level, walks = _level(queries, max_risk, alpha, method)
    ranks = _ranks(_first(queries, max_risk, level, walks == 1), queries)
    ranks = ranks[_starts(len(ranks), walks)]  # a walk that fails where it begins holds no threshold
    seen = len(errors) - 1
    resolved = ranks * seen >= queries * min(RESOLVED, seen)
    expected = np.interp(ranks * (seen / queries), np.arange(seen + 1), errors) * (queries / seen)
    if not (resolved & (_binomial_cdf(expected, ranks, max_risk) <= level)).any():
        return 0.0  # not even with the expected number of errors: far from enough
    trials = np.diff(ranks, prepend=0)
    rates = np.clip(np.diff(expected, prepend=0.0) / trials, 0.0, 1.0)
    draws = np.random.default_rng(0).binomial(trials, rates, (SIMULATIONS, len(ranks))).cumsum(axis=1)
    passes = (_binomial_cdf(draws, ranks, max_risk) <= level) & resolved
    return float(passes.any(axis=1).mean())


def claim(max_risk: float, confidence: float) -> str:
    """Describe a guarantee, as the subject of a message."""
    return f"A risk of at most {percent(max_risk)} with {percent(confidence)} confidence"


def _binomial_cdf(errors: Any, trials: Any, risk: float) -> Floats:
    """Return P(Binomial(trials, risk) ≤ errors), in a tenth of the time of ``scipy.stats``."""
    beyond = errors >= trials
    tail = betainc(np.where(beyond, 1, trials - errors), np.maximum(errors, 0) + 1, 1 - risk)
    return np.where(beyond, 1.0, np.where(errors < 0, 0.0, tail))
