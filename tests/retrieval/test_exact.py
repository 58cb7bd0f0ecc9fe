"""Exact search against a NumPy argsort; ties, blocks, bad input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval import exact
from kappaplace.retrieval.exact import search


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
    found = search(q, r, k, block=block)
    similarity = (q[:, None, :] * r[None]).sum(-1)
    for row in range(len(q)):
        expected = sorted(range(references), key=lambda index: (-similarity[row, index], index))[:k]
        assert found.indices[row].tolist() == expected
        assert found.similarities[row].tolist() == similarity[row, expected].tolist()


def test_types_and_shapes() -> None:
    found = search(unit(3, 8, 0), unit(20, 8, 1), 4)
    assert found.indices.shape == found.similarities.shape == (3, 4)
    assert (found.indices.dtype, found.similarities.dtype) == (np.int64, np.float32)


@pytest.mark.parametrize("k", [0, -1, 21])
def test_k_must_fit_the_references(k: int) -> None:
    with pytest.raises(KappaPlaceError, match="there are 20 references"):
        search(unit(3, 8, 0), unit(20, 8, 1), k)


def test_queries_in_blocks_equal_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    q, r = unit(13, 6, 0), unit(40, 6, 1)
    whole = search(q, r, 5)
    monkeypatch.setattr(exact, "QUERY_BLOCK", 4)
    for mine, theirs in zip(search(q, r, 5, block=7), whole, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)


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
