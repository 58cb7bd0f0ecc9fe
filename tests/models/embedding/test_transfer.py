"""Copies of batches to a device, and of results back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from kappaplace.models.embedding import Download, Upload, one_ahead


def test_results_come_back_as_they_were() -> None:
    values = torch.arange(6.0).reshape(2, 3)
    first, missing, second = Download([values, None, values.half()]).arrays()
    assert missing is None
    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(first, values.numpy())
    assert second.dtype == np.float16
    np.testing.assert_array_equal(second, values.numpy())


def test_an_upload_to_the_processor_changes_nothing() -> None:
    values = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    assert torch.equal(Upload(torch.device("cpu"))(values), values)


def test_the_next_item_is_begun_before_the_last_is_handed_out() -> None:
    begun: list[int] = []

    def items() -> Iterator[int]:
        for i in range(4):
            begun.append(i)
            yield i

    calls = []
    for item in one_ahead(items()):
        calls.append(item)
        assert begun[-1] == min(item + 1, 3)
    assert calls == [0, 1, 2, 3]
    assert list(one_ahead([])) == []
