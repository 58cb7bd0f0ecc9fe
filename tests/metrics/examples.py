"""Data that Hypothesis draws for every metric: few values, so that ties, constants, one class are common."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

Pair = tuple[np.ndarray, np.ndarray]

quick = settings(max_examples=40)
"""Small data, and every run draws anew: forty are enough."""


def _pair(values: st.SearchStrategy[float], longest: int) -> st.SearchStrategy[Pair]:
    rows = st.lists(st.tuples(values, st.booleans()), min_size=1, max_size=longest)
    return rows.map(lambda r: (np.array([v for v, _ in r], float), np.array([s for _, s in r], bool)))


def scored(longest: int = 20) -> st.SearchStrategy[Pair]:
    """Uncertainty and success of at least one query; whole numbers, many of them tied."""
    return _pair(st.integers(-6, 6).map(float), longest)


def probabilities(longest: int = 20) -> st.SearchStrategy[Pair]:
    """Probability and success, both ends included; eighths are often tied."""
    eighths = st.integers(0, 8).map(lambda i: i / 8)
    return _pair(st.one_of(eighths, st.floats(0, 1, width=32)), longest)
