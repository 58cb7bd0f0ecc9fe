"""Self-calibration without labels: each degraded reference is queried twice.

- *from inside the map*: without itself and its capture burst, so that what remains within the radius are its
  positives and where nothing remains, the query is one from outside the map; or with all of them present;
- *without everything within the radius*: a query from outside the map, nothing can be right.

Whoever has the map gives one row of similarities a degraded reference, and two masks over that row. This file
turns them into queries with outcomes, ready for `fit_calibration`. Pure arrays, in blocks of rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.checks import Bools, Rows, booleans, finite
from kappaplace.errors import KappaPlaceError
from kappaplace.types import Matches


class SelfQueries(NamedTuple):
    """Queries made of degraded references: M ≤ 2B of them, first those from inside."""

    rows: Rows
    """Row of the block that each query came from."""
    similarities: NDArray[np.floating]
    """M×R; −inf where a reference was taken out."""
    positives: Bools
    """M×R: references that are right answers; never one that was taken out."""
    outside: Bools
    """M: no positive remains in the map."""
    without_place: Bools
    """M: of the second kind, everything within the radius was taken out."""

    def top(self, k: int) -> tuple[Matches, Bools]:
        """The k best references of each query, best first, and whether each is a positive (M×k).

        Equal similarities go by the number of the reference. A query with fewer than k references left is
        refused: choose a smaller k.
        """
        left = np.isfinite(self.similarities).sum(axis=1)
        fewest = int(left.min()) if len(left) else 0
        if k < 1 or k > fewest:
            raise KappaPlaceError(
                f"{k} matches were asked for, but some queries have {fewest} references left without their "
                "own place; ask for fewer, or leave those queries out."
            )
        order = np.argsort(-self.similarities, axis=1, kind="stable")[:, :k]
        best = np.take_along_axis(self.similarities, order, axis=1)
        hits = np.take_along_axis(self.positives, order, axis=1)
        return Matches(order.astype(np.int64), best.astype(np.float32)), hits


def self_queries(
    similarities: NDArray[np.floating],
    burst: NDArray[np.bool_],
    near: NDArray[np.bool_],
    *,
    present: NDArray[np.bool_] | None = None,
    at_least: int = 1,
) -> SelfQueries:
    """Both kinds of queries from B degraded references.

    ``similarities`` is B×R, ``burst`` marks each reference itself and its capture burst, ``near`` all within
    the radius (itself too). ``present`` (B) marks those that ask from inside with nothing taken out: their
    image must have been altered. Queries with fewer than ``at_least`` references left are dropped.

    >>> sims = np.array([[0.9, 0.8, 0.3]])
    >>> made = self_queries(sims, np.array([[True, False, False]]), np.array([[True, True, False]]))
    >>> made.similarities
    array([[-inf,  0.8,  0.3],
           [-inf, -inf,  0.3]])
    >>> made.outside
    array([False,  True])
    """
    values = np.asarray(similarities)
    if values.ndim != 2:
        raise KappaPlaceError(f"Similarities are one row a degraded reference, got the shape {values.shape}.")
    finite(values, "similarities")
    in_burst = booleans(burst, values.shape, "marks of the capture burst")
    in_radius = booleans(near, values.shape, "marks of the radius")
    if not in_burst.any(axis=1).all():
        raise KappaPlaceError(
            "Some rows mark nothing as their capture burst; it holds at least the reference itself."
        )
    block = np.arange(len(values))
    alone = (
        np.ones(len(values), bool)
        if present is None
        else ~booleans(present, (len(values),), "marks of presence")
    )
    gone = in_burst & alone[:, None]
    removed = np.concatenate([gone, in_burst | in_radius])
    masked = np.where(removed, -np.inf, np.concatenate([values, values]))
    positives = np.concatenate([in_radius & ~gone, np.zeros_like(in_radius)])
    second = np.repeat([False, True], len(values))
    kept = (~removed).sum(axis=1) >= at_least
    return SelfQueries(
        np.concatenate([block, block])[kept],
        masked[kept].astype(values.dtype, copy=False),
        positives[kept],
        ~positives[kept].any(axis=1),
        second[kept],
    )


def burst_mask(
    rows: NDArray[np.integer], when: NDArray[Any], gap: float, sequence: NDArray[Any] | None = None
) -> Bools:
    """Which references lie in the capture burst of each of these: B×R.

    ``when`` holds a time or frame number for each of the R references, ``gap`` how far apart the images of a
    burst may lie; images of different ``sequence`` never share one. Each is in its own burst. Where ``when``
    is NaN, only the image itself is.

    >>> burst_mask(np.array([1]), np.array([0.0, 1.0, 2.0, 9.0]), 1.0)
    array([[ True,  True,  True, False]])
    """
    times = np.asarray(when, dtype=np.float64)
    chosen = np.asarray(rows, dtype=np.int64)
    if times.ndim != 1 or (sequence is not None and np.shape(sequence) != times.shape):
        raise KappaPlaceError("Capture bursts need one time, and one sequence if any, for each reference.")
    if len(chosen) and (chosen.min() < 0 or chosen.max() >= len(times)):
        raise KappaPlaceError(f"Capture bursts were asked for references outside 0 to {len(times) - 1}.")
    if not gap >= 0:
        raise KappaPlaceError(f"The gap within a capture burst must be 0 or more, got {gap}.")
    mask: Bools = np.abs(times[chosen, None] - times[None, :]) <= gap
    if sequence is not None:
        names = np.asarray(sequence)
        mask &= names[chosen, None] == names[None, :]
    mask[np.arange(len(chosen)), chosen] = True
    return mask
