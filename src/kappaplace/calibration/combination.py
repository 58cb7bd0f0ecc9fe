"""Fused: a logistic combination of any scores, fitted on a validation split.

P(right) = σ(b − Σ w_j·x_j), with x_j the j-th score standardised on the validation split; the uncertainty is
1 − P. Standardising is robust: (score − median)/(IQR/1.349), clipped to ±5, so that one wild value (SUE of
two cities) moves nothing. Weights come from penalised maximum likelihood, Σ log-loss + penalty/2·‖w‖²; the
bias is not penalised, so the mean probability on the validation split equals the share of right queries.

With ``bends`` each score has its own curve instead of a line: w_j·x_j + Σ_k v_jk·max(x_j − t_jk, 0), bent at
its quantiles t_jk (an additive logistic model). A line says that a step in a score always means the same;
agreement of 60 instead of 50 cells in a hundred says much less than 15 instead of 5.

>>> rng = np.random.default_rng(0)
>>> right = rng.random(500) < 0.6
>>> noisy = np.where(right, 0.0, 1.0) + rng.normal(0, 1, 500)
>>> combination = fit_combination(noisy[:, None], right, ["noisy"])
>>> bool(abs(combination.probability(noisy[:, None]).mean() - right.mean()) < 1e-6)
True

One score, or several combined: what a calibrator is fitted on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from kappaplace.checks import Bools, Floats, Rows, finite
from kappaplace.errors import KappaPlaceError
from kappaplace.records import optional
from kappaplace.uncertainty.base import Evidence, Need, Score, Scores

CLIP = 5.0
IQR_OF_NORMAL = 1.349  # quartiles of a normal distribution lie this many deviations apart
NEWTON_STEPS = 100
TOLERANCE = 1e-9  # of the gradient, a query
BENT_PENALTY = (
    0.02  # a query: curves have many coefficients, and a shape that holds elsewhere is a smooth one
)


@dataclass(frozen=True)
class Combination:
    """A fitted combination."""

    scores: tuple[str, ...]
    centre: tuple[float, ...]
    scale: tuple[float, ...]
    """Per score, on the validation split; a score that was constant there has scale 1 and weight 0."""
    weights: tuple[float, ...]
    """Positive where more of the score means less chance to be right."""
    bias: float
    knots: tuple[tuple[float, ...], ...] = field(default=(), metadata=optional())
    """Where each score's line bends, in standardised units; empty for straight lines."""
    bends: tuple[tuple[float, ...], ...] = field(default=(), metadata=optional())
    """By how much the weight changes there."""

    def __post_init__(self) -> None:
        lengths = {len(part) for part in (self.scores, self.centre, self.scale, self.weights)}
        numbers = (*self.centre, *self.scale, *self.weights, self.bias)
        if (
            not self.scores
            or lengths != {len(self.scores)}
            or not np.isfinite(numbers).all()
            or min(self.scale) <= 0
        ):
            raise KappaPlaceError(
                "A combination needs one finite centre, scale above 0 and weight for each of its scores; "
                "fit it again."
            )
        if [len(k) for k in self.knots] != [len(b) for b in self.bends] or (
            self.knots and len(self.knots) != len(self.scores)
        ):
            raise KappaPlaceError("A combination needs one bend for each knot of each score; fit it again.")
        if not all(np.isfinite(part).all() for part in (*self.knots, *self.bends)):
            raise KappaPlaceError("A combination's knots and bends must be finite; fit it again.")

    def probability(self, features: NDArray[np.floating]) -> Scores:
        """Of being right, N, from the scores as columns N×F in the order of ``scores``."""
        columns: Scores = np.asarray(features, np.float64)
        if columns.ndim != 2 or columns.shape[1] != len(self.scores):
            raise KappaPlaceError(
                f"This combination takes {len(self.scores)} scores a query ({', '.join(self.scores)}), "
                f"got an array of shape {columns.shape}."
            )
        _check_finite(columns, self.scores)
        x = _standardised(columns, np.array(self.centre), np.array(self.scale))
        slopes = np.array([*self.weights, *(bend for part in self.bends for bend in part)])
        return expit(self.bias - _curves(x, self.knots) @ slopes)


def features_of(evidence: Evidence, scores: Sequence[Score]) -> Scores:
    """The scores of every query as columns, N×F; stack those of several sets to fit on all of them."""
    return np.stack([score.query(evidence) for score in scores], axis=1)


