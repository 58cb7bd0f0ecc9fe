"""Calibration of a map on labelled queries: the scores of `localize`, and whether each match is correct."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.fit import examples_of, fit_calibration, join, reliability
from kappaplace.calibration.options import CalibrateOptions
from kappaplace.calibration.splits import thin_to_places
from kappaplace.data.near import within
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.localize import verified_by
from kappaplace.maps.opened import OpenMap
from kappaplace.maps.sources import into_frame, is_same_image
from kappaplace.maps.store.reader import parts
from kappaplace.progress import track
from kappaplace.retrieval.evidence import Evidence
from kappaplace.retrieval.retrieve import retrieve
from kappaplace.types import Json

MATCHES = 10
"""Matches per query that the calibrator of pairs is fitted on."""
BLOCK = 64
"""Queries that are embedded at once."""
FEWEST = 20
"""Smallest number of places with labelled queries."""
NOT_THINNED = (
    "The guarantee assumes that no two labelled queries show the same place; the queries were not thinned."
)


def calibrate_map(
    place_map: OpenMap, table: PlaceImages, options: CalibrateOptions | None = None
) -> Calibration:
    """Fit a calibration on labelled queries and store it with the map.

    If positions are known, only one query per place is used, because neighbouring frames fail together.
    Otherwise, or with ``thin=False``, the assumptions of the guarantee mention it.

    Args:
        place_map: The map.
        table: Queries with positions, or with the names of their correct references. All rows of a table
            without queries are used as queries.
        options: Options of the calibration. Default: `CalibrateOptions` with its defaults.

    Returns:
        The calibration.

    Raises:
        KappaPlaceError: If there are too few queries, some are images of the map, or the labels are missing.
    """
    options = options or CalibrateOptions()
    queries, positives = _labelled(place_map, table)
    rows = np.arange(len(queries))
    apart = options.thin and bool(queries.posed.all())
    if apart:
        rows = thin_to_places(queries.positions, place_map.manifest.radius)
    if len(rows) < FEWEST:
        raise KappaPlaceError(
            f"Calibration needs labelled queries from at least {FEWEST} places, got {len(rows):,} places "
            f"({len(queries):,} queries, places {place_map.manifest.radius:g} m apart). Label more places, "
            "or pass --no-thin if the queries were taken independently."
        )
    blocks, rerank = [], options.rerank or 0
    with track("Calibrating", len(rows)) as bar:
        for part in parts(rows, BLOCK):
            images = queries.image_paths(part)
            evidence = collect_evidence(place_map, images, rerank)
            matches = evidence.matches.indices
            _check_images(place_map, images, matches[:, 0])
            if positives is None:
                correct, outside = _by_position(place_map, queries.positions[part], matches)
            else:
                lists = [positives[query] for query in part.tolist()]
                correct = np.stack([np.isin(row, names) for row, names in zip(matches, lists, strict=True)])
                outside = np.array([len(names) == 0 for names in lists])
            blocks.append(examples_of(evidence, correct, outside))
            bar.advance(len(part))
    origin = f"{len(rows):,} labelled queries of {table.name or 'a table'}"
    thinned = len(queries) - len(rows)
    facts: dict[str, Json] = {"origin": origin, "thinned": thinned, "table": table.content_hash}
    examples = replace(join(blocks), facts=facts, rerank=rerank)
    calibration = fit_calibration(examples, options)
    if calibration.rule is not None and not apart:
        assumptions = (*calibration.rule.assumptions, NOT_THINNED)
        calibration = replace(calibration, rule=replace(calibration.rule, assumptions=assumptions))
    keep(place_map, calibration, origin, reliability=reliability(examples, options, calibration))
    return calibration


def _check_images(place_map: OpenMap, images: list[str], best: NDArray[np.int64]) -> None:
    """Raise an error if a query is an image of the map, because its match is always correct."""
    paths = [place_map.store.image_path(reference) for reference in best.tolist()]
    own = [image for image, path in zip(images, paths, strict=True) if is_same_image(image, path)]
    if own:
        raise KappaPlaceError(
            f"Some labelled queries are images of the map itself (for example {own[0]}). Use images that are "
            "not in the map, or pass --self."
        )


def collect_evidence(place_map: OpenMap, images: list[str], rerank: int = 0) -> Evidence:
    """Return the evidence that `localize` computes for some queries.

    Args:
        place_map: The map.
        images: Image files of the queries.
        rerank: Number of matches to re-rank by patch matching.

    Returns:
        The evidence, with at most `MATCHES` matches per query.
    """
    queries = place_map.queries(place_map.embed(images), images if rerank else None)
    return retrieve(queries, place_map.references, min(MATCHES, len(place_map)), rerank=rerank)


def keep(place_map: OpenMap, calibration: Calibration, origin: str, **facts: Json) -> None:
    """Store a calibration with the map.

    Args:
        place_map: The map.
        calibration: The calibration.
        origin: Description of the data that it was fitted on.
        facts: Further values to store.
    """
    guaranteed = calibration.rule is not None and calibration.rule.guaranteed
    place_map.calibrate_with(calibration, origin, guarantee=guaranteed, **facts)


def no_longer_compared(before: Calibration | None, now: Calibration) -> str:
    """Return a note if a new calibration turns patch matching off; otherwise an empty string."""
    count = verified_by(before)
    if not count or verified_by(now):
        return ""
    return (
        f"Patch matching is now off (it was on for {count} matches per query). Calibrate with --rerank "
        f"{count} to keep it."
    )


def _labelled(place_map: OpenMap, table: PlaceImages) -> tuple[PlaceImages, list[NDArray[np.int64]] | None]:
    """Return the queries, and the correct references of each if the table names them."""
    manifest = place_map.manifest
    queries = table.queries if len(table.query_rows) else table
    if table.given_positives is not None and len(table.query_rows):
        references = place_map.store.find(table.references.paths.tolist())
        if (references < 0).all():
            raise KappaPlaceError(
                f"The table {table.name} names the correct references, but the map {place_map.folder} has "
                "none of them. Check whether the map was built from another folder or with a prefix."
            )
        lists = [references[table.given_positives.of(q)] for q in range(len(queries))]
        return queries, [part[part >= 0] for part in lists]
    posed = np.flatnonzero(queries.posed)
    if not len(posed) or manifest.unposed == manifest.count:
        raise KappaPlaceError(
            f"The map and the labelled queries need positions, and {len(posed):,} of {len(queries):,} "
            "queries have one. Add positions, or name the correct references in the table."
        )
    return into_frame(queries.select(posed), manifest.frame, empty=False), None


def _by_position(
    place_map: OpenMap, positions: NDArray[np.float64], matches: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return whether each match is within the radius of its query, and which queries are out-of-map."""
    radius, search = place_map.manifest.radius, place_map.references.engine
    gap = place_map.store.positions[matches] - positions[:, None, :]
    correct = within([gap[..., 0], gap[..., 1]], radius)
    outside = [not len(search.within((x, y, radius))) for x, y in positions.tolist()]
    return correct, np.array(outside)
