"""Checks of arguments that several packages share."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.records import Hint

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rows = NDArray[np.int64]


def finite(values: npt.ArrayLike, name: str) -> Floats:
    """Return values of any shape as float64; fail if one is NaN or infinite."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise KappaPlaceError(f"The {name} must be numbers, got {type(values).__name__}.") from None
    bad = int((~np.isfinite(array)).sum())
    if bad:
        raise KappaPlaceError(f"The {name} must be finite; {bad:,} of {array.size:,} are NaN or infinite.")
    return array


def booleans(values: npt.ArrayLike, shape: tuple[int, ...], name: str) -> Bools:
    """Return values as booleans of this shape; fail for numbers, because 0.7 is neither true nor false."""
    array = np.asarray(values)
    if array.dtype != np.bool_ or array.shape != shape:
        raise KappaPlaceError(f"The {name} must be booleans {shape}, got {array.dtype} {array.shape}.")
    return array


def outcomes(scores: npt.ArrayLike, success: npt.ArrayLike) -> tuple[Floats, Bools]:
    """Return one finite score and one outcome per query, as float64 and bool; fail if there are none."""
    values = finite(scores, "scores")
    shape = np.shape(success)
    if values.ndim != 1 or not len(values) or values.shape != shape:
        raise KappaPlaceError(
            f"Expected one score and one outcome per query, got shapes {values.shape} and {shape}."
        )
    return values, booleans(success, values.shape, "outcomes (correct or incorrect)")


def checked_probabilities(
    probability: NDArray[np.floating], success: NDArray[np.bool_]
) -> tuple[Floats, Bools]:
    """Return probabilities and outcomes as `outcomes` does; fail if one is not between 0 and 1."""
    values, outcome = outcomes(probability, success)
    if values.min() < 0 or values.max() > 1:
        raise KappaPlaceError(
            f"Probabilities must be between 0 and 1, got {values.min():g} to {values.max():g}. "
            "Calibrate the scores first."
        )
    return values, outcome


def checked_hits(hits: NDArray[np.bool_], k: int, name: str) -> Bools:
    """Return the first k columns of N×K booleans; fail if there are no queries or fewer columns."""
    flags = np.asarray(hits)
    if flags.ndim != 2 or flags.dtype != np.bool_ or not len(flags):
        raise KappaPlaceError(
            f"{name} needs hits as booleans, one row per query and one column per match, "
            f"got {flags.dtype} of shape {flags.shape}."
        )
    within(k, "k", 1, flags.shape[1])
    return flags[:, :k]


def within(value: float, name: str, low: float, high: float = math.inf) -> None:
    """Fail unless a number is between two limits or equal to one of them."""
    if not low <= value <= high:
        limits = f"{low:,} or more" if high == math.inf else f"between {low:,} and {high:,}"
        raise KappaPlaceError(f"{name} must be {limits}, got {value}.")


def share(value: float, name: str, *, ends: bool = False) -> float:
    """Return a fraction; fail unless it is between 0 and 1. ``ends`` allows 0 and 1 themselves."""
    number = float(value)
    if not (0 <= number <= 1 if ends else 0 < number < 1):
        raise KappaPlaceError(f"The {name} must be between 0 and 1, got {value}.")
    return number


def choice(value: str, options: Hint, name: str) -> None:
    """Fail unless a value is one of these names, or one of the values of a ``Literal`` type."""
    names = get_args(options) or tuple(options)
    if value not in names:
        raise KappaPlaceError(f"Unknown {name} {value!r}. Choose from: {', '.join(map(str, names))}.")


def checked_seed(value: int) -> int:
    """Return a random seed that every generator accepts."""
    within(value, "seed", 0, 2**32 - 1)
    return value


def check_compared(count: int) -> None:
    """Fail if the number of matches to compare patch by patch is negative."""
    within(count, "rerank", 0)


def percent(value: float) -> str:
    """Return a fraction as a percentage.

    >>> percent(0.05), percent(0.9975)
    ('5%', '99.75%')
    """
    return f"{100 * value:.4g}%"
