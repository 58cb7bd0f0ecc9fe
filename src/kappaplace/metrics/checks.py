"""What every metric asks of its input, said once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError


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
