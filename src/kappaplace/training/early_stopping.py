"""When to stop: a metric that no longer improves, or several in turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kappaplace.errors import KappaPlaceError

HIGHER_IS_BETTER = {"R@1": True, "ECE@1": False, "AUROC": True}


def better(metric: str, value: float, than: float | None, min_delta: float = 0.0) -> bool:
    """Whether a value improves on another by more than ``min_delta``; an undefined one never wins."""
    if value != value:
        return False
    if than is None or than != than:
        return True
    return value > than + min_delta if HIGHER_IS_BETTER[metric] else value < than - min_delta


@dataclass
class EarlyStopping:
    """Patience with each metric in turn.

    JT: R@1 until its patience is over, then ECE@1 with fresh patience, starting from the value of that time.
    """

    metrics: tuple[str, ...]
    patience: int
    min_delta: float = 0.0
    phase: int = 0
    best: float | None = None
    waited: int = 0
    stopped: bool = False
    best_epoch: dict[str, int] = field(default_factory=dict)
    """Epoch of the best value of every metric, whatever the phase."""
    best_value: dict[str, float] = field(default_factory=dict)

    @property
    def metric(self) -> str:
        """The metric watched now."""
        return self.metrics[self.phase]

    def update(self, epoch: int, values: dict[str, float]) -> list[str]:
        """Take in one epoch's values; the metrics whose best value this epoch brought.

        "model" is among them where the watched metric improved, or has just taken over: that model is the
        run's result so far.
        """
        improved = []
        for metric in HIGHER_IS_BETTER:
            if metric in values and better(metric, values[metric], self.best_value.get(metric)):
                self.best_value[metric], self.best_epoch[metric] = values[metric], epoch
                improved.append(metric)
        if not self.metrics or self._watch(values):
            improved.append("model")
        return improved

    def check(self, values: dict[str, float]) -> None:
        """Refuse metrics that a model's values lack, before time is spent on it."""
        for metric in self.metrics:
            if metric not in values:
                raise KappaPlaceError(
                    f"Early stopping watches {metric}, which this model does not have; set stop.metrics."
                )

    def _watch(self, values: dict[str, float]) -> bool:
        self.check(values)
        if self.best is None or better(self.metric, values[self.metric], self.best, self.min_delta):
            self.best, self.waited = values[self.metric], 0
            return True
        self.waited += 1
        if not self.patience or self.waited < self.patience:
            return False
        if self.phase + 1 == len(self.metrics):
            self.stopped = True
            return False
        self.phase, self.waited = self.phase + 1, 0
        self.best = values.get(self.metric)
        return True

    def state_dict(self) -> dict[str, Any]:
        """All it takes to go on."""
        return {key: getattr(self, key) for key in _STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for key in _STATE:
            setattr(self, key, state[key])


_STATE = ("phase", "best", "waited", "stopped", "best_epoch", "best_value")
