"""Training steps: from images, or from features extracted before.

Both kinds have ``run(epoch, start, stop)``, which does these steps and gives the losses of each as a tensor,
and ``peek(count)``, which computes the first batches without learning from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kappaplace.training.batches import BatchPlan, Items
from kappaplace.training.features import FeatureStore
from kappaplace.training.objectives import Losses, Objective, Step
from kappaplace.training.optimisers import Optimisers
from kappaplace.training.views import ImageSource, Views


class Steps(Protocol):
    """What the loop needs of either kind."""

    def run(self, epoch: int, start: int, stop: int) -> dict[str, Tensor]: ...

    def peek(self, count: int) -> Iterator[Step]: ...


@dataclass
class Work:
    """What both kinds share: the batches, the loss, and this process's part."""

    plan: BatchPlan
    objective: Objective
    optimisers: Optimisers
    accelerator: Any
    accumulate: int = 1

    @property
    def device(self) -> torch.device:
        return self.accelerator.device

    @property
    def part_size(self) -> int:
        """Images that one process computes at a time."""
        return self.plan.batch_size // (self.accelerator.num_processes * self.accumulate)

    def mine(self, items: Items) -> Items:
        """This process's items of whole batches, part after part."""
        shape = (-1, self.accumulate, self.accelerator.num_processes, self.part_size)
        rank = self.accelerator.process_index
        return Items(*(column.reshape(shape)[:, :, rank].reshape(-1) for column in items))

    def on_device(self, values: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device, non_blocking=True)

    def learn(self, net: nn.Module, steps: Iterator[Step], group: int) -> Losses:
        """One optimiser step from the parts of one batch; the mean losses of this process."""
        total: Losses = {}
        for number in range(self.accumulate):
            last = number == self.accumulate - 1
            with nullcontext() if last else self.accelerator.no_sync(net):
                losses = self.objective(next(steps))
                self.accelerator.backward(losses["loss"] / self.accumulate)
            for name, value in losses.items():
                total[name] = total.get(name, 0.0) + value.detach() / self.accumulate
        own = self.objective.parameters_of(group)
        if self.accelerator.num_processes > 1:
            for parameter in own:  # outside the wrapped network, so nobody else averages them
                parameter.grad = self.accelerator.reduce(parameter.grad, "mean")
        self.optimisers.step(group)
        return total


@dataclass
class DirectSteps:
    """Images through the whole network, at every visit."""

    work: Work
    net: nn.Module
    source: ImageSource
    views: Views
    autocast: Any
    channels_last: bool = True
    _stream: Iterator[Step] | None = field(default=None, repr=False)
    _next: tuple[int, int] = (-1, -1)

    def run(self, epoch: int, start: int, stop: int) -> dict[str, Tensor]:
        # One stream an epoch: the loader reads ahead, and must not start anew at every call.
        if self._stream is None or self._next != (epoch, start):
            items = self.work.plan.items(epoch, start, self.work.plan.iterations)
            self._stream = self._steps(self.work.mine(items), self.work.plan.group_of(epoch))
        losses = [
            self.work.learn(self.net, self._stream, self.work.plan.group_of(epoch))
            for _ in range(start, stop)
        ]
        self._next = (epoch, stop)
        return {name: torch.stack([one[name] for one in losses]) for name in losses[0]}

    def peek(self, count: int) -> Iterator[Step]:
        items = self.work.mine(self.work.plan.items(0, 0, min(count, self.work.plan.iterations)))
        return self._steps(items, 0)

    def _steps(self, items: Items, group: int) -> Iterator[Step]:
        """The network's outputs, part after part."""
        size = self.work.part_size
        position = 0
        for _, images in self.source.batches(items.rows, size):
            part = items.part(slice(position, position + size))
            position += size
            pixels = self.views(images, part.keys)
            if self.channels_last:
                pixels = pixels.contiguous(memory_format=torch.channels_last)
            with self.autocast():
                descriptor, spread = self.net(pixels)
            rows, labels = self.work.on_device(part.rows), self.work.on_device(part.labels)
            yield Step(descriptor, spread, rows, labels, group, pixels)


@dataclass
class CachedSteps:
    """Stored features through the head alone."""

    work: Work
    head: nn.Module
    """The head, wrapped where processes share the work."""
    store: FeatureStore
    in_memory: bool = False
    """Whether the whole store is kept on the device."""

    def __post_init__(self) -> None:
        self._reduced: Tensor | None = None
        if self.in_memory:
            self._reduced = torch.from_numpy(np.asarray(self.store.reduced)).to(self.work.device)
            self._unit = _unit(torch.from_numpy(np.asarray(self.store.descriptor)).to(self.work.device))

    def run(self, epoch: int, start: int, stop: int) -> dict[str, Tensor]:
        group = self.work.plan.group_of(epoch)
        steps = self._steps(self.work.mine(self.work.plan.items(epoch, start, stop)), group)
        losses = [self.work.learn(self.head, steps, group) for _ in range(start, stop)]
        return {name: torch.stack([one[name] for one in losses]) for name in losses[0]}

    def peek(self, count: int) -> Iterator[Step]:
        return self._steps(
            self.work.mine(self.work.plan.items(0, 0, min(count, self.work.plan.iterations))), 0
        )

    def _steps(self, items: Items, group: int) -> Iterator[Step]:
        size = self.work.part_size
        index = self.store.index(items.rows, items.views)
        for start in range(0, len(index), size):
            part = slice(start, start + size)
            rows, labels = (self.work.on_device(x[part]) for x in (items.rows, items.labels))
            yield self.step(*self.features(index[part]), rows, labels, group)

    def features(self, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """What the head reads, float16, and unit descriptors on the device."""
        if self._reduced is not None:
            chosen = self.work.on_device(index)
            return self._reduced[chosen], self._unit[chosen]
        reduced, descriptor = (
            torch.from_numpy(np.asarray(array[index])).to(self.work.device, non_blocking=True)
            for array in (self.store.reduced, self.store.descriptor)
        )
        return reduced, _unit(descriptor)

    def step(self, reduced: Tensor, unit: Tensor, rows: Tensor, labels: Tensor, group: int) -> Step:
        """One batch through the head."""
        return Step(unit, self.head(reduced.float()), rows, labels, group)


def _unit(descriptor: Tensor) -> Tensor:
    """float16 is a hair off unit length."""
    return nn.functional.normalize(descriptor.float(), dim=1)


def autocast_for(device: torch.device, precision: str) -> Any:
    """A context that computes in bfloat16 where asked to."""

    def context() -> AbstractContextManager:
        return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()

    return context
