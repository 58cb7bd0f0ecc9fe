"""What a fit of κ to a map has learnt: figures and words, from plain numbers.

The page of a fitted map: its record, its calibration, and the places of highest and lowest κ.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file
from kappaplace.maps import LEVELS, read_record
from kappaplace.reports.figures import COLOURS, PLOT_STYLE, new_figure
from kappaplace.reports.html import heading, page, paragraph, picture, png_of, table
from kappaplace.reports.localization import picture_data

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kappaplace.maps import PlaceMap


_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class FitFacts:
    """All that the page shows but the pictures of places."""

    name: str
    references: int
    images: int
    views: int
    seconds: float
    losses: Sequence[float]
    """Of each epoch."""
    judged: int
    """Images that κ was judged on."""
    levels: Sequence[float]
    clean: Sequence[float]
    """Quartiles of κ of undamaged images."""
    kinds: Mapping[str, Sequence[Sequence[float]]]
    """The same of each kind of damage, at each level."""
    closeness: Mapping[str, Sequence[float]]
    """Mean cosine to the undamaged descriptor, at each level."""
    by_kind: Mapping[str, float]
    """Rank correlation of κ and level."""
    with_level: float
    with_cosine: float
    before: float | None = None
    reliability: Sequence[Sequence[float]] | None = None
    """Mean probability, share of right answers and count of each bin; None where nothing was calibrated."""
    calibrated: Sequence[str] = ()
    """What the calibration says of itself."""


@dataclass(frozen=True)
class Example:
    """A place of the map and its κ."""

    name: str
    data: str
    """The picture as a data address; empty where there is none."""
    kappa: float


def summary_figure(facts: FitFacts) -> Figure:
    """Four plots: κ against damage, what damage does to descriptors, the loss, and the probabilities."""
    import matplotlib

    with matplotlib.rc_context(PLOT_STYLE):
        figure = new_figure(9.2, 6.6)
        (kappa, close), (loss, promise) = figure.subplots(2, 2)
        _kappa(kappa, facts)
        _closeness(close, facts)
        loss.plot(range(1, len(facts.losses) + 1), facts.losses, "o-", ms=3, color=COLOURS[0])
        loss.set(title="learning", xlabel="epoch", ylabel="negative log-likelihood")
        loss.locator_params(axis="x", integer=True)
        _reliability(promise, facts)
        handles, labels = kappa.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=8)
        return figure


def _kappa(axis: Any, facts: FitFacts) -> None:
    levels = [0.0, *facts.levels]
    for number, (kind, rows) in enumerate(facts.kinds.items()):
        middle = [facts.clean[1], *(row[1] for row in rows)]
        style = {"marker": _MARKERS[number % len(_MARKERS)], "color": _colour(number), "ms": 4}
        axis.plot(levels, middle, label=kind, **style)
    axis.axhspan(facts.clean[0], facts.clean[2], color="#999999", alpha=0.18, linewidth=0)
    axis.set(title="κ of images it never saw", xlabel="level of damage", ylabel="median κ")
    axis.set_ylim(bottom=0)


def _closeness(axis: Any, facts: FitFacts) -> None:
    levels = [0.0, *facts.levels]
    for number, cosines in enumerate(facts.closeness.values()):
        style = {"marker": _MARKERS[number % len(_MARKERS)], "color": _colour(number), "ms": 4}
        axis.plot(levels, [1.0, *cosines], **style)
    axis.set(title="what damage does to the descriptor", xlabel="level of damage")
    axis.set(ylabel="cosine to the undamaged", ylim=(min(0.0, axis.get_ylim()[0]), 1.02))


def _reliability(axis: Any, facts: FitFacts) -> None:
    axis.set(title="probabilities on held-out examples", xlabel="stated probability", ylabel="share right")
    axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axis.plot([0, 1], [0, 1], "--", color="#666666", linewidth=1)
    if facts.reliability is None:
        axis.text(0.5, 0.5, "not calibrated", ha="center", va="center")
        return
    stated, right, counts = facts.reliability
    sizes = [12 + 130 * count / max(max(counts), 1) for count in counts]
    axis.plot(stated, right, "-", color=COLOURS[0], linewidth=1)
    axis.scatter(stated, right, s=sizes, color=COLOURS[0], linewidths=0, alpha=0.8)


def _colour(number: int) -> str:
    return (*COLOURS, "#000000")[number % (len(COLOURS) + 1)]


def fit_page(facts: FitFacts, highest: Sequence[Example], lowest: Sequence[Example]) -> str:
    """The page: what was learnt in a sentence, the figure, a table, and places of high and low κ."""
    sections = [paragraph(sentence) for sentence in verdict(facts)]
    words = (
        "Top left: κ as damage grows, for images that took no part in learning; the grey band holds the "
        "middle half of the undamaged. It should fall, and fall where the descriptor moves away (top right). "
        "Bottom left: the loss, which should level off. Bottom right: what was promised against what "
        "happened, on examples that the probabilities were not fitted on; near the dashed line is right."
    )
    sections.append(picture(png_of(summary_figure(facts)), "what κ has learnt", words))
    header = ["damage", "rank correlation", *(f"κ at {level:g}" for level in (0, *facts.levels))]
    rows = [
        [
            kind,
            _signed(facts.by_kind[kind]),
            *(_number(v) for v in (facts.clean[1], *(r[1] for r in values))),
        ]
        for kind, values in facts.kinds.items()
    ]
    sections += [heading("κ of each kind of damage"), table(header, rows)]
    sections.append(paragraph("Rank correlation of κ with the level: −1 is best. κ are medians.", small=True))
    for title, examples in (("Highest κ", highest), ("Lowest κ", lowest)):
        if examples:
            sections.append(heading(f"{title} of the map"))
            cards = "".join(map(_card, examples))
            sections.append(f'<div class="row">{cards}</div>')
    if facts.calibrated:
        sections.append(heading("Self-calibration"))
        sections += [paragraph(sentence) for sentence in facts.calibrated]
    lead = (
        f"{facts.images:,} of {facts.references:,} images, {facts.views} damaged views of each, "
        f"{facts.seconds:,.0f} s; no labels"
    )
    return page(f"What κ has learnt: {facts.name}".rstrip(": "), lead, sections)


def verdict(facts: FitFacts) -> list[str]:
    """In words whether it worked."""
    said = [
        f"On {facts.judged} images that it did not learn from, κ goes with the level of damage by a rank "
        f"correlation of {_signed(facts.with_level)}, and with how close the damaged descriptor stays to the "
        f"undamaged by {_signed(facts.with_cosine)}."
    ]
    if facts.before is not None:
        change = "better than" if facts.with_level < facts.before else "no better than"
        said.append(f"That is {change} the κ that the model had before ({_signed(facts.before)}).")
    return said


def fit_verdict(place_map: PlaceMap) -> list[str]:
    """Say in words whether the last fit of a map worked.

    Args:
        place_map: A map whose κ was fitted.
    """
    return verdict(fit_facts(place_map))


def _number(value: float) -> str:
    if value < 0.01:
        return "0.00"  # at the floor: nothing of the image is left
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _card(example: Example) -> str:
    name = html.escape(example.name, quote=True)
    shown = f'<img alt="{name}" src="{example.data}">' if example.data else f'<div class="gone">{name}</div>'
    return f"<div>{shown}<p>{name}<br>κ {_number(example.kappa)}</p></div>"


EXAMPLES = 4


def write_fit_report(place_map: PlaceMap, file: str | Path) -> tuple[Path, Path]:
    """Write the page and, beside it, its figure as PNG; both paths."""
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
    png, text = png_of(summary_figure(facts)), fit_page(facts, highest, lowest)
    replace_file(image, lambda part: part.write_bytes(png))
    replace_file(file, lambda part: part.write_text(text, encoding="utf-8", errors="backslashreplace"))
    return file, image


def fit_facts(place_map: PlaceMap) -> FitFacts:
    """What is known of the last fit of a map."""
    record = read_record(place_map.folder, place_map.manifest)
    if record is None:
        raise KappaPlaceError(
            f"κ was not fitted for the map {place_map.folder}; run `kappaplace map fit` first."
        )
    made, kept = place_map.calibration, place_map.manifest.calibration
    learnt = record.learnt
    return FitFacts(
        name=place_map.manifest.name,
        references=record.references,
        images=record.images,
        views=record.views,
        seconds=record.seconds,
        losses=[float(row["loss"]) for row in record.epochs if "loss" in row],
        judged=learnt.images,
        levels=LEVELS,
        clean=learnt.clean,
        kinds=learnt.kinds,
        closeness=learnt.closeness,
        by_kind=learnt.by_kind,
        with_level=learnt.with_level,
        with_cosine=learnt.with_cosine,
        before=learnt.before,
        reliability=None if kept is None else kept.get("reliability"),
        calibrated=[f"Calibrated on {kept['origin']}.", *made.rule.promise()]
        if kept is not None and made is not None and made.rule is not None
        else [],
    )


def _example(place_map: PlaceMap, reference: int) -> Example:
    store = place_map.store
    name = store.name(reference)
    data = picture_data(store.image_path(reference), store.thumbnail(reference))
    return Example(PurePath(name).name, data, float(store.gather("kappa", np.array([reference]))[0]))
