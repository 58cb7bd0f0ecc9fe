"""Figure of a training run: loss and validation metrics per epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kappaplace.files import make_folder, write_file
from kappaplace.metrics import TIED
from kappaplace.reports.figures import COLOURS, new_figure, styled
from kappaplace.reports.html import png_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Epoch: TypeAlias = Mapping[str, Any]
"""One row of a training log: epoch, loss and validation metrics."""
_FLAWED = "constant score"
METRICS = ("R@1", "R@5", "R@10", "ECE@1", "AUROC")


@styled
def training_figure(epochs: Sequence[Epoch]) -> Figure:
    """Draw the loss per epoch (left) and the validation metrics with the best epoch of each (right)."""
    measured = [name for name in METRICS if any(name in row for row in epochs)]
    figure = new_figure(9.0 if measured else 4.8, 3.3)
    axes = figure.subplots(1, 2 if measured else 1, squeeze=False)[0]
    number, loss = _series(epochs, "loss")
    axes[0].plot(number, loss, "o-", ms=3, color=COLOURS[0])
    axes[0].set(xlabel="epoch", ylabel="training loss")
    axes[0].set_xlim(left=0)
    for color, name in zip(COLOURS, measured, strict=False):
        number, values = _series(epochs, name)
        axes[1].plot(number, values, "o-", ms=3, color=color, label=name)
        if name == "ECE@1":
            tied = np.array([float(row.get("tied", 0.0)) for row in epochs if name in row]) >= TIED
            if tied.any():
                axes[1].plot(number[tied], values[tied], "x", ms=8, color="black", label=_FLAWED)
            values = np.where(tied, np.nan, values)
        if name in ("R@1", "ECE@1", "AUROC") and np.isfinite(values).any():
            best = (np.nanargmin if name == "ECE@1" else np.nanargmax)(values)
            axes[1].plot(number[best], values[best], "*", ms=11, color=color)
    if measured:
        axes[1].set(xlabel="epoch", ylabel="validation (★ best epoch)", ylim=(0, 1.02))
        axes[1].set_xlim(left=0)
        axes[1].legend(fontsize=8, ncols=2)
    return figure


def write_training(epochs: Sequence[Epoch], folder: str | Path) -> Path:
    """Write the curves of a training run as ``training.png``.

    Args:
        epochs: One row per epoch, as in `kappaplace.training.Trained.epochs`.
        folder: Output folder.

    Returns:
        Path of the figure.
    """
    file = make_folder(folder) / "training.png"
    write_file(file, png_of(training_figure(epochs), 120))
    return file


def _series(epochs: Sequence[Epoch], name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    rows = [row for row in epochs if name in row]
    return np.array([row["epoch"] for row in rows]), np.array([row[name] for row in rows], np.float64)
