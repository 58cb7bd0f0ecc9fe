"""Calibrators: functions from an uncertainty to the probability of a correct answer.

    calibrator = Logistic.fit(uncertainty, right)          # or best_calibrator(uncertainty, right).calibrator
    calibrator.probability(new_uncertainty)

They are used for top matches (one score per query) and for single matches (one score per match).
Probabilities never increase with the uncertainty. A score that ranks in reverse gets the same probability for
all values.

>>> rng = np.random.default_rng(0)
>>> uncertainty = rng.random(400)
>>> right = rng.random(400) > uncertainty
>>> [round(float(p), 1) for p in Logistic.fit(uncertainty, right).probability([0.1, 0.5, 0.9])]
[0.9, 0.5, 0.1]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from kappaplace.calibration.combination import log_loss, newton
from kappaplace.checks import Bools, Floats, Rows, choice, finite, outcomes
from kappaplace.errors import KappaPlaceError
from kappaplace.records import kind, stored

LEAST_QUERIES = 10
"""Minimum number of outcomes for a fit."""
LEAST = 1e-9
"""Scores between 0 and 1 are clipped to at least this distance from both ends, so that logarithms are
finite."""
FOLDS = 5


@dataclass(frozen=True)
class Calibrator(ABC):
    """A fitted, decreasing function from uncertainty to probability."""

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def fit(cls, scores: NDArray[np.floating], success: NDArray[np.bool_]) -> Calibrator:
        """Fit on one uncertainty and one outcome per query (or per match)."""

    @abstractmethod
    def _probability(self, scores: Floats) -> Floats: ...

    def probability(self, scores: Any) -> Floats:
        """Return the probability of a correct answer, for uncertainties of any shape."""
        return self._probability(finite(scores, "uncertainties"))

    def __post_init__(self) -> None:
        for part in fields(self):
            name, several = f"{part.name} of a {self.name} calibrator", str(part.type).startswith("tuple")
            if finite(getattr(self, part.name), name).ndim != several:
                raise KappaPlaceError(
                    f"The {name} must be {'a list' if several else 'one number'}. Fit it again."
                )


@kind(Calibrator, "logistic")
@dataclass(frozen=True)
class Logistic(Calibrator):
    """Platt scaling: σ(bias − slope·x), x = (score − center)/scale, slope ≥ 0, with Platt's targets."""

    center: float = field(metadata=stored("centre"))
    scale: float
    slope: float
    bias: float
    name: ClassVar[str] = "logistic"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale <= 0 or self.slope < 0:
            raise KappaPlaceError(
                f"scale must be above 0 and slope at least 0, got {self.scale:g} and {self.slope:g}. "
                f"Fit again."
            )

    @classmethod
    def fit(cls, scores: NDArray[np.floating], success: NDArray[np.bool_]) -> Logistic:
        values, right = _fittable(scores, success)
        center, scale = float(values.mean()), float(values.std())
        x = (values - center) / scale
        bias, slope = fit_logistic(np.column_stack([np.ones(len(x)), -x]), smoothed_targets(right))
        return cls(center, scale, float(slope), float(bias))

    def _probability(self, scores: Floats) -> Floats:
        return expit(self.bias - self.slope * ((scores - self.center) / self.scale))


