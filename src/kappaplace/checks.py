"""What every part of the calibration asks of its input, said once.

What every metric asks of its input, said once.
"""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.records import Hint

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rows = NDArray[np.int64]


def finite(values: Any, what: str) -> Floats:
    """The values as float64, of any shape; NaN and infinity are refused."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise KappaPlaceError(f"The {what} must be numbers, got {type(values).__name__}.") from None
    if not np.isfinite(array).all():
        bad = int((~np.isfinite(array)).sum())
        raise KappaPlaceError(
            f"The {what} must be finite, {bad:,} of {array.size:,} are NaN or infinite; leave those out."
        )
    return array


def booleans(values: Any, shape: tuple[int, ...], what: str) -> Bools:
    """The values as booleans of this shape; numbers are refused, for 0.7 is neither right nor wrong."""
    array = np.asarray(values)
    if array.dtype != np.bool_ or array.shape != shape:
        raise KappaPlaceError(
            f"The {what} must be booleans of shape {shape}, got {array.dtype} of shape {array.shape}."
        )
    return array


def outcomes(scores: Any, success: Any) -> tuple[Floats, Bools]:
    """One finite score and one outcome a query, not empty."""
    values = finite(scores, "uncertainties")
    if values.ndim != 1 or not len(values):
        raise KappaPlaceError(f"Calibration needs one uncertainty a query, got the shape {values.shape}.")
    return values, booleans(success, values.shape, "outcomes (right or wrong)")


def share(value: float, what: str, *, ends: bool = False) -> float:
    """A number between 0 and 1; the ends themselves only where they make sense."""
    number = float(value)
    if not (0 <= number <= 1 if ends else 0 < number < 1):
        raise KappaPlaceError(f"The {what} must lie between 0 and 1, got {value}.")
    return number


def choice(value: str, options: Hint, name: str) -> None:
    """Fail unless the value is one of a closed set.

    Args:
        value: The value.
        options: A ``Literal`` type.
        name: Name of the set, for the message.

    Raises:
        KappaPlaceError: If the value is another one.
    """
    names = get_args(options)
    if value not in names:
        raise KappaPlaceError(f"Unknown {name} {value!r}. Choose from: {', '.join(map(str, names))}.")


def checked_seed(value: int) -> int:
    """A start for random numbers that every generator takes."""
    if not 0 <= value < 2**32:
        raise KappaPlaceError(f"A seed is a whole number from 0 to {2**32 - 1:,}, got {value}.")
    return value


def percent(value: float) -> str:
    """A share as people write it.

    >>> percent(0.05), percent(0.9975)
    ('5 %', '99.75 %')
    """
    return f"{100 * value:.4g} %"


def checked_scores(
    scores: NDArray[np.floating], success: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The same two arrays as float64 and bool, of one length, not empty, all finite."""
    values = np.asarray(scores, dtype=np.float64)
    outcome = np.asarray(success)
    if values.shape != outcome.shape or values.ndim != 1 or not len(values):
        raise KappaPlaceError(
            f"Metrics need one score and one outcome a query, got {values.shape} and {outcome.shape}."
        )
    if outcome.dtype != np.bool_:
        raise KappaPlaceError(f"Metrics need success as booleans, got {outcome.dtype}.")
    if not np.isfinite(values).all():
        raise KappaPlaceError("Metrics need finite scores, some are NaN or infinite; check the model.")
    return values, outcome


def checked_probabilities(
    probability: NDArray[np.floating], success: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """As ``checked_scores``, and every score is a probability."""
    values, outcome = checked_scores(probability, success)
    if values.min() < 0 or values.max() > 1:
        raise KappaPlaceError(
            f"Probabilities lie between 0 and 1, got {values.min():g} to {values.max():g}; calibrate first."
        )
    return values, outcome


def checked_hits(hits: NDArray[np.bool_], k: int, name: str) -> NDArray[np.bool_]:
    """The first k columns of N×K booleans with at least one query."""
    flags = np.asarray(hits)
    if flags.ndim != 2 or flags.dtype != np.bool_ or not len(flags):
        raise KappaPlaceError(
            f"{name} needs hits as booleans, queries × matches and not empty, "
            f"got the shape {flags.shape} of {flags.dtype}."
        )
    if not 1 <= k <= flags.shape[1]:
        raise KappaPlaceError(f"{name} needs the {k} best matches, {flags.shape[1]} are given.")
    return flags[:, :k]


def check_compared(count: int) -> None:
    """Refuse a number of matches to compare that is none."""
    if count < 0:
        raise KappaPlaceError(f"A number of matches to compare cell by cell is 0 or more, not {count}.")
