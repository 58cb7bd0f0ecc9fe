"""Calibration of a map on labelled queries: the signals of `localize`, and whether the answer was right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

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
from kappaplace.progress import track
from kappaplace.retrieval.evidence import Evidence
from kappaplace.retrieval.retrieve import retrieve
from kappaplace.types import Json

MATCHES = 10
"""Matches of each query that the second calibrator, of pairs, learns from."""
BLOCK = 64
FEWEST = 20
"""Queries of different places below which there is nothing to learn from."""
NOT_THINNED = (
    "The labelled queries were not thinned to one a place: it holds only if no two of them show one place."
)


def calibrate_map(
    place_map: OpenMap, table: PlaceImages, options: CalibrateOptions | None = None
) -> Calibration:
    """Fit on labelled queries and keep the result with the map.

    ``table`` holds queries with positions, or with positives given by name; a table without any query is
    taken to hold nothing else. Along a route one query a place is kept, for neighbours fail together; where
    their positions are not known, or thinning is not wanted, the promise says so.
    """
    options = options or CalibrateOptions()
    queries, positives = _labelled(place_map, table)
    rows = np.arange(len(queries))
    apart = options.thin and bool(queries.posed.all())
    if apart:
        rows = thin_to_places(queries.positions, place_map.manifest.radius)
    if len(rows) < FEWEST:
        raise KappaPlaceError(
            f"The {len(queries):,} labelled queries lie at {len(rows):,} places farther apart than "
            f"{place_map.manifest.radius:g} m, calibration needs {FEWEST} or more; label queries of more "
            "places, or do without thinning (--no-thin) if they were taken independently of each other."
        )
    blocks, rerank = [], options.rerank or 0
    with track("Calibrating", len(rows)) as bar:
        for part in _blocks(rows):
            images = queries.image_paths(part)
            evidence = collect_evidence(place_map, images, rerank)
            found = evidence.matches.indices
            _refuse_own(place_map, images, found[:, 0])
            if positives is None:
                right, outside = _by_position(place_map, queries.positions[part], found)
            else:
                right = np.stack(
                    [np.isin(f, positives[q]) for f, q in zip(found, part.tolist(), strict=True)]
                )
                outside = np.array([len(positives[q]) == 0 for q in part.tolist()])
            blocks.append(examples_of(evidence, right, outside))
            bar.advance(len(part))
    origin = f"{len(rows):,} labelled queries of {table.name or 'a table'}"
    thinned = len(queries) - len(rows)
    facts: dict[str, Json] = {"origin": origin, "thinned": thinned, "table": table.content_hash}
    examples = replace(join(blocks), facts=facts, rerank=rerank)
    calibration = fit_calibration(examples, options)
    if calibration.rule is not None and not apart:
        said = (*calibration.rule.assumptions, NOT_THINNED)
        calibration = replace(calibration, rule=replace(calibration.rule, assumptions=said))
    keep(place_map, calibration, origin, reliability=reliability(examples, options, calibration))
    return calibration


def _refuse_own(place_map: OpenMap, images: list[str], best: NDArray[np.int64]) -> None:
    """An image that finds itself is right whatever the map is worth, and would prove what does not hold."""
    paths = [place_map.store.image_path(reference) for reference in best.tolist()]
    own = [image for image, path in zip(images, paths, strict=True) if is_same_image(image, path)]
    if own:
        raise KappaPlaceError(
            f"Some labelled queries are images of the map itself (for instance {own[0]}), which find "
            "themselves; calibrate on queries that the map has not seen, or with --self."
        )


def collect_evidence(place_map: OpenMap, images: list[str], rerank: int = 0) -> Evidence:
    """Return what the map knows of some queries, as `localize` sees it."""
    queries = place_map.queries(place_map.embed(images), images if rerank else None)
    return retrieve(queries, place_map.references, min(MATCHES, len(place_map)), rerank=rerank)


def keep(place_map: OpenMap, calibration: Calibration, origin: str, **facts: Any) -> None:
    """Store a calibration with the map, whether it promises anything, and what else is known of it."""
    guaranteed = calibration.rule is not None and calibration.rule.guaranteed
    place_map.calibrate_with(calibration, origin, guarantee=guaranteed, **facts)


def no_longer_compared(before: Calibration | None, now: Calibration) -> str:
    """One sentence where matches were compared cell by cell so far and are no longer, else nothing."""
    count = verified_by(before)
    if not count or verified_by(now):
        return ""
    return (
        f"So far {count} matches of a query were compared cell by cell, from now on none are; calibrate with "
        f"--rerank {count} to keep that."
    )


def _labelled(place_map: OpenMap, table: PlaceImages) -> tuple[PlaceImages, list[NDArray[np.int64]] | None]:
    """The queries, and for each its right references where the table names them."""
    manifest = place_map.manifest
    queries = table.queries if len(table.query_rows) else table
    if table.given_positives is not None and len(table.query_rows):
        named = place_map.store.find(table.references.paths.tolist())
        if (named < 0).all():
            raise KappaPlaceError(
                f"The table {table.name} names its right answers, but none of its references is in the map "
                f"{place_map.folder}; was the map built from another folder or with a prefix?"
            )
        lists = [named[table.given_positives.of(q)] for q in range(len(queries))]
        return queries, [part[part >= 0] for part in lists]
    posed = np.flatnonzero(queries.posed)
    if not len(posed) or manifest.unposed == manifest.count:
        raise KappaPlaceError(
            "Labelled queries need positions, and so does the map, or positives given by name; "
            f"{len(posed):,} of {len(queries):,} queries have one."
        )
    return into_frame(queries.select(posed), manifest.frame, empty=False), None


def _by_position(
    place_map: OpenMap, positions: NDArray[np.float64], found: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each match lies within the radius of its query, and which queries have no such reference."""
    radius, search = place_map.manifest.radius, place_map.references.engine
    gap = place_map.store.positions[found] - positions[:, None, :]
    right = within([gap[..., 0], gap[..., 1]], radius)
    outside = [not len(search.within((x, y, radius))) for x, y in positions.tolist()]
    return right, np.array(outside)


def _blocks(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(rows), BLOCK):
        yield rows[start : start + BLOCK]
