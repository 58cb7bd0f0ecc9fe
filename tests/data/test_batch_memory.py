"""Memory of batches: reused when free, never while a part of it is in use."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kappaplace.data.decode_pool import available
from kappaplace.data.decode_worker import SharedBatches, Spares

SHAPE = (2, 4, 5, 3)
linux = pytest.mark.skipif(not available(), reason="needs unnamed memory")


def test_free_arrays_are_reused() -> None:
    spares = Spares(2)
    first = spares.take(SHAPE)
    address = first.ctypes.data
    view = torch.from_numpy(first).permute(0, 3, 1, 2)[0]
    del first
    assert spares.take(SHAPE).ctypes.data != address
    del view
    assert spares.take(SHAPE).ctypes.data == address
    assert spares.take((1, 4, 5, 3)).shape == (1, 4, 5, 3)


@linux
@given(st.lists(st.booleans(), max_size=30))
def test_shared_batches_in_use_never_overlap(choices: list[bool]) -> None:
    memory = SharedBatches(3, SHAPE)
    held: list[torch.Tensor] = []
    marks: list[int] = []
    for mark, release in enumerate(choices):
        if release and held:
            held.pop(0)
            marks.pop(0)
        taken = memory.take(SHAPE)
        assert (taken is None) == (len(held) == 3)
        if taken is not None:
            taken[0][...] = mark
            held.append(torch.from_numpy(taken[0])[1:])
            marks.append(mark)
        del taken
        assert [(int(x.min()), int(x.max())) for x in held] == [(m, m) for m in marks]
    memory.close()


@linux
def test_batches_have_their_offset_and_outlive_the_memory() -> None:
    memory = SharedBatches(2, SHAPE)
    (first, start), (second, place) = memory.take(SHAPE), memory.take((1, 4, 5, 3))  # type: ignore[misc]
    assert (start, place, second.shape) == (0, mmap.PAGESIZE, (1, 4, 5, 3))
    first[...], second[...] = 7, 9
    memory.close()
    del memory
    assert (np.unique(first), np.unique(second)) == (7, 9)
