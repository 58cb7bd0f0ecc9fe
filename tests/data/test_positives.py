"""Positives against a brute-force loop, and the policy for queries without any."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.data import positives as module
from kappaplace.data.positives import NoPositives, Positives, apply_policy, positives_within
from kappaplace.errors import KappaPlaceError


def brute_force(queries, references, radius, q_accuracy=None, r_accuracy=None):
    lists = []
    for i, q in enumerate(queries):
        row = []
        for j, r in enumerate(references):
            limit = radius
            limit += 0.0 if q_accuracy is None or np.isnan(q_accuracy[i]) else q_accuracy[i]
            limit += 0.0 if r_accuracy is None or np.isnan(r_accuracy[j]) else r_accuracy[j]
            if (q[0] - r[0]) ** 2 + (q[1] - r[1]) ** 2 <= limit**2:
                row.append(j)
        lists.append(row)
    return lists


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(0, 25),
    m=st.integers(0, 25),
    radius=st.floats(0.1, 60.0),
    grid=st.booleans(),
    accuracy=st.booleans(),
    block=st.sampled_from([1, 7, 4_000_000]),
)
def test_radius_search_equals_brute_force(seed, n, m, radius, grid, accuracy, block):
    rng = np.random.default_rng(seed)
    queries, references = rng.uniform(-100, 100, (n, 2)), rng.uniform(-100, 100, (m, 2))
    if grid:  # many equal points and exact distances
        queries, references = np.round(queries, -1), np.round(references, -1)
        radius = float(np.round(radius, -1)) or 10.0
    queries[rng.random(n) < 0.1] = np.nan
    references[rng.random(m) < 0.1] = np.nan
    q_acc = np.where(rng.random(n) < 0.3, np.nan, rng.uniform(0, 20, n)) if accuracy else None
    r_acc = np.where(rng.random(m) < 0.3, np.nan, rng.uniform(0, 20, m)) if accuracy else None
    old, module.PAIRS_PER_BLOCK = module.PAIRS_PER_BLOCK, block
    try:
        positives = positives_within(queries, references, radius, q_acc, r_acc)
    finally:
        module.PAIRS_PER_BLOCK = old
    assert [positives.of(i).tolist() for i in range(n)] == brute_force(
        queries, references, radius, q_acc, r_acc
    )
    assert positives.references == m


@settings(max_examples=60, deadline=None)
@given(
    lists=st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=8),
    k=st.integers(0, 4),
    seed=st.integers(0, 99),
)
def test_hits_equal_a_loop(lists, k, seed):
    positives = Positives.from_lists(lists, 10)
    retrieved = np.random.default_rng(seed).integers(-1, 10, (len(lists), k))
    expected = [[int(r) in lists[i] for r in row] for i, row in enumerate(retrieved)]
    assert positives.hits(retrieved).tolist() == expected
    assert positives.counts.tolist() == [len(set(row)) for row in lists]


def test_hits_of_some_queries():
    positives = Positives.from_lists([[0], [1], [2]], 3)
    assert positives.hits(np.array([[2], [1]]), queries=np.array([2, 0])).tolist() == [[True], [False]]
    with pytest.raises(KappaPlaceError, match="got 4 rows"):
        positives.hits(np.zeros((4, 1), dtype=int))


def test_take_renumbers():
    positives = Positives.from_lists([[0, 2], [1], [2]], 3)
    part = positives.take(np.array([2, 0]), np.array([2, 0]))
    assert [part.of(i).tolist() for i in range(2)] == [[0], [0, 1]]
    with pytest.raises(KappaPlaceError, match="more than once"):
        positives.take(np.array([0]), np.array([1, 1]))


@pytest.mark.parametrize("lists", [[[3]], [[-1]], [[0, 99]]])
def test_index_out_of_range(lists):
    with pytest.raises(KappaPlaceError, match="must be between 0 and 2"):
        Positives.from_lists(lists, 3)


def test_broken_rows_raise():
    with pytest.raises(KappaPlaceError, match="indptr"):
        Positives(np.array([0, 2, 1]), np.array([0], dtype=np.int32), 3)
    with pytest.raises(KappaPlaceError, match="got 3"):
        Positives(np.array([0, 3]), np.array([0], dtype=np.int32), 3)


def test_policy():
    positives = Positives.from_lists([[0], [], [1]], 2)
    failing = apply_policy(positives)
    assert failing.rows.tolist() == [0, 1, 2]
    assert "1 without positives, counted as failures" in str(failing)
    assert apply_policy(positives, NoPositives.SKIP).rows.tolist() == [0, 2]
    with pytest.raises(KappaPlaceError, match="1 of 3 queries have no positive"):
        apply_policy(positives, "error")
    assert len(apply_policy(Positives.from_lists([[0]], 1), "error").rows) == 1


def test_absurd_radius_raises(monkeypatch):
    monkeypatch.setattr(module, "MAX_PAIRS", 10)
    with pytest.raises(KappaPlaceError, match="check that coordinates are metres"):
        positives_within(np.zeros((4, 2)), np.zeros((4, 2)), 25.0)
