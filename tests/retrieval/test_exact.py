"""Exact search against a NumPy argsort, and the best reference beyond a place; ties, blocks, bad input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval import exact
from kappaplace.retrieval.exact import best_outside, of_descriptors, of_matrix, row_moments, search


def unit(rows: int, dim: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((rows, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 999), references=st.integers(1, 40), block=st.integers(1, 50), data=st.data())
def test_equals_a_full_sort_whatever_the_block(
    seed: int, references: int, block: int, data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, references))
    # Small integers: products are exact in any order, and ties, which must go to the lower row, are common.
    rng = np.random.default_rng(seed)
    q, r = (rng.integers(-2, 3, (rows, 5)).astype(np.float32) for rows in (7, references))
    matches = search(q, r, k, block=block)
    similarity = (q[:, None, :] * r[None]).sum(-1)
    for row in range(len(q)):
        expected = sorted(range(references), key=lambda index: (-similarity[row, index], index))[:k]
        assert matches.indices[row].tolist() == expected
        assert matches.similarities[row].tolist() == similarity[row, expected].tolist()


def test_types_and_shapes() -> None:
    matches = search(unit(3, 8, 0), unit(20, 8, 1), 4)
    assert matches.indices.shape == matches.similarities.shape == (3, 4)
    assert (matches.indices.dtype, matches.similarities.dtype) == (np.int64, np.float32)


@pytest.mark.parametrize("k", [0, -1, 21])
def test_k_must_fit_the_references(k: int) -> None:
    with pytest.raises(KappaPlaceError, match="between 1 and 20"):
        search(unit(3, 8, 0), unit(20, 8, 1), k)


def test_queries_in_blocks_equal_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    q, r = unit(13, 6, 0), unit(40, 6, 1)
    whole = search(q, r, 5)
    monkeypatch.setattr(exact, "QUERY_BLOCK", 4)
    for own, reference in zip(search(q, r, 5, block=7), whole, strict=True):
        np.testing.assert_allclose(own, reference, atol=1e-6)


def test_no_queries_give_no_matches_and_float64_is_taken() -> None:
    assert search(np.empty((0, 8), np.float32), unit(20, 8, 1), 4).indices.shape == (0, 4)
    assert search(unit(2, 8, 0).astype(np.float64), unit(20, 8, 1), 4).similarities.dtype == np.float32


@pytest.mark.parametrize("side", ["queries", "references"])
def test_nan_is_reported(side: str) -> None:
    q, r = unit(3, 8, 0), unit(20, 8, 1)
    (q if side == "queries" else r)[1, 2] = np.nan
    with pytest.raises(KappaPlaceError, match="NaN or infinite"):
        search(q, r, 4)


def test_dimensions_must_agree() -> None:
    with pytest.raises(KappaPlaceError, match="do not fit"):
        search(unit(3, 8, 0), unit(20, 9, 1), 1)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 999),
    references=st.integers(1, 30),
    block=st.integers(1, 40),
    frames=st.integers(0, 9),
)
def test_best_outside_equals_a_full_scan_whatever_the_block(
    seed: int, references: int, block: int, frames: int
) -> None:
    rng = np.random.default_rng(seed)
    # Small integers: exact in any order, with many ties.
    q, r = (rng.integers(-2, 3, (rows, 4)).astype(np.float32) for rows in (9, references))
    rows, centers = np.array([8, 1, 4]), rng.integers(0, references, 3)

    def near(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.abs(a - b) <= frames

    matches = best_outside(of_descriptors(q, r), rows, centers, references, near, columns=block)
    of_table = best_outside(of_matrix(q @ r.T), rows, centers, references, near, columns=block)
    for row, center, ours in zip(rows, centers, matches, strict=True):
        far = [float(q[row] @ r[i]) for i in range(references) if abs(i - center) > frames]
        assert ours == max(far, default=-np.inf)
    np.testing.assert_array_equal(matches, of_table)


def test_rows_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((11, 50)).astype(np.float32)
    rows, centers = np.arange(11), rng.integers(0, 50, 11)
    whole = best_outside(of_matrix(matrix), rows, centers, 50, np.equal)
    moments = row_moments(of_matrix(matrix), 11, 50)
    monkeypatch.setattr(exact, "ROWS", 3)
    np.testing.assert_array_equal(best_outside(of_matrix(matrix), rows, centers, 50, np.equal), whole)
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
    calls = 0

    def near(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += len(a)
        return a == b

    best_outside(of_matrix(matrix), np.arange(8), np.arange(8), 4000, near, columns=100)
    assert calls < 8 * 100 + 8 * 100


def test_the_matrix_is_left_as_it_was() -> None:
    matrix = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    before = matrix.copy()
    best_outside(of_matrix(matrix), np.arange(3), np.arange(3), 5, np.equal)
    np.testing.assert_array_equal(matrix, before)
