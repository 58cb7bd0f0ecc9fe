"""Early stopping: by a metric that no longer improves, or by several in turn."""

from __future__ import annotations

from dataclasses import dataclass, field

from kappaplace.errors import KappaPlaceError
from kappaplace.types import Json

HIGHER_IS_BETTER = {"R@1": True, "ECE@1": False, "AUROC": True}


def better(metric: str, value: float, than: float | None, min_delta: float = 0.0) -> bool:
    """Return whether a value is better than another one; an undefined value never is.

    Args:
        metric: Name of the metric.
        value: The new value.
        than: The best value so far. None if there is none.
        min_delta: Smallest difference that is an improvement.

    Returns:
        Whether the value is an improvement.
    """
    if value != value:
        return False
    if than is None or than != than:
        return True
    return value > than + min_delta if HIGHER_IS_BETTER[metric] else value < than - min_delta


@dataclass
class EarlyStopping:
    """Patience with each metric in turn.

    Joint training watches R@1 until its patience ends, then ECE@1 with new patience, from its current value.
    """

    metrics: tuple[str, ...]
    """Metrics to watch in turn."""
    patience: int
    """Number of epochs without an improvement. 0: never stop."""
    min_delta: float = 0.0
    """Smallest difference that is an improvement."""
    phase: int = 0
    """Number of the metric that is watched."""
    best: float | None = None
    """Best value of the watched metric."""
    waited: int = 0
    """Epochs since the last improvement."""
    stopped: bool = False
    """Whether training stops after this epoch."""
    best_epoch: dict[str, int] = field(default_factory=dict)
    """Epoch of the best value of every metric, in all phases."""
    best_value: dict[str, float] = field(default_factory=dict)
    """Best value of every metric, in all phases."""
    model_epoch: int = 0
    """Epoch of the best model so far."""

    @property
    def metric(self) -> str:
        """Name of the metric that is watched now."""
        return self.metrics[self.phase]

    def update(self, epoch: int, values: dict[str, float]) -> list[str]:
        """Add the values of one epoch.

        Args:
            epoch: Number of the epoch; 0 is the model before the first step.
            values: Validation metrics.

        Returns:
            Names of the metrics that reached their best value, and "model" if the model is the best so far:
            the watched metric improved, or is watched from now on.
        """
        improved = []
        for metric in HIGHER_IS_BETTER:
            if metric in values and better(metric, values[metric], self.best_value.get(metric)):
                self.best_value[metric], self.best_epoch[metric] = values[metric], epoch
                improved.append(metric)
        if not self.metrics or self._watch(values):
            self.model_epoch = epoch
            improved.append("model")
        return improved

    def check(self, values: dict[str, float]) -> None:
        """Raise an error if a watched metric is missing, before any training."""
        for metric in self.metrics:
            if metric not in values:
                raise KappaPlaceError(
                    f"Early stopping watches {metric}, which this model does not have. Set stop.metrics."
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

    def state_dict(self) -> dict[str, Json]:
        """Return the state to resume from."""
        return {key: getattr(self, key) for key in _STATE}

    def load_state_dict(self, state: dict[str, Json]) -> None:
        """Restore the state that `state_dict` returned."""
        for key in _STATE:  # states of version 0.1.0 lack the last one
            setattr(self, key, state.get(key, 0))


_STATE = ("phase", "best", "waited", "stopped", "best_epoch", "best_value", "model_epoch")
