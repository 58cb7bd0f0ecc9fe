"""Growth curves as one picture: time above, memory below, slopes beside the lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kappaplace.bench.growth import Curve, slope
from kappaplace.reports.figures import COLOURS, PLOT_STYLE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def growth_figure(curves: Sequence[Curve]) -> Figure:
    """One column a curve; measured points, and the fitted power as a dashed line."""
    import matplotlib
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    with matplotlib.rc_context(PLOT_STYLE):
        figure = new_figure(3.4 * len(curves), 5.2)
        axes = figure.subplots(2, len(curves), squeeze=False)
        for column, curve in enumerate(curves):
            parts = (
                ("milliseconds", [1e3 * value for value in curve.seconds], COLOURS[0]),
                ("peak MiB", [value / 2**20 for value in curve.bytes], COLOURS[1]),
            )
            for row, (title, y, colour) in enumerate(parts):
                axis = axes[row][column]
                power = slope(curve.x, y)
                x = np.asarray(curve.x, float)
                level = np.exp(np.mean(np.log(y)) - power * np.mean(np.log(x)))
                axis.loglog(x, y, "o", color=colour, label="measured")
                axis.loglog(x, level * x**power, "--", color=colour, lw=1, label=f"slope {power:.2f}")
                for ticks in (axis.xaxis, axis.yaxis):  # 1, 2, 5, 10 … as plain numbers
                    ticks.set_major_locator(LogLocator(subs=(1, 2, 5) if ticks is axis.yaxis else (1, 4)))
                    ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
                    ticks.set_minor_formatter(NullFormatter())
                axis.set_ylabel(title if column == 0 else "")
                axis.set_xlabel(curve.axis if row == 1 else "")
                axis.legend(frameon=False)
                if row == 0:
                    axis.set_title(curve.what, fontsize=9)
        return figure
