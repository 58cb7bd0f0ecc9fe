"""What `kappaplace data check` says of a table: counts, poses, positives, images on disk."""

from __future__ import annotations

import logging
import os
from typing import Any

import numpy as np

from kappaplace.data.geodesy import zone_index
from kappaplace.data.positives import NoPositives, apply_policy
from kappaplace.data.protocols import check_protocol
from kappaplace.data.table import PlaceImages
from kappaplace.progress import track


def summarize(table: PlaceImages, policy: NoPositives = NoPositives.FAIL) -> dict[str, Any]:
    """Counts of everything that decides an evaluation, ready for JSON."""
    positives = table.positives()
    evaluated = apply_policy(positives, policy)
    return {
        "name": table.name,
        "protocol": table.protocol,
        "hash": table.content_hash,
        "root": str(table.root),
        "frame": table.frame,
        "radius": table.radius,
        "neighbourhood": str(table.neighborhood),
        "queries": len(table.query_rows),
        "references": len(table.reference_rows),
        "unposed": int((~table.posed).sum()),
        "with_heading": int(np.isfinite(table.heading).sum()),
        "with_timestamp": int(np.isfinite(table.timestamp).sum()),
        "places": len(np.unique(table.place[table.place >= 0])),
        "conditions": len(np.unique(table.condition)),
        "extent_metres": _extent(table),
        "positives": "given" if table.given_positives is not None else f"within {table.radius:g} m",
        "positives_per_query": float(positives.counts.mean()) if positives.queries else 0.0,
        "queries_without_positives": evaluated.without_positives,
        "no_positives": str(evaluated),
    }


def _extent(table: PlaceImages) -> list[float]:
    """Sides of the area in metres; of the widest zone where there are several, for they lie apart."""
    zone = zone_index(table.positions, table.frame)
    sides = [np.ptp(table.positions[zone == k], axis=0) for k in np.unique(zone[table.posed])]
    return [round(float(side), 1) for side in np.max([np.zeros(2), *sides], axis=0)]


def find_problems(
    table: PlaceImages, *, images: bool = True, decode: bool = False, recorded_hash: str = ""
) -> dict[str, Any]:
    """What would spoil an evaluation: missing or corrupt images, doubled paths, an edited file, wrong counts.

    ``decode`` reads every image to its last pixel; those that fail are listed under "corrupt".
    """
    problems: list[str] = []
    paths = table.image_paths()
    missing = _missing(paths) if images or decode else []
    if missing:
        problems.append(f"{len(missing):,} of {len(table):,} images are missing, the first is {missing[0]}")
    corrupt = _corrupt(sorted(set(paths) - set(missing))) if decode else []
    if corrupt:
        problems.append(f"{len(corrupt):,} of {len(table):,} images cannot be decoded")
    doubled = len(table) - len(np.unique(table.paths))
    if doubled:
        problems.append(f"{doubled:,} paths appear more than once")
    if recorded_hash and recorded_hash != table.content_hash:
        problems.append(
            "the file was edited after it was written: its content no longer has the recorded hash"
        )
    warnings = list(check_protocol(table, table.protocol).warnings) if table.protocol else []
    return {"problems": problems, "warnings": warnings} | ({"corrupt": corrupt} if decode else {})


def _missing(paths: list[str]) -> list[str]:
    missing = []
    with track("Looking for images", len(paths)) as bar:
        for path in paths:
            if not os.path.isfile(path):
                missing.append(path)
            bar.advance()
    return missing


def _corrupt(paths: list[str]) -> list[str]:
    """One sentence for every image that cannot be decoded."""
    from kappaplace.data.images import Preprocessing
    from kappaplace.data.loader import ImageLoader

    # Native size, or JPEGs would be decoded in part only; small batches, for the pixels are thrown away.
    loader = ImageLoader(paths, Preprocessing(), 8, on_error="skip")
    log = logging.getLogger(ImageLoader.__module__)
    before, log.disabled = log.disabled, True  # the sentences are handed back; not twice on the screen
    try:
        with track("Decoding images", len(paths)) as bar:
            for batch in loader:
                bar.advance(len(batch.rows))
    finally:
        log.disabled = before
    return [skipped.reason for skipped in sorted(loader.skipped)]
