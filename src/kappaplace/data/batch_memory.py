"""Memory of batches, used again once nobody else holds it.

The first touch of fresh memory costs up to a tenth of decoding, so it is worth asking for it once. Tensors
and views of a batch hold a reference to its array, so the count of references tells when it is free.
"""

from __future__ import annotations

import math
import mmap
import os
import sys

import numpy as np

from kappaplace.data.decode_worker import mapped, pixels_at, shared_memory
from kappaplace.data.pixels import Pixels


class Spares:
    """Arrays of earlier batches; more than `most` are not kept."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.buffers: list[Pixels] = []

    def take(self, shape: tuple[int, ...]) -> Pixels:
        for i, buffer_shape in enumerate([buffer.shape for buffer in self.buffers]):
            if buffer_shape == shape and _holders(self.buffers, i) == _ALONE:
                return self.buffers[i]
        fresh = np.empty(shape, np.uint8)
        if len(self.buffers) < self.most:
            self.buffers.append(fresh)
        return fresh


class SharedBatches:
    """A fixed number of batches in memory that other processes can join, too, by its `descriptor`.

    A batch that is held keeps the memory, also after `close`. What is never written to takes none.
    """

    def __init__(self, most: int, shape: tuple[int, ...]) -> None:
        self.stride = -(-max(1, math.prod(shape)) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.descriptor = shared_memory(most * self.stride)
        try:
            self._memory = mapped(self.descriptor)
        except BaseException:
            os.close(self.descriptor)
            raise
        self._batches = [np.empty(0, np.uint8) for _ in range(most)]

    def take(self, shape: tuple[int, ...]) -> tuple[Pixels, int] | None:
        """N×H×W×3 and its place in the memory; None while all batches are held."""
        for i in range(len(self._batches)):
            if _holders(self._batches, i) == _ALONE:
                self._batches[i] = pixels_at(self._memory, i * self.stride, shape[:-1])
                return self._batches[i], i * self.stride
        return None

    def close(self) -> None:
        """No process can join any more."""
        os.close(self.descriptor)


def _holders(batches: list[Pixels], i: int) -> int:
    return sys.getrefcount(batches[i])


# What the count is for an array in the list alone: measured, for it differs between Python versions.
_ALONE = _holders([np.empty(0, np.uint8)], 0)
