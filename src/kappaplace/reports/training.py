"""How a run went: losses and validation, epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kappaplace.files import make_folder, replace_file
from kappaplace.reports.figures import COLOURS, PLOT_STYLE, new_figure
from kappaplace.reports.html import png_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = ("R@1", "R@5", "R@10", "ECE@1", "AUROC")


def training_figure(epochs: Sequence[Mapping[str, Any]]) -> Figure:
    """Left: the loss of each epoch. Right: validation, with the epoch that was best by each metric."""
    import matplotlib

    measured = [name for name in METRICS if any(name in row for row in epochs)]
    with matplotlib.rc_context(PLOT_STYLE):
        figure = new_figure(9.0 if measured else 4.8, 3.3)
        axes = figure.subplots(1, 2 if measured else 1, squeeze=False)[0]
        number, loss = _series(epochs, "loss")
        axes[0].plot(number, loss, "o-", ms=3, color=COLOURS[0])
        axes[0].set(xlabel="epoch", ylabel="training loss")
        axes[0].set_xlim(left=0)
        for colour, name in zip(COLOURS, measured, strict=False):
            number, values = _series(epochs, name)
            axes[1].plot(number, values, "o-", ms=3, color=colour, label=name)
            after = number > 0
            if name in ("R@1", "ECE@1", "AUROC") and after.any() and np.isfinite(values[after]).any():
                pick = np.nanargmin if name == "ECE@1" else np.nanargmax
                best = pick(values[after])
                axes[1].plot(number[after][best], values[after][best], "*", ms=11, color=colour)
        if measured:
            axes[1].set(xlabel="epoch", ylabel="validation (★ best epoch)", ylim=(0, 1.02))
            axes[1].set_xlim(left=0)
            axes[1].legend(fontsize=8, ncols=2)
        return figure


def write_training(epochs: Sequence[Mapping[str, Any]], folder: str | Path) -> Path:
    """Write the curves of a training run as ``training.png``.

    Args:
        epochs: One row per epoch, as `kappaplace.training.Trained.epochs` has them.
        folder: Output folder.

    Returns:
        Path of the picture.
    """
    file = make_folder(folder) / "training.png"
    png = png_of(training_figure(epochs), 120)
    replace_file(file, lambda part: part.write_bytes(png))
    return file


def _series(epochs: Sequence[Mapping[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    rows = [(row["epoch"], row[name]) for row in epochs if name in row]
    return np.array([row[0] for row in rows]), np.array([row[1] for row in rows], np.float64)
