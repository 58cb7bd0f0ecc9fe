"""Ways to set a threshold for a place that nobody labeled, from labeled queries of other families.

Each method gets the queries of the new place without their outcomes, the labeled queries of the other
families and a risk. It returns which answers to accept. Answers are the best of ten matches by patch
agreement, as a map answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, norm
from sets import FAMILY

from kappaplace.calibration.calibrators import best_calibrator
from kappaplace.calibration.combination import Combination, fit_combination

Accept = Callable[["Block"], NDArray[np.bool_]]
Method = Callable[["Block", Sequence["Block"], float], Accept]
SHIPPED = ("cosine", "margin", "patches", "patch-margin")
SIGNALS = {
    "shipped signals": SHIPPED,
    "with contrast": (*SHIPPED, "contrast"),
    "with contrast to the map": (*SHIPPED, "map-contrast"),
}
"""contrast: log of the best agreement with another place, relative to the agreement of the answer.
map-contrast: agreement of the answer minus the mean agreement with other places, in standard deviations of
all agreements with other places on this map (needs a batch of queries, but no labels)."""
BENDS = 3
LEVEL = 0.1  # error probability of Learn-Then-Test
BINS = 5  # of Mondrian Learn-Then-Test
GRID = 10  # thresholds per bin


@dataclass(frozen=True, eq=False)
class Block:
    """Queries of one dataset, in-map or out-of-map."""

    name: str
    columns: dict[str, NDArray[np.float64]]
    """Uncertainties by name, each N."""
    far: NDArray[np.float64]
    """Patch agreements with places other than the answer, N×K; NaN for matches at the same place."""
    right: NDArray[np.bool_]
    more: tuple[Block, ...] = ()
    """Degraded and out-of-map queries of the same map, for fits like that of the shipped calibration."""

    @property
    def family(self) -> str:
        return FAMILY[self.name]

    def features(self, names: Sequence[str]) -> NDArray[np.float64]:
        return np.stack([self.columns[name] for name in names], 1)


@cache
def _combination(blocks: tuple[Block, ...], names: tuple[str, ...], more: bool) -> Combination:
    if more:
        blocks = (*blocks, *(other for block in blocks for other in block.more))
    features = np.concatenate([block.features(names) for block in blocks])
    return fit_combination(features, np.concatenate([b.right for b in blocks]), names, bends=BENDS)


def uncertainty(
    block: Block, blocks: Sequence[Block], names: tuple[str, ...] = SHIPPED, *, more: bool = False
) -> NDArray[np.float64]:
    """Return 1 − probability of a combination that was fitted on these blocks."""
    return 1 - _combination(tuple(blocks), names, more).probability(block.features(names))


def largest_within(values: NDArray[np.float64], right: NDArray[np.bool_], risk: float) -> float:
    """Return the largest threshold whose error rate is within the risk; −∞ if there is none."""
    order = np.argsort(values, kind="stable")
    rate = np.cumsum(~right[order]) / np.arange(1, len(order) + 1)
    is_last = np.append(np.diff(values[order]) > 0, True)  # equal values are accepted together
    within = np.flatnonzero((rate <= risk) & is_last)
    return float(values[order[within[-1]]]) if len(within) else -np.inf


def pooled(target: Block, training: Sequence[Block], risk: float) -> Accept:
    """Today's way: the risk is met on all training queries together."""
    values = np.concatenate([uncertainty(block, training) for block in training])
    limit = largest_within(values, np.concatenate([block.right for block in training]), risk)
    return lambda block: uncertainty(block, training) <= limit


def probability(target: Block, training: Sequence[Block], risk: float) -> Accept:
    """Accept from a calibrated probability of 1 − risk."""
    values = np.concatenate([uncertainty(block, training) for block in training])
    calibrator = best_calibrator(values, np.concatenate([block.right for block in training])).calibrator
    return lambda block: calibrator.probability(uncertainty(block, training)) >= 1 - risk


def every_family(signals: str, *, more: bool = False) -> Method:
    """Return the method whose threshold meets the risk on each training set, by a fit without its family.

    Args:
        signals: A key of `SIGNALS`.
        more: Whether to fit the combination on degraded and out-of-map queries, too.

    Returns:
        The method.
    """
    names = SIGNALS[signals]

    def method(target: Block, training: Sequence[Block], risk: float) -> Accept:
        limits = []
        for held in training:
            rest = [block for block in training if block.family != held.family]
            values = uncertainty(held, rest, names, more=more)
            limits.append(largest_within(values, held.right, risk))
        return lambda block: uncertainty(block, training, names, more=more) <= min(limits)

    return method