@kind(Calibrator, "isotonic")
@dataclass(frozen=True)
class Isotonic(Calibrator):
    """Isotonic regression: any decreasing shape, for a few hundred outcomes or more.

    Queries with equal scores start as one block. Probabilities are limited by the rule of succession: at most
    (n + 1)/(n + 2) for a block of n correct queries, and at least 1/(n + 2) for a block of n incorrect ones.
    Between blocks the probability is interpolated linearly.
    """

    knots: tuple[float, ...]
    levels: tuple[float, ...]
    name: ClassVar[str] = "isotonic"

    def __post_init__(self) -> None:
        super().__post_init__()
        rising = np.diff(self.knots) if len(self.knots) else np.array([-1.0])
        if len(self.knots) != len(self.levels) or (rising < 0).any() or (np.diff(self.levels) > 0).any():
            raise KappaPlaceError(
                "An isotonic calibrator needs increasing knots and decreasing levels. Fit it again."
            )

    @classmethod
    def fit(cls, scores: NDArray[np.floating], success: NDArray[np.bool_]) -> Isotonic:
        values, right = _fittable(scores, success)
        unique, group, counts = np.unique(values, return_inverse=True, return_counts=True)
        weights = counts.astype(np.float64)
        levels, ends = pool_adjacent_violators(np.bincount(group, right) / weights, weights)
        sizes = np.diff(np.cumsum(weights)[ends - 1], prepend=0.0)
        # Clipping may raise a small block of incorrect queries above its neighbor, so blocks are pooled
        # again.
        clipped = np.clip(levels, 1 / (sizes + 2), (sizes + 1) / (sizes + 2))
        levels, merged = pool_adjacent_violators(clipped, sizes)
        ends = ends[merged - 1]
        starts = np.concatenate([[0], ends[:-1]])
        knots = np.column_stack([unique[starts], unique[ends - 1]]).ravel()
        levels = np.repeat(levels, 2)
        distinct = np.concatenate([[True], np.diff(knots) > 0])  # a block of one score has two equal knots
        return cls(tuple(knots[distinct].tolist()), tuple(levels[distinct].tolist()))

    def _probability(self, scores: Floats) -> Floats:
        return np.interp(scores, self.knots, self.levels)


@kind(Calibrator, "beta")
@dataclass(frozen=True)
class Beta(Calibrator):
    """Beta calibration (Kull, Silva Filho, Flach 2017): σ(c + a·ln s − b·ln(1 − s)), a, b ≥ 0.

    For scores between 0 and 1, with s = 1 − uncertainty. Logistic calibration is optimal for scores with a
    normal distribution in each class, beta calibration for scores with a beta distribution.
    """

    a: float
    b: float
    c: float
    name: ClassVar[str] = "beta"

    @classmethod
    def fit(cls, scores: NDArray[np.floating], success: NDArray[np.bool_]) -> Beta:
        values, right = _fittable(scores, success)
        _check_unit(values, cls.name)
        columns = np.column_stack([np.ones(len(values)), *cls._logs(values)])
        c, a, b = fit_logistic(columns, smoothed_targets(right))
        return cls(float(a), float(b), float(c))

    def _probability(self, scores: Floats) -> Floats:
        _check_unit(scores, self.name)
        log_s, minus_log_rest = self._logs(scores)
        return expit(self.c + self.a * log_s + self.b * minus_log_rest)

    @staticmethod
    def _logs(uncertainty: Floats) -> tuple[Floats, Floats]:
        u = np.clip(uncertainty, LEAST, 1 - LEAST)
        return np.log1p(-u), -np.log(u)


@kind(Calibrator, "temperature")
@dataclass(frozen=True)
class Temperature(Calibrator):
    """Temperature scaling: σ(sharpness·logit(1 − uncertainty)), for scores that are 1 − a probability.

    Its one parameter is the inverse of the temperature. A probability of one half does not change.
    """

    sharpness: float
    name: ClassVar[str] = "temperature"

    @classmethod
    def fit(cls, scores: NDArray[np.floating], success: NDArray[np.bool_]) -> Temperature:
        values, right = _fittable(scores, success)
        (sharpness,) = fit_logistic(cls._logits(values)[:, None], smoothed_targets(right), free=0)
        return cls(float(sharpness))

    def _probability(self, scores: Floats) -> Floats:
        return expit(self.sharpness * self._logits(scores))

    @classmethod
    def _logits(cls, uncertainty: Floats) -> Floats:
        _check_unit(uncertainty, cls.name)
        return -logit(np.clip(uncertainty, LEAST, 1 - LEAST))


@kind(Calibrator, "logit-temperature")
@dataclass(frozen=True)
class LogitTemperature(Temperature):
    """Temperature scaling for scores that are the negative of a logit: σ(−sharpness·uncertainty)."""

    name: ClassVar[str] = "logit-temperature"

    @classmethod
    def _logits(cls, uncertainty: Floats) -> Floats:
        return -uncertainty


