"""Batches to a device and results back, while the device computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor


class Upload:
    """Moves batches to a device; to a GPU beside what it computes, through memory that it reads itself."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, images: Tensor) -> Tensor:
        if self.stream is None:
            return images.to(self.device)
        computing = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.stream):
            moved = images.pin_memory().to(self.device, non_blocking=True)
        computing.wait_stream(self.stream)
        moved.record_stream(computing)
        return moved


class Download:
    """Results on their way to memory: waiting for them does not wait for what the device was given later."""

    def __init__(self, values: Sequence[Tensor | None]) -> None:
        self._values = [None if one is None else _begin_copy(one) for one in values]
        on_gpu = next((one.device for one in values if one is not None and one.is_cuda), None)
        self._arrived = None if on_gpu is None else torch.cuda.current_stream(on_gpu).record_event()

    def arrays(self) -> list[NDArray[Any] | None]:
        """The values, once they are there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return [None if one is None else one.numpy() for one in self._values]


def _begin_copy(values: Tensor) -> Tensor:
    if not values.is_cuda:
        return values.cpu()
    # A copy that does not wait needs memory that the device can write itself.
    return torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)


Item = TypeVar("Item")


def one_ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The same items, the next one begun before the last is handed out: the device works while we write."""
    held: list[Item] = []
    for item in items:
        held.append(item)
        if len(held) > 1:
            yield held.pop(0)
    yield from held
