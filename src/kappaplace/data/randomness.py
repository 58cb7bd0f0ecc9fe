"""Random numbers that depend only on an item, not on its batch.

A key is computed from integers that identify an item (seed, row, view, …). The numbers of a key are the same
in any batch, order and process. Work can therefore be divided, resumed or cached without changing the
results.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kappaplace.errors import KappaPlaceError

Keys: TypeAlias = NDArray[np.integer]
"""One integer per item, see `item_key`."""


class Stream(IntEnum):
    """Purposes of random numbers, so that one key can serve all of them. 0 is for callers."""

    JITTER = auto()
    CROPS = auto()
    DEGRADATION = auto()
    FIELDS = auto()


# 2^64 over the golden ratio, and 2^64 times the fraction of √2: odd, without a pattern in their bits.
_GOLDEN, _ROOT = np.uint64(0x9E3779B97F4A7C15), np.uint64(0x6A09E667F3BCC909)


def item_key(*parts: int | NDArray[np.integer]) -> NDArray[np.uint64]:
    """Compute keys from integers.

    >>> item_key(0, np.arange(3)).tolist() == [int(item_key(0, row)) for row in range(3)]
    True

    Args:
        *parts: Integers, or arrays that broadcast against each other. Another order of the parts gives
          another key.

    Returns:
        One key per item.

    Raises:
        KappaPlaceError: If there is no part, or a part does not contain integers.
    """
    if not parts:
        raise KappaPlaceError("A key needs at least one integer, got none.")
    key: NDArray[np.uint64] = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is intended
        for part in parts:
            key = _scramble((key ^ (_bits(part) * _GOLDEN)) + _ROOT)
    return np.asarray(key)


def item_uniforms(keys: Keys, count: int, stream: int = 0) -> NDArray[np.float64]:
    """Return random numbers of keys, uniform in [0, 1).

    Args:
        keys: One key per item, N.
        count: Number of random numbers per item.
        stream: Number of the stream; each stream has different random numbers.

    Returns:
        N×count.
    """
    bits = item_key(np.asarray(keys)[:, None], stream, np.arange(count))
    return (bits >> np.uint64(11)) * 2.0**-53


class Uniforms:
    """Source of uniform numbers for a batch: from a torch generator, or from the key of each item.

    Each call returns new numbers, count×``each``, on the CPU. Numbers from keys are always float64.

    Args:
        count: Number of items.
        generator: The generator. Default: the global generator of torch.
        keys: One key per item, instead of a generator.
        stream: Stream of the keys. Default: 0.

    Raises:
        KappaPlaceError: If there are both a generator and keys, or not one key per item.
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


def checked_keys(keys: Keys, count: int, generator: torch.Generator | None = None) -> Keys:
    """Return the keys as an array.

    Args:
        keys: The keys.
        count: Expected number of keys.
        generator: Must be None, because keys and a generator exclude each other.

    Returns:
        The keys, N.

    Raises:
        KappaPlaceError: If the number is different, or there is a generator.
    """
    if generator is not None:
        raise KappaPlaceError("A generator and keys cannot be combined. Pass one of them.")
    if np.shape(keys) != (count,):
        raise KappaPlaceError(f"Expected one key for each of the {count} images, got shape {np.shape(keys)}.")
    return np.asarray(keys)


def _bits(part: int | NDArray[np.integer]) -> NDArray[np.uint64]:
    if isinstance(part, int):
        return np.array(part % 2**64, np.uint64)
    if not np.issubdtype(np.asarray(part).dtype, np.integer):
        raise KappaPlaceError(f"Keys must be computed from integers, got {np.asarray(part).dtype}.")
    return np.asarray(part).astype(np.uint64)  # negative numbers wrap


def _scramble(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finalizer of SplitMix64: a bijection in which every input bit affects every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
