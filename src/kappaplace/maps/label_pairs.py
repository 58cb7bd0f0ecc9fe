"""A sample of queries with the matches that a map finds for them: what a person is asked about."""

from __future__ import annotations

import os
from pathlib import Path

from kappaplace.calibration.judge import PATCH_SIGNALS
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.label_file import Sheet, new_sheet, read_labels, sample_id, write_labels
from kappaplace.maps.label_sample import Sample
from kappaplace.maps.localize import how_compared, verified_by
from kappaplace.maps.place_map import PlaceMap
from kappaplace.maps.sources import is_same_image
from kappaplace.reports.label_pictures import small_picture


def open_sheet(
    place_map: PlaceMap,
    sample: Sample,
    file: str | Path,
    *,
    verify: int | None = None,
    batch_size: int = 32,
) -> Sheet:
    """The sheet of this sample: the one in ``file`` with its labels, or a new one, which is written there.

    A file of another sample is refused, never overwritten. ``verify`` is that of `PlaceMap.localize`: None
    shows the answers that the map gives now. The sheet says how many were compared, for labels of its matches
    can calibrate nothing else.
    """
    file, model = Path(file), place_map.manifest.model.fingerprint
    if file.exists():
        sheet = read_labels(file)
        wanted = sample_id(model, sample.seed, sample.names)
        if sheet.sampling is None or sheet.sampling.sample != wanted:
            raise KappaPlaceError(
                f"{file} holds labels of another sample (other queries, size, seed or model); go on with the "
                "options it was made with, or write to another file."
            )
        if verify not in (None, sheet.sampling.verify):
            raise KappaPlaceError(
                f"The matches in {file} were found {how_compared(sheet.sampling.verify)}; go on without "
                "--verify, or write to another file."
            )
        return sheet
    paths = [os.path.join(sample.root, name) for name in sample.names]
    answers = place_map.localize(paths, 1, verify=verify, batch_size=batch_size)
    themselves = sum(is_same_image(path, a.matches[0].image) for path, a in zip(paths, answers, strict=True))
    if themselves:
        raise KappaPlaceError(
            f"{themselves:,} of the {len(paths):,} queries drawn are images of the map itself, which find "
            "themselves; label queries that the map has not seen."
        )
    matches = [answer.matches[0].name for answer in answers]
    name = place_map.manifest.name or place_map.folder.name
    if verify is None:
        verify = verified_by(place_map.calibration or place_map.borrowed)
    # A map that only borrows probabilities does without comparing where its own images are gone.
    compared = verify if PATCH_SIGNALS[0] in answers[0].signals else 0
    sheet = new_sheet(sample, matches, model=model, map_name=name, verify=compared)
    write_labels(sheet, file)
    return sheet


def query_picture(sheet: Sheet, position: int, most: int) -> bytes | None:
    """The query's image as a JPEG of at most so many pixels a side; None where it cannot be opened."""
    root = "" if sheet.sampling is None else sheet.sampling.root
    return small_picture(os.path.join(root, sheet.rows[position].query), most)


def match_picture(place_map: PlaceMap, sheet: Sheet, position: int, most: int) -> bytes | None:
    """The same of its match: from its file, or the small copy that the map may keep."""
    found = int(place_map.store.find([sheet.rows[position].match])[0])
    if found < 0:
        return None
    made = small_picture(place_map.store.image_path(found), most)
    return place_map.store.thumbnail(found) if made is None else made
