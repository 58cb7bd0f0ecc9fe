"""Calibration on labels of a person: yes, no or don't know for the best match of sampled queries.

Three rules keep the promise honest.

- *Don't know* counts as wrong. What is proven of "wrong or unknown" holds for "wrong" all the more; leaving
  such queries out would prove something about easy queries alone. The second threshold is the other way
  round (a rejected answer might have been right), so its promise is withdrawn where anything is unknown.
- A label is about the match that was shown. Where the map has changed and finds another one now, it counts as
  unknown.
- Only a random sample carries a guarantee. Whoever stopped early has labelled a smaller one; a file with rows
  taken out, or written by hand, gives probabilities and thresholds without a promise.

A sample of queries with the matches that a map finds for them: what a person is asked about.

Labelling in a terminal: one question a match, each answer saved at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.calibration import PATCH_SIGNALS, Calibration
from kappaplace.calibration.decision import DecisionRule
from kappaplace.calibration.fit import Examples, examples_of, fit_calibration, join, reliability
from kappaplace.calibration.options import CalibrateOptions
from kappaplace.calibration.splits import split_queries
from kappaplace.data.table import PlaceImages
from kappaplace.data.thumbnails import side_by_side, small_picture
from kappaplace.errors import KappaPlaceError
from kappaplace.files import replace_file
from kappaplace.maps.localize import how_compared, verified_by
from kappaplace.maps.opened import OpenMap
from kappaplace.maps.options import LabelOptions
from kappaplace.maps.sources import is_same_image
from kappaplace.maps.tune.calibrate import BLOCK, FEWEST, collect_evidence, keep
from kappaplace.maps.tune.label_sheet import (
    NO,
    UNKNOWN,
    YES,
    Row,
    Sample,
    Sheet,
    draw_sample,
    new_sheet,
    read_labels,
    sample_id,
    write_labels,
)
from kappaplace.progress import track
from kappaplace.types import Json

MOST_STALE = 0.2
"""Share of labels about matches that the map no longer finds above which they are refused."""


@dataclass(frozen=True)
class Outcomes:
    """What the labels say of the answers that the map gives now."""

    examples: Examples
    right: NDArray[np.bool_]
    unknown: int
    stale: int


def calibrate_map_on_labels(
    place_map: OpenMap,
    file: str | Path,
    options: CalibrateOptions | None = None,
    *,
    root: str | Path | None = None,
) -> Calibration:
    """Fit on a labels file and keep the result with the map. ``root``: where the queries' images lie now."""
    options = options or CalibrateOptions()
    if options.outside_rate is not None:
        raise KappaPlaceError(
            "Labels of matches do not tell which queries came from outside the map, so their share cannot be "
            "stated; leave --outside-rate out, the sampled queries have their own."
        )
    sheet = read_labels(file)
    rows = _usable(place_map, sheet, file)
    verify = _verify(sheet, options, file)
    paths = _paths(sheet, rows, Path(file), root)
    found = _outcomes(place_map, rows, paths, verify)
    origin = f"{len(rows):,} labelled matches of {Path(file).name}"
    facts: dict[str, Json] = {
        "origin": origin,
        "unknown": found.unknown,
        "stale": found.stale,
        "sampling_flaw": sheet.flaw,
    }
    _refuse_one_outcome(found.right, options.seed)
    examples = replace(found.examples, facts=facts, rerank=verify)
    made = fit_calibration(examples, options)
    if made.rule is not None:
        made = replace(made, rule=_honest(made.rule, sheet, len(rows), found))
    keep(place_map, made, origin, reliability=reliability(examples, options, made))
    return made


def _usable(place_map: OpenMap, sheet: Sheet, file: str | Path) -> tuple[Row, ...]:
    """The labelled rows, if they are of this map."""
    manifest, rows = place_map.manifest, sheet.labelled
    if sheet.sampling is not None and sheet.sampling.model != manifest.model.fingerprint:
        raise KappaPlaceError(
            f"The labels in {file} are about answers of another model than that of {place_map.folder}; "
            "label the matches of this map."
        )
    if len(rows) < FEWEST:
        raise KappaPlaceError(
            f"{file} has {len(rows):,} labels, calibration needs {FEWEST} or more; go on labelling."
        )
    references = place_map.store.find([row.match for row in rows])
    unknown = np.flatnonzero(references < 0)
    if len(unknown):
        raise KappaPlaceError(
            f"{len(unknown):,} of {len(rows):,} labelled matches in {file} are not in the map "
            f"{place_map.folder} (for instance {rows[unknown[0]].match!r}); label the matches of this map."
        )
    return rows


