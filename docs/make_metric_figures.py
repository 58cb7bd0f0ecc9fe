"""Pictures of what each metric looks at: python docs/make_metric_figures.py

Two scores of the same simulated queries, 70 % of them right: a useful one and a poor one.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np

from kappaplace.calibration.calibrators import Logistic
from kappaplace.metrics import acceptance_curve, auroc, brier, coverage_at_risk, mass_bins, smooth_ece
from kappaplace.reports.figures import COLORS, PLOT_STYLE, RIGHT, WRONG, new_figure
from kappaplace.reports.html import png_of

ASSETS = Path(__file__).parent / "assets"
QUERIES, RIGHT_SHARE = 4000, 0.7
RISK = 0.1


def scores() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Success, and two uncertainties: right and wrong queries 2 and 0.5 deviations apart."""
    rng = np.random.default_rng(0)
    success = rng.random(QUERIES) < RIGHT_SHARE
    noise = rng.normal(size=(2, QUERIES))
    return success, noise[0] + 2.0 * ~success, noise[1] + 0.5 * ~success


def main() -> None:
    success, useful, poor = scores()
    with matplotlib.rc_context(PLOT_STYLE):
        figure = new_figure(9.6, 6.0)
        grid = figure.subplots(2, 3)
        for row, (name, values, color) in enumerate(
            (("a useful score", useful, COLORS[0]), ("a poor score", poor, COLORS[1]))
        ):
            _histogram(grid[row, 0], values, success, name)
            _risk(grid[row, 1], values, success, color)
            _reliability(grid[row, 2], values, success, color)
    (ASSETS / "metrics.png").write_bytes(png_of(figure, dpi=120))


def _histogram(axis, values, success, name) -> None:
    edges = np.linspace(values.min(), values.max(), 40)
    axis.hist(values[success], edges, color=RIGHT, alpha=0.6, label="right")
    axis.hist(values[~success], edges, histtype="step", color=WRONG, linestyle="--", label="wrong")
    axis.set_title(f"{name}: AUROC {auroc(values, success):.2f}", fontsize=9)
    axis.set_xlabel("uncertainty")
    axis.set_ylabel("queries")
    axis.legend(frameon=False)


def _risk(axis, values, success, color) -> None:
    curve = acceptance_curve(values, success)
    covered = coverage_at_risk(values, success, RISK)
    axis.fill_between(curve.coverage, curve.risk, color=color, alpha=0.2)
    axis.plot(curve.coverage, curve.risk, color=color)
    axis.axhline(RISK, color="#666666", linestyle=":", linewidth=1)
    axis.plot([covered], [RISK], "o", color=color)
    axis.set_title(f"AURC {curve.aurc:.3f}, coverage@10% {covered:.2f}", fontsize=9)
    axis.set_xlabel("coverage: share answered, surest first")
    axis.set_ylabel("risk: share of errors")
    axis.set_ylim(0, 0.4)


def _reliability(axis, values, success, color) -> None:
    half = QUERIES // 2
    fitted = Logistic.fit(values[:half], success[:half]).probability(values[half:])
    outcome = success[half:]
    bins = mass_bins(fitted, outcome)
    axis.plot([0, 1], [0, 1], "--", color="#666666")
    axis.plot(bins.probability, bins.observed, "o-", color=color, ms=4)
    axis.set_title(
        f"smooth ECE {smooth_ece(fitted, outcome):.3f}, Brier {brier(fitted, outcome):.3f}", fontsize=9
    )
    axis.set_xlabel("stated probability")
    axis.set_ylabel("share that is right")
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1)


if __name__ == "__main__":
    main()
