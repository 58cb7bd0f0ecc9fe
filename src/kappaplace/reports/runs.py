"""Figures and pages of runs: loop closures of a drive, training curves, and a reproduction of the paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kappaplace.files import make_folder, write_file
from kappaplace.metrics import ECE_NOTE, TIED
from kappaplace.reports import html
from kappaplace.reports.artifacts import Artifacts
from kappaplace.reports.figures import (
    COLORS,
    QUERY,
    RIGHT,
    WIDTH,
    WRONG,
    ece_bars_figure,
    new_figure,
    reliability_figure,
    styled,
)
from kappaplace.reports.groups import Group, group_of, pooled_group
from kappaplace.reports.html import CAPTIONS, Cell, Table, counts, drawing, page, paragraph, png_of, table
from kappaplace.reports.tables import DIGITS, MISSING, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kappaplace.evaluation import EvaluationResult, PaperComparison
    from kappaplace.slam import Closure, SlamRun

SHOWN = 400
"""Maximum number of closures of each kind; more would hide the trajectory."""
HOW_TO_READ = (
    "Black: the optimized trajectory. Gray: only odometry. Green: accepted closures, from each frame to the "
    "earlier one. Red, dashed: rejected proposals with a probability of at least 0.5."
)
LIKELY = 0.5
"""Minimum probability of a rejected proposal that is drawn: nearly every frame has a less likely one."""


def draw_trajectory(
    axis: Axes,
    poses: NDArray[np.float64],
    closures: Sequence[Closure] = (),
    *,
    odometry: NDArray[np.float64] | None = None,
    truth: NDArray[np.float64] | None = None,
) -> None:
    """Draw a trajectory and its closures from above.

    Args:
        axis: Plot to draw on.
        poses: Optimized poses, N×3 or N×7; x and y are shown.
        closures: Accepted and rejected closures.
        odometry: Poses of the odometry.
        truth: True poses.
    """
    if truth is not None:
        axis.plot(truth[:, 0], truth[:, 1], color=COLORS[5], linewidth=3, alpha=0.6, label="truth")
    if odometry is not None:
        axis.plot(odometry[:, 0], odometry[:, 1], color="#a9a9a9", linewidth=0.8, label="odometry")
    axis.plot(poses[:, 0], poses[:, 1], color=QUERY, linewidth=1, label="optimized")
    likely = [c for c in closures if not c.accepted and (c.probability or 0.0) >= LIKELY]
    _links(axis, poses, likely, WRONG, "--", "rejected")
    _links(axis, poses, [c for c in closures if c.accepted], RIGHT, "-", "accepted")
    axis.set_aspect("equal", adjustable="datalim")
    axis.set_xlabel("x (m)")
    axis.set_ylabel("y (m)")


@styled
def write_slam(run: SlamRun, folder: str | Path) -> Path:
    """Write the figure and the page of a drive.

    Args:
        run: Result of `kappaplace.slam.run_slam`.
        folder: Output folder.

    Returns:
        Path of ``report.html``; ``trajectory.png`` is in the same folder.
    """
    folder = make_folder(folder)
    figure = new_figure(1.3 * WIDTH, 1.15 * WIDTH)
    axis = figure.subplots()
    draw_trajectory(axis, run.poses, run.closer.closures, odometry=run.closer.odometry)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    write_file(folder / "trajectory.png", png_of(figure))
    write_file(folder / "report.html", _page(run, figure))
    return folder / "report.html"


def _page(run: SlamRun, figure: Figure) -> str:
    facts = run.facts
    rejected = facts["proposals"] - facts["accepted"]
    numbers = {"accepted": ("accept", facts["accepted"]), "rejected": ("reject", rejected)}
    shown = {
        "frames": f"{facts['frames']:,}",
        "distance travelled": f"{facts['metres']:,.0f} m",
        "proposed closures": f"{facts['proposals']:,}",
        "largest correction": f"{facts['largest_correction']:.1f} m",
    }
    if run.before is not None and run.after is not None:
        for name in ("absolute", "relative"):
            before, after = getattr(run.before, name), getattr(run.after, name)
            shown[f"{name} error, odometry → optimized"] = f"{before:.2f} → {after:.2f} m"
    sections = [counts(numbers), *(paragraph(note, small=True) for note in run.notes)]
    sections.append(drawing(figure, "Trajectory with accepted and rejected closures", HOW_TO_READ))
    sections += [
        html.heading("Drive"),
        table(["fact", "value"], [[name, value] for name, value in shown.items()]),
    ]
    reasons = [[name, f"{count:,}"] for name, count in facts["rejected"].items()]
    if reasons:
        sections += [html.heading("Why closures were rejected"), table(["reason", "closures"], reasons)]
    return page("Loop closures", run.sentence, sections)


def _links(
    axis: Axes, poses: NDArray[np.float64], closures: Sequence[Closure], color: str, dashes: str, label: str
) -> None:
    from matplotlib.collections import LineCollection

    step = -(-len(closures) // SHOWN) or 1
    ends = [(poses[c.match, :2], poses[c.query, :2]) for c in closures[::step]]
    if ends:
        axis.add_collection(
            LineCollection(ends, colors=color, linestyles=dashes, linewidths=1.2, alpha=0.8, zorder=3)
        )
        points = np.array([end for _, end in ends])
        axis.plot(points[:, 0], points[:, 1], ".", color=color, markersize=6, zorder=3)
        axis.plot([], [], color=color, linestyle=dashes, label=f"{label} ({len(closures):,})")


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
    axes[0].plot(number, loss, "o-", ms=3, color=COLORS[0])
    axes[0].set(xlabel="epoch", ylabel="training loss")
    axes[0].set_xlim(left=0)
    for color, name in zip(COLORS, measured, strict=False):
        number, values = _series(epochs, name)
        axes[1].plot(number, values, "o-", ms=3, color=color, label=name)
        if name == "ECE@1":
            tied = np.array([float(row.get("tied", 0.0)) for row in epochs if name in row]) >= TIED
            if tied.any():
                axes[1].plot(number[tied], values[tied], "x", ms=8, color="black", label=_FLAWED)
            values = np.where(tied, np.nan, values)
        if name in ("R@1", "ECE@1", "AUROC") and np.isfinite(values).any():
            best = (np.nanargmin if name == "ECE@1" else np.nanargmax)(values)
            axes[1].plot(number[best], values[best], "*", ms=11, color=color, clip_on=False)
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


POOLED_FIGURE = "fig:combined_ece_final"
STATUS = (
    "A number is “measured” if the backbone and the counts of queries and references are those of the paper. "
    "Otherwise it is “not comparable”, and no difference is shown. The training of the models is not checked."
)


def write_paper_report(comparison: PaperComparison, folder: str | Path) -> Path:
    """Write report.html: the status of every table and figure, the numbers, and the pooled figures.

    Args:
        comparison: The numbers of the paper and ours, as `compare_with_paper` returns them.
        folder: Output folder. The tables are also written as LaTeX.

    Returns:
        Path of ``report.html``.
    """
    files = Artifacts(folder)
    measured = sum(row.status == "measured" for row in comparison.rows)
    other = sum(row.status == "not comparable" for row in comparison.rows)
    items = [list(item) for item in comparison.items]
    header = ("table or figure", "status", "detail")
    overview = Table.of_words(header, items, "Tables and figures of the paper.")
    sections = [files.table("paper overview", overview), html.paragraph(STATUS, small=True)]
    sections += _figures(files, comparison)
    for label in dict.fromkeys(row.paper.table for row in comparison.rows):
        table = paper_table(comparison, label)
        sections += [html.heading(label), files.table(f"paper {label}", table)]
    lead = (
        f"{measured} of {len(comparison.rows)} published numbers were measured with these data and models; "
        f"{other} more are not comparable."
    )
    return files.page(html.page("Published and measured numbers", lead, sections))


def paper_table(comparison: PaperComparison, label: str) -> Table:
    """Return one table of the paper: published and measured numbers, data, backbone and status.

    Args:
        comparison: The numbers of the paper and ours.
        label: Label of the table in the source of the paper.

    Returns:
        The table.
    """
    columns = "set method metric paper ours difference queries references backbone status"
    rows = [row for row in comparison.rows if row.paper.table == label]
    cells = []
    for row in rows:
        sign = f"{row.difference:+.{DIGITS}f}".replace("-", "−") if math.isfinite(row.difference) else MISSING
        data = [f"{count:,}" if count else MISSING for count in (row.queries, row.references)]
        texts = [row.paper.set or MISSING, row.paper.method, row.paper.metric]
        texts += [_spread(row.paper.value, row.paper.spread), _spread(row.ours, row.spread), sign, *data]
        reason = f"{row.status}: {row.reason}" if row.reason else row.status
        cells.append(tuple(map(Cell, (*texts, row.backbone or MISSING, reason))))
    caption = ECE_NOTE if any("ECE@" in row.paper.metric for row in rows) else ""
    return Table(tuple(columns.split()), tuple(cells), caption)


def _spread(value: float, spread: float | None) -> str:
    if spread is None or math.isnan(spread):
        return number(value)
    return f"{number(value)} ± {number(spread)}"


def _figures(files: Artifacts, comparison: PaperComparison) -> list[str]:
    """Return the figures of pooled ECE and reliability: each method with its model, on the paper's sets."""
    methods: dict[str, tuple[Group, str]] = {}
    for row in comparison.rows:
        result = comparison.evaluations.get(row.paper.role)
        if row.paper.table == POOLED_FIGURE and result is not None:
            group = _pooled(result)
            if row.paper.score in group.scores:
                methods[row.paper.method] = group, row.paper.score
    if not methods:
        return []
    first = next(iter(methods.values()))[0]
    curves = {
        name: {k: group.reliability(score, k) for k in group.ks} for name, (group, score) in methods.items()
    }
    errors = {name: {k: curve.error for k, curve in by_k.items()} for name, by_k in curves.items()}
    names, caption = ", ".join(methods), f"{CAPTIONS['bars']} {ECE_NOTE}"
    bars, lines = ece_bars_figure(errors, first.ks), reliability_figure(curves, columns=min(2, len(curves)))
    return [
        html.heading("Pooled figures"),
        html.paragraph(f"Datasets: {first.title}.", small=True),
        html.grid(
            [
                files.figure("ece-bars-pooled", bars, f"Bars of ECE of {names}", caption),
                files.figure(
                    "reliability-pooled", lines, f"Reliability curves of {names}", CAPTIONS["reliability"]
                ),
            ]
        ),
    ]


def _pooled(result: EvaluationResult) -> Group:
    return pooled_group(result) or group_of(result, result.sets[0])