def _verify(sheet: Sheet, options: CalibrateOptions, file: str | Path) -> int:
    """How many matches were compared cell by cell for the one that was shown: labels speak of no other."""
    if sheet.sampling is None:
        return options.rerank or 0
    shown = sheet.sampling.verify
    if options.rerank not in (None, shown):
        raise KappaPlaceError(
            f"The matches in {file} were found {how_compared(shown)}, so labels of them calibrate nothing "
            f"else; leave --rerank out, or label again with `kappaplace map label --rerank {options.rerank}`."
        )
    return shown


def _paths(sheet: Sheet, rows: tuple[Row, ...], file: Path, root: str | Path | None) -> list[str]:
    folder = root if root is not None else sheet.sampling.root if sheet.sampling else file.absolute().parent
    paths = [os.path.join(folder, row.query) for row in rows]
    gone = [path for path in paths if not os.path.isfile(path)]
    if gone:
        raise KappaPlaceError(
            f"{len(gone):,} of {len(paths):,} labelled queries are not there any more (for instance "
            f"{gone[0]}); say with --root where they lie now."
        )
    return paths


def _outcomes(place_map: OpenMap, rows: tuple[Row, ...], paths: list[str], verify: int) -> Outcomes:
    """Ask the map again, for its signals; a label holds where the answer is the one that was shown."""
    blocks, right = [], np.zeros(len(rows), bool)
    shown = place_map.store.find([row.match for row in rows])
    same = np.zeros(len(rows), bool)
    with track("Calibrating", len(rows)) as bar:
        for start in range(0, len(rows), BLOCK):
            part = slice(start, start + BLOCK)
            evidence = collect_evidence(place_map, paths[part], verify)
            top = evidence.top
            same[part] = top == shown[part]
            right[part] = same[part] & np.array([row.label == YES for row in rows[part]])
            blocks.append(examples_of(evidence, right[part]))
            bar.advance(len(top))
    stale = int((~same).sum())
    if stale > MOST_STALE * len(rows):
        raise KappaPlaceError(
            f"For {stale:,} of {len(rows):,} labelled queries the map {place_map.folder} now finds another "
            "match than the one that was labelled; it is another map, or has changed too much: label again."
        )
    judged = np.array([row.label in (YES, NO) for row in rows])
    return Outcomes(join(blocks), right, int((~judged).sum()), stale)


def _refuse_one_outcome(right: NDArray[np.bool_], seed: int) -> None:
    """A score is learnt from right and wrong answers in the half of the labels that fits it."""
    fitted = right[split_queries(len(right), seed=seed).fit]
    if fitted.all() or not fitted.any():
        raise KappaPlaceError(
            f"All {len(fitted):,} labels that the score is fitted on (half of {len(right):,}) are "
            f"{'right' if fitted.all() else 'wrong'}; calibration needs right and wrong ones: label more, "
            "or draw from queries of all kinds, those from outside the map included."
        )


def _honest(rule: DecisionRule, sheet: Sheet, labels: int, found: Outcomes) -> DecisionRule:
    """The rule with what the labels say of its promise."""
    notes: list[str] = []
    changes: dict[str, Any] = {}
    if sheet.flaw:
        changes["guaranteed"] = False
        notes.append(f"{sheet.flaw} Only a random sample carries a guarantee.")
    elif (how := sheet.sampling) is not None:
        apart = "not thinned" if how.thinned == "nothing" else f"apart by {how.thinned}"
        notes.append(
            f"{labels:,} of {how.drawn:,} queries drawn at random from {how.of:,} were labelled, {apart} "
            f"(seed {how.seed})."
        )
        if labels < how.drawn:
            notes.append("Holds if labelling was not stopped because of how the labels looked.")
        if how.thinned == "nothing":
            notes.append("Holds if the queries are independent of each other: no two of one place.")
    open_ends = found.unknown + found.stale
    if open_ends:
        notes.append(
            f"{found.unknown:,} answers that nobody could judge and {found.stale:,} that have changed since "
            "count as wrong."
        )
        if rule.rejected is not None:
            changes["rejected"] = None
            notes.append("What is rejected is not promised: those answers might have been right.")
    return replace(rule, assumptions=(*rule.assumptions, *notes), **changes)


