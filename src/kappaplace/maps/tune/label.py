"""Labelling the best matches of sampled queries, and calibration on these labels.

Three rules make sure that the guarantee holds:

- *Unknown* counts as incorrect. A bound on "incorrect or unknown" is also a bound on "incorrect"; without
  such queries, the guarantee would cover only easy queries. For rejected answers the opposite is true (they
  may have been correct), so there is no guarantee for them if any label is unknown.
- A label describes the match that was shown. If the map returns another match now, the label is unknown.
- Only a random sample has a guarantee. A person who stopped early has labelled a smaller random sample. A
  file with removed rows, or one written by hand, gives probabilities and thresholds without a guarantee.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kappaplace.calibration.calibration import PATCH_SIGNALS, Calibration
from kappaplace.calibration.decision import DecisionRule
from kappaplace.calibration.examples import Examples, examples_of
from kappaplace.calibration.fit import check_label_count, fit_calibration, reliability
from kappaplace.calibration.options import CalibrateOptions
from kappaplace.data.appearance import copies
from kappaplace.data.decoding import small_image
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.localize import rerank_of, reranking_text
from kappaplace.maps.opened import OpenMap
from kappaplace.maps.options import LabelOptions
from kappaplace.maps.sources import is_same_image
from kappaplace.maps.store import parts
from kappaplace.maps.tune.calibrate import (
    BLOCK,
    FEWEST,
    MATCHES,
    check_twins,
    counterparts_of,
    join_counterparts,
    keep,
)
from kappaplace.maps.tune.label_sheet import (
    NO,
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
from kappaplace.retrieval.evidence import retrieve
from kappaplace.types import Json

MOST_STALE = 0.2
"""Labels are rejected if the map returns another match for more than this fraction of them."""


@dataclass(frozen=True)
class Outcomes:
    """Outcomes of the map's current answers according to the labels."""

    examples: Examples
    unknown: int
    """Number of labels that are neither yes nor no."""
    stale: int
    """Number of queries for which the map returns another match now."""
    twins: int
    """Number of queries that were excluded because they are copies of their match."""


def calibrate_map_on_labels(
    place_map: OpenMap,
    file: str | Path,
    options: CalibrateOptions | None = None,
    *,
    root: str | Path | None = None,
) -> Calibration:
    """Fit a calibration on a labels file and store it with the map.

    Args:
        place_map: The map.
        file: Labels file.
        options: Options of the calibration. Default: `CalibrateOptions` with its defaults.
        root: Folder of the query images. Default: the folder that the labels file names.

    Returns:
        The calibration.

    Raises:
        KappaPlaceError: If the labels are too few, do not belong to this map, or all have the same outcome.
    """
    options = options or CalibrateOptions()
    if options.outside_rate is not None:
        raise KappaPlaceError(
            "--outside-rate cannot be used with --labels, because match labels do not record which "
            "queries are out-of-map. Omit it to use the rate of the sample."
        )
    sheet = read_labels(file)
    rows = _usable(place_map, sheet, file)
    check_label_count(len(rows), options)
    rerank = _rerank(sheet, options, file)
    paths = _paths(sheet, rows, Path(file), root)
    outcomes = _outcomes(place_map, rows, paths, rerank, options.keep_twins)
    labels = len(rows) - outcomes.twins
    origin = f"{labels:,} labelled matches of {Path(file).name}"
    facts: dict[str, Json] = {
        "origin": origin,
        "unknown": outcomes.unknown,
        "stale": outcomes.stale,
        "twins": outcomes.twins,
        "sampling_flaw": sheet.flaw,
    }
    examples = replace(outcomes.examples, facts=facts, rerank=rerank)
    calibration = fit_calibration(examples, options, prior=place_map.prior(examples))
    if calibration.rule is not None:
        rule = _with_assumptions(calibration.rule, sheet, labels, outcomes)
        calibration = replace(calibration, rule=rule)
    keep(place_map, calibration, origin, reliability=reliability(examples, options, calibration))
    return calibration


