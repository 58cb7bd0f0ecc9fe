"""Cached steps as one CUDA graph: the head is so small that starting its kernels costs more than they do."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kappaplace.training.steps import CachedSteps

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
