"""One score, or a logistic combination of several, fitted on a validation split.

P(correct) = σ(b − Σ w_j·x_j), where x_j is the j-th score, standardized on the validation split; the
uncertainty is 1 − P. Standardization is robust: (score − median)/(IQR/1.349), clipped to ±5, so that outliers
(SUE across two cities) have little influence. Weights minimize Σ log-loss + penalty/2·‖w‖². The bias has no
penalty, so the mean probability on the validation split equals the fraction of correct queries.

With ``bends``, each score has a curve w_j·x_j + Σ_k v_jk·max(x_j − t_jk, 0) with bends at its quantiles t_jk
(an additive logistic model). The effect of a difference then depends on the value: 15% instead of 5% agreeing
patches mean more than 60% instead of 50%.

>>> rng = np.random.default_rng(0)
>>> right = rng.random(500) < 0.6
>>> noisy = np.where(right, 0.0, 1.0) + rng.normal(0, 1, 500)
>>> combination = fit_combination(noisy[:, None], right, ["noisy"])
>>> bool(abs(combination.probability(noisy[:, None]).mean() - right.mean()) < 1e-6)
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from kappaplace.checks import Bools, Floats, Rows, finite, within
from kappaplace.errors import KappaPlaceError
from kappaplace.records import optional, stored
from kappaplace.uncertainty.base import Evidence, Need, Score, Scores

CLIP = 5.0
IQR_OF_NORMAL = 1.349  # distance of the quartiles of a normal distribution, in standard deviations
BENT_PENALTY = 0.02  # penalty per query: curves have many coefficients, and smooth curves generalize better
NEWTON_STEPS = 100
TOLERANCE = 1e-10
"""The fit stops if the gradient per query is at most this large."""


@dataclass(frozen=True)
class Combination:
    """A fitted combination."""

    scores: tuple[str, ...]
    center: tuple[float, ...] = field(metadata=stored("centre"))
    scale: tuple[float, ...]
    """Scale of each score on the validation split. A constant score has scale 1 and weight 0."""
    weights: tuple[float, ...]
    """Weight of each score; positive if a higher score means a lower probability of a correct answer."""
    bias: float
    knots: tuple[tuple[float, ...], ...] = field(default=(), metadata=optional())
    """Positions of the bends of each score, in standardized units; empty for straight lines."""
    bends: tuple[tuple[float, ...], ...] = field(default=(), metadata=optional())
    """Change of the weight of each score at each of its knots."""

    def __post_init__(self) -> None:
        lengths = {len(part) for part in (self.scores, self.center, self.scale, self.weights)}
        numbers = (*self.center, *self.scale, *self.weights, self.bias)
        if (
            not self.scores
            or lengths != {len(self.scores)}
            or not np.isfinite(numbers).all()
            or min(self.scale) <= 0
        ):
            raise KappaPlaceError(
                "A combination needs a finite center, a scale above 0 and a weight for each score. Fit it "
                "again."
            )
        if [len(k) for k in self.knots] != [len(b) for b in self.bends] or (
            self.knots and len(self.knots) != len(self.scores)
        ):
            raise KappaPlaceError("A combination needs one bend for each knot of each score. Fit it again.")
        if not all(np.isfinite(part).all() for part in (*self.knots, *self.bends)):
            raise KappaPlaceError("The knots and bends of a combination must be finite. Fit it again.")

    def probability(self, features: NDArray[np.floating]) -> Scores:
        """Return the probability of a correct answer, N, for scores N×F in the order of ``scores``."""
        columns: Scores = np.asarray(features, np.float64)
        if columns.ndim != 2 or columns.shape[1] != len(self.scores):
            raise KappaPlaceError(
                f"This combination needs {len(self.scores)} scores per query ({', '.join(self.scores)}), "
                f"got an array of shape {columns.shape}."
            )
        _check_finite(columns, self.scores)
        x = _standardized(columns, np.array(self.center), np.array(self.scale))
        slopes = np.array([*self.weights, *(bend for part in self.bends for bend in part)])
        return expit(self.bias - _curves(x, self.knots) @ slopes)


def features_of(evidence: Evidence, scores: Sequence[Score]) -> Scores:
    """Return the scores of every query as columns, N×F."""
    return np.stack([score.query(evidence) for score in scores], axis=1)


def fit_combination(
    features: NDArray[np.floating],
    success: NDArray[np.bool_],
    names: Sequence[str],
    *,
    penalty: float | None = None,
    bends: int = 0,
) -> Combination:
    """Fit a combination of scores on a validation split.

    Args:
        features: Scores as columns, N×F.
        success: Whether each query was answered correctly (N).
        names: Names of the columns.
        penalty: Weight of the penalty, which keeps weights finite if the scores separate correct and
            incorrect queries perfectly. Default: 1, or 0.02 per query with ``bends``.
        bends: Number of bends per score; 0 fits straight lines.

    Returns:
        The fitted combination.

    Raises:
        KappaPlaceError: If shapes disagree, an option is out of range, a score is not finite, or all queries
            have the same outcome.
    """
    columns: Scores = np.asarray(features, np.float64)
    right = np.asarray(success, bool)
    if columns.ndim != 2 or right.shape != columns.shape[:1] or columns.shape[1] != len(names) or not names:
        raise KappaPlaceError(
            f"features must have one row per query and one column per score, got shape {columns.shape} for "
            f"{len(right)} outcomes and {len(names)} names."
        )
    within(bends, "bends", 0)
    if penalty is None:
        penalty = max(1.0, BENT_PENALTY * len(right)) if bends else 1.0
    if not 0 < penalty < np.inf:
        raise KappaPlaceError(f"The penalty on weights must be above 0 and finite, got {penalty}.")
    if right.all() or not right.any():
        kind = "none" if not len(right) else f"only {'correct' if right.all() else 'incorrect'} ones"
        raise KappaPlaceError(
            f"Combining scores needs correctly and incorrectly answered queries, got {kind}. Add the others, "
            "or use a single score."
        )
    _check_finite(columns, names)
    center, scale, constant = _robust_scale(columns)
    x = np.where(constant, 0.0, _standardized(columns, center, scale))
    knots = tuple(
        tuple(np.quantile(column, np.arange(1, bends + 1) / (bends + 1)).tolist()) for column in x.T
    )
    curves = -_curves(x, knots)
    # The part above a high knot varies little, so without scaling the penalty would suppress it.
    spread = curves.std(axis=0) if bends else np.ones(curves.shape[1])
    spread = np.where(spread > 0, spread, 1.0)
    inputs = np.column_stack([np.ones(len(x)), curves / spread])
    ridge = np.concatenate([[0.0], np.full(curves.shape[1], penalty)])
    coefficients = newton(inputs, right.astype(np.float64), ridge)
    coefficients[1:] /= spread
    weights = np.where(constant, 0.0, coefficients[1 : 1 + len(names)])
    slopes = coefficients[1 + len(names) :].reshape(len(names), bends)
    return Combination(
        tuple(names),
        tuple(center.tolist()),
        tuple(scale.tolist()),
        tuple(weights.tolist()),
        float(coefficients[0]),
        knots if bends else (),
        tuple(map(tuple, slopes.tolist())) if bends else (),
    )


def fused(
    combination: Combination, scores: Mapping[str, Score] | None = None, *, name: str = "fused"
) -> Score:
    """Return a fitted combination as a `Score`.

    Args:
        combination: The combination.
        scores: Scores by name. Default: all of `kappaplace.uncertainty`.
        name: Name of the new score.

    Returns:
        The score; its uncertainty is 1 − probability.

    Raises:
        KappaPlaceError: If the combination contains an unknown score.
    """
    if scores is None:
        from kappaplace.uncertainty import SCORES

        scores = SCORES
    unknown = [part for part in combination.scores if part not in scores]
    if unknown:
        raise KappaPlaceError(
            f"The combination contains unknown scores ({', '.join(unknown)}). Choose from: "
            f"{', '.join(scores)}."
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
            f"The score {names[int(np.argmax(bad))]} is NaN or infinite for some queries. Omit this score."
        )


def _robust_scale(features: Scores) -> tuple[Scores, Scores, NDArray[np.bool_]]:
    """Return median, spread, and which columns are constant."""
    low, center, high = np.percentile(features, [25, 50, 75], axis=0)
    iqr, deviation = (high - low) / IQR_OF_NORMAL, features.std(axis=0)
    # If more than half of the values are equal (SUE of a single place), use the standard deviation.
    scale = np.where(iqr > 0, iqr, deviation)
    constant = np.ptp(features, axis=0) == 0
    return center, np.where(constant | (scale <= 0), 1.0, scale), constant


def _standardized(features: Scores, center: Scores, scale: Scores) -> Scores:
    return np.clip((features - center) / scale, -CLIP, CLIP)


def _curves(x: Scores, knots: Sequence[Sequence[float]]) -> Scores:
    """Return the columns, followed by the part of each column above each of its knots."""
    above = [np.maximum(x[:, j] - knot, 0.0) for j, part in enumerate(knots) for knot in part]
    return np.column_stack([x, *above])


@dataclass(frozen=True)
class Signal:
    """An uncertainty: one score, or a combination of several."""

    scores: tuple[str, ...]
    combination: Combination | None = None
    """Combination of the scores. None for a single score, which is used unchanged."""

    def __post_init__(self) -> None:
        if not self.scores or (self.combination is None and len(self.scores) > 1):
            raise KappaPlaceError("Pass one score, or several scores with a combination.")
        if self.combination is not None and self.combination.scores != self.scores:
            raise KappaPlaceError(
                f"The combination was fitted on {', '.join(self.combination.scores)}, but the scores are "
                f"{', '.join(self.scores)}. Fit it again."
            )

    def uncertainty(self, features: Any, dimensions: int) -> Floats:
        """Return the uncertainty of each query or match.

        Args:
            features: Scores, with one more dimension for the names of the scores; optional for one score.
            dimensions: 1 for queries, 2 for matches.

        Returns:
            Uncertainties with ``dimensions`` dimensions; higher is less certain.
        """
        values = finite(features, f"scores ({', '.join(self.scores)})")
        if values.ndim == dimensions and len(self.scores) == 1:
            values = values[..., None]
        if values.ndim != dimensions + 1 or values.shape[-1] != len(self.scores):
            raise KappaPlaceError(
                f"This calibration needs {len(self.scores)} scores ({', '.join(self.scores)}) as the last of "
                f"{dimensions + 1} dimensions, got shape {values.shape}. Pass one column per score."
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
    """Return the signal of some scores. A missing combination of several scores is fitted on these rows."""
    if combination is None and len(scores) > 1:
        columns = finite(features, f"scores ({', '.join(scores)})")
        if columns.shape != (*success.shape, len(scores)):
            raise KappaPlaceError(
                f"The scores must have shape {(*success.shape, len(scores))}, got {columns.shape}. Pass one "
                "name per column."
            )
        combination = fit_combination(
            columns[rows].reshape(-1, len(scores)), success[rows].ravel(), list(scores)
        )
    signal = Signal(scores, combination)
    if signal.uncertainty(features, dimensions).shape != success.shape:
        raise KappaPlaceError(
            f"features must have one score per outcome ({success.shape}), got shape {np.shape(features)}."
        )
    return signal


def newton(x: Floats, targets: Floats, ridge: Floats | None = None) -> Floats:
    """Minimize the log-loss plus Σ ridge/2·c² by Newton's method. Steps are halved until the loss decreases.

    Args:
        x: Columns, N×F.
        targets: Targets between 0 and 1 (N).
        ridge: Penalty per coefficient, F. Default: none.

    Returns:
        Coefficients of σ(x @ c), F.
    """
    beta = np.zeros(x.shape[1])
    penalty = np.zeros(x.shape[1]) if ridge is None else ridge

    def loss(coefficients: Floats) -> float:
        return log_loss(x @ coefficients, targets) + float(penalty @ coefficients**2) / 2

    current = loss(beta)
    for _ in range(NEWTON_STEPS):
        p = expit(x @ beta)
        gradient = x.T @ (p - targets) + penalty * beta
        if np.abs(gradient).max() <= TOLERANCE * len(targets):
            break
        hessian = (x * (p * (1 - p))[:, None]).T @ x + np.diag(penalty)
        # The diagonal is slightly larger, because columns may be nearly parallel and the curvature may
        # vanish.
        step = np.linalg.solve(hessian + 1e-12 * len(targets) * np.eye(len(beta)), gradient)
        length, following = 1.0, loss(beta - step)
        while following > current and length > 1e-10:
            length /= 2
            following = loss(beta - length * step)
        if following >= current:
            break  # rounding: no step decreases the loss
        beta, current = beta - length * step, following
    return beta


def log_loss(logits: Floats, targets: Floats) -> float:
    """Return the sum of the log-loss over all queries."""
    return float(np.logaddexp(0.0, logits).sum() - targets @ logits)
