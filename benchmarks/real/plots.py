"""Figures of the runs on real images: ranking, calibration, and κ under degradation.

python benchmarks/real/plots.py --columns DIR --out results [--sealed]
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from load import ALL, OPEN, Run, load_runs
from signals import DAMAGE
from tables import MAIN, left_out, mean_over, score

from kappaplace.metrics import acceptance_curve, auroc, mass_bins
from record import Option, parse_options

SHOWN = {
    "only κ (1/κ)": "inverse-kappa",
    "U, query and reference": "kappaplace",
    "cosine": "cosine",
    "PA": "pa",
    "margin": "margin",
    "patches": "patches",
}
LINES = ("logistic of cosine", "logistic baseline", "patches + cosine + margin", "all, curves")
COLORS = {
    "logistic of cosine": "0.55",
    "logistic baseline": "C0",
    "patches + cosine + margin": "C1",
    "all, curves": "C3",
}
LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
TITLES = {
    "logistic of cosine": "cosine",
    "logistic baseline": "cosine, PA, margin, aliasing, z-score",
    "patches + cosine + margin": "patches, cosine, margin",
    "all, curves": "all of them, as curves",
}


def overview(runs: list[Run], sets: tuple[str, ...]) -> plt.Figure:
    """Draw ranking, risk and reliability; curves are of the first seed."""
    figure, (bars, risk, reliability) = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    values = [mean_auroc(runs, sets, name) for name in SHOWN.values()]
    values += [mean_auroc(runs, sets, "", "all, curves")]
    names = [*SHOWN, "all of them, as curves\n(fitted on other sets)"]
    bars.barh(range(len(names)), values, color=["C1"] * 2 + ["0.6"] * 3 + ["C3"] * 2)
    bars.set(yticks=range(len(names)), yticklabels=names, xlim=(0.4, 1), xlabel="AUROC, mean over sets")
    bars.axvline(0.5, color="k", lw=0.8, ls=":")
    for y, value in enumerate(values):
        bars.text(value + 0.005, y, f"{value:.2f}", va="center", fontsize=9)
    bars.invert_yaxis()
    bars.set_title("Which score detects incorrect matches?", fontsize=11)
    for title in LINES:
        p, right = left_out(runs[0], title, sets, "clean")
        whole, truth = (np.concatenate([x[s] for s in sets]) for x in (p, right))
        curve = acceptance_curve(1 - whole, truth)
        risk.plot(curve.coverage, curve.risk, color=COLORS[title], label=TITLES[title])
        bins = mass_bins(whole, truth, 10)
        reliability.plot(
            bins.probability, bins.observed, "o-", ms=4, color=COLORS[title], label=TITLES[title]
        )
    risk.axhline(0.1, color="k", lw=0.8, ls=":")
    risk.set(xlabel="fraction of queries accepted", ylabel="fraction incorrect", ylim=(0, 0.3), xlim=(0, 1))
    risk.legend(fontsize=8, title="logistic of", title_fontsize=8)
    risk.set_title("Risk and coverage", fontsize=11)
    reliability.plot([0, 1], [0, 1], color="k", lw=0.8, ls=":")
    reliability.set(xlabel="probability", ylabel="fraction correct", xlim=(0, 1), ylim=(0, 1))
    reliability.set_title("Reliability on unseen families", fontsize=11)
    return figure


def mean_auroc(runs: list[Run], sets: tuple[str, ...], name: str, combination: str = "") -> float:
    values = []
    for run in runs:
        head = MAIN[run.backbone]
        if combination:
            p, y = left_out(run, combination, sets, "clean")
            values.append(mean_over(auroc(1 - p[s], y[s]) for s in sets))
        else:
            pairs = [(score(run, head, s, name, "clean"), run.right(head, s)) for s in sets]
            values.append(mean_over(auroc(*pair) for pair in pairs))
    return mean_over(values)


def damage(run: Run, sets: tuple[str, ...], head: str) -> plt.Figure:
    """Draw κ and recall at increasing degradation, by kind."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    kappa = np.concatenate([run.columns[f"{head}/{s}/steps/kappa"] for s in sets], axis=2)
    hits = np.concatenate([run.columns[f"{head}/{s}/steps/right"] for s in sets], axis=2)
    for i, kind in enumerate(DAMAGE):
        left.plot(LEVELS, np.median(kappa[i] / kappa[i, :1], axis=1), "o-", ms=4, label=kind)
        right.plot(LEVELS, hits[i].mean(axis=1), "o-", ms=4, label=kind)
    left.set(xlabel="level of degradation", ylabel="κ, relative to undegraded (median)", ylim=(0, 1.05))
    right.set(xlabel="level of degradation", ylabel="R@1", ylim=(0, 1))
    left.set_title("κ decreases with degradation …", fontsize=11)
    right.set_title("… and so does recall", fontsize=11)
    right.legend(fontsize=8)
    return figure


def main() -> None:
    arguments = parse_options(
        __doc__,
        columns=Option(Path, required=True),
        out=Option(Path, required=True),
        sealed=False,
        backbone="efficientnet_lite0",
    )
    runs = load_runs(arguments.columns, arguments.backbone)
    sets = ALL if arguments.sealed else OPEN
    overview(runs, sets).savefig(arguments.out / "real_overview.png", dpi=110)
    damage(runs[0], sets, "layers").savefig(arguments.out / "real_damage.png", dpi=110)


if __name__ == "__main__":
    main()
