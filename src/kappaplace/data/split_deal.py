"""Shares of a split, and whole groups of images dealt out to its parts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError

REFERENCES, CALIBRATION, TEST, DROPPED = 0, 1, 2, -1  # by area, 0 is train


def checked_shares(calibration: float, test: float, *, rest: bool) -> dict[int, float]:
    """Part → its share, without the empty ones, summing to 1.

    ``rest``: what the two leave is the references' (or train's); otherwise only the proportion of the two
    counts, for queries that the table came with belong to one or the other.
    """
    inside = 0.0 <= calibration <= 1.0 and 0.0 <= test <= 1.0
    if not inside or calibration + test > 1.0 + 1e-9:
        raise KappaPlaceError(
            "The shares of calibration and test must lie in [0, 1] and sum to at most 1, "
            f"not {calibration:g} and {test:g}."
        )
    shares = {REFERENCES: 1.0 - calibration - test if rest else 0.0, CALIBRATION: calibration, TEST: test}
    kept = {key: share for key, share in shares.items() if share > 1e-9}
    if len(kept) < 2:
        raise KappaPlaceError("A split needs at least two parts with a share above 0.")
    total = sum(kept.values())
    return {key: share / total for key, share in kept.items()}


def deal(
    groups: NDArray[np.int64], shares: dict[int, float], seed: int, *, what: str, hint: str
) -> NDArray[np.int64]:
    """Give whole groups to parts, largest first, each to the part that lacks most of its share.

    ``what`` the groups are and a ``hint`` are for the error that there are too few of them.
    """
    numbers, inverse, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(numbers) < len(shares):
        raise KappaPlaceError(
            f"{len(numbers)} {what} are too few for {len(shares)} parts without leaks: {hint}."
        )
    if seed < 0:
        raise KappaPlaceError(f"The seed of a split must not be negative, got {seed}.")
    shuffled = np.random.default_rng(seed).permutation(len(numbers))
    lack = {part: share * len(groups) for part, share in shares.items()}
    given = np.zeros(len(numbers), dtype=np.int64)
    order = shuffled[np.argsort(-sizes[shuffled], kind="stable")]
    empty = set(shares)
    for left, group in zip(range(len(order), 0, -1), order, strict=True):
        among = empty if left <= len(empty) else set(lack)
        part = max(among, key=lambda p: (lack[p], -p))
        given[group] = part
        lack[part] -= float(sizes[group])
        empty.discard(part)
    return given[inverse]
