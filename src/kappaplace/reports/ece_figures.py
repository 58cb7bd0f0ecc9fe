"""ECE@K as grouped bars, and how far it moves with choices that its definition leaves open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kappaplace.metrics import EceSurface
from kappaplace.reports.figures import COLOURS, PLOT_STYLE, WIDTH, new_figure, panels, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROTOCOL = (10, 1.0)
"""Bins and percent clamped from a tail in the paper."""


def ece_bars_figure(errors: Mapping[str, Mapping[int, float]], ks: Sequence[int]) -> Figure:
    """Grouped bars, score → K → ECE@K; lying, so that many scores keep readable names."""
    import matplotlib

    thickness = 0.8 / len(ks)
    with matplotlib.rc_context(PLOT_STYLE):
        figure = new_figure(WIDTH, 1.1 + (0.16 * len(ks) + 0.1) * len(errors))
        axis = figure.subplots()
        rows = np.arange(len(errors))
        for position, k in enumerate(ks):
            values = [score[k] for score in errors.values()]
            at = rows + (position - (len(ks) - 1) / 2) * thickness
            bars = axis.barh(at, values, thickness, color=COLOURS[position], label=f"ECE@{k}")
            axis.bar_label(bars, fmt="%.3f", fontsize=6.5, padding=2)
        axis.set_yticks(rows, [plain(label) for label in errors])
        axis.set_ylim(len(errors) - 0.5, -0.5)  # the first score on top
        axis.grid(axis="y", visible=False)
        largest = np.nanmax([0.1, *(value for score in errors.values() for value in score.values())])
        axis.set(xlabel="ECE, 0 is best", xlim=(0, 1.15 * float(largest)))
        figure.legend(loc="outside lower center", ncols=len(ks), fontsize=8)
        return figure


def ece_sensitivity_figure(surfaces: Mapping[str, EceSurface]) -> Figure:
    """One small plot a score: ECE@1 over the number of bins, a band for all clamps, with and without zoom."""
    import matplotlib

    columns = min(2, len(surfaces))
    with matplotlib.rc_context(PLOT_STYLE):
        figure, axes, starts = panels(len(surfaces), columns, WIDTH / columns, 1.9, sharey=True)
        for axis, (label, surface) in zip(axes, surfaces.items(), strict=True):
            usual = int(np.argmin(np.abs(surface.clamp - PROTOCOL[1])))
            low, high = surface.plain.min(axis=0), surface.plain.max(axis=0)
            axis.fill_between(surface.bins, low, high, color=COLOURS[0], alpha=0.18, linewidth=0)
            axis.plot(surface.bins, surface.plain[usual], color=COLOURS[0], label="1 % clamped")
            # Zoom is for scores whose tails are left alone: a clamp fills the last bin, and nothing is cut.
            untouched = int(np.argmin(surface.clamp))
            axis.plot(surface.bins, surface.zoomed[untouched], "--", color=COLOURS[1], label="zoom, no clamp")
            at = int(np.argmin(np.abs(surface.bins - PROTOCOL[0])))
            protocol = surface.plain[usual, at]
            axis.plot(surface.bins[at], protocol, "o", color="black", ms=4, label="the paper's choice")
            lowest = min(surface.plain.min(), surface.zoomed.min())
            highest = max(surface.plain.max(), surface.zoomed.max())
            axis.set_title(f"{plain(label)}\n{protocol:.3f}, can be {lowest:.3f}–{highest:.3f}", fontsize=8)
            axis.set_xlabel("bins", fontsize=8)
        top = max(max(surface.plain.max(), surface.zoomed.max()) for surface in surfaces.values())
        axes[0].set_ylim(0, 1.08 * max(top, 0.05))  # all plots share it
        for axis in starts:
            axis.set_ylabel("ECE@1")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=7.5)
        return figure
