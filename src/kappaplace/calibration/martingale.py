"""Anytime-valid monitoring: alarms whose probability stays below a level, however long and often one looks.

**Exchangeability.** An incoming value is ranked among the values at calibration and all earlier incoming
ones, with ties broken at random. If the queries are exchangeable with those of the calibration, these
conformal p-values are independent and uniform. The order statistics of a `Sketch` are enough to compute them:
with g_j order statistics at calibration and c_j earlier incoming values in cell j, the next value falls into
cell j with probability (g_j + c_j)/(n + 1 + t), exactly. Strategies bet against uniformity; the wealth W of a
gambler is then a martingale that starts at 1, so P(W ever reaches 1/level) ≤ level (Ville).

**Risk.** For accepted answers whose outcome becomes known later, the wealth is multiplied by q/r for an
incorrect answer and by (1 − q)/(1 − r) for a correct one, with several q > r. It is an e-process of the
hypothesis that the risk is at most r: it reaches 1/level with probability at most ``level`` then.

A fraction of the initial wealth enters the game at each step, w_t = 1/((t + 1)(t + 2)). This is a mixture of
all starting times, so earlier losses do not delay the detection of a late change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kappaplace.checks import Floats, percent, share
from kappaplace.data.randomness import item_key, item_uniforms
from kappaplace.errors import KappaPlaceError
from kappaplace.records import optional

if TYPE_CHECKING:
    from kappaplace.calibration.drift import Sketch

LEVEL = 0.05
"""Probability of a false alarm, ever; signals share it equally."""
JUMP = 0.01
"""Fraction of each strategy's wealth that moves to the other strategies at each step."""
DIRECTIONS = ("higher", "lower", "wider", "narrower", "lower", "higher")
"""What each strategy bets on."""
STRATEGIES = len(DIRECTIONS)
EXCESS = (0.05, 0.1, 0.2, 0.4)
"""Risks that the e-process bets on: r + (1 − r)·excess."""
MOST_WEALTH = 1e200


@dataclass(frozen=True)
class Wealth:
    """Wealth of a gambler against a hypothesis."""

    capital: tuple[float, ...]
    """Wealth in each strategy."""
    steps: int = 0
    """Number of values so far."""
    peak: float = 1.0
    """Largest total wealth so far, up to an alarm."""
    counts: tuple[int, ...] = ()
    """Incoming values per cell of the sketch; empty for the risk."""
    errors: int = field(default=0, metadata=optional())
    """Incorrect answers so far, for the risk."""
    alarm: int = field(default=0, metadata=optional())
    """Number of values at which the wealth reached the limit; 0 before an alarm."""
    direction: str = field(default="", metadata=optional())
    """Direction of the change at the alarm: one of `DIRECTIONS`."""


def payoffs(p: ArrayLike) -> Floats:
    """Return the payoff of each strategy for a p-value; the mean over uniform p is 1.

    The strategies bet on `DIRECTIONS`; the last two on extreme values.
    """
    p = np.clip(np.asarray(p, np.float64), 1e-12, 1 - 1e-12)
    middle, spread = 2 * p - 1, 2 * np.abs(2 * p - 1) - 1
    parts = [1 + 0.9 * middle, 1 - 0.9 * middle, 1 + 0.9 * spread, 1 - 0.9 * spread]
    return np.stack([*parts, 0.5 / np.sqrt(p), 0.5 / np.sqrt(1 - p)], axis=-1)


def bet(capital: NDArray[np.float64], factors: Floats, step: int) -> Floats:
    """Return the wealth of each strategy after one step.

    Args:
        capital: Wealth before the step, one column per strategy.
        factors: Payoff of each strategy.
        step: Number of earlier steps.

    Returns:
        Wealth after the step, of the same shape.
    """
    width = capital.shape[-1]
    own = capital + 1 / ((step + 1) * (step + 2) * width)  # enters the game now
    own = (1 - JUMP) * own + JUMP * own.mean(axis=-1, keepdims=True)
    return np.minimum(own * factors, MOST_WEALTH)


def total(capital: NDArray[np.float64], steps: int) -> Floats:
    """Return the wealth in all strategies, with the part that has not entered the game."""
    return np.asarray(capital.sum(axis=-1) + 1 / (steps + 1))


