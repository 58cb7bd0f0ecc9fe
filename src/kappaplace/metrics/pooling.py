"""Several sets judged as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError


class Pooled(NamedTuple):
    """The queries of all sets, one set after the other."""

    arrays: tuple[NDArray[Any], ...]
    strata: NDArray[np.int64]
    """Number of the set that each query came from, for ``Resampling.of``."""


def pool(sets: Sequence[Sequence[NDArray[Any]]]) -> Pooled:
    """Join the arrays of each set; every set gives the same kinds of arrays, with one row a query.

    >>> pooled = pool([(np.array([0.1, 0.2]), np.array([True, False])), (np.array([0.3]), np.array([True]))])
    >>> pooled.arrays[0], pooled.strata
    (array([0.1, 0.2, 0.3]), array([0, 0, 1]))
    """
    if not sets:
        raise KappaPlaceError("Pooling needs at least one set.")
    for number, arrays in enumerate(sets):
        if len(arrays) != len(sets[0]) or len({len(array) for array in arrays}) != 1:
            raise KappaPlaceError(f"Set {number} of the pool needs {len(sets[0])} arrays of one length.")
    joined = tuple(np.concatenate(column) for column in zip(*sets, strict=True))
    strata = np.repeat(np.arange(len(sets)), [len(arrays[0]) for arrays in sets])
    return Pooled(joined, strata)


def pooled(metric: Callable[..., float], sets: Sequence[Sequence[NDArray[Any]]]) -> float:
    """A metric over the queries of all sets: not a mean over sets, so a large set weighs more.

    >>> pooled(lambda success: success.mean(), [(np.array([True, True, True]),), (np.array([False]),)])
    0.75
    """
    return float(metric(*pool(sets).arrays))
