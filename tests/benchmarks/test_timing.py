"""Timing in turn, and memory."""

from __future__ import annotations

import time

import torch

from kappaplace.cli.bench import Rounds, interleaved, ratio
from overhead import peak_bytes

CPU = torch.device("cpu")


def test_every_call_has_its_turn_and_the_first_one_changes() -> None:
    order: list[str] = []
    calls = {name: (lambda name=name: order.append(name)) for name in "ab"}
    taken = interleaved(calls, CPU, Rounds(3, 2, 1))
    assert order[:2] == ["a", "b"]  # warm-up
    assert order[2:8] == ["a", "b", "b", "a", "a", "b"]
    assert {name: len(values) for name, values in taken.items()} == {"a": 2, "b": 2}


def test_a_slower_call_is_told_as_slower() -> None:
    calls = {"slow": lambda: time.sleep(0.01), "fast": lambda: time.sleep(0.001)}
    taken = interleaved(calls, CPU, Rounds(3, 3, 0))
    assert ratio(taken["slow"], taken["fast"]) > 2


def test_the_ratio_is_the_median_of_the_rounds() -> None:
    assert ratio([1.0, 4.0, 9.0], [1.0, 2.0, 1.0]) == 2.0


def test_peak_memory_is_what_lives_at_a_time() -> None:
    kib = 256 * 4  # a float32 has four bytes

    def one_after_the_other() -> None:
        for _ in range(3):
            torch.empty(256 * 1024)

    def at_once() -> list[torch.Tensor]:
        return [torch.empty(256 * 1024) for _ in range(3)]

    assert peak_bytes(one_after_the_other, CPU) == 1024 * kib
    assert peak_bytes(at_once, CPU) == 3 * 1024 * kib