def selected(target: Block, training: Sequence[Block], risk: float) -> Accept:
    """Select the signals on the training families only.

    Each of these families in turn is the new place. The signals that keep the risk on most of them are used;
    of equally safe ones, those that accept most.
    """

    def quality(signals: str) -> tuple[int, float]:
        valid, accepted = 0, 0.0
        for held in training:
            rest = [block for block in training if block.family != held.family]
            accept = every_family(signals)(held, rest, risk)(held)
            valid += int((accept & ~held.right).sum() <= risk * accept.sum())
            accepted += float(accept.mean())
        return valid, accepted

    return every_family(max(SIGNALS, key=quality))(target, training, risk)


def quantile_transfer(target: Block, training: Sequence[Block], risk: float) -> Accept:
    """Carry the threshold by its quantile: the mean accepted fraction of the training sets, applied to the
    unlabeled scores of the new place (our reading of arXiv 2602.04401)."""
    fractions = []
    for block in training:
        values = uncertainty(block, training)
        fractions.append(np.mean(values <= largest_within(values, block.right, risk)))
    limit = float(np.quantile(uncertainty(target, training), np.mean(fractions)))
    return lambda block: uncertainty(block, training) <= limit


def negative_mixture(target: Block, training: Sequence[Block], risk: float) -> Accept:
    """Two Gaussians on each query's best agreement with a place that is not the answer; accept above their
    1 − risk quantile (our reading of arXiv 2512.09071). It uses no labels at all."""
    has = ~np.isnan(target.far).all(1)
    weights, means, spreads = gaussian_mixture(np.nanmax(target.far[has], 1))
    grid = np.linspace(0, 1, 10_001)
    below = (weights * norm.cdf(grid[:, None], means, spreads)).sum(1)
    limit = float(grid[min(np.searchsorted(below, 1 - risk), len(grid) - 1)])
    return lambda block: 1 - block.columns["patches"] > limit


def gaussian_mixture(values: NDArray[np.float64], steps: int = 200) -> tuple[NDArray[np.float64], ...]:
    """Fit two Gaussians by expectation maximization; return weights, means and standard deviations."""
    weights, means = np.full(2, 0.5), np.quantile(values, [0.25, 0.75])
    spreads = np.full(2, values.std())
    for _ in range(steps):
        density = weights * norm.pdf(values[:, None], means, spreads)
        share = density / np.maximum(density.sum(1, keepdims=True), 1e-300)
        weights = share.mean(0)
        means = (share * values[:, None]).sum(0) / share.sum(0)
        spreads = np.sqrt((share * (values[:, None] - means) ** 2).sum(0) / share.sum(0)) + 1e-4
    return weights, means, spreads


def safe_vpr(target: Block, training: Sequence[Block], risk: float) -> Accept:
    """SafeVPR (arXiv 2605.28048), our reading: mutual nearest neighbors of patches, Mondrian Learn-Then-Test.

    The training scores are cut into bins of equal size. In each bin, binomial tests with Bonferroni's
    correction over all bins and thresholds decide from which score answers are accepted.
    """
    scores = np.concatenate([block.columns["mutual"] for block in training])
    right = np.concatenate([block.right for block in training])
    edges = np.quantile(scores, np.arange(1, BINS) / BINS)
    bins = np.searchsorted(edges, scores, side="right")
    limits = np.full(BINS, -np.inf)
    for number in range(BINS):
        values, outcomes = scores[bins == number], right[bins == number]
        for limit in np.quantile(values, np.arange(1, GRID + 1) / GRID):
            accepted = values <= limit
            errors = int((accepted & ~outcomes).sum())
            if binom.cdf(errors, accepted.sum(), risk) <= LEVEL / (BINS * GRID):
                limits[number] = max(limits[number], limit)

    def accept(block: Block) -> NDArray[np.bool_]:
        values = block.columns["mutual"]
        return values <= limits[np.searchsorted(edges, values, side="right")]

    return accept


def oracle(target: Block, training: Sequence[Block], risk: float) -> Accept:
    """The largest threshold that meets the risk on the new place, which only its labels can tell."""
    limit = largest_within(uncertainty(target, training), target.right, risk)
    return lambda block: uncertainty(block, training) <= limit


METHODS: dict[str, Method] = {
    "threshold of all families together": pooled,
    "probability ≥ 1 − risk": probability,
    "SafeVPR": safe_vpr,
    "Quantile Transfer": quantile_transfer,
    "non-matching statistics": negative_mixture,
    **{f"threshold kept on every family, {name}": every_family(name) for name in SIGNALS},
    "threshold kept on every family, signals selected on training families": selected,
    "threshold kept on every family, with contrast, fitted like the shipped calibration": every_family(
        "with contrast", more=True
    ),
    "oracle": oracle,
}
