"""Timing calls against each other, in turn, so that a busy machine slows all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch

Call = Callable[[], object]


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(call: Call, device: torch.device) -> float:
    """Of one call, from an idle device to an idle device."""
    wait(device)
    start = time.perf_counter()
    call()
    wait(device)
    return time.perf_counter() - start


def interleaved(
    calls: Mapping[str, Call],
    device: torch.device | None = None,
    *,
    runs: int = 200,
    rounds: int = 5,
    warm_up: int = 20,
) -> dict[str, list[float]]:
    """For every call the median seconds of each round.

    A round is ``runs`` turns in which every call has one go; who goes first changes from turn to turn.
    """
    device = device or torch.device("cpu")
    names = list(calls)
    for name in names:
        for _ in range(warm_up):
            calls[name]()
    medians: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        taken: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(runs):
            for i in range(len(names)):
                name = names[(i + turn) % len(names)]
                taken[name].append(seconds(calls[name], device))
        for name in names:
            medians[name].append(statistics.median(taken[name]))
    return medians


def ratio(over: list[float], under: list[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))
