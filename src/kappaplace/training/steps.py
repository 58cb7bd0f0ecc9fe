"""Training steps, from images or from extracted features.

Both kinds have ``run(epoch, start, stop)``, which runs these steps and returns their losses. Both have
``peek(count)``, which computes the first batches without training. Steps on features can be a CUDA graph,
because starting the small kernels of the head takes longer than running them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kappaplace.training.batches import BatchPlan, Items
from kappaplace.training.features import Autocast, FeatureStore
from kappaplace.training.images import ImageSource, Views
from kappaplace.training.objectives import Losses, Objective, Step
from kappaplace.training.optimizers import Optimizers

if TYPE_CHECKING:
    from accelerate import Accelerator


Steps: TypeAlias = "DirectSteps | CachedSteps"
"""Training steps, as the loop uses them."""


@dataclass
class Work:
    """Work of this process: its part of the batches, and the loss."""

    plan: BatchPlan
    """The batches."""
    objective: Objective
    """The loss."""
    optimizers: Optimizers
    """The optimizers."""
    accelerator: Accelerator
    """The processes."""
    accumulate: int = 1
    """Number of parts in which a batch is computed."""
    scaler: torch.amp.GradScaler | None = None
    """Scaler of the loss, so that gradients in float16 do not vanish."""

    @property
    def device(self) -> torch.device:
        """Device of this process."""
        return self.accelerator.device

    @property
    def part_size(self) -> int:
        """Number of images that one process computes at a time."""
        return self.plan.batch_size // (self.accelerator.num_processes * self.accumulate)

    def items(self, epoch: int, start: int, stop: int) -> Items:
        """Return the items of some steps that belong to this process, part after part.

        Args:
            epoch: Number of the epoch, from 0.
            start: First step.
            stop: Step after the last one; at most the number of steps per epoch.

        Returns:
            The items of this process.
        """
        items = self.plan.items(epoch, start, min(stop, self.plan.iterations))
        shape = (-1, self.accumulate, self.accelerator.num_processes, self.part_size)
        rank = self.accelerator.process_index
        return Items(*(column.reshape(shape)[:, :, rank].reshape(-1) for column in items))

    def on_device(self, values: NDArray[np.int64]) -> Tensor:
        """Copy an array to the device."""
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device, non_blocking=True)

    def learn(self, net: nn.Module, steps: Iterator[Step], group: int, count: int) -> dict[str, Tensor]:
        """Run some optimizer steps.

        Args:
            net: The network, wrapped if there are several processes.
            steps: Outputs of the network, part after part.
            group: Number of the group.
            count: Number of steps.

        Returns:
            Mean losses of this process by name, one value per step.
        """
        losses = [self._learn_batch(net, steps, group) for _ in range(count)]
        return {name: torch.stack([each[name] for each in losses]) for name in losses[0]}

    def _learn_batch(self, net: nn.Module, steps: Iterator[Step], group: int) -> Losses:
        total: Losses = {}
        for number in range(self.accumulate):
            last = number == self.accumulate - 1
            with nullcontext() if last else self.accelerator.no_sync(net):
                losses = self.objective(next(steps))
                loss = losses["loss"] / self.accumulate
                self.accelerator.backward(loss if self.scaler is None else self.scaler.scale(loss))
            for name, value in losses.items():
                total[name] = total.get(name, 0.0) + value.detach() / self.accumulate
        own = self.objective.parameters_of(group)
        if self.accelerator.num_processes > 1:
            # These are outside the wrapped network, which averages only its own gradients.
            for parameter in own:
                parameter.grad = self.accelerator.reduce(parameter.grad, "mean")
        self.optimizers.step(group, self.scaler)
        return total


@dataclass
class DirectSteps:
    """Steps in which images pass through the whole network."""

    work: Work
    """Work of this process."""
    net: nn.Module
    """The network, wrapped if there are several processes."""
    source: ImageSource
    """The images."""
    views: Views
    """Function that computes views of images."""
    autocast: Autocast
    """Function that returns a context that sets the precision."""
    channels_last: bool = True
    """Whether images are stored with the channels last."""
    _stream: Iterator[Step] | None = field(default=None, repr=False)
    _next: tuple[int, int] = (-1, -1)

    def run(self, epoch: int, start: int, stop: int) -> dict[str, Tensor]:
        # One stream per epoch, because the loader reads ahead and must not restart at every call.
        if self._stream is None or self._next != (epoch, start):
            items = self.work.items(epoch, start, self.work.plan.iterations)
            self._stream = self._steps(items, self.work.plan.group_of(epoch))
        self._next = (epoch, stop)
        return self.work.learn(self.net, self._stream, self.work.plan.group_of(epoch), stop - start)

    def peek(self, count: int) -> Iterator[Step]:
        return self._steps(self.work.items(0, 0, count), 0)

    def _steps(self, items: Items, group: int) -> Iterator[Step]:
        """Yield the outputs of the network, part after part."""
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
    """Steps in which stored features pass through the head."""

    work: Work
    """The batches, the loss, and the part of this process."""
    head: nn.Module
    """The head, wrapped if there are several processes."""
    store: FeatureStore
    """The features."""
    in_memory: bool = False
    """Whether the whole store is on the device."""

    def __post_init__(self) -> None:
        self._reduced: Tensor | None = None
        if self.in_memory:
            self._reduced = torch.from_numpy(np.asarray(self.store.reduced)).to(self.work.device)
            self._unit = _unit(torch.from_numpy(np.asarray(self.store.descriptor)).to(self.work.device))

    def run(self, epoch: int, start: int, stop: int) -> dict[str, Tensor]:
        group = self.work.plan.group_of(epoch)
        steps = self._steps(self.work.items(epoch, start, stop), group)
        return self.work.learn(self.head, steps, group, stop - start)

    def peek(self, count: int) -> Iterator[Step]:
        return self._steps(self.work.items(0, 0, count), 0)

    def _steps(self, items: Items, group: int) -> Iterator[Step]:
        size = self.work.part_size
        index = self.store.index(items.rows, items.views)
        for start in range(0, len(index), size):
            part = slice(start, start + size)
            rows, labels = (self.work.on_device(x[part]) for x in (items.rows, items.labels))
            yield self.step(*self.features(index[part]), rows, labels, group)

    def features(self, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return the input of the head, float16, and unit descriptors, on the device."""
        if self._reduced is not None:
            rows = self.work.on_device(index)
            return self._reduced[rows], self._unit[rows]
        reduced, descriptor = (
            torch.from_numpy(np.asarray(array[index])).to(self.work.device, non_blocking=True)
            for array in (self.store.reduced, self.store.descriptor)
        )
        return reduced, _unit(descriptor)

    def step(self, reduced: Tensor, unit: Tensor, rows: Tensor, labels: Tensor, group: int) -> Step:
        """Compute one batch with the head.

        Args:
            reduced: Input of the head, B×C.
            unit: Unit descriptors, B×d.
            rows: Image rows (B).
            labels: Place of each image within the group (B).
            group: Number of the group.

        Returns:
            Unit descriptors, outputs of the head, and labels of the batch.
        """
        return Step(unit, self.head(reduced.float()), rows, labels, group)


