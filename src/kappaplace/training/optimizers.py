"""Optimizers: one for the model and one for the prototypes of each group, with the same schedule."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from kappaplace.training.objectives import Objective
from kappaplace.training.settings import OptimizerSettings


def warm_cosine(step: int, steps: int) -> float:
    """Return the factor of the learning rate: it rises over the first tenth, and falls to zero on a
    cosine."""
    warm = max(1, steps // 10)
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


HALVING_EPOCHS = 5


class Optimizers:
    """Optimizers of a run: AdamW for all weights. Learning rates depend on the step and are not part of the
    state.

    Args:
        model: The model.
        objective: The loss, which can have weights for each group, such as prototypes.
        groups: Number of groups.
        settings: Learning rates and schedule.
        total_steps: Number of steps of the run.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        groups: int,
        settings: OptimizerSettings,
        total_steps: int,
    ) -> None:
        self.settings, self.total_steps, self.done = settings, total_steps, 0
        encoder = [
            p for name, p in model.named_parameters() if p.requires_grad and not name.startswith("head.")
        ]
        head = [p for name, p in model.named_parameters() if p.requires_grad and name.startswith("head.")]
        parts = [
            {"params": encoder, "rate": settings.lr},
            {"params": head, "rate": settings.head_lr or settings.lr},
        ]
        self.model = _adam([part for part in parts if part["params"]], settings.weight_decay)
        self.groups = {
            number: _adam([{"params": own, "rate": settings.prototype_lr}], settings.weight_decay)
            for number in range(groups)
            if (own := objective.parameters_of(number))
        }

    def all(self) -> list[torch.optim.Optimizer]:
        """Return all optimizers, the optimizer of the model first."""
        return [self.model, *self.groups.values()]

    @property
    def factor(self) -> float:
        """Factor of the learning rates at the current step."""
        if self.settings.schedule == "halving":
            return 0.5 ** (self.done * self.settings.epochs // self.total_steps // HALVING_EPOCHS)
        return 1.0 if self.settings.schedule == "constant" else warm_cosine(self.done, self.total_steps)

    def set_rates(self) -> None:
        """Set every learning rate to its value at the current step."""
        for optimizer in self.all():
            for part in optimizer.param_groups:
                rate = part["rate"] * self.factor
                if isinstance(part["lr"], Tensor):
                    part["lr"].fill_(rate)
                else:
                    part["lr"] = rate

    def step(self, group: int, scaler: torch.amp.GradScaler | None = None) -> None:
        """Update the weights that have gradients, then clear the gradients.

        Args:
            group: Number of the group.
            scaler: Scaler of the loss. It skips the step and lowers its scale if a gradient is infinite.
        """
        self.set_rates()
        for optimizer in (self.model, self.groups.get(group)):
            if optimizer is not None:
                optimizer.step() if scaler is None else scaler.step(optimizer)
                optimizer.zero_grad(set_to_none=True)
        if scaler is not None:
            scaler.update()
        self.done += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from."""
        groups = {number: optimizer.state_dict() for number, optimizer in self.groups.items()}
        return {"model": self.model.state_dict(), "groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.model.load_state_dict(state["model"])
        for number, optimizer in self.groups.items():
            optimizer.load_state_dict(state["groups"][number])


def _adam(parts: list[dict[str, Any]], weight_decay: float) -> torch.optim.Optimizer:
    on_gpu = any(parameter.is_cuda for part in parts for parameter in part["params"])
    for part in parts:
        part["lr"] = part["rate"]
    return torch.optim.AdamW(parts, weight_decay=weight_decay, fused=on_gpu)
