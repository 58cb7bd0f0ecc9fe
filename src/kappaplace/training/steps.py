"""Training steps: from images, or from features extracted before.

Both kinds have ``run(epoch, start, stop)``, which does these steps and gives the losses of each as a tensor,
and ``peek(count)``, which computes the first batches without learning from them.

Cached steps as one CUDA graph: the head is so small that starting its kernels costs more than they do.
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
from kappaplace.training.images import ImageSource, Views
from kappaplace.training.objectives import Losses, Objective, Step
from kappaplace.training.optimizers import Optimisers


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


WARM_UP = 3


@dataclass
class GraphedSteps(CachedSteps):
    """The same steps as `CachedSteps`, recorded once and replayed; one GPU, the whole store on it."""

    def __post_init__(self) -> None:
        self.in_memory = True
        super().__post_init__()
        self._graph: torch.cuda.CUDAGraph | None = None
        self._steps_in_graph = 0

    def run(self, epoch: int, start: int, stop: int) -> dict[str, Tensor]:
        items = self.work.plan.items(epoch, start, stop)
        index = self.store.index(items.rows, items.views)
        shape = (stop - start, self.work.plan.batch_size)
        batch = [self.work.on_device(x).view(shape) for x in (index, items.rows, items.labels)]
        if self._graph is None or stop - start > self._steps_in_graph:
            self._record(batch)
        assert self._graph is not None
        for static, values in zip(self._inputs, batch, strict=True):
            static[: stop - start].copy_(values)
        self._cursor.zero_()
        optimisers = self.work.optimisers
        for _ in range(start, stop):
            if optimisers.settings.schedule != "constant":
                optimisers.set_rates()
            self._graph.replay()
            optimisers.done += 1
        return {name: values[: stop - start].clone() for name, values in self._losses.items()}

    def _record(self, batch: list[Tensor]) -> None:
        """Record one step that reads its place in the order from a counter on the device."""
        optimiser = self.work.optimisers.model
        for part in optimiser.param_groups:  # as tensors, the rates and the step count live on the device
            part["capturable"] = True
            part["lr"] = torch.tensor(float(part["lr"]), device=self.work.device)
        self._steps_in_graph = len(batch[0])
        self._inputs = [values.clone() for values in batch]
        self._cursor = torch.zeros(1, dtype=torch.int64, device=self.work.device)
        self._losses: dict[str, Tensor] = {}
        self.work.optimisers.set_rates()
        before = self._weights()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self._one()
                self._cursor.zero_()
        torch.cuda.current_stream().wait_stream(stream)
        optimiser.zero_grad(set_to_none=True)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._one()
        self._restore(before)

    def _one(self) -> None:
        assert self._reduced is not None
        index, rows, labels = (x.index_select(0, self._cursor).squeeze(0) for x in self._inputs)
        step = self.step(self._reduced[index], self._unit[index], rows, labels, 0)
        losses = self.work.objective(step)
        self.work.optimisers.model.zero_grad(set_to_none=True)
        losses["loss"].backward()
        self.work.optimisers.model.step()
        for name, value in losses.items():
            if name not in self._losses:
                self._losses[name] = torch.zeros(self._steps_in_graph, device=self.work.device)
            self._losses[name].index_copy_(0, self._cursor, value.detach().view(1))
        self._cursor.add_(1)

    def _weights(self) -> list[tuple[Tensor, Tensor]]:
        """Everything a step changes, with copies of its present values; fresh moments are zero."""
        optimiser = self.work.optimisers.model
        kept = [(p, p.detach().clone()) for part in optimiser.param_groups for p in part["params"]]
        for state in optimiser.state.values():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    state[name] = value.to(self.work.device)
                    kept.append((state[name], state[name].clone()))
        return kept

    def _restore(self, kept: list[tuple[Tensor, Tensor]]) -> None:
        optimiser = self.work.optimisers.model
        known = {id(tensor) for tensor, _ in kept}
        with torch.no_grad():
            for tensor, values in kept:
                tensor.copy_(values)
            for state in optimiser.state.values():
                for value in state.values():
                    if isinstance(value, Tensor) and id(value) not in known:
                        value.zero_()
