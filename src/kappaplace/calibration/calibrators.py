"""From an uncertainty to the probability of being right: four calibrators behind one interface.

    calibrator = Logistic.fit(uncertainty, right)          # or best_calibrator(uncertainty, right).calibrator
    calibrator.probability(new_uncertainty)

The same calibrators serve both questions: "is the top match right?" (one score a query) and "is this pair
right?" (one score a match). All of them fall, or stay level, as the uncertainty grows: a score that ranks
the wrong way round gets one probability for all rather than a reversed one.

>>> rng = np.random.default_rng(0)
>>> uncertainty = rng.random(400)
>>> right = rng.random(400) > uncertainty
>>> [round(float(p), 1) for p in Logistic.fit(uncertainty, right).probability([0.1, 0.5, 0.9])]
[0.9, 0.5, 0.1]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from kappaplace.calibration.logistic import fit_logistic, pool_adjacent_violators, smoothed_targets
from kappaplace.checks import Bools, Floats, finite, outcomes
from kappaplace.errors import KappaPlaceError
from kappaplace.records import kind

LEAST_QUERIES = 10
"""Fewer outcomes than this say next to nothing about a probability."""
LEAST = 1e-9
"""Scores that must lie in (0, 1) are kept this far from its ends, so that their logarithms are finite."""
FOLDS = 5


@dataclass(frozen=True)
class Calibrator(ABC):
    """A fitted, falling function from uncertainty to probability."""

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def fit(cls, scores: NDArray[np.floating], success: NDArray[np.bool_]) -> Calibrator:
        """From one uncertainty and one outcome a query (or a pair)."""

    @abstractmethod
    def _probability(self, scores: Floats) -> Floats: ...

    def probability(self, scores: Any) -> Floats:
        """Of being right, for uncertainties of any shape."""
        return self._probability(finite(scores, "uncertainties"))

    def __post_init__(self) -> None:
        for part in fields(self):
            what, several = f"{part.name} of a {self.name} calibrator", str(part.type).startswith("tuple")
            if finite(getattr(self, part.name), what).ndim != several:
                raise KappaPlaceError(
                    f"The {what} must be {'a list' if several else 'one number'}; fit it again."
                )


@kind(Calibrator, "logistic")
@dataclass(frozen=True)
class Logistic(Calibrator):
    """Platt scaling: σ(bias − slope·x), x = (score − centre)/scale, slope ≥ 0, with Platt's targets."""

    centre: float
    scale: float
    slope: float
    bias: float
    name: ClassVar[str] = "logistic"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale <= 0 or self.slope < 0:
            raise KappaPlaceError("A logistic calibrator needs a scale above 0 and no negative slope.")

    @classmethod
    def fit(cls, scores: NDArray[np.floating], success: NDArray[np.bool_]) -> Logistic:
        values, right = _fittable(scores, success)
        centre, scale = float(values.mean()), float(values.std())
        x = (values - centre) / scale
        bias, slope = fit_logistic(np.column_stack([np.ones(len(x)), -x]), smoothed_targets(right))
        return cls(centre, scale, float(slope), float(bias))

    def _probability(self, scores: Floats) -> Floats:
        return expit(self.bias - self.slope * ((scores - self.centre) / self.scale))


@kind(Calibrator, "isotonic")
@dataclass(frozen=True)
class Isotonic(Calibrator):
    """Isotonic regression (pool adjacent violators): any falling shape, for a few hundred outcomes or more.

    Queries of equal score form one block from the start. A block of n queries that are all right says at
    most (n + 1)/(n + 2), all wrong at least 1/(n + 2) (the rule of succession): no probability is 0 or 1
    beyond what the counts support. Between blocks the probability runs in a straight line.
    """

    knots: tuple[float, ...]
    levels: tuple[float, ...]
    name: ClassVar[str] = "isotonic"

    def __post_init__(self) -> None:
        super().__post_init__()
        rising = np.diff(self.knots) if len(self.knots) else np.array([-1.0])
        if len(self.knots) != len(self.levels) or (rising < 0).any() or (np.diff(self.levels) > 0).any():
            raise KappaPlaceError(
                "An isotonic calibrator needs rising knots with falling levels; fit it again."
            )

    @classmethod
    def fit(cls, scores: NDArray[np.floating], success: NDArray[np.bool_]) -> Isotonic:
        values, right = _fittable(scores, success)
        unique, group, counts = np.unique(values, return_inverse=True, return_counts=True)
        weights = counts.astype(np.float64)
        levels, ends = pool_adjacent_violators(np.bincount(group, right) / weights, weights)
        sizes = np.diff(np.cumsum(weights)[ends - 1], prepend=0.0)
        # Clipping may lift a small block of wrong ones above its neighbour: pool those once more.
        clipped = np.clip(levels, 1 / (sizes + 2), (sizes + 1) / (sizes + 2))
        levels, merged = pool_adjacent_violators(clipped, sizes)
        ends = ends[merged - 1]
        starts = np.concatenate([[0], ends[:-1]])
        knots = np.column_stack([unique[starts], unique[ends - 1]]).ravel()
        levels = np.repeat(levels, 2)
        # A block of one score would give the same knot twice.
        kept = np.concatenate([[True], np.diff(knots) > 0])
        return cls(tuple(knots[kept].tolist()), tuple(levels[kept].tolist()))

    def _probability(self, scores: Floats) -> Floats:
        return np.interp(scores, self.knots, self.levels)