def _usable(place_map: OpenMap, sheet: Sheet, file: str | Path) -> tuple[Row, ...]:
    """Return the labelled rows after checking that they belong to this map."""
    manifest, rows = place_map.manifest, sheet.labeled
    if sheet.sampling is not None and sheet.sampling.model != manifest.model.fingerprint:
        raise KappaPlaceError(
            f"The labels in {file} belong to another model than the map {place_map.folder}. Label the "
            "matches of this map."
        )
    if len(rows) < FEWEST:
        raise KappaPlaceError(
            f"Calibration needs at least {FEWEST} labels, got {len(rows):,} in {file}. Continue labelling."
        )
    references = place_map.store.find([row.match for row in rows])
    unknown = np.flatnonzero(references < 0)
    if len(unknown):
        raise KappaPlaceError(
            f"{len(unknown):,} of {len(rows):,} labelled matches in {file} are not in the map "
            f"{place_map.folder} (for example {rows[unknown[0]].match!r}). Label the matches of this map."
        )
    return rows


def _rerank(sheet: Sheet, options: CalibrateOptions, file: str | Path) -> int:
    """Return how many matches were re-ranked for the labels; fail if the options have another number."""
    if sheet.sampling is None:
        return options.rerank or 0
    shown = sheet.sampling.verify
    if options.rerank not in (None, shown):
        raise KappaPlaceError(
            f"The labels in {file} were collected {reranking_text(shown)}. Omit --rerank, or label again "
            f"with `kappaplace map label --rerank {options.rerank}`."
        )
    return shown


def _paths(sheet: Sheet, rows: tuple[Row, ...], file: Path, root: str | Path | None) -> list[str]:
    folder = root if root is not None else sheet.sampling.root if sheet.sampling else file.absolute().parent
    paths = [os.path.join(folder, row.query) for row in rows]
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing:
        raise KappaPlaceError(
            f"{len(missing):,} of {len(paths):,} labelled queries no longer exist (for example "
            f"{missing[0]}). Pass their folder with --root."
        )
    return paths


def _outcomes(
    place_map: OpenMap, rows: tuple[Row, ...], paths: list[str], rerank: int, keep_twins: bool
) -> Outcomes:
    """Query the map again for its scores. A label applies only if the map returns the labelled match."""
    blocks, used = [], np.zeros(len(rows), bool)
    shown = place_map.store.find([row.match for row in rows])
    yes = np.array([row.label == YES for row in rows])
    same, references = np.zeros(len(rows), bool), place_map.references
    everyone = np.arange(len(place_map))
    with track("Calibrating", len(rows)) as bar:
        for part in parts(np.arange(len(rows)), BLOCK):
            bar.advance(len(part))
            images = [paths[row] for row in part.tolist()]
            embeddings = place_map.embed(images)
            if not keep_twins:
                top = retrieve(place_map.queries(embeddings, images), references, 1).top
                own = np.flatnonzero(~copies(images, references.images(top)))
                part, images, embeddings = part[own], [images[row] for row in own], embeddings.take(own)
            if not len(part):
                continue
            used[part] = True
            queries = place_map.queries(embeddings, images)
            evidence = retrieve(queries, references, min(MATCHES, len(place_map)), rerank=rerank)
            same[part] = evidence.top == shown[part]
            correct = same[part] & yes[part]
            inside = np.zeros(len(part), bool)
            blocks.append(examples_of(evidence, correct, inside, part, images))
            places = [
                np.flatnonzero(references.near(match, everyone)) if right else None
                for match, right in zip(shown[part].tolist(), correct, strict=True)
            ]
            blocks += counterparts_of(place_map, queries, places, part, rerank, pairs=False)
    count = check_twins(int(used.sum()), len(rows))
    stale = int((used & ~same).sum())
    if stale > MOST_STALE * count:
        raise KappaPlaceError(
            f"For {stale:,} of {count:,} labelled queries, the map {place_map.folder} returns another "
            "match than the labelled one. It is another map, or has changed too much; label again."
        )
    unknown = sum(row.label not in (YES, NO) for row, each in zip(rows, used, strict=True) if each)
    return Outcomes(join_counterparts(blocks), unknown, stale, len(rows) - count)