def fit_combination(
    features: NDArray[np.floating],
    success: NDArray[np.bool_],
    names: Sequence[str],
    *,
    penalty: float | None = None,
    bends: int = 0,
) -> Combination:
    """Fit on a validation split: scores as columns N×F, whether each query is right, names of the columns.

    ``penalty`` is 1 unless given, with bends 0.02 a query. Classes that the scores separate perfectly get
    finite weights, thanks to it. With only right or only wrong queries there is nothing to learn from, and it
    refuses.
    """
    columns: Scores = np.asarray(features, np.float64)
    right = np.asarray(success, bool)
    if columns.ndim != 2 or right.shape != columns.shape[:1] or columns.shape[1] != len(names) or not names:
        raise KappaPlaceError(
            f"A combination is fitted on one row a query and one column a score: got {columns.shape} for "
            f"{len(right)} outcomes and {len(names)} names."
        )
    if bends < 0:
        raise KappaPlaceError(f"The number of bends must be 0 or more, got {bends}.")
    if penalty is None:
        penalty = max(1.0, BENT_PENALTY * len(right)) if bends else 1.0
    if not 0 < penalty < np.inf:
        raise KappaPlaceError(f"The penalty on weights must be above 0 and finite, got {penalty}.")
    if right.all() or not right.any():
        kind = "none" if not len(right) else f"only {'correct' if right.all() else 'incorrect'} ones"
        raise KappaPlaceError(
            f"Combining scores needs correctly and incorrectly answered queries, got {kind}. Add the "
            f"others, or use "
            "a single score."
        )
    _check_finite(columns, names)
    centre, scale, constant = _robust_scale(columns)
    x = np.where(constant, 0.0, _standardised(columns, centre, scale))
    knots = tuple(
        tuple(np.quantile(column, np.arange(1, bends + 1) / (bends + 1)).tolist()) for column in x.T
    )
    curves = -_curves(x, knots)
    # The part above a high knot hardly varies: measured by its own spread, the penalty does not forbid it.
    spread = curves.std(axis=0) if bends else np.ones(curves.shape[1])
    spread = np.where(spread > 0, spread, 1.0)
    coefficients = _logistic(
        np.column_stack([np.ones(len(x)), curves / spread]), right.astype(np.float64), penalty
    )
    coefficients[1:] /= spread
    weights = np.where(constant, 0.0, coefficients[1 : 1 + len(names)])
    slopes = coefficients[1 + len(names) :].reshape(len(names), bends)
    return Combination(
        tuple(names),
        tuple(centre.tolist()),
        tuple(scale.tolist()),
        tuple(weights.tolist()),
        float(coefficients[0]),
        knots if bends else (),
        tuple(map(tuple, slopes.tolist())) if bends else (),
    )


def fused(
    combination: Combination, scores: Mapping[str, Score] | None = None, *, name: str = "fused"
) -> Score:
    """A fitted combination as a score like any other; ``scores`` are those it may name, by default all."""
    if scores is None:
        from kappaplace.uncertainty import SCORES

        scores = SCORES
    unknown = [part for part in combination.scores if part not in scores]
    if unknown:
        raise KappaPlaceError(
            f"The combination names unknown scores {', '.join(unknown)}; known: {', '.join(scores)}."
        )
    parts = [scores[part] for part in combination.scores]

    def query(evidence: Evidence) -> Scores:
        return 1.0 - combination.probability(features_of(evidence, parts))

    needs: dict[Need, None] = {need: None for part in parts for need in part.needs}
    label = "Fused" if name == "fused" else name
    return Score(name, label, query, needs=tuple(needs), one_sided=False)


def _check_finite(features: Scores, names: Sequence[str]) -> None:
    bad = ~np.isfinite(features).all(axis=0)
    if bad.any():
        raise KappaPlaceError(
            f"The score {names[int(np.argmax(bad))]} is NaN or infinite for some queries; leave it out."
        )


