"""The figure of a run: every epoch, and the best one by each metric."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from kappaplace.reports import html
from kappaplace.reports.runs import training_figure

EPOCHS: list[dict[str, Any]] = [
    {"epoch": 0, "R@1": 0.9, "R@5": 0.95, "ECE@1": 0.1, "AUROC": math.nan, "seconds": 0.0},
    {"epoch": 1, "loss": 3.0, "R@1": 0.4, "R@5": 0.5, "ECE@1": 0.5, "AUROC": 0.6, "seconds": 1.0},
    {"epoch": 2, "loss": 2.0, "R@1": 0.6, "R@5": 0.7, "ECE@1": 0.3, "AUROC": 0.8, "seconds": 1.0},
    {"epoch": 3, "loss": 1.5, "R@1": 0.5, "R@5": 0.8, "ECE@1": 0.4, "AUROC": 0.7, "seconds": 1.0},
]


def lines(figure: Figure, axis: int) -> dict[str, tuple[list[float], list[float]]]:
    """Curves by their label."""
    return {
        str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata()))
        for line in figure.axes[axis].lines
        if line.get_marker() != "*"
    }


def stars(figure: Figure) -> list[tuple[float, float]]:
    return [
        (float(line.get_xdata()[0]), float(line.get_ydata()[0]))
        for line in figure.axes[1].lines
        if line.get_marker() == "*"
    ]


def test_losses_and_metrics_are_drawn_at_their_epochs() -> None:
    figure = training_figure(EPOCHS)
    assert list(lines(figure, 0).values()) == [([1, 2, 3], [3.0, 2.0, 1.5])]
    curves = lines(figure, 1)
    assert list(curves) == ["R@1", "R@5", "ECE@1", "AUROC"]
    assert curves["R@1"] == ([0, 1, 2, 3], [0.9, 0.4, 0.6, 0.5])
    np.testing.assert_array_equal(curves["AUROC"][1], [math.nan, 0.6, 0.8, 0.7])


def test_the_best_epoch_knows_the_direction_and_may_be_the_start() -> None:
    assert stars(training_figure(EPOCHS)) == [(0, 0.9), (0, 0.1), (2, 0.8)]
    assert stars(training_figure(EPOCHS[1:])) == [(2, 0.6), (2, 0.3), (2, 0.8)]


def test_the_ece_of_a_constant_score_is_crossed_out() -> None:
    epochs = [{**row, "tied": 1.0 if row["epoch"] == 0 else 0.01} for row in EPOCHS]
    figure = training_figure(epochs)
    (cross,) = [line for line in figure.axes[1].lines if line.get_marker() == "x"]
    assert list(cross.get_xdata()) == [0]
    assert stars(figure)[1] == (2, 0.3)  # not the 0.1 of the constant score


def test_a_run_without_validation_has_losses_alone() -> None:
    figure = training_figure([{"epoch": n, "loss": 1 / n, "seconds": 1.0} for n in (1, 2)])
    assert len(figure.axes) == 1
    assert list(lines(figure, 0).values()) == [([1, 2], [1.0, 0.5])]


@pytest.mark.parametrize("epochs", [EPOCHS[:1], EPOCHS[:2], [{**row, "AUROC": math.nan} for row in EPOCHS]])
def test_runs_that_broke_off_or_lack_a_metric_are_drawn_too(epochs: list[dict[str, Any]]) -> None:
    first, second = (html.png_of(training_figure(epochs)) for _ in range(2))
    assert first == second
    assert len(stars(training_figure(epochs))) == {1: 2, 2: 3, 4: 2}[len(epochs)]