def _unit(descriptor: Tensor) -> Tensor:
    """Normalize again, because in float16 the length differs slightly from 1."""
    return nn.functional.normalize(descriptor.float(), dim=1)


_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast_for(device: torch.device, precision: str) -> Autocast:
    """Return a function that provides a context with the precision of the settings."""

    def context() -> AbstractContextManager[object]:
        dtype = _HALF.get(precision)
        return nullcontext() if dtype is None else torch.autocast(device.type, dtype)

    return context


WARM_UP = 3


@dataclass
class GraphedSteps(CachedSteps):
    """Steps of `CachedSteps`, recorded once and replayed. They need one GPU with the whole store on it."""

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
        optimizers = self.work.optimizers
        for _ in range(start, stop):
            if optimizers.settings.schedule != "constant":
                optimizers.set_rates()
            self._graph.replay()
            optimizers.done += 1
        return {name: values[: stop - start].clone() for name, values in self._losses.items()}

    def _record(self, batch: list[Tensor]) -> None:
        """Record one step, which reads its position in the batch from a counter on the device."""
        optimizer = self.work.optimizers.model
        for part in optimizer.param_groups:  # as tensors, the rates and the step count are on the device
            part["capturable"] = True
            part["lr"] = torch.tensor(float(part["lr"]), device=self.work.device)
        self._steps_in_graph = len(batch[0])
        self._inputs = [values.clone() for values in batch]
        self._cursor = torch.zeros(1, dtype=torch.int64, device=self.work.device)
        self._losses: dict[str, Tensor] = {}
        self.work.optimizers.set_rates()
        before = self._weights()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self._one()
                self._cursor.zero_()
        torch.cuda.current_stream().wait_stream(stream)
        optimizer.zero_grad(set_to_none=True)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._one()
        self._restore(before)

    def _one(self) -> None:
        assert self._reduced is not None
        index, rows, labels = (x.index_select(0, self._cursor).squeeze(0) for x in self._inputs)
        step = self.step(self._reduced[index], self._unit[index], rows, labels, 0)
        losses = self.work.objective(step)
        self.work.optimizers.model.zero_grad(set_to_none=True)
        losses["loss"].backward()
        self.work.optimizers.model.step()
        for name, value in losses.items():
            if name not in self._losses:
                self._losses[name] = torch.zeros(self._steps_in_graph, device=self.work.device)
            self._losses[name].index_copy_(0, self._cursor, value.detach().view(1))
        self._cursor.add_(1)

    def _weights(self) -> list[tuple[Tensor, Tensor]]:
        """Return the tensors that a step changes, each with a copy of its values."""
        optimizer = self.work.optimizers.model
        copies = [(p, p.detach().clone()) for part in optimizer.param_groups for p in part["params"]]
        for state in optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    state[name] = value.to(self.work.device)
                    copies.append((state[name], state[name].clone()))
        return copies

    def _restore(self, copies: list[tuple[Tensor, Tensor]]) -> None:
        optimizer = self.work.optimizers.model
        restored = {id(tensor) for tensor, _ in copies}
        with torch.no_grad():
            for tensor, values in copies:
                tensor.copy_(values)
            for state in optimizer.state.values():
                for value in state.values():
                    if isinstance(value, Tensor) and id(value) not in restored:
                        value.zero_()