def _robust_scale(features: Scores) -> tuple[Scores, Scores, NDArray[np.bool_]]:
    """Median, spread, and which columns never change."""
    low, centre, high = np.percentile(features, [25, 50, 75], axis=0)
    iqr, deviation = (high - low) / IQR_OF_NORMAL, features.std(axis=0)
    # More than half of the values may be equal (SUE of a single place): the deviation still tells a scale.
    scale = np.where(iqr > 0, iqr, deviation)
    constant = np.ptp(features, axis=0) == 0
    return centre, np.where(constant | (scale <= 0), 1.0, scale), constant


def _standardised(features: Scores, centre: Scores, scale: Scores) -> Scores:
    return np.clip((features - centre) / scale, -CLIP, CLIP)


def _curves(x: Scores, knots: Sequence[Sequence[float]]) -> Scores:
    """The columns, and beside them how far each lies above each of its knots."""
    above = [np.maximum(x[:, j] - knot, 0.0) for j, part in enumerate(knots) for knot in part]
    return np.column_stack([x, *above])


def _logistic(x: Scores, y: Scores, penalty: float) -> Scores:
    """Newton's method with halved steps; the first column is the bias and goes unpenalised."""
    ridge = np.full(x.shape[1], penalty)
    ridge[0] = 0.0
    beta = np.zeros(x.shape[1])

    def loss(b: Scores) -> float:
        z = x @ b
        return float(np.logaddexp(0.0, z).sum() - y @ z + (ridge * b * b).sum() / 2)

    current = loss(beta)
    for _ in range(NEWTON_STEPS):
        p = expit(x @ beta)
        gradient = x.T @ (p - y) + ridge * beta
        if np.abs(gradient).max() <= TOLERANCE * len(y):
            break
        hessian = (x * (p * (1 - p))[:, None]).T @ x + np.diag(ridge)
        # A hair on the diagonal: the bias has no penalty, and its curvature may vanish on the way.
        step = np.linalg.solve(hessian + 1e-12 * len(y) * np.eye(len(beta)), gradient)
        length, following = 1.0, loss(beta - step)
        while following > current and length > 1e-8:
            length /= 2
            following = loss(beta - length * step)
        beta, current = beta - length * step, following
    return beta


@dataclass(frozen=True)
class Signal:
    """One score, or several combined, as one uncertainty."""

    scores: tuple[str, ...]
    combination: Combination | None = None
    """None for a single score, which is taken as it is."""

    def __post_init__(self) -> None:
        if not self.scores or (self.combination is None and len(self.scores) > 1):
            raise KappaPlaceError("A calibration is of one score, or of a combination of several.")
        if self.combination is not None and self.combination.scores != self.scores:
            raise KappaPlaceError(
                f"The combination is of {', '.join(self.combination.scores)}, "
                f"not of {', '.join(self.scores)}."
            )

    def uncertainty(self, features: Any, dimensions: int) -> Floats:
        """From features with these dimensions, and one more for the scores (not needed for a single one)."""
        values = finite(features, f"scores ({', '.join(self.scores)})")
        if values.ndim == dimensions and len(self.scores) == 1:
            values = values[..., None]
        if values.ndim != dimensions + 1 or values.shape[-1] != len(self.scores):
            raise KappaPlaceError(
                f"This calibration takes {len(self.scores)} scores ({', '.join(self.scores)}) as the last of "
                f"{dimensions + 1} dimensions, got the shape {values.shape}."
            )
        if self.combination is None:
            return values[..., 0]
        flat = values.reshape(-1, len(self.scores))
        return (1.0 - self.combination.probability(flat)).reshape(values.shape[:-1])


def fit_signal(
    features: Any,
    success: Bools,
    scores: tuple[str, ...],
    combination: Combination | None,
    rows: Rows,
    dimensions: int,
) -> Signal:
    """A combination fitted on these rows where there are several scores; a single one is taken as it is."""
    if combination is None and len(scores) > 1:
        columns = finite(features, f"scores ({', '.join(scores)})")
        if columns.shape != (*success.shape, len(scores)):
            raise KappaPlaceError(
                f"The scores of {success.shape} outcomes and {len(scores)} names have the shape "
                f"{columns.shape}; give one column a name."
            )
        combination = fit_combination(
            columns[rows].reshape(-1, len(scores)), success[rows].ravel(), list(scores)
        )
    signal = Signal(scores, combination)
    if signal.uncertainty(features, dimensions).shape != success.shape:
        raise KappaPlaceError(
            f"The scores have the shape {np.shape(features)} for {success.shape} outcomes; give as many."
        )
    return signal
