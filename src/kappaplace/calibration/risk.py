"""Which uncertainty is still low enough, so that at most a stated share of the accepted is wrong?

The selective risk of a threshold t is R(t) = P(wrong | uncertainty ≤ t). `control_risk` gives the largest
threshold of a sequence, chosen without looking at outcomes, for which R(t) ≤ ``max_risk`` is proven at the
stated confidence: in at most 1 − confidence of all calibrations is the risk of the answer above it.

**Why the tests are exact, though the number of accepted queries is random.** Queries are independent draws
of (uncertainty, right). The thresholds sit at ranks k fixed beforehand: u is the (k+1)-th smallest
uncertainty, and what is accepted lies strictly below u. Given u and how many lie below it (ties and all),
those are independent draws of queries with uncertainty < u, so their errors are Binomial(accepted, R) with R
the risk that future queries below u will have: P(Binomial(accepted, max_risk) ≤ errors) is a p-value of
"R > max_risk". The number accepted is conditioned on, not averaged over, and outcomes have no say in it.

**Why several tests do not add up.** ``fixed-sequence`` goes from strict to lax and stops at the first test
that fails: a false claim needs the first false threshold to pass, which happens with probability
≤ 1 − confidence. The thresholds are quantiles of the same sample, so which one is the first false one is
random too. If R passes ``max_risk`` once on the way up, at u*, that does no harm: of the accepted, those
below u* are wrong with probability max_risk and those above it more often, however many there are of each.
That is what an uncertainty is for; ``bonferroni`` tests every threshold at its share of the level and holds
for any shape of R. ``multi-start`` begins at four places with a quarter of the level each: a few early errors
then end one walk, not all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincinv
from scipy.stats import binom

from kappaplace.checks import Floats, Rows, outcomes, percent, share
from kappaplace.errors import KappaPlaceError

METHODS = ("fixed-sequence", "multi-start", "bonferroni")
COMFORT = (0.25, 0.9)
"""`fixed-sequence` starts where a score with a quarter of the allowed risk would pass nine times in ten."""
STRICTEST = 0.25
"""But no laxer than this quantile, as long as it accepts enough to pass at all."""
GROWTH = 1.1
"""Each threshold of the sequence accepts about a tenth more than the one before."""
STARTS = 4
MOST_LABELS = 10_000_000
"""Beyond this many labels a refusal no longer names a number."""

EXCHANGEABLE = (
    "Holds for queries drawn like the labelled ones, independent of each other (on a route: one query a "
    "place); the labelled ones were not used to fit the score or its calibrator."
)
ONE_CROSSING = (
    "Assumes that the share of errors among the accepted passes the limit once as the threshold grows."
)


class RiskRefused(KappaPlaceError):
    """The sample cannot support the claim; ``needed`` labelled queries might, None: no number would."""

    def __init__(self, sentence: str, needed: int | None) -> None:
        super().__init__(sentence)
        self.needed = needed


@dataclass(frozen=True)
class RiskThreshold:
    """A threshold and what is proven of it."""

    threshold: float
    """A query is accepted if its uncertainty is not above this; infinite where all may be accepted."""
    coverage: float
    """Share of the labelled queries that it accepts: what to expect."""
    accepted: int
    errors: int
    """Labelled queries that it accepts, and those of them that are wrong."""
    bound: float
    """Clopper–Pearson: no risk above this is consistent with so few errors, at the level of the test."""
    max_risk: float
    confidence: float
    method: str
    assumptions: str
    """In full sentences."""


def needed_acceptances(max_risk: float, confidence: float = 0.95) -> int:
    """Fewest accepted queries, all right, that prove a risk of at most ``max_risk``.

    >>> needed_acceptances(0.05), needed_acceptances(0.01)
    (59, 299)
    """
    return _fewest(share(max_risk, "risk"), 1 - share(confidence, "confidence"))


def control_risk(
    uncertainty: NDArray[np.floating],
    success: NDArray[np.bool_],
    max_risk: float = 0.05,
    confidence: float = 0.95,
    method: str = "fixed-sequence",
    *,
    below: float | None = None,
    slack: float = 0.0,
) -> RiskThreshold:
    """The largest threshold whose selective risk is proven to be ≤ ``max_risk``; see the head of this file.

    All thresholds that pass hold at once, so a caller may ask for the largest ``below`` some value. ``slack``
    is the part of 1 − confidence that was spent elsewhere; the tests must do with the rest.
    Where none passes it refuses, and says how many labelled queries would be needed.

    >>> rng = np.random.default_rng(0)
    >>> uncertainty = rng.random(1000)
    >>> control_risk(uncertainty, rng.random(1000) > uncertainty**4, 0.05).coverage
    0.568
    """
    scores, right = outcomes(uncertainty, success)
    if method not in METHODS:
        raise KappaPlaceError(f"Unknown method '{method}'; choose among: {', '.join(METHODS)}.")
    share(max_risk, "risk")
    level = _level(len(scores), max_risk, 1 - share(confidence, "confidence") - slack, method)
    fewest = _fewest(max_risk, level)
    if fewest > len(scores):
        raise _too_few(len(scores), max_risk, confidence, fewest)
    order = np.argsort(scores, kind="stable")
    wrong = np.concatenate([[0], np.cumsum(~right[order])])
    ranks = _ranks(_first(len(scores), max_risk, level, method), len(scores))
    thresholds, accepted = _below_ranks(scores[order], ranks)
    errors = wrong[accepted]
    passes = _binomial_cdf(errors, accepted, max_risk) <= level
    possible = accepted >= fewest  # ties may leave too few strictly below: nothing to test there
    held = _walk(passes, possible, _starts(len(ranks), method))
    if below is not None:
        held &= thresholds < below
    if not held.any():
        raise _refused(accepted, errors, len(scores), max_risk, level, confidence)
    last = int(np.flatnonzero(held)[-1])
    count, wrongs = int(accepted[last]), int(errors[last])
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


def _fewest(max_risk: float, level: float) -> int:
    """The smallest k with (1 − max_risk)^k ≤ level."""
    keep = 1 - max_risk
    count = max(1, int(np.ceil(np.log(level) / np.log(keep))))
    # Rounding of the logarithms may put the answer off by one.
    while count > 1 and keep ** (count - 1) <= level:
        count -= 1
    while keep**count > level:
        count += 1
    return count


@lru_cache
def _first(queries: int, max_risk: float, level: float, method: str) -> int:
    """How many the strictest threshold accepts.

    The fewest that could pass would have to be right without exception: with a true risk of 1 % every other
    sample fails to prove 5 % there, and the walk would end before it began. So a walk that has one start only
    begins where a few errors are forgiven, if there are queries enough.
    """
    fewest = _fewest(max_risk, level)
    room = min(int(STRICTEST * queries), 10 * fewest)  # comfort is reached long before ten times
    if method != "fixed-sequence" or room <= fewest:
        return fewest
    counts = np.arange(fewest, room + 1)
    allowed = binom.ppf(level, counts, max_risk)  # the last number of errors that passes, or the one after
    allowed -= _binomial_cdf(allowed, counts, max_risk) > level
    easing, chance = COMFORT
    comfortable = _binomial_cdf(allowed, counts, easing * max_risk) >= chance
    return int(counts[np.argmax(comfortable)]) if comfortable.any() else room


def _ranks(first: int, queries: int) -> Rows:
    """How many to accept: from the fewest that could pass to all, each a tenth more; no outcome is asked."""
    if first > queries:
        return np.empty(0, dtype=np.int64)
    steps = int(np.ceil(np.log(queries / first) / np.log(GROWTH)))
    return np.unique(np.append(np.floor(first * GROWTH ** np.arange(steps)), queries).astype(np.int64))


def _level(queries: int, max_risk: float, level: float, method: str) -> float:
    """The level of one walk."""
    if method == "bonferroni":
        # A lower level starts later and so has fewer thresholds: this divides by a few too many.
        return level / max(1, len(_ranks(_fewest(max_risk, level), queries)))
    return level / STARTS if method == "multi-start" else level


def _starts(thresholds: int, method: str) -> Rows:
    """Where in the sequence the walks begin."""
    if method == "bonferroni":
        return np.arange(thresholds)
    walks = STARTS if method == "multi-start" else 1
    return np.unique(np.arange(walks) * thresholds // walks)


def _below_ranks(ordered: Floats, ranks: Rows) -> tuple[Floats, Rows]:
    """For each rank the threshold just below the next uncertainty, and how many are not above it."""
    queries = len(ordered)
    following = np.append(ordered, np.inf)[ranks]
    accepted = np.searchsorted(ordered, following, side="left")
    accepted[ranks == queries] = queries
    thresholds = np.where(ranks == queries, np.inf, np.nextafter(following, -np.inf))
    return thresholds, accepted


def _walk(passes: NDArray[np.bool_], possible: NDArray[np.bool_], starts: Rows) -> NDArray[np.bool_]:
    """Which thresholds are reached by some walk from a start without a failed test on the way."""
    held = np.zeros(len(passes), dtype=bool)
    failed = np.flatnonzero(possible & ~passes)
    for start in starts:
        stop = failed[failed >= start]
        held[start : stop[0] if len(stop) else len(passes)] = True
    return held & possible


def _too_few(queries: int, max_risk: float, confidence: float, needed: int) -> RiskRefused:
    return RiskRefused(
        f"{_claim(max_risk, confidence)} needs at least {needed:,} labelled queries accepted without an "
        f"error, and there are {queries:,} in all; label at least {needed - queries:,} more, or allow a "
        "higher risk.",
        needed,
    )


def _refused(
    accepted: Rows, errors: Rows, queries: int, max_risk: float, level: float, confidence: float
) -> RiskRefused:
    """Say how many labels would do, if the share of errors stayed as seen at the best of the thresholds."""
    used = accepted > 0
    count, wrong = accepted[used], errors[used]
    rates = (wrong + 0.5) / (count + 1)  # half an error more: no luck is counted on
    # The labels needed grow with 1/(gap² · coverage); the exact number is dear, so it is for the best only.
    promise = np.where(rates < max_risk, (max_risk - rates) ** 2 * count, 0.0)
    guess = np.inf
    if promise.max(initial=0.0) > 0:
        best = int(np.argmax(promise))
        guess = _acceptances_at(float(rates[best]), max_risk, level) * queries / count[best]
    claim = _claim(max_risk, confidence)
    if guess > MOST_LABELS:
        seen = float((wrong / count).min(initial=1.0))
        return RiskRefused(
            f"{claim} cannot be promised: even the most certain of the {queries:,} labelled queries are "
            f"wrong in {percent(seen)} of the cases, which more labels would not change; allow a higher risk "
            "or use a better score.",
            None,
        )
    # What was tried failed with this many, so less than a quarter more would be a promise made lightly.
    needed = int(max(np.ceil(guess), np.ceil(1.25 * queries)))
    return RiskRefused(
        f"{claim} cannot be promised from these {queries:,} labelled queries; about {needed:,} would be "
        "needed, or allow a higher risk.",
        needed,
    )


def _acceptances_at(rate: float, max_risk: float, level: float) -> float:
    """Fewest acceptances that pass the test at this share of errors; infinite where too many would."""

    def passes(count: int) -> bool:
        return float(_binomial_cdf(np.ceil(rate * count), np.float64(count), max_risk)) <= level

    high = 1
    while not passes(high):
        high *= 2
        if high > MOST_LABELS:
            return np.inf
    low = high // 2  # fails; rounding makes passing not quite monotone, a few more or less do not matter
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high


def _claim(max_risk: float, confidence: float) -> str:
    return f"At most {percent(max_risk)} wrong among the accepted, with {percent(confidence)} confidence,"


def _binomial_cdf(errors: Any, trials: Any, risk: float) -> Floats:
    """P(Binomial(trials, risk) ≤ errors), a tenth of the time of ``scipy.stats``."""
    beyond = errors >= trials
    tail = betainc(np.where(beyond, 1, trials - errors), np.maximum(errors, 0) + 1, 1 - risk)
    return np.where(beyond, 1.0, np.where(errors < 0, 0.0, tail))