# Ordered from simple to flexible: of two equally good ones, the first is selected.
CALIBRATORS: dict[str, type[Calibrator]] = {
    each.name: each for each in (Logistic, Beta, Temperature, LogitTemperature, Isotonic)
}
CANDIDATES = (Logistic.name, Beta.name, Temperature.name, Isotonic.name)
"""Names of the calibrators that `best_calibrator` tries. `LogitTemperature` is excluded, because a score that
is a logit cannot be detected."""


class Choice(NamedTuple):
    """The calibrator with the least cross-validated log-loss."""

    calibrator: Calibrator
    """The calibrator, fitted on all outcomes."""
    losses: dict[str, float]
    """Mean log-loss per query on held-out folds, for each candidate that can be used with the score."""


def calibrator_named(name: str) -> type[Calibrator]:
    """Return a calibrator class by name; raise `KappaPlaceError` for an unknown name."""
    choice(name, CALIBRATORS, "calibrator")
    return CALIBRATORS[name]


def fit_calibrator(
    name: str,
    scores: NDArray[np.floating],
    success: NDArray[np.bool_],
    *,
    groups: NDArray[Any] | None = None,
    seed: int = 0,
) -> Calibrator:
    """Fit a calibrator by name.

    Args:
        name: A name of `CALIBRATORS`, or "best" for the choice of `best_calibrator`.
        scores: One uncertainty per query (or per match), N.
        success: Whether each of them is correct (N).
        groups: Group of each, such as the query of a match; cross-validation never splits a group.
        seed: Random seed for cross-validation.

    Returns:
        The fitted calibrator.
    """
    if name == "best":
        return best_calibrator(scores, success, groups=groups, seed=seed).calibrator
    return calibrator_named(name).fit(scores, success)


def best_calibrator(
    scores: NDArray[np.floating],
    success: NDArray[np.bool_],
    names: Sequence[str] = CANDIDATES,
    *,
    groups: NDArray[Any] | None = None,
    folds: int = FOLDS,
    seed: int = 0,
) -> Choice:
    """Select a calibrator by cross-validated log-loss, and fit it on all outcomes.

    Args:
        scores: One uncertainty per query (or per match), N.
        success: Whether each of them is correct (N).
        names: Candidates. Those for scores between 0 and 1 are skipped if there are other scores.
        groups: Group of each, such as the query of a match; cross-validation never splits a group.
        folds: Number of folds.
        seed: Random seed for the folds.

    Returns:
        The fitted calibrator, and the log-loss of each candidate.

    Raises:
        KappaPlaceError: If there are too few outcomes, only one kind of outcome, a constant score, or no
            usable candidate.
    """
    values, right = _fittable(scores, success)
    kinds = [calibrator_named(name) for name in names]
    if values.min() < 0 or values.max() > 1:
        kinds = [kind for kind in kinds if kind not in (Beta, Temperature)]
    if not kinds:
        raise KappaPlaceError(
            f"None of the calibrators {', '.join(names)} can be used for scores outside 0 to 1. Pass "
            "logistic or isotonic."
        )
    fold = _folds(right, groups, folds, seed)
    losses = {kind.name: _loss_on_folds(kind, values, right, fold) for kind in kinds}
    best = min(kinds, key=lambda kind: losses[kind.name])  # the first of equally good ones
    return Choice(best.fit(values, right), losses)


def _fittable(scores: Any, success: Any) -> tuple[Floats, Bools]:
    values, right = outcomes(scores, success)
    if len(values) < LEAST_QUERIES:
        raise KappaPlaceError(
            f"A calibrator needs at least {LEAST_QUERIES} outcomes, got {len(values)}. Label more queries."
        )
    if right.all() or not right.any():
        raise KappaPlaceError(
            f"A calibrator needs correct and incorrect outcomes, but all {len(right):,} are "
            f"{'correct' if right.all() else 'incorrect'}. Label other queries."
        )
    if np.ptp(values) == 0:
        raise KappaPlaceError(
            f"The uncertainty must vary, but is {values[0]:g} for all {len(values):,} outcomes. Choose "
            "another score."
        )
    return values, right


