"""Optimizers: one schedule, a rate for each part, prototypes only in their epoch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from kappaplace.training.objectives import Classification
from kappaplace.training.optimizers import Optimizers, warm_cosine
from kappaplace.training.settings import LossSettings, OptimizerSettings


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.frozen, self.head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)
        self.frozen.requires_grad_(False)


def make(total_steps: int = 20, **options: object) -> tuple[Model, Classification, Optimizers]:
    torch.manual_seed(3)
    model, objective = Model(), Classification([4, 5], 3, LossSettings())
    settings = OptimizerSettings(**{"lr": 1e-3, **options})  # type: ignore[arg-type]
    return model, objective, Optimizers(model, objective, 2, settings, total_steps)


def push(model: Model, objective: Classification, value: float = 1.0) -> None:
    """The same gradient for all trainable weights."""
    for parameter in (*model.parameters(), *objective.parameters()):
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, value)


def test_schedule_by_hand() -> None:
    """Twenty steps: up over two, then down a cosine of eighteen."""
    expected = [0.5, 1.0] + [0.5 * (1 + math.cos(math.pi * k / 18)) for k in range(18)]
    assert [warm_cosine(step, 20) for step in range(20)] == pytest.approx(expected)
    assert warm_cosine(20, 20) == pytest.approx(0)


@given(steps=st.integers(1, 300))
def test_schedule_rises_then_falls_and_never_stands_still(steps: int) -> None:
    rates = [warm_cosine(step, steps) for step in range(steps)]
    top = rates.index(max(rates))
    assert max(rates) == 1
    assert min(rates) > 0
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)


def test_each_part_moves_at_its_own_rate() -> None:
    """Adam's first step equals the learning rate for any gradient."""
    model, objective, optimizers = make(lr=1e-3, head_lr=1e-2, prototype_lr=1e-1)
    parts = {"encoder": model.encoder, "head": model.head, "frozen": model.frozen}
    before = {name: part.weight.detach().clone() for name, part in parts.items()}
    prototypes = [matrix.detach().clone() for matrix in objective.prototypes]
    push(model, objective, 7.0)
    optimizers.step(1)
    for name, rate in (("encoder", 1e-3), ("head", 1e-2), ("frozen", 0.0)):
        torch.testing.assert_close(before[name] - parts[name].weight, torch.full_like(before[name], rate))
    torch.testing.assert_close(prototypes[1] - objective.prototypes[1], torch.full((5, 3), 0.1))
    torch.testing.assert_close(objective.prototypes[0], prototypes[0], rtol=0, atol=0)  # not its turn
    assert model.encoder.weight.grad is None
    assert optimizers.done == 1


def test_the_head_goes_with_the_encoder_unless_stated() -> None:
    model, objective, optimizers = make(lr=1e-3)
    before = model.head.weight.detach().clone()
    push(model, objective)
    optimizers.step(0)
    torch.testing.assert_close(before - model.head.weight, torch.full_like(before, 1e-3))


def test_rates_are_halved_after_every_five_epochs() -> None:
    """As in the code of STUN: six epochs are five at the full rate and one at half of it."""
    optimizers = make(total_steps=36, epochs=12, schedule="halving")[2]  # three steps per epoch
    factors = []
    for step in range(36):
        optimizers.done = step
        factors.append(optimizers.factor)
    assert factors == [1.0] * 15 + [0.5] * 15 + [0.25] * 6


@pytest.mark.parametrize("schedule", ["constant", "warm-cosine"])
def test_every_rate_follows_the_schedule(schedule: str) -> None:
    model, objective, optimizers = make(10, schedule=schedule, prototype_lr=1e-2)
    for step in range(10):
        push(model, objective)
        optimizers.step(step % 2)
        factor = 1.0 if schedule == "constant" else warm_cosine(step, 10)
        for optimizer, rate in ((optimizers.model, 1e-3), *((x, 1e-2) for x in optimizers.groups.values())):
            assert [part["lr"] for part in optimizer.param_groups] == pytest.approx(
                [rate * factor] * len(optimizer.param_groups)
            )


def test_weight_decay_pulls_towards_zero() -> None:
    model, objective, optimizers = make(weight_decay=0.1)
    before = model.encoder.weight.detach().clone()
    push(model, objective, 0.0)
    optimizers.step(0)
    torch.testing.assert_close(model.encoder.weight.detach(), before * (1 - 1e-3 * 0.1))


def test_a_saved_state_resumes_exactly() -> None:
    whole = make(schedule="warm-cosine")
    first = make(schedule="warm-cosine")

    def run(parts: tuple[Model, Classification, Optimizers], start: int, stop: int) -> None:
        for step in range(start, stop):
            push(parts[0], parts[1], math.sin(step))
            parts[2].step(step % 2)

    run(whole, 0, 9)
    run(first, 0, 4)
    second = make(schedule="warm-cosine")
    for part, source in zip(second[:2], first[:2], strict=True):
        part.load_state_dict(source.state_dict())
    second[2].load_state_dict(first[2].state_dict())
    second[2].done = first[2].done
    run(second, 4, 9)
    for mine, theirs in zip(second[:2], whole[:2], strict=True):
        for name, value in mine.state_dict().items():
            torch.testing.assert_close(value, theirs.state_dict()[name], rtol=0, atol=0)


def test_objectives_without_weights_have_no_optimizer_of_their_own() -> None:
    from kappaplace.training.objectives import Objective

    optimizers = Optimizers(Model(), Objective(), 3, OptimizerSettings(), 10)
    assert optimizers.all() == [optimizers.model]
    assert sum(len(part["params"]) for part in optimizers.model.param_groups) == 4
