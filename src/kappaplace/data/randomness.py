"""Randomness that belongs to an item, not to a batch: numbers that depend on integers alone.

A key is made of whatever names an item (seed, row, view, …). What is drawn from it is the same in any batch,
any order and any process, so work may be split, resumed or cached without a trace in the results.
"""

from __future__ import annotations

from enum import IntEnum, auto

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kappaplace.errors import KappaPlaceError

Keys = NDArray[np.uint64] | NDArray[np.int64]


class Stream(IntEnum):
    """Who draws from a key. One key may serve all of them, and 0 is left to callers."""

    JITTER = auto()
    CROPS = auto()
    DAMAGE = auto()
    FIELDS = auto()


# 2^64 over the golden ratio, and 2^64 times the fraction of √2: odd, with no pattern in their bits.
_GOLDEN, _ROOT = np.uint64(0x9E3779B97F4A7C15), np.uint64(0x6A09E667F3BCC909)


def item_key(*parts: int | NDArray) -> NDArray[np.uint64]:
    """Mix integers, broadcast against each other, into one key; their order counts.

    >>> item_key(0, np.arange(3)).tolist() == [int(item_key(0, row)) for row in range(3)]
    True
    """
    if not parts:
        raise KappaPlaceError("A key needs at least one integer.")
    key: NDArray[np.uint64] = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is meant
        for part in parts:
            key = _scramble((key ^ (_bits(part) * _GOLDEN)) + _ROOT)
    return np.asarray(key)


def item_uniforms(keys: Keys, count: int, stream: int = 0) -> NDArray[np.float64]:
    """For each of n keys, `count` numbers uniform in [0, 1): n×count; each stream has its own."""
    bits = item_key(np.asarray(keys)[:, None], stream, np.arange(count))
    return (bits >> np.uint64(11)) * 2.0**-53


class Uniforms:
    """Source of uniform numbers for `count` items: from a torch generator, or from each item's own key.

    Each call gives new numbers, count×`each`, on the CPU. Those of keys are float64, whatever is asked for.
    """

    def __init__(
        self, count: int, generator: torch.Generator | None = None, keys: Keys | None = None, stream: int = 0
    ) -> None:
        self.count = count
        self._generator = generator
        self._keys = None if keys is None else checked_keys(keys, count, generator)
        self._stream = stream
        self._calls = 0

    def __call__(self, each: int, dtype: torch.dtype = torch.float32) -> Tensor:
        if self._keys is not None:
            self._calls += 1
            return torch.from_numpy(item_uniforms(item_key(self._keys, self._stream), each, self._calls))
        device = self._generator.device if self._generator is not None else torch.device("cpu")
        return torch.rand(self.count, each, generator=self._generator, device=device, dtype=dtype).cpu()


def checked_keys(keys: Keys, count: int, generator: torch.Generator | None = None) -> NDArray:
    """Refuse keys that are not one integer per image, and a second source of randomness beside them."""
    if generator is not None:
        raise KappaPlaceError("Give either a generator or keys, not both.")
    if np.shape(keys) != (count,):
        raise KappaPlaceError(f"Give one key for each of the {count} images; got shape {np.shape(keys)}.")
    return np.asarray(keys)


def _bits(part: int | NDArray) -> NDArray[np.uint64]:
    if isinstance(part, int):
        return np.array(part % 2**64, np.uint64)
    if not np.issubdtype(np.asarray(part).dtype, np.integer):
        raise KappaPlaceError(f"Keys are made of integers; got {np.asarray(part).dtype}.")
    return np.asarray(part).astype(np.uint64)  # negative numbers wrap


def _scramble(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: a bijection in which every input bit moves every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
