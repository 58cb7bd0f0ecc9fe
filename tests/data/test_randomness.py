"""Random numbers from keys: equal to plain integer arithmetic, uniform and independent."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from kappaplace.data.randomness import Stream, Uniforms, item_key, item_uniforms
from kappaplace.errors import KappaPlaceError

WORD = 2**64


def by_hand(*parts: int) -> int:
    key = 0
    for part in parts:
        x = ((key ^ (part * 0x9E3779B97F4A7C15 % WORD)) + 0x6A09E667F3BCC909) % WORD
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
        key = x ^ (x >> 31)
    return key


def test_keys_by_hand_in_python_integers() -> None:
    for parts in [(0,), (1,), (0, 0), (1, 2, 3), (-1, 5), (2**64 - 1, 2**63), (123456789, 7, 0, 0)]:
        assert int(item_key(*parts)) == by_hand(*parts)
    # These numbers are part of cached views and resumed runs, so they may never change.
    assert int(item_key(0)) == by_hand(0) == 3847398142028685078
    assert item_uniforms(np.array([7]), 1)[0, 0] == (by_hand(7, 0, 0) >> 11) / 2**53


def test_keys_broadcast_and_their_order_counts() -> None:
    rows, views = np.arange(4)[:, None], np.arange(3, dtype=np.int32)
    keys = item_key(5, rows, views)
    assert keys.shape == (4, 3)
    assert keys.dtype == np.uint64
    assert int(keys[2, 1]) == by_hand(5, 2, 1) != by_hand(5, 1, 2)
    assert item_key(np.int64(-3)) == item_key(-3)
    every = [item_key(*p) for n in (1, 2, 3) for p in itertools.product(range(-8, 9), repeat=n)]
    assert len(np.unique(every)) == len(every)


def test_numbers_are_uniform() -> None:
    for keys in (np.arange(4000), item_key(0, np.arange(4000)), 2**40 * np.arange(4000)):
        u = item_uniforms(keys, 50)
        assert u.shape == (4000, 50)
        assert 0 <= u.min() < 1e-4
        assert 0.9999 < u.max() < 1
        assert stats.kstest(u.ravel(), "uniform").pvalue > 1e-3
        assert stats.kstest(u[:, 0], "uniform").pvalue > 1e-3
        counts = np.bincount((u.ravel() * 1000).astype(int), minlength=1000)
        assert stats.chisquare(counts).pvalue > 1e-3
    assert item_uniforms(np.arange(3), 0).shape == (3, 0)
    assert item_uniforms(np.empty(0, np.int64), 5).shape == (0, 5)


def test_adjacent_keys_streams_and_counters_are_independent() -> None:
    u = np.stack([item_uniforms(np.arange(300), 30, stream) for stream in range(30)])
    for axis in range(3):
        for lag in (1, 2, 16):
            here, there = (np.take(u, range(a, u.shape[axis] - lag + a), axis).ravel() for a in (0, lag))
            cells = np.bincount((here * 16).astype(int) * 16 + (there * 16).astype(int), minlength=256)
            assert stats.chisquare(cells).pvalue > 1e-4
            assert abs(np.corrcoef(here, there)[0, 1]) < 4 / np.sqrt(len(here))


def test_every_input_bit_flips_half_of_the_output() -> None:
    rng = np.random.default_rng(0)
    rows, streams = rng.integers(0, 2**62, 500), rng.integers(0, 2**62, 500)
    for bit in range(62):
        for other in (item_key(rows ^ (1 << bit), streams), item_key(rows, streams ^ (1 << bit))):
            changed = np.unpackbits((item_key(rows, streams) ^ other).view(np.uint8)).mean()
            assert changed == pytest.approx(0.5, abs=0.02)


def test_the_numbers_of_an_item_do_not_depend_on_its_batch() -> None:
    keys = item_key(1, np.arange(20))
    whole = item_uniforms(keys, 6, 2)
    np.testing.assert_array_equal(item_uniforms(keys[13:5:-1], 6, 2), whole[13:5:-1])
    np.testing.assert_array_equal(item_uniforms(keys, 3, 2), whole[:, :3])
    np.testing.assert_array_equal(item_uniforms(keys.view(np.int64), 6, 2), whole)


def test_source_of_uniforms() -> None:
    keyed = Uniforms(4, keys=np.arange(4), stream=Stream.JITTER)
    first, second = keyed(3), keyed(3)
    assert first.shape == (4, 3)
    assert not torch.equal(first, second)
    assert torch.equal(Uniforms(4, keys=np.arange(4), stream=Stream.JITTER)(3), first)
    assert not torch.equal(Uniforms(4, keys=np.arange(4), stream=Stream.CROPS)(3), first)
    drawn = Uniforms(4, torch.Generator().manual_seed(1))(3)
    assert torch.equal(drawn, torch.rand(4, 3, generator=torch.Generator().manual_seed(1)))


def test_bad_keys_raise() -> None:
    with pytest.raises(KappaPlaceError, match="one key for each of the 3 images"):
        Uniforms(3, keys=np.arange(4))
    with pytest.raises(KappaPlaceError, match="A generator and keys cannot be combined"):
        Uniforms(3, torch.Generator(), np.arange(3))
    with pytest.raises(KappaPlaceError, match="integers, got float64"):
        item_key(np.array([0.5]))
    with pytest.raises(KappaPlaceError, match="at least one"):
        item_key()
