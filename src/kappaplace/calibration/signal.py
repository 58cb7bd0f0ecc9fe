"""One score, or several combined: what a calibrator is fitted on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kappaplace.calibration.checks import Bools, Floats, Rows, finite, stored
from kappaplace.errors import KappaPlaceError
from kappaplace.uncertainty.fused import Combination, fit_combination


@dataclass(frozen=True)
class Signal:
    """One score, or several combined, as one uncertainty."""

    scores: tuple[str, ...]
    combination: Combination | None = None
    """None for a single score, which is taken as it is."""

    def __post_init__(self) -> None:
        if not self.scores or (self.combination is None and len(self.scores) > 1):
            raise KappaPlaceError("A calibration is of one score, or of a combination of several.")
        if self.combination is not None and self.combination.scores != self.scores:
            raise KappaPlaceError(
                f"The combination is of {', '.join(self.combination.scores)}, "
                f"not of {', '.join(self.scores)}."
            )

    def uncertainty(self, features: Any, dimensions: int) -> Floats:
        """From features with these dimensions, and one more for the scores (not needed for a single one)."""
        values = finite(features, f"scores ({', '.join(self.scores)})")
        if values.ndim == dimensions and len(self.scores) == 1:
            values = values[..., None]
        if values.ndim != dimensions + 1 or values.shape[-1] != len(self.scores):
            raise KappaPlaceError(
                f"This calibration takes {len(self.scores)} scores ({', '.join(self.scores)}) as the last of "
                f"{dimensions + 1} dimensions, got the shape {values.shape}."
            )
        if self.combination is None:
            return values[..., 0]
        flat = values.reshape(-1, len(self.scores))
        return (1.0 - self.combination.probability(flat)).reshape(values.shape[:-1])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        combination = None if self.combination is None else self.combination.to_dict()
        return {"scores": list(self.scores), "combination": combination}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Signal:
        """The inverse of `to_dict`."""
        parts = stored(values, {"scores", "combination"}, "signal")
        combination = parts["combination"]
        return cls(
            tuple(map(str, parts["scores"])),
            None if combination is None else Combination.from_dict(combination),
        )


def fit_signal(
    features: Any,
    success: Bools,
    scores: tuple[str, ...],
    combination: Combination | None,
    rows: Rows,
    dimensions: int,
) -> Signal:
    """A combination fitted on these rows where there are several scores; a single one is taken as it is."""
    if combination is None and len(scores) > 1:
        columns = finite(features, f"scores ({', '.join(scores)})")
        if columns.shape != (*success.shape, len(scores)):
            raise KappaPlaceError(
                f"The scores of {success.shape} outcomes and {len(scores)} names have the shape "
                f"{columns.shape}; give one column a name."
            )
        combination = fit_combination(
            columns[rows].reshape(-1, len(scores)), success[rows].ravel(), list(scores)
        )
    signal = Signal(scores, combination)
    if signal.uncertainty(features, dimensions).shape != success.shape:
        raise KappaPlaceError(
            f"The scores have the shape {np.shape(features)} for {success.shape} outcomes; give as many."
        )
    return signal
