"""Calibration of a map on labelled queries: the scores of `localize`, and whether each match is correct."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.calibrators import LEAST_QUERIES
from kappaplace.calibration.candidates import UNLISTED, correct_places, place_numbers
from kappaplace.calibration.examples import Examples, examples_of, join
from kappaplace.calibration.fit import check_label_count, fit_calibration, reliability
from kappaplace.calibration.groups import KAPPA
from kappaplace.calibration.options import CalibrateOptions, thin_to_places
from kappaplace.calibration.radius import LIMIT, position_errors
from kappaplace.calibration.risk import RiskRefused
from kappaplace.checks import Bools, Floats
from kappaplace.data.appearance import copies, taken_together
from kappaplace.data.near import within
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.localize import rerank_of
from kappaplace.maps.opened import OpenMap
from kappaplace.maps.sources import into_frame, is_same_image
from kappaplace.maps.store import MapStore, parts
from kappaplace.progress import track
from kappaplace.retrieval.evidence import Evidence, retrieve
from kappaplace.retrieval.references import LeaveOut, Queries
from kappaplace.types import Json

MATCHES = 10
"""Number of matches per query that the calibrator of pairs is fitted on."""
BLOCK = 64
"""Number of queries that are embedded at once."""
PAIRS = 1 << 22
"""Largest number of similarities in memory."""
STEP = 1 << 14
"""Number of references that are compared at once."""
APART = 2.0
"""Number of radii around a query within which references are excluded. An image just beyond one radius still
shows the place."""
MOST_NAMED = 5
GROUPED = ("condition", "place")
"""Columns of a table by which guarantees can be grouped."""
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
    queries, positives = _labeled(place_map, table)
    strata = strata_of(queries, options.groups)
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
    check_label_count(len(rows), options)
    labels = _Labels(place_map, queries, positives)
    rerank = place_map.rerank_count(options.rerank)
    counterparts = int(labels.outside[rows].sum()) < LEAST_QUERIES
    blocks: dict[int, list[Examples]] = {count: [] for count in sorted({0, rerank})}
    twins: list[str] = []
    with track("Calibrating", len(rows)) as bar:
        for part in parts(rows, max(1, min(BLOCK, PAIRS // len(place_map)) if counterparts else BLOCK)):
            images = queries.image_paths(part)
            embeddings = place_map.embed(images, patches=rerank > 0)
            first = retrieve(place_map.queries(embeddings, images), place_map.references, 1)
            _check_images(place_map, images, first.top)
            keep_rows = np.ones(len(part), bool)
            if not options.keep_twins:
                keep_rows = ~labels.twins(part, images, first.top)
                twins += [image for image, row in zip(images, keep_rows, strict=True) if not row]
            bar.advance(len(part))
            part, images = part[keep_rows], [images[row] for row in np.flatnonzero(keep_rows).tolist()]
            if not len(part):
                continue
            for count, group in blocks.items():
                seen = place_map.queries(embeddings.take(np.flatnonzero(keep_rows)), images)
                group.append(labels.examples(seen, part, count))
                if counterparts:
                    group.extend(labels.counterparts(seen, part, count))
    left = check_twins(len(rows) - len(twins), len(rows))
    origin = f"{left:,} labelled queries of {table.name or 'a table'}"
    facts: dict[str, Json] = {
        "origin": origin,
        "thinned": len(queries) - len(rows),
        "twins": len(twins),
        "table": table.content_hash,
    }
    if labels.misplaced:
        facts["misplaced"] = labels.misplaced[:MOST_NAMED]
    fitted = {count: replace(join_counterparts(group), facts=facts) for count, group in blocks.items()}
    if strata:
        fitted = {
            count: replace(each, strata=[strata[row] for row in np.asarray(each.groups).tolist()])
            for count, each in fitted.items()
        }
    calibration = fit_calibration(fitted[rerank], options, prior=place_map.prior(fitted[rerank]))
    if rerank:
        calibration = replace(calibration, plain=_plain(fitted[0], options))
    if calibration.rule is not None and not apart:
        assumptions = (*calibration.rule.assumptions, NOT_THINNED)
        calibration = replace(calibration, rule=replace(calibration.rule, assumptions=assumptions))
    keep(place_map, calibration, origin, reliability=reliability(fitted[rerank], options, calibration))
    return calibration


def strata_of(queries: PlaceImages, groups: str) -> list[str]:
    """Return the value of each query in the column of the groups; an empty list for groups by κ, or without.

    Raises:
        KappaPlaceError: If the table has no such column, or it is empty.
    """
    if groups in ("", KAPPA):
        return []
    if groups not in GROUPED:
        raise KappaPlaceError(f"Unknown groups '{groups}'. Choose from: {', '.join((KAPPA, *GROUPED))}.")
    values = [str(value) for value in (queries.condition if groups == "condition" else queries.place)]
    if not set(values) - {"", "-1"}:
        raise KappaPlaceError(
            f"The labelled queries have no values in the column '{groups}'. Add the column, or pass --groups "
            "kappa."
        )
    return values


def check_twins(left: int, queries: int) -> int:
    """Return how many labelled queries are not copies of map images; raise an error if there are too few."""
    if left < FEWEST:
        raise KappaPlaceError(
            f"Calibration needs at least {FEWEST} labelled queries that are not copies of map images, got "
            f"{left:,} of {queries:,}. Label queries from another day, or pass --keep-twins."
        )
    return left


def join_counterparts(blocks: Sequence[Examples]) -> Examples:
    """Join blocks of queries and their counterparts, if they have any.

    Args:
        blocks: One or more blocks of examples.

    Returns:
        The examples of all blocks.
    """
    examples = join(blocks)
    repeated = examples.groups is not None and len(np.unique(examples.groups)) < len(examples.groups)
    return replace(examples, counterparts=repeated)


def _plain(examples: Examples, options: CalibrateOptions) -> Calibration:
    """Fit a calibration without patch matching, and without decisions if the labels are too few for them."""
    try:
        return fit_calibration(examples, options)
    except RiskRefused:
        return fit_calibration(examples, replace(options, max_risk=None))


class _Labels:
    """The correct references of labelled queries."""

    def __init__(
        self, place_map: OpenMap, queries: PlaceImages, positives: list[NDArray[np.int64]] | None
    ) -> None:
        self.place_map, self.queries, self.positives = place_map, queries, positives
        self.everyone = np.arange(len(place_map))
        self.outside = np.array([not len(self._near(row, 1.0)) for row in range(len(queries))])
        self.misplaced: list[str] = []
        """Queries that are copies of a map image but labelled at another place."""

    def _near(self, query: int, factor: float) -> NDArray[np.int64]:
        """Return the references that show the place of a query; a larger factor adds references around it."""
        if self.positives is None:
            x, y = self.queries.positions[query].tolist()
            return self.place_map.references.within((x, y, factor * self.place_map.manifest.radius))
        own = self.positives[query]
        if factor == 1.0 or not len(own):
            return own
        return np.flatnonzero(self.place_map.references.near(own[:, None], self.everyone).any(axis=0))

    def correct(self, part: NDArray[np.int64], matches: NDArray[np.int64]) -> Bools:
        """Return whether each match of these queries is correct."""
        if self.positives is None:
            radius = self.place_map.manifest.radius
            gap = self.place_map.store.positions[matches] - self.queries.positions[part][:, None, :]
            return within([gap[..., 0], gap[..., 1]], radius)
        lists = [self.positives[query] for query in part.tolist()]
        return np.stack([np.isin(row, names) for row, names in zip(matches, lists, strict=True)])

    def twins(self, part: NDArray[np.int64], images: list[str], best: NDArray[np.int64]) -> Bools:
        """Return which queries are copies of their best match, or were taken at the time of a map image."""
        others = [self.place_map.store.image_path(row) for row in best.tolist()]
        same = copies(images, others)
        wrong = same & ~self.correct(part, best[:, None])[:, 0]
        self.misplaced += [image for image, row in zip(images, wrong, strict=True) if row]
        times = np.asarray(self.place_map.store.whole("poses")[:, 3])
        return same | taken_together(self.queries.timestamp[part], times)

    def examples(self, queries: Queries, part: NDArray[np.int64], rerank: int) -> Examples:
        """Return the scores of these queries with their outcomes."""
        references = self.place_map.references
        evidence = retrieve(queries, references, min(MATCHES, len(references)), rerank=rerank)
        correct = self.correct(part, evidence.matches.indices)
        names, numbers = [str(image) for image in queries.images or ()], place_numbers(evidence)
        assert evidence.pool is not None
        listed = self.correct(part, evidence.pool.indices[:, : numbers.shape[1]])
        place = correct_places(numbers, listed)
        examples = examples_of(evidence, correct, self.outside[part], part, names, place)
        return with_errors(self.place_map, examples, evidence, self.poses(part))

    def poses(self, part: NDArray[np.int64]) -> Floats | None:
        """Return the true poses of these queries, N×3; None if the labels are names of references."""
        if self.positives is not None:
            return None
        return np.column_stack([self.queries.positions[part], self.queries.heading[part]])

    def counterparts(self, queries: Queries, part: NDArray[np.int64], rerank: int) -> list[Examples]:
        """Return the examples of the same queries in a map without their place."""
        places = [None if self.outside[query] else self._near(query, APART) for query in part.tolist()]
        return counterparts_of(self.place_map, queries, places, part, rerank, poses=self.poses(part))


def with_errors(place_map: OpenMap, examples: Examples, evidence: Evidence, poses: Floats | None) -> Examples:
    """Return examples with the errors of their positions.

    Args:
        place_map: The map.
        examples: Examples of N queries.
        evidence: Results of their retrieval.
        poses: True poses x, y and heading of the queries, N×3; None if they are unknown.

    Returns:
        The examples, with NaN for answers without a position.
    """
    manifest = place_map.manifest
    if poses is None or manifest.unposed == manifest.count:
        return examples
    best = place_map.store.gather("poses", evidence.top)[:, :3]
    return replace(examples, errors=position_errors(best, poses), limit=LIMIT * manifest.radius)


def counterparts_of(
    place_map: OpenMap,
    queries: Queries,
    places: Sequence[NDArray[np.int64] | None],
    groups: NDArray[np.int64],
    rerank: int,
    *,
    pairs: bool = True,
    poses: Floats | None = None,
) -> list[Examples]:
    """Search queries in a map without the references of their place, so that they are out-of-map queries.

    Args:
        place_map: The map.
        queries: N embedded queries with their images.
        places: References that show the place of each query, N; None for a query without a counterpart.
        groups: Number of each query, N.
        rerank: Number of matches to re-rank by patch matching.
        pairs: Whether to calibrate single matches.
        poses: True poses of the queries, N×3; None if they are unknown.

    Returns:
        At most one block of examples, all of them incorrect.
    """
    references, count = place_map.references, min(MATCHES, len(place_map))
    rows = similarities_to(place_map.store, queries.vectors)
    for number, place in enumerate(places):
        rows[number, slice(None) if place is None else place] = -np.inf
    usable = np.flatnonzero(np.isfinite(rows).sum(axis=1) >= max(count, rerank))
    if not len(usable):
        return []
    assert queries.embeddings is not None
    images = [(queries.images or ())[row] for row in usable.tolist()]
    own = replace(
        queries, embeddings=queries.embeddings.take(usable), images=images, similarities=rows[usable]
    )
    evidence = retrieve(own, LeaveOut(references, rows[usable]), count, rerank=rerank)
    none = np.zeros(evidence.matches.indices.shape if pairs else len(usable), bool)
    out, place = np.ones(len(usable), bool), np.full(len(usable), UNLISTED) if pairs else None
    examples = examples_of(evidence, none, out, groups[usable], images, place)
    return [with_errors(place_map, examples, evidence, None if poses is None else poses[usable])]


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
    queries = place_map.queries(place_map.embed(images), images)
    return retrieve(queries, place_map.references, min(MATCHES, len(place_map)), rerank=rerank)


def similarities_to(store: MapStore, descriptors: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return the similarities of some queries to all references, N×R."""
    queries = np.asarray(descriptors, np.float32)
    blocks = [queries @ store.descriptors[start : start + STEP].T for start in range(0, len(store), STEP)]
    return np.concatenate(blocks, axis=1)


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


def reranking_note(before: Calibration | None, now: Calibration) -> str:
    """Return a note if a new calibration turns patch matching off; otherwise an empty string."""
    count = rerank_of(before)
    if not count or rerank_of(now):
        return ""
    return (
        f"Patch matching is now off (it was on for {count} matches per query). Calibrate with --rerank "
        f"{count} to keep it."
    )


def _labeled(place_map: OpenMap, table: PlaceImages) -> tuple[PlaceImages, list[NDArray[np.int64]] | None]:
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
