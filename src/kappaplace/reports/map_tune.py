"""Pages of a tuned map: its fitted κ and calibration, and the drift of its queries."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np

from kappaplace.calibration import SHOWN, DriftMonitor
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, write_file
from kappaplace.maps import LEVELS, FitRecord, KappaCheck, read_record
from kappaplace.reports.figures import COLORS, WIDTH, WRONG, new_figure, plain, styled
from kappaplace.reports.html import (
    card,
    counts,
    drawing,
    grid,
    heading,
    page,
    paragraph,
    png_of,
    short,
    svg_of,
    table,
)
from kappaplace.reports.localization import picture_data

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kappaplace.maps import PlaceMap


_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class FitFacts:
    """Content of the page without the example images."""

    name: str
    record: FitRecord
    reliability: Sequence[Sequence[float]] | None = None
    """Mean probability, fraction of correct answers and count of each bin; None without a calibration."""
    calibrated: Sequence[str] = ()
    """Notes of the calibration."""

    @property
    def check(self) -> KappaCheck:
        """Evaluation of the fitted κ on held-out images."""
        return self.record.learned


@dataclass(frozen=True)
class Example:
    """A reference of the map and its κ."""

    name: str
    data: str
    """Image as a data URL; empty if there is none."""
    kappa: float


@styled
def fit_figure(facts: FitFacts, *draw: Callable[[Axes, FitFacts], None]) -> Figure:
    """Draw one or four plots of a fit, four in two columns.

    Args:
        facts: The fit.
        draw: Functions that draw a plot each. Default: all of them.

    Returns:
        The figure.
    """
    plots = draw or tuple(PLOTS)
    single = len(plots) == 1
    figure = new_figure(WIDTH if single else 2 * WIDTH, 3.0 if single else 6.6)
    for axis, each in zip(
        np.ravel(figure.subplots(1 if single else 2, len(plots) // 2 or 1)), plots, strict=True
    ):
        each(axis, facts)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if handles:
        columns = 3 if single else len(labels)
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8)
    return figure


def _loss(axis: Axes, facts: FitFacts) -> None:
    losses = [float(row["loss"]) for row in facts.record.epochs if "loss" in row]
    axis.plot(range(1, len(losses) + 1), losses, "o-", ms=3, color=COLORS[0])
    axis.set(title="training", xlabel="epoch", ylabel="negative log-likelihood")
    axis.locator_params(axis="x", integer=True)


def _kappa(axis: Axes, facts: FitFacts) -> None:
    levels = [0.0, *LEVELS]
    for number, (kind, rows) in enumerate(facts.check.kinds.items()):
        middle = [facts.check.clean[1], *(row[1] for row in rows)]
        axis.plot(levels, middle, label=kind, marker=_marker(number), color=_color(number), ms=4)
    axis.axhspan(facts.check.clean[0], facts.check.clean[2], color="#999999", alpha=0.18, linewidth=0)
    axis.set(title="κ of held-out images", xlabel="level of degradation", ylabel="median κ")
    axis.set_ylim(bottom=0)


def _closeness(axis: Axes, facts: FitFacts) -> None:
    levels = [0.0, *LEVELS]
    for number, (kind, cosines) in enumerate(facts.check.closeness.items()):
        axis.plot(levels, [1.0, *cosines], label=kind, marker=_marker(number), color=_color(number), ms=4)
    axis.set(title="descriptors of held-out images", xlabel="level of degradation")
    axis.set(ylabel="cosine to the original", ylim=(min(0.0, axis.get_ylim()[0]), 1.02))


def _reliability(axis: Axes, facts: FitFacts) -> None:
    axis.set(title="probabilities on held-out examples", xlabel="probability", ylabel="fraction correct")
    axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axis.plot([0, 1], [0, 1], "--", color="#666666", linewidth=1)
    if facts.reliability is None:
        axis.text(0.5, 0.5, "not calibrated", ha="center", va="center")
        return
    probability, correct, counts = facts.reliability
    sizes = [12 + 130 * count / max(max(counts), 1) for count in counts]
    axis.plot(probability, correct, "-", color=COLORS[0], linewidth=1)
    axis.scatter(probability, correct, s=sizes, color=COLORS[0], linewidths=0, alpha=0.8)


PLOTS = {
    _kappa: "Median κ of held-out images against degradation. The gray band contains the middle half of the "
    "undegraded images. κ should fall where the descriptor changes.",
    _closeness: "How far degradation moves the descriptor, which κ should follow.",
    _loss: "The loss, which should level off.",
    _reliability: "Probability against the fraction of correct matches on held-out examples. A calibrated "
    "map follows the dashed line.",
}
"""The plots with their captions."""


def _marker(number: int) -> str:
    return _MARKERS[number % len(_MARKERS)]


def _color(number: int) -> str:
    return (*COLORS, "#000000")[number % (len(COLORS) + 1)]


def fit_page(facts: FitFacts, highest: Sequence[Example], lowest: Sequence[Example]) -> str:
    """Return the page: a verdict, the figure, a table, and references of high and low κ."""
    first, *others = verdict(facts)
    sections = [paragraph(line) for line in others]
    figures = []
    for draw, caption in PLOTS.items():
        figures.append(drawing(fit_figure(facts, draw), caption.split(".")[0], caption))
    sections.append(grid(figures))
    header = ["degradation", "rank correlation", *(f"κ at {level:g}" for level in (0, *LEVELS))]
    rows = [
        [
            kind,
            _signed(facts.check.by_kind[kind]),
            *(short(v) for v in (facts.check.clean[1], *(r[1] for r in values))),
        ]
        for kind, values in facts.check.kinds.items()
    ]
    sections += [heading("κ for each kind of degradation"), table(header, rows)]
    sections.append(
        paragraph(
            "Rank correlation of κ with the level: −1 is best. The values of κ are medians.", small=True
        )
    )
    for title, examples in (("Highest κ", highest), ("Lowest κ", lowest)):
        if examples:
            sections.append(heading(f"{title} in the map"))
            cards = "".join(
                card("", each.name, each.data, [each.name, f"κ {short(each.kappa)}"]) for each in examples
            )
            sections.append(f'<div class="row">{cards}</div>')
    if facts.calibrated:
        sections.append(heading("Self-calibration"))
        sections += [paragraph(line) for line in facts.calibrated]
    record = facts.record
    sections.append(
        paragraph(
            f"Fitted on {record.images:,} of {record.references:,} images with {record.views} degraded views "
            f"per image, in {record.seconds:,.0f} s and without labels.",
            small=True,
        )
    )
    return page(f"κ fitted to the map: {facts.name}".rstrip(": "), first, sections)


def verdict(facts: FitFacts) -> list[str]:
    """Return whether the fit worked, as text."""
    check = facts.check
    lines = [
        f"On {check.images} held-out images, the rank correlation of κ with the level of degradation is "
        f"{_signed(check.with_level)}{_interval(check.level_interval)} (−1 is best), and with the "
        f"cosine to the original descriptor {_signed(check.with_cosine)}{_interval(check.cosine_interval)} "
        "(+1 is best)."
    ]
    if check.before is not None:
        low, high = check.change_interval or (-math.inf, math.inf)
        if check.change_interval is None:
            change = "The interval of the difference was not recorded"
        elif high < 0:
            change = "The fitted κ is better"
        elif low > 0:
            change = "The fitted κ is worse"
        else:
            change = "The difference is within the uncertainty, so neither is better"
        difference = check.with_level - check.before
        lines.append(
            f"The previous κ of the model has {_signed(check.before)}. {change} (difference "
            f"{_signed(difference)}{_interval(check.change_interval)})."
        )
    return lines


def fit_verdict(place_map: PlaceMap) -> list[str]:
    """Describe whether the last fit of a map worked.

    Args:
        place_map: A map whose κ was fitted.

    Returns:
        One or two sentences.

    Raises:
        KappaPlaceError: If κ was not fitted for this map.
    """
    return verdict(fit_facts(place_map))


def _interval(limits: tuple[float, float] | None) -> str:
    return "" if limits is None else f" [{_signed(limits[0])}, {_signed(limits[1])}]"


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


EXAMPLES = 4


def write_fit_report(place_map: PlaceMap, file: str | Path) -> tuple[Path, Path]:
    """Write the page of a fitted map, and its figure as PNG.

    Args:
        place_map: A map whose κ was fitted.
        file: HTML file to write; the figure has the same name with the suffix .png.

    Returns:
        Paths of the page and of the figure.

    Raises:
        KappaPlaceError: If κ was not fitted for this map.
    """
    file = Path(file)
    facts = fit_facts(place_map)
    kappa = np.asarray(place_map.store.whole("kappa"))
    order = np.argsort(kappa, kind="stable")
    shown = min(EXAMPLES, len(order) // 2)
    lowest, highest = (
        [_example(place_map, int(row)) for row in rows] for rows in (order[:shown], order[::-1][:shown])
    )
    make_folder(file.parent)
    image = file.with_suffix(".png")
    write_file(image, png_of(fit_figure(facts)))
    write_file(file, fit_page(facts, highest, lowest).encode("utf-8", "backslashreplace"))
    return file, image


def fit_facts(place_map: PlaceMap) -> FitFacts:
    """Return the facts of the last fit of a map."""
    record = read_record(place_map.folder, place_map.manifest)
    if record is None:
        raise KappaPlaceError(
            f"κ was not fitted for the map {place_map.folder}. Run `kappaplace map fit` first."
        )
    calibration, stored = place_map.calibration, place_map.manifest.calibration
    notes = [] if stored is None else [f"Calibrated on {stored['origin']}."]
    if calibration is not None and calibration.rule is not None:
        notes += calibration.rule.promise()
    reliability = None if stored is None else stored.get("reliability")
    return FitFacts(place_map.manifest.name, record, reliability, notes)


def _example(place_map: PlaceMap, reference: int) -> Example:
    store = place_map.store
    name = store.name(reference)
    data = picture_data(store.image_path(reference), store.thumbnail(reference))
    return Example(PurePath(name).name, data, float(store.gather("kappa", np.array([reference]))[0]))


SUFFIXES = (".png", ".svg", ".html")
HOW_TO_READ = (
    "Gray: the calibrated range (1st to 99th percentile) and median. Blue: median and 5th to 95th percentile "
    "of each full window. Red cross: a window with a warning. Hollow: queries of the current window."
)
_COLUMN = 1.5
"""Height in inches per signal."""


@styled
def drift_figure(monitor: DriftMonitor) -> Figure:
    """Draw each signal against the number of queries, one plot per signal."""
    sketch, history = monitor.sketch, list(monitor.history)
    queries = np.array([window.queries for window in history], dtype=np.float64)
    figure = new_figure(WIDTH, 0.8 + _COLUMN * len(sketch.values))
    axes = figure.subplots(len(sketch.values), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (name, points) in zip(axes, sketch.values.items(), strict=True):
        if (calibrated := sketch.calibrated_range(name)) is not None:
            axis.axhspan(*calibrated, color="#8a8a8a", alpha=0.25, linewidth=0)
        axis.axhline(float(np.median(points)), color="#8a8a8a", linestyle="--", linewidth=1)
        values = np.array([window.quantiles[name] for window in history]).reshape(-1, len(SHOWN))
        axis.errorbar(
            queries,
            values[:, 1],
            [values[:, 1] - values[:, 0], values[:, 2] - values[:, 1]],
            fmt="o-",
            markersize=3,
            linewidth=1,
            capsize=2,
            color=COLORS[0],
        )
        rows = [any(w.signal == name for w in window.warnings) for window in history]
        style = {"color": WRONG, "markersize": 8, "markeredgewidth": 2, "zorder": 3}
        axis.plot(queries[rows], values[rows, 1], "x", **style)
        if monitor.waiting:
            middle = float(np.median(monitor.waiting_values[name]))
            axis.plot([monitor.queries], [middle], "o", color=COLORS[0], markerfacecolor="none")
        axis.set_ylabel(plain(_name(name)))
    axes[-1].set_xlabel("number of queries")
    axes[-1].set_xlim(left=0)
    return figure


def write_drift(monitor: DriftMonitor, file: str | Path, title: str) -> None:
    """Write the figure of drift as an image, or as a page with the warnings.

    Args:
        monitor: State of the monitor.
        file: File to write: .png, .svg or .html.
        title: Title of the page.

    Raises:
        KappaPlaceError: If the suffix is not supported.
    """
    file = Path(file)
    kind = file.suffix.lower()
    if kind not in SUFFIXES:
        raise KappaPlaceError(f'The figure must be a {", ".join(SUFFIXES)} file, got "{file.name}".')
    figure = drift_figure(monitor)
    if kind == ".png":
        data = png_of(figure)
    elif kind == ".svg":
        data = svg_of(figure)
    else:
        data = _page(monitor, figure, title).encode("utf-8", "backslashreplace")
    write_file(file, data)


def _page(monitor: DriftMonitor, figure: Figure, title: str) -> str:
    warnings = [warning.sentence for warning in monitor.drifting]
    history = list(monitor.history)
    lead = "No window is full yet." if not history else "The last full window shows no drift."
    if warnings:
        lead = f"The last full window has drifted: {warnings[0]}"
    drifted = sum(bool(window.warnings) for window in history)
    numbers = {
        "queries": ("", monitor.queries),
        "windows without drift": ("accept", len(history) - drifted),
        "windows with drift": ("reject", drifted),
    }
    sections = [counts(numbers), *(paragraph(text) for text in warnings[1:])]
    sections.append(drawing(figure, "Signals of incoming queries by window", HOW_TO_READ))
    rows = [
        [
            f"{window.queries:,}",
            _date(window.time),
            ", ".join(dict.fromkeys(f"{_name(w.signal)} {w.direction}" for w in window.warnings)) or "–",
        ]
        for window in reversed(history)
    ]
    if rows:
        sections += [heading("Windows"), table(["queries so far", "full at", "changes"], rows)]
    note = f"A window has {monitor.window:,} queries; {monitor.waiting:,} are in the current one."
    return page(title, lead, [*sections, paragraph(note, small=True)])


def _name(signal: str) -> str:
    return "κ" if signal == "kappa" else signal


def _date(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
