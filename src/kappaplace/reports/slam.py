"""A drive from above: the trajectory, what was closed (green) and what was rejected (red, dashed)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.files import make_folder, replace_file
from kappaplace.reports.figures import COLOURS, PLOT_STYLE, QUERY, RIGHT, WRONG, new_figure
from kappaplace.reports.html import page, paragraph, picture, png_of, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kappaplace.slam import Closure, SlamRun

SHOWN = 400
"""Closures of either kind that are drawn: more would hide the trajectory."""
HOW_TO_READ = (
    "Black: the optimised trajectory. Grey: odometry alone. Green: accepted closures, from each frame to "
    "the earlier "
    "one. Red, dashed: rejected proposals with a probability of one half or more."
)
LIKELY = 0.5
"""Rejected proposals below this probability are not drawn: nearly every frame has one."""


def draw_trajectory(
    axis: Any,
    poses: NDArray[np.float64],
    closures: Sequence[Closure] = (),
    *,
    odometry: NDArray[np.float64] | None = None,
    truth: NDArray[np.float64] | None = None,
) -> None:
    """On a given plot; poses are N×3 or N×7, of which x and y are shown."""
    if truth is not None:
        axis.plot(truth[:, 0], truth[:, 1], color=COLOURS[5], linewidth=3, alpha=0.6, label="truth")
    if odometry is not None:
        axis.plot(odometry[:, 0], odometry[:, 1], color="#a9a9a9", linewidth=0.8, label="odometry")
    axis.plot(poses[:, 0], poses[:, 1], color=QUERY, linewidth=1, label="optimised")
    likely = [c for c in closures if not c.accepted and (c.probability or 0.0) >= LIKELY]
    _links(axis, poses, likely, WRONG, "--", "rejected")
    _links(axis, poses, [c for c in closures if c.accepted], RIGHT, "-", "accepted")
    axis.set_aspect("equal", adjustable="datalim")
    axis.set_xlabel("x, m")
    axis.set_ylabel("y, m")


def trajectory_figure(
    poses: NDArray[np.float64],
    closures: Sequence[Closure],
    *,
    odometry: NDArray[np.float64] | None = None,
    truth: NDArray[np.float64] | None = None,
) -> Figure:
    """One picture of one drive."""
    import matplotlib

    with matplotlib.rc_context(PLOT_STYLE):
        figure = new_figure(6.4, 5.2)
        axis = figure.subplots()
        draw_trajectory(axis, poses, closures, odometry=odometry, truth=truth)
        axis.legend(loc="best", fontsize=8)
        return figure


def write_slam(run: SlamRun, folder: str | Path) -> Path:
    """Write the picture and the page of a drive.

    Args:
        run: Result of `kappaplace.slam.run_slam`.
        folder: Output folder.

    Returns:
        Path of ``report.html``; ``trajectory.png`` is beside it.
    """
    folder = make_folder(folder)
    figure = trajectory_figure(run.poses, run.closer.closures, odometry=run.closer.odometry)
    png, text = png_of(figure), _page(run, figure)
    replace_file(folder / "trajectory.png", lambda part: part.write_bytes(png))
    replace_file(folder / "report.html", lambda part: part.write_text(text, encoding="utf-8"))
    return folder / "report.html"


def _page(run: SlamRun, figure: Figure) -> str:
    facts = run.facts
    shown = {
        "frames": f"{facts['frames']:,}",
        "metres driven": f"{facts['metres']:,.0f}",
        "proposed closures": f"{facts['proposals']:,}",
        "accepted": f"{facts['accepted']:,}",
        "largest correction": f"{facts['largest_correction']:.1f} m",
    }
    if run.before is not None and run.after is not None:
        for name in ("absolute", "relative"):
            before, after = getattr(run.before, name), getattr(run.after, name)
            shown[f"{name} error, odometry → now"] = f"{before:.2f} → {after:.2f} m"
    sections = [
        picture(png_of(figure), "Trajectory with accepted and rejected closures", HOW_TO_READ),
        table(["", ""], [[name, value] for name, value in shown.items()]),
        table(
            ["rejected for", "proposals"], [[name, f"{count:,}"] for name, count in facts["rejected"].items()]
        ),
        *(paragraph(note) for note in (run.sentence, *run.notes)),
    ]
    return page("Loop closures", "Loop closures and the trajectory they give.", sections)


def _links(
    axis: Any, poses: NDArray[np.float64], closures: Sequence[Closure], colour: str, dashes: str, label: str
) -> None:
    from matplotlib.collections import LineCollection

    step = -(-len(closures) // SHOWN) or 1
    ends = [(poses[c.match, :2], poses[c.query, :2]) for c in closures[::step]]
    if ends:
        axis.add_collection(
            LineCollection(ends, colors=colour, linestyles=dashes, linewidths=1.2, alpha=0.8, zorder=3)
        )
        where = np.array([end for _, end in ends])
        axis.plot(where[:, 0], where[:, 1], ".", color=colour, markersize=3, zorder=3)
        axis.plot([], [], color=colour, linestyle=dashes, label=f"{label} ({len(closures):,})")