def _with_assumptions(rule: DecisionRule, sheet: Sheet, labels: int, outcomes: Outcomes) -> DecisionRule:
    """Return the rule with the assumptions and limits of a guarantee on these labels."""
    notes: list[str] = []
    if sheet.flaw:
        rule = replace(rule, guaranteed=False)
        notes.append(f"{sheet.flaw} Only a random sample has a guarantee.")
    elif (sampling := sheet.sampling) is not None:
        apart = "not thinned" if sampling.thinned == "nothing" else f"apart by {sampling.thinned}"
        notes.append(
            f"{labels:,} of {sampling.drawn:,} queries drawn at random from {sampling.of:,} were labelled, "
            f"{apart} (seed {sampling.seed})."
        )
        if labels < sampling.drawn:
            notes.append("The guarantee assumes that labelling was not stopped because of the labels.")
        if sampling.thinned == "nothing":
            notes.append("The guarantee assumes that no two queries show the same place.")
    if outcomes.unknown + outcomes.stale:
        notes.append(
            f"{outcomes.unknown:,} answers with an unknown label and {outcomes.stale:,} that have changed "
            "since count as incorrect."
        )
        if rule.rejected is not None:
            rule = replace(rule, rejected=None)
            notes.append("There is no guarantee for rejected answers: some may have been correct.")
    return replace(rule, assumptions=(*rule.assumptions, *notes))


def label_map(
    place_map: OpenMap, table: PlaceImages, file: str | Path, options: LabelOptions | None = None
) -> Sheet:
    """Sample queries at random and write their best matches to a file.

    Args:
        place_map: The map.
        table: Table of the queries.
        file: A .csv file. A file of the same sample keeps its labels.
        options: Options of the sampling. Default: `LabelOptions` with its defaults.

    Returns:
        The rows of the file.

    Raises:
        KappaPlaceError: If the file has another sample, or queries are images of the map.
    """
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
    """Return the sheet of a sample: the existing file with its labels, or a new sheet, which is written.

    A file of another sample is never overwritten. The sheet records how many matches were re-ranked, because
    the labels only apply to these matches.

    Args:
        place_map: The map.
        sample: The queries.
        file: A .csv file.
        rerank: Number of matches to re-rank by patch matching. Default: as at calibration.
        batch_size: Number of images to embed at once.

    Returns:
        The sheet.

    Raises:
        KappaPlaceError: If the file has another sample, or queries are images of the map.
    """
    file, model = Path(file), place_map.manifest.model.fingerprint
    if file.exists():
        sheet = read_labels(file)
        if sheet.sampling is None or sheet.sampling.sample != sample_id(model, sample.seed, sample.names):
            raise KappaPlaceError(
                f"{file} has labels of another sample (other queries, size, seed or model). Use the original "
                "options, or write to another file."
            )
        if rerank not in (None, sheet.sampling.verify):
            raise KappaPlaceError(
                f"The labels in {file} were collected {reranking_text(sheet.sampling.verify)}. Omit "
                "--rerank, or write to another file."
            )
        return sheet
    if rerank is None and place_map.calibration is None:
        rerank = place_map.rerank_count(None)
    paths = [os.path.join(sample.root, name) for name in sample.names]
    answers = place_map.localize(paths, 1, rerank=rerank, batch_size=batch_size)
    own = sum(is_same_image(path, a.matches[0].image) for path, a in zip(paths, answers, strict=True))
    if own:
        raise KappaPlaceError(
            f"{own:,} of the {len(paths):,} sampled queries are images of the map itself. Use images that "
            "are not in the map."
        )
    matches = [answer.matches[0].name for answer in answers]
    name = place_map.manifest.name or place_map.folder.name
    if rerank is None:
        rerank = rerank_of(place_map.calibration or place_map.borrowed)
    # With a shipped calibration, a map without its images answers without patch matching.
    compared = rerank if PATCH_SIGNALS[0] in answers[0].signals else 0
    sheet = new_sheet(sample, matches, model=model, map_name=name, verify=compared)
    write_labels(sheet, file)
    return sheet


def query_picture(sheet: Sheet, position: int, most: int) -> bytes | None:
    """Return the image of a query as JPEG.

    Args:
        sheet: The sheet.
        position: Position of the row, from 0.
        most: Largest width and height in pixels.

    Returns:
        The image; None if it cannot be opened.
    """
    root = "" if sheet.sampling is None else sheet.sampling.root
    return small_image(os.path.join(root, sheet.rows[position].query), most)


def match_picture(place_map: OpenMap, sheet: Sheet, position: int, most: int) -> bytes | None:
    """Return the image of a match as JPEG, from its file or from the thumbnail in the map.

    Args:
        place_map: The map.
        sheet: The sheet.
        position: Position of the row, from 0.
        most: Largest width and height in pixels.

    Returns:
        The image; None if the map does not have it.
    """
    reference = int(place_map.store.find([sheet.rows[position].match])[0])
    if reference < 0:
        return None
    image = small_image(place_map.store.image_path(reference), most)
    return place_map.store.thumbnail(reference) if image is None else image
