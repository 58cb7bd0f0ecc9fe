"""The checks of `kappaplace data check`: counts, poses, positives, images on disk."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field

import numpy as np

from kappaplace.data.geodesy import zone_index
from kappaplace.data.positives import NoPositives, apply_policy
from kappaplace.data.protocols import check_protocol
from kappaplace.data.table import PlaceImages
from kappaplace.progress import track
from kappaplace.records import optional, stored


@dataclass(frozen=True)
class TableSummary:
    """Facts about a table that affect an evaluation."""

    name: str
    """Name of the dataset."""
    protocol: str
    """Name of the benchmark protocol; empty for none."""
    hash: str
    """Content hash."""
    root: str
    """Folder of the images."""
    frame: str
    """Frame of the positions."""
    radius: float
    """Radius of positives in metres."""
    neighborhood: str = field(metadata=stored("neighbourhood"))
    """Rule for references of the same place, such as "metres:25"."""
    queries: int
    """Number of queries."""
    references: int
    """Number of references."""
    unposed: int
    """Number of images without a position."""
    with_heading: int
    """Number of images with a heading."""
    with_timestamp: int
    """Number of images with a time."""
    places: int
    """Number of place labels."""
    conditions: int
    """Number of conditions."""
    extent_meters: tuple[float, float] = field(metadata=stored("extent_metres"))
    """Width and height in metres of the area, or of the largest zone if there are several."""
    positives: str
    """How positives are defined: "given", or the radius."""
    positives_per_query: float
    """Mean number of positives."""
    queries_without_positives: int
    """Number of queries without positives."""
    no_positives: str
    """Policy for queries without positives."""


@dataclass(frozen=True)
class TableProblems:
    """Problems that would invalidate an evaluation of a table."""

    problems: tuple[str, ...]
    """One message per problem."""
    warnings: tuple[str, ...]
    """One message per count that differs from the protocol, if the protocol's count is not verified."""
    corrupt: tuple[str, ...] | None = field(default=None, metadata=optional())
    """One message per image that cannot be decoded; None if images were not decoded."""


def summarize(table: PlaceImages, policy: NoPositives = NoPositives.FAIL) -> TableSummary:
    """Count queries, references, positives and the facts about images.

    Args:
        table: The table.
        policy: Policy for queries without positives.

    Returns:
        The counts.

    Raises:
        KappaPlaceError: If a query has no positive and the policy is "error".
    """
    positives = table.positives()
    evaluated = apply_policy(positives, policy)
    return TableSummary(
        name=table.name,
        protocol=table.protocol,
        hash=table.content_hash,
        root=str(table.root),
        frame=table.frame,
        radius=table.radius,
        neighborhood=str(table.neighborhood),
        queries=len(table.query_rows),
        references=len(table.reference_rows),
        unposed=int((~table.posed).sum()),
        with_heading=int(np.isfinite(table.heading).sum()),
        with_timestamp=int(np.isfinite(table.timestamp).sum()),
        places=len(np.unique(table.place[table.place >= 0])),
        conditions=len(np.unique(table.condition)),
        extent_meters=_extent(table),
        positives="given" if table.given_positives is not None else f"within {table.radius:g} m",
        positives_per_query=float(positives.counts.mean()) if positives.queries else 0.0,
        queries_without_positives=evaluated.without_positives,
        no_positives=str(evaluated),
    )


def _extent(table: PlaceImages) -> tuple[float, float]:
    """Return the sides of the area in metres, the largest over all zones, because zones are far apart."""
    zone = zone_index(table.positions, table.frame)
    sides = [np.ptp(table.positions[zone == k], axis=0) for k in np.unique(zone[table.posed])]
    width, height = np.max([np.zeros(2), *sides], axis=0)
    return round(float(width), 1), round(float(height), 1)


def find_problems(
    table: PlaceImages, *, images: bool = True, decode: bool = False, recorded_hash: str = ""
) -> TableProblems:
    """Find missing or corrupt images, duplicate paths, edits by hand and unexpected counts.

    Args:
        table: The table.
        images: Check that every image file exists.
        decode: Decode every image completely.
        recorded_hash: Content hash that is stored in the table file. Default: do not check it.

    Returns:
        Problems, warnings, and the images that cannot be decoded.

    Raises:
        KappaPlaceError: If the counts contradict those of a verified protocol.
    """
    problems: list[str] = []
    paths = table.image_paths()
    missing = _missing(paths) if images or decode else []
    if missing:
        problems.append(f"{len(missing):,} of {len(table):,} images are missing (the first: {missing[0]})")
    corrupt = _corrupt(sorted(set(paths) - set(missing))) if decode else None
    if corrupt:
        problems.append(f"{len(corrupt):,} of {len(table):,} images cannot be decoded")
    repeated = len(table) - len(np.unique(table.paths))
    if repeated:
        problems.append(f"{repeated:,} paths appear more than once")
    if recorded_hash and recorded_hash != table.content_hash:
        problems.append("the file was edited after it was written, because its content hash differs")
    warnings = check_protocol(table, table.protocol).warnings if table.protocol else ()
    return TableProblems(tuple(problems), warnings, corrupt)


def _missing(paths: list[str]) -> list[str]:
    missing = []
    with track("Checking files", len(paths)) as bar:
        for path in paths:
            if not os.path.isfile(path):
                missing.append(path)
            bar.advance()
    return missing


def _corrupt(paths: list[str]) -> tuple[str, ...]:
    """Return one message per image that cannot be decoded."""
    from kappaplace.data.images import Preprocessing
    from kappaplace.data.loader import ImageLoader

    # Native size, because reduced JPEGs are only partly decoded; small batches, because no pixels are used.
    loader = ImageLoader(paths, Preprocessing(), 8, on_error="skip")
    log = logging.getLogger(ImageLoader.__module__)
    before, log.disabled = log.disabled, True  # the messages are returned instead
    try:
        with track("Decoding images", len(paths)) as bar:
            for batch in loader:
                bar.advance(len(batch.rows))
    finally:
        log.disabled = before
    return tuple(skipped.reason for skipped in sorted(loader.skipped))