def _check_unit(scores: Floats, name: str) -> None:
    if scores.size and (scores.min() < 0 or scores.max() > 1):
        raise KappaPlaceError(
            f"The {name} calibrator needs uncertainties between 0 and 1, got {scores.min():g} to "
            f"{scores.max():g}. Choose logistic or isotonic."
        )


def _folds(right: Bools, groups: NDArray[Any] | None, folds: int, seed: int) -> NDArray[np.int64]:
    """Return the fold of each outcome; without groups, folds have equal numbers of correct outcomes."""
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(right))
    if groups is None:
        order = shuffled[np.argsort(right[shuffled], kind="stable")]
        fold = np.empty(len(right), dtype=np.int64)
        fold[order] = np.arange(len(right)) % folds
        return fold
    if np.shape(groups) != right.shape:
        raise KappaPlaceError(
            f"groups must have one value per outcome ({len(right):,}), got shape {np.shape(groups)}."
        )
    _, number = np.unique(groups, return_inverse=True)
    return rng.permutation(int(number.max()) + 1)[number] % folds


def _loss_on_folds(kind: type[Calibrator], values: Floats, right: Bools, fold: NDArray[np.int64]) -> float:
    losses = np.full(len(values), np.nan)
    for number in np.unique(fold):
        held = fold == number
        rest = ~held
        # Skip a fold if the rest cannot be fitted (for example because the only incorrect query is in it).
        if rest.sum() >= LEAST_QUERIES and 0 < right[rest].sum() < rest.sum() and np.ptp(values[rest]) > 0:
            p = np.clip(kind.fit(values[rest], right[rest]).probability(values[held]), LEAST, 1 - LEAST)
            losses[held] = -np.log(np.where(right[held], p, 1 - p))
    return np.inf if np.isnan(losses).all() else float(np.nanmean(losses))


def smoothed_targets(success: Bools) -> Floats:
    """Return Platt's targets: (N₊ + 1)/(N₊ + 2) for correct and 1/(N₋ + 2) for incorrect outcomes.

    They follow the rule of succession for each class. So the slope is finite even if a score separates the
    classes perfectly.
    """
    right = int(success.sum())
    wrong = len(success) - right
    return np.where(success, (right + 1) / (right + 2), 1 / (wrong + 2))


def fit_logistic(columns: Floats, targets: Floats, free: int = 1) -> Floats:
    """Return the coefficients c of σ(columns @ c) that minimize the log-loss. All but the first ``free`` are
    ≥ 0.

    The loss is convex, so at its minimum over non-negative slopes some slopes are 0 and the others are free.
    Every such choice is tried (there are at most two slopes), and the best feasible one is returned.
    """
    best, best_loss = np.zeros(columns.shape[1]), np.inf
    for slopes in product((True, False), repeat=columns.shape[1] - free):
        used = np.array([True] * free + list(slopes))
        coefficients = np.zeros(columns.shape[1])
        if used.any():
            coefficients[used] = newton(columns[:, used], targets)
        if (coefficients[free:] >= 0).all() and (
            loss := log_loss(columns @ coefficients, targets)
        ) < best_loss:
            best, best_loss = coefficients, loss
    return best


def pool_adjacent_violators(values: Floats, weights: Floats) -> tuple[Floats, Rows]:
    """Return the blocks of a decreasing, weighted isotonic regression: their values and last positions + 1.

    >>> pool_adjacent_violators(np.array([0.9, 0.2, 0.4, 0.1]), np.ones(4))
    (array([0.9, 0.3, 0.1]), array([1, 3, 4]))
    """
    from scipy.optimize import isotonic_regression

    fitted = isotonic_regression(values, weights=weights, increasing=False)
    return fitted.x[fitted.blocks[:-1]], fitted.blocks[1:]