def conformal_p(gaps: NDArray[np.int64], counts: NDArray[np.int64], cells: ArrayLike, u: ArrayLike) -> Floats:
    """Return p-values: the randomized rank of each value among the calibration and earlier values.

    Args:
        gaps: Order statistics at calibration per cell, C.
        counts: Earlier incoming values per cell, …×C.
        cells: Cell of each value, ….
        u: Random number between 0 and 1 for the position within the cell, ….

    Returns:
        One p-value per value, ….
    """
    mass = np.cumsum(gaps + counts, axis=-1)
    index = np.asarray(cells)[..., None]
    upper = np.take_along_axis(mass, index, -1)[..., 0]
    own = np.take_along_axis(gaps + counts, index, -1)[..., 0]
    return np.asarray((upper - (1 - np.asarray(u)) * own) / mass[..., -1])


class ExchangeabilityMartingale:
    """Martingale that tests whether a signal of incoming queries is like that of the calibration.

    Args:
        sketch: Sketch of the calibration.
        name: Name of the signal.
        wealth: State to resume. Default: none.
    """

    def __init__(self, sketch: Sketch, name: str, wealth: Wealth | None = None) -> None:
        self.points, self.ties = np.array(sketch.values[name]), sketch.tie_breaks(name)
        self.gaps = np.diff([0, *sketch.ranks, sketch.count + 1])
        wealth = wealth or Wealth((0.0,) * STRATEGIES, counts=(0,) * len(self.gaps))
        if len(wealth.counts) != len(self.gaps) or len(wealth.capital) != STRATEGIES:
            raise KappaPlaceError("The stored monitor does not fit the calibration. Start a new monitor.")
        self.wealth = wealth

    def cells(self, values: Floats, u: Floats) -> NDArray[np.int64]:
        """Return the cell of each value; a value that equals order statistics is placed by ``u``."""
        low = np.searchsorted(self.points, values, side="left")
        high = np.searchsorted(self.points, values, side="right")
        tied = [int((self.ties[a:b] < x).sum()) for a, b, x in zip(low, high, u, strict=True)]
        return np.asarray(low + np.array(tied, np.int64))

    def update(self, values: Floats, limit: float = 1 / LEVEL, seed: int = 0) -> Wealth:
        """Add values of incoming queries.

        Args:
            values: Values in their order.
            limit: Wealth that raises an alarm.
            seed: Random seed for breaking ties.

        Returns:
            The wealth afterwards.
        """
        state = self.wealth
        steps, peak, alarm, direction = state.steps, state.peak, state.alarm, state.direction
        counts, capital = np.array(state.counts, np.int64), np.array(state.capital)
        u = item_uniforms(item_key(seed, np.arange(steps, steps + len(values))), 2)
        for cell, position in zip(self.cells(values, u[:, 0]).tolist(), u[:, 1].tolist(), strict=True):
            capital = bet(capital, payoffs(conformal_p(self.gaps, counts, cell, position)), steps)
            counts[cell] += 1
            steps += 1
            if not alarm:
                peak = max(peak, float(total(capital, steps)))
            if not alarm and peak >= limit:
                alarm, direction = steps, DIRECTIONS[int(np.argmax(capital))]
        tallies = tuple(counts.tolist())
        self.wealth = Wealth(tuple(capital.tolist()), steps, peak, tallies, alarm=alarm, direction=direction)
        return self.wealth


def risk_payoffs(wrong: ArrayLike, max_risk: float) -> Floats:
    """Return the payoff of each bet on a higher risk; the mean is at most 1 if the risk is at most
    ``max_risk``."""
    risks = max_risk + (1 - max_risk) * np.array(EXCESS)
    right = (1 - risks) / (1 - max_risk)
    return np.where(np.asarray(wrong, bool)[..., None], risks / max_risk, right)


def update_risk(wealth: Wealth | None, wrong: Sequence[bool], max_risk: float) -> Wealth:
    """Add the outcomes of accepted answers to the e-process of the risk.

    Args:
        wealth: State before. None to start.
        wrong: Whether each accepted answer was incorrect.
        max_risk: Risk limit of the calibration.

    Returns:
        The state afterwards.
    """
    share(max_risk, "risk")
    state = wealth or Wealth((0.0,) * len(EXCESS))
    capital, steps, peak = np.array(state.capital), state.steps, state.peak
    for each in wrong:
        capital = bet(capital, risk_payoffs(each, max_risk), steps)
        steps += 1
        peak = max(peak, float(total(capital, steps)))
    return Wealth(tuple(capital.tolist()), steps, peak, (), state.errors + sum(wrong))


def risk_alarm(wealth: Wealth, max_risk: float) -> str:
    """Return a message if the outcomes contradict the risk limit; otherwise an empty string."""
    if wealth.peak < 1 / LEVEL:
        return ""
    return (
        f"{wealth.errors:,} of {wealth.steps:,} accepted answers were incorrect, which contradicts a risk of "
        f"at most {percent(max_risk)} (probability of a false alarm: {percent(LEVEL)}). Calibrate again."
    )
