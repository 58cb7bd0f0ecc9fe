"""A function of one tensor as a CUDA graph: at batch 1 starting the kernels costs more than they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

WARM_UP = 3


class GraphedCall:
    """One function for inputs of one shape, recorded once and replayed."""

    def __init__(self, call: Callable[[Tensor], Tensor], example: Tensor) -> None:
        """``example`` is the first input; what follows is converted to its type and layout."""
        self._input = example.clone()
        with torch.cuda.device(example.device), best_convolutions():
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):  # compiles, and lets cuDNN choose
                    call(self._input)
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._output = call(self._input)

    def __call__(self, x: Tensor) -> Tensor:
        """The function's value; it is the caller's own, the next call does not touch it."""
        with torch.cuda.device(self._input.device):
            self._input.copy_(x, non_blocking=True)
            self._graph.replay()
            return self._output.clone()


@contextmanager
def best_convolutions() -> Iterator[None]:
    """cuDNN tries its algorithms and keeps the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