def label_map(
    place_map: OpenMap, table: PlaceImages, file: str | Path, options: LabelOptions | None = None
) -> Sheet:
    """Draw queries at random and write their best matches to a file, see `PlaceMap.label`."""
    options = options or LabelOptions()
    sample = draw_sample(
        table, place_map.manifest.radius, size=options.size, seed=options.seed, thin=options.thin
    )
    return open_sheet(place_map, sample, file, rerank=options.rerank, batch_size=options.batch_size)


def open_sheet(
    place_map: OpenMap,
    sample: Sample,
    file: str | Path,
    *,
    rerank: int | None = None,
    batch_size: int = 32,
) -> Sheet:
    """Return the sheet of a sample: that in ``file`` with its labels, or a new one, which is written there.

    A file of another sample is refused, never overwritten. The sheet states how many matches were compared,
    because labels of its matches cannot calibrate anything else.

    Args:
        place_map: The map.
        sample: The queries.
        file: A .csv file.
        rerank: As for `PlaceMap.localize`.
        batch_size: Number of images to embed at once.
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
        if rerank not in (None, sheet.sampling.verify):
            raise KappaPlaceError(
                f"The matches in {file} were found {how_compared(sheet.sampling.verify)}; go on without "
                "--rerank, or write to another file."
            )
        return sheet
    paths = [os.path.join(sample.root, name) for name in sample.names]
    answers = place_map.localize(paths, 1, rerank=rerank, batch_size=batch_size)
    themselves = sum(is_same_image(path, a.matches[0].image) for path, a in zip(paths, answers, strict=True))
    if themselves:
        raise KappaPlaceError(
            f"{themselves:,} of the {len(paths):,} queries drawn are images of the map itself, which find "
            "themselves; label queries that the map has not seen."
        )
    matches = [answer.matches[0].name for answer in answers]
    name = place_map.manifest.name or place_map.folder.name
    if rerank is None:
        rerank = verified_by(place_map.calibration or place_map.borrowed)
    # A map that only borrows probabilities does without comparing where its own images are gone.
    compared = rerank if PATCH_SIGNALS[0] in answers[0].signals else 0
    sheet = new_sheet(sample, matches, model=model, map_name=name, verify=compared)
    write_labels(sheet, file)
    return sheet


def query_picture(sheet: Sheet, position: int, most: int) -> bytes | None:
    """The query's image as a JPEG of at most so many pixels a side; None where it cannot be opened."""
    root = "" if sheet.sampling is None else sheet.sampling.root
    return small_picture(os.path.join(root, sheet.rows[position].query), most)


def match_picture(place_map: OpenMap, sheet: Sheet, position: int, most: int) -> bytes | None:
    """The same of its match: from its file, or the small copy that the map may keep."""
    found = int(place_map.store.find([sheet.rows[position].match])[0])
    if found < 0:
        return None
    made = small_picture(place_map.store.image_path(found), most)
    return place_map.store.thumbnail(found) if made is None else made


KEYS = {"y": YES, "n": NO, "u": UNKNOWN}
PIXELS = 640


def label_loop(
    place_map: OpenMap,
    sheet: Sheet,
    file: str | Path,
    *,
    ask: Callable[[str], str],
    say: Callable[[str], None],
    picture: Path | None = None,
) -> Sheet:
    """Ask about each row that has no label yet, until all have one or the person stops.

    ``ask`` puts a question and gives the reply; the end of the input (EOFError) stops, as q does. Both images
    of the question are drawn side by side into ``picture``.
    """
    at = _first_open(sheet)
    while at < len(sheet.rows):
        row = sheet.rows[at]
        say(f"{at + 1} of {len(sheet.rows)}\n  query {row.query}\n  match {row.match}")
        if picture is not None:
            _draw(place_map, sheet, at, picture)
        try:
            reply = ask("The same place? y, n, u (don't know), b (back), q (stop)").strip().lower()
        except EOFError:
            return sheet
        if reply in ("q", "quit"):
            return sheet
        if reply in ("b", "back"):
            at = max(at - 1, 0)
        elif (label := KEYS.get(reply[:1])) is not None and reply in (reply[:1], label):
            sheet = sheet.with_label(at, label)
            write_labels(sheet, file)
            at += 1
        else:
            say(f"{reply!r} is none of y, n, u, b and q.")
    return sheet


def _draw(place_map: OpenMap, sheet: Sheet, at: int, file: Path) -> None:
    both = side_by_side(query_picture(sheet, at, PIXELS), match_picture(place_map, sheet, at, PIXELS))
    replace_file(file, lambda part: part.write_bytes(both), sync=False)


def _first_open(sheet: Sheet) -> int:
    return next((i for i, row in enumerate(sheet.rows) if not row.label), len(sheet.rows))