@kind(Calibrator, "beta")
@dataclass(frozen=True)
class Beta(Calibrator):
    """Beta calibration (Kull, Silva Filho, Flach 2017): σ(c + a·ln s − b·ln(1 − s)), a, b ≥ 0.

    For scores between 0 and 1, with s = 1 − uncertainty. It is what logistic calibration is for scores that
    are normal in each class, for scores that are beta-distributed in each class.
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

    One parameter, the inverse of the temperature: it sharpens or flattens, and leaves one half where it is.
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
    """The same for scores that are minus a logit: σ(−sharpness·uncertainty)."""

    name: ClassVar[str] = "logit-temperature"

    @classmethod
    def _logits(cls, uncertainty: Floats) -> Floats:
        return -uncertainty


# From the simplest to the most flexible: where two do as well, the first is taken.
CALIBRATORS: dict[str, type[Calibrator]] = {
    each.name: each for each in (Logistic, Beta, Temperature, LogitTemperature, Isotonic)
}
CANDIDATES = (Logistic.name, Beta.name, Temperature.name, Isotonic.name)
"""Those that `best_calibrator` tries; whether a score is a logit cannot be seen from its values."""


class Choice(NamedTuple):
    """The calibrator with the least cross-validated log-loss."""

    calibrator: Calibrator
    """Fitted on all outcomes."""
    losses: dict[str, float]
    """Mean log-loss a query on folds that the fit had not seen, of each candidate that fits the score."""


def calibrator_named(name: str) -> type[Calibrator]:
    """A kind of calibrator by its name; an unknown one is answered with those known."""
    try:
        return CALIBRATORS[name]
    except KeyError:
        raise KappaPlaceError(
            f"Unknown calibrator '{name}'; choose among: {', '.join(CALIBRATORS)}."
        ) from None


def fit_calibrator(
    name: str,
    scores: NDArray[np.floating],
    success: NDArray[np.bool_],
    *,
    groups: NDArray[Any] | None = None,
    seed: int = 0,
) -> Calibrator:
    """The named calibrator, or with "best" the one that `best_calibrator` chooses."""
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
    """Choose by cross-validated log-loss and fit the chosen one on all outcomes.

    Candidates that want scores between 0 and 1 are left out for other scores. ``groups`` keeps what belongs
    together in one fold: the pairs of one query.
    """
    values, right = _fittable(scores, success)
    kinds = [calibrator_named(name) for name in names]
    if values.min() < 0 or values.max() > 1:
        kinds = [kind for kind in kinds if kind not in (Beta, Temperature)]
    if not kinds:
        raise KappaPlaceError(f"None of the calibrators {', '.join(names)} fits scores outside 0 to 1.")
    fold = _folds(right, groups, folds, seed)
    losses = {kind.name: _loss_on_folds(kind, values, right, fold) for kind in kinds}
    chosen = min(kinds, key=lambda kind: losses[kind.name])  # the first of equals
    return Choice(chosen.fit(values, right), losses)


def _fittable(scores: Any, success: Any) -> tuple[Floats, Bools]:
    values, right = outcomes(scores, success)
    if len(values) < LEAST_QUERIES:
        raise KappaPlaceError(
            f"A calibrator needs at least {LEAST_QUERIES} outcomes, got {len(values)}; label more queries."
        )
    if right.all() or not right.any():
        raise KappaPlaceError(
            f"All {len(right):,} outcomes are {'right' if right.all() else 'wrong'}; a calibrator needs "
            "right and wrong ones."
        )
    if np.ptp(values) == 0:
        raise KappaPlaceError(
            f"The uncertainty is {values[0]:g} for all {len(values):,} outcomes; a constant score cannot be "
            "calibrated, choose another."
        )
    return values, right


def _check_unit(scores: Floats, name: str) -> None:
    if scores.size and (scores.min() < 0 or scores.max() > 1):
        raise KappaPlaceError(
            f"The {name} calibrator needs uncertainties between 0 and 1, got {scores.min():g} to "
            f"{scores.max():g}; choose logistic or isotonic."
        )


def _folds(right: Bools, groups: NDArray[Any] | None, folds: int, seed: int) -> NDArray[np.int64]:
    """The fold of each outcome. Without groups each fold holds as many right ones as any other."""
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(right))
    if groups is None:
        order = shuffled[np.argsort(right[shuffled], kind="stable")]
        fold = np.empty(len(right), dtype=np.int64)
        fold[order] = np.arange(len(right)) % folds
        return fold
    if np.shape(groups) != right.shape:
        raise KappaPlaceError(
            f"Groups name the group of each of {len(right):,} outcomes, got {np.shape(groups)}."
        )
    _, number = np.unique(groups, return_inverse=True)
    return rng.permutation(int(number.max()) + 1)[number] % folds


def _loss_on_folds(kind: type[Calibrator], values: Floats, right: Bools, fold: NDArray[np.int64]) -> float:
    losses = np.full(len(values), np.nan)
    for number in np.unique(fold):
        held = fold == number
        rest = ~held
        # A fold that leaves nothing to learn from (one wrong query in all) tells nothing about a candidate.
        if rest.sum() >= LEAST_QUERIES and 0 < right[rest].sum() < rest.sum() and np.ptp(values[rest]) > 0:
            p = np.clip(kind.fit(values[rest], right[rest]).probability(values[held]), LEAST, 1 - LEAST)
            losses[held] = -np.log(np.where(right[held], p, 1 - p))
    return np.inf if np.isnan(losses).all() else float(np.nanmean(losses))
