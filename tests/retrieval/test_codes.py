"""Product-quantized codes, on descriptors with the energy distribution of real ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval import Coded, Columns, codes, open_engine
from kappaplace.retrieval.codes import Codebook, learn_codebook
from kappaplace.retrieval.faiss import balanced_rotation


def descriptors(count: int, dim: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    wide = rng.standard_normal((count, dim)) / np.sqrt(np.arange(1, dim + 1)) @ turn
    return (wide / np.linalg.norm(wide, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def book() -> Codebook:
    return learn_codebook(descriptors(1200, 24), rounds=4)


def test_codes_are_the_nearest_centers_and_decode_to_what_they_were(book: Codebook) -> None:
    rows = descriptors(300, 24, seed=1)
    result = book.encode(rows)
    assert (result.dtype, result.shape, book.width) == (np.uint8, (300, 25), 25)
    assert book.weights is not None
    edges = np.cumsum([0, *book.sizes])
    for byte, (first, end) in enumerate(pairwise(edges)):
        gaps = book.turn(rows)[:, None, first:end].astype(np.float64) - book.values[None, :, first:end]
        errors = (book.weights[first:end] * gaps**2).sum(2)
        np.testing.assert_allclose(errors[np.arange(300), result[:, byte]], errors.min(1), atol=1e-6)
    back = book.decode(result)
    assert np.einsum("nd,nd->n", back, rows).mean() > 0.995
    # Similarities in the space of the codes are the same.
    turned = book.turn(rows) @ book.decode(result, turned=True).T
    np.testing.assert_allclose(turned, rows @ back.T, atol=1e-5)
    np.testing.assert_array_equal(book.decode(result.reshape(100, 3, 25)), back.reshape(100, 3, 24))
    assert book.decode(result[:0]).shape == (0, 24)


def plain(rows: np.ndarray) -> Codebook:
    """Codes of old maps without weights: equal numbers per byte, and unit length."""
    width, together = codes._cut(rows.shape[1])
    turn = balanced_rotation(rows, width, together)
    pieces = codes.split_columns(rows @ turn, (together,) * width)
    values = np.concatenate([codes.k_means(piece, piece[:256], 3) for piece in pieces], axis=1)
    return Codebook(turn, values, (together,) * width)


def test_similarities_of_codes_are_right_on_average_and_err_less_than_those_of_plain_ones() -> None:
    rng = np.random.default_rng(0)
    rows = descriptors(2500, 300)
    queries = 0.8 * rows + 0.6 * descriptors(2500, 300)[rng.permutation(2500)]
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    true = np.einsum("nd,nd->n", queries, rows)
    new, old = learn_codebook(rows, rounds=3), plain(rows)
    assert new.width == 128
    error = [np.einsum("nd,nd->n", queries, book.decode(book.encode(rows))) - true for book in (new, old)]
    assert abs(error[0].mean()) < 0.3 * abs(error[1].mean())
    assert error[0].std() < 0.8 * error[1].std()
    # The last byte corrects the product with itself.
    own = np.einsum("nd,nd->n", rows, new.decode(new.encode(rows)))
    assert abs(own - 1).mean() < 1e-3


def test_a_codebook_comes_back_from_its_array(book: Codebook) -> None:
    array = book.to_array()
    again = Codebook.from_array(array, 24)
    rows = descriptors(50, 24, seed=3)
    np.testing.assert_array_equal(again.encode(rows), book.encode(rows))
    np.testing.assert_array_equal(again.to_array(), array)
    damaged = {
        "another dimension": (array, 25),
        "numbers that are none": (array * np.nan, 24),
        "a weight of nothing": (np.where(np.arange(len(array))[:, None] == 280, 0, array), 24),
        "bytes out of order": (np.where(np.arange(len(array))[:, None] == 281, 7, array), 24),
        "no columns": (array[:, :0], 24),
        "one row": (array[0], 24),
    }
    for wrong, dim in damaged.values():
        with pytest.raises(KappaPlaceError, match=f"does not fit {dim} dimensions"):
            Codebook.from_array(wrong, dim)


@pytest.mark.parametrize("dim", [24, 130, 300])
def test_codebooks_from_before_there_were_weights_are_read(dim: int) -> None:
    rows = descriptors(600, dim)
    old = plain(rows)
    assert old.to_array().shape == (dim + 256, sum(old.sizes))
    again = Codebook.from_array(old.to_array(), dim)
    result = again.encode(rows)
    assert result.shape == (600, codes._cut(dim)[0])
    np.testing.assert_array_equal(result, old.encode(rows))
    np.testing.assert_allclose(np.linalg.norm(again.decode(result), axis=1), 1, atol=1e-5)


@settings(deadline=None, max_examples=60)
@given(dim=st.integers(1, 3000), fall=st.floats(0, 4), dead=st.floats(0, 0.9))
def test_no_more_than_127_bytes_hold_directions_and_none_is_in_two(
    dim: int, fall: float, dead: float
) -> None:
    spread = np.arange(1, dim + 1) ** -fall
    spread[int((1 - dead) * dim) + 1 :] = 1e-9
    groups = codes.byte_groups(spread, min(127, dim))
    flat = [direction for piece in groups for direction in piece]
    assert len(groups) <= min(127, dim)
    assert all(groups)
    assert len(set(flat)) == len(flat) > 0
    selected = np.isin(np.arange(dim), flat)
    assert spread[selected].min() >= spread[~selected].max(initial=0)  # the weakest are omitted


@settings(deadline=None, max_examples=20)
@given(dim=st.integers(2, 30), together=st.integers(1, 4), seed=st.integers(0, 99))
def test_the_rotation_keeps_products_and_balances_the_pieces(dim: int, together: int, seed: int) -> None:
    rows = descriptors(200, dim, seed)
    pieces = -(-dim // together)
    turn = balanced_rotation(rows, pieces, together)
    assert turn.shape == (dim, pieces * together)
    np.testing.assert_allclose(turn @ turn.T, np.eye(dim), atol=1e-5)
    if dim % together == 0 and pieces > 1:
        energy = np.log((rows @ turn).var(axis=0) + 1e-12).reshape(pieces, together).sum(1)
        alone = np.log((rows @ balanced_rotation(rows, dim, 1)).var(axis=0) + 1e-12)
        strongest_first = alone.reshape(pieces, together).sum(1)
        assert np.ptp(energy) <= np.ptp(strongest_first) + 1e-6


def test_descriptors_with_dead_numbers_and_copies_are_coded() -> None:
    rows = np.repeat(descriptors(10, 200), 120, axis=0)  # ten different ones, in ten directions of 200
    book = learn_codebook(rows, rounds=2)
    back = book.decode(book.encode(rows))
    np.testing.assert_allclose(np.einsum("nd,nd->n", back, rows), 1, atol=0.01)


def test_the_same_descriptors_give_the_same_codebook_and_too_few_are_refused() -> None:
    rows = descriptors(1000, 8)
    one, two = learn_codebook(rows, rounds=1), learn_codebook(rows, rounds=1)
    np.testing.assert_array_equal(one.to_array(), two.to_array())
    with pytest.raises(KappaPlaceError, match=r"at least 1,000 references, got 999.*float16 or int8"):
        learn_codebook(rows[:999])
    rows[0] = np.inf
    with pytest.raises(KappaPlaceError, match="NaN or infinite"):
        learn_codebook(rows)


def test_codes_are_searched_like_any_descriptors(book: Codebook) -> None:
    rows = descriptors(400, 24, seed=2)
    result = book.encode(rows)
    mixed = Columns([Coded(result[:150], book), rows[150:]])
    assert mixed.shape == (400, 24)
    np.testing.assert_array_equal(mixed[np.array([399, 3])], np.stack([rows[399], book.decode(result[3])]))
    matches = open_engine(Coded(result, book)).search(rows[:50], 1)
    assert (matches.indices[:, 0] == np.arange(50)).all()
    other = replace(book, values=book.values + 1e-6)
    assert Columns(Coded(result, book)).fingerprint() != Columns(Coded(result, other)).fingerprint()
    with pytest.raises(KappaPlaceError, match="25 bytes per row"):
        Columns(Coded(result[:, :5], book))


@pytest.mark.slow
def test_codes_lose_at_most_half_a_point() -> None:
    """Districts with places; one image of each place is a query for the others, with 512 numbers each.

    Where exact search itself is often wrong, codes lose more: 3 points of 73 % in a trial with more noise.
    """
    rng = np.random.default_rng(0)
    energy = 1 / np.sqrt(np.arange(1, 513))

    def noise(rows: int, share: float) -> np.ndarray:
        return np.sqrt(share) * rng.standard_normal((rows, 512)).astype(np.float32) * energy

    places = noise(10, 0.35)[rng.integers(10, size=2000)] + noise(2000, 0.35)
    of = np.repeat(np.arange(2000), rng.integers(1, 20, 2000))
    rows, queries = (wide + noise(len(wide), 0.3) for wide in (places[of], places))
    rows, queries = (
        (v / np.linalg.norm(v, axis=1, keepdims=True)).astype(np.float32) for v in (rows, queries)
    )
    book = learn_codebook(rows, rounds=4)
    back = book.decode(book.encode(rows))
    exact, coded = (np.mean(of[(queries @ x.T).argmax(1)] == np.arange(2000)) for x in (rows, back))
    assert 0.9 < exact < 0.999
    assert coded >= exact - 0.005


@pytest.mark.parametrize("weighted", [True, False])
def test_products_that_are_looked_up_are_those_of_the_decoded(book: Codebook, weighted: bool) -> None:
    rows = descriptors(1200, 24)
    used = book if weighted else plain(rows)
    result, query = used.encode(rows), used.turn(descriptors(3, 24, seed=4))[2]
    expected = used.decode(result, turned=True).astype(np.float64) @ query
    np.testing.assert_allclose(used.products(query, result), expected, atol=1e-6)


def test_one_query_finds_what_it_finds_among_many(book: Codebook) -> None:
    rows = descriptors(700, 24)
    result = book.encode(rows)
    engine = open_engine([Coded(result[:400], book), Coded(result[400:], book)])
    queries = descriptors(9, 24, seed=5)
    many = engine.search(queries, 7)
    for i, query in enumerate(queries):
        one = engine.search(query[None], 7)
        np.testing.assert_array_equal(one.indices[0], many.indices[i])
        np.testing.assert_allclose(one.similarities[0], many.similarities[i], atol=1e-6)


def test_one_odd_descriptor_does_not_spoil_the_others() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((1500, 40)).astype(np.float32) * 0.3
    rows[:, 0] += 1
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    mixed = np.concatenate([rows, -rows.mean(0, keepdims=True) / np.linalg.norm(rows.mean(0))])
    steps = [np.diff(learn_codebook(sample, rounds=2).gains).item() for sample in (rows, mixed)]
    assert steps[1] < 1.5 * steps[0]  # without clipping, forty times
