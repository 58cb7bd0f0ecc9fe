"""The drawn figure of the calibration page: python docs/make_calibration_figures.py"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from kappaplace.calibration.risk import RiskRefused, control_risk
from kappaplace.metrics import acceptance_curve

ASSETS = Path(__file__).parent / "assets"
LIMIT, CALIBRATIONS, QUERIES = 0.05, 400, 500


def true_risk(threshold: np.ndarray) -> np.ndarray:
    """P(wrong | u ≤ t) for uniform scores that err with probability 0.005 + 0.9 u³."""
    return 0.005 + 0.225 * np.minimum(threshold, 1.0) ** 3


def promise() -> None:
    """Risk in use of 400 calibrations: the threshold that looks right on the sample, and the proven one."""
    plugged, proven = [], []
    for seed in range(CALIBRATIONS):
        rng = np.random.default_rng(seed)
        u = rng.random(QUERIES)
        right = rng.random(QUERIES) >= 0.005 + 0.9 * u**3
        curve = acceptance_curve(u, right)
        plugged.append(curve.threshold[curve.risk <= LIMIT].max(initial=0.0))
        try:
            proven.append(control_risk(u, right, LIMIT).threshold)
        except RiskRefused:
            continue
    figure, axes = plt.subplots(figsize=(6.2, 3.0), layout="constrained")
    bins = np.linspace(0, 0.1, 51)
    for thresholds, label, color in (
        (plugged, "share of errors on the sample is 5 %", "#c44e52"),
        (proven, "proven to be at most 5 %", "#4c72b0"),
    ):
        risk = true_risk(np.array(thresholds))
        text = f"{label}: too high in {np.mean(risk > LIMIT):.1%}"
        axes.hist(risk, bins, color=color, alpha=0.7, label=text)
    axes.axvline(LIMIT, color="black", linewidth=1)
    axes.set(
        xlabel="share of errors among the answers that will be accepted",
        ylabel=f"of {CALIBRATIONS} calibrations",
        xlim=(0, 0.1),
    )
    axes.xaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0, 0))
    axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1))
    axes.spines[["top", "right"]].set_visible(False)
    ASSETS.mkdir(exist_ok=True)
    figure.savefig(ASSETS / "promise.png", dpi=160)


if __name__ == "__main__":
    promise()
