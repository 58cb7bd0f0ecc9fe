"""The best reference outside a neighbourhood, and moments of rows, whatever the block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.retrieval import outside
from kappaplace.retrieval.outside import best_outside, of_descriptors, of_matrix, row_moments


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 999),
    references=st.integers(1, 30),
    block=st.integers(1, 40),
    frames=st.integers(0, 9),
)
def test_equals_a_full_scan_whatever_the_block(seed: int, references: int, block: int, frames: int) -> None:
    rng = np.random.default_rng(seed)
    # Small integers: exact in any order, with many ties.
    q, r = (rng.integers(-2, 3, (rows, 4)).astype(np.float32) for rows in (9, references))
    rows, centres = np.array([8, 1, 4]), rng.integers(0, references, 3)

    def near(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.abs(a - b) <= frames

    found = best_outside(of_descriptors(q, r), rows, centres, references, near, columns=block)
    of_table = best_outside(of_matrix(q @ r.T), rows, centres, references, near, columns=block)
    for row, centre, ours in zip(rows, centres, found, strict=True):
        far = [float(q[row] @ r[i]) for i in range(references) if abs(i - centre) > frames]
        assert ours == max(far, default=-np.inf)
    np.testing.assert_array_equal(found, of_table)


def test_rows_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((11, 50)).astype(np.float32)
    rows, centres = np.arange(11), rng.integers(0, 50, 11)
    whole = best_outside(of_matrix(matrix), rows, centres, 50, np.equal)
    moments = row_moments(of_matrix(matrix), 11, 50)
    monkeypatch.setattr(outside, "ROWS", 3)
    np.testing.assert_array_equal(best_outside(of_matrix(matrix), rows, centres, 50, np.equal), whole)
    np.testing.assert_allclose(row_moments(of_matrix(matrix), 11, 50, step=7), moments)
    np.testing.assert_allclose(moments, [matrix.mean(1), matrix.std(1)], atol=1e-6)
    some = np.array([3, 4, 40])
    np.testing.assert_allclose(
        row_moments(of_matrix(matrix), 11, some, step=2),
        [matrix[:, some].mean(1), matrix[:, some].std(1)],
        atol=1e-6,
    )


def test_few_pairs_are_asked_after_the_first_block() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((8, 4000)).astype(np.float32)
    asked = 0

    def near(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        nonlocal asked
        asked += len(a)
        return a == b

    best_outside(of_matrix(matrix), np.arange(8), np.arange(8), 4000, near, columns=100)
    assert asked < 8 * 100 + 8 * 100


def test_the_matrix_is_left_as_it_was() -> None:
    matrix = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    before = matrix.copy()
    best_outside(of_matrix(matrix), np.arange(3), np.arange(3), 5, np.equal)
    np.testing.assert_array_equal(matrix, before)
