"""The page of a fitted map: its record, its calibration, and the places of highest and lowest κ."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np

from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file
from kappaplace.maps.fit_check import LEVELS
from kappaplace.maps.fit_record import read_record
from kappaplace.maps.page import picture_data
from kappaplace.reports.html import png_of
from kappaplace.reports.map_fit import Example, FitFacts, fit_page, summary_figure

if TYPE_CHECKING:
    from kappaplace.maps.place_map import PlaceMap

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
