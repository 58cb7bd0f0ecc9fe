"""What `kappaplace data check` says of a table: counts, poses, positives, images on disk."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import numpy as np

from kappaplace.data.place_images import PlaceImages
from kappaplace.data.positives import NoPositives, apply_policy
from kappaplace.data.protocols import check_protocol
from kappaplace.progress import track


def summarize(table: PlaceImages, policy: NoPositives = NoPositives.FAIL) -> dict[str, Any]:
    """Counts of everything that decides an evaluation, ready for JSON."""
    positives = table.positives()
    evaluated = apply_policy(positives, policy)
    extent = np.zeros(2)
    if table.posed.any():
        extent = np.ptp(table.positions[table.posed], axis=0)
    return {
        "name": table.name,
        "protocol": table.protocol,
        "hash": table.content_hash,
        "root": str(table.root),
        "frame": table.frame,
        "radius": table.radius,
        "neighbourhood": str(table.neighbourhood),
        "queries": len(table.query_rows),
        "references": len(table.reference_rows),
        "unposed": int((~table.posed).sum()),
        "with_heading": int(np.isfinite(table.heading).sum()),
        "with_timestamp": int(np.isfinite(table.timestamp).sum()),
        "places": len(np.unique(table.place[table.place >= 0])),
        "conditions": len(np.unique(table.condition)),
        "extent_metres": [round(float(side), 1) for side in extent],
        "positives": "given" if table.given_positives is not None else f"within {table.radius:g} m",
        "positives_per_query": float(positives.counts.mean()) if positives.queries else 0.0,
        "queries_without_positives": evaluated.without_positives,
        "no_positives": str(evaluated),
    }


def find_problems(table: PlaceImages, *, images: bool = True, recorded_hash: str = "") -> dict[str, Any]:
    """What would spoil an evaluation: missing images, doubled paths, an edited file, wrong counts."""
    problems: list[str] = []
    missing: list[str] = []
    if images:
        paths = table.image_paths()
        with track("Looking for images", len(paths)) as bar:
            for path in paths:
                if not os.path.isfile(path):
                    missing.append(path)
                bar.advance()
    if missing:
        problems.append(f"{len(missing):,} of {len(table):,} images are missing, the first is {missing[0]}")
    doubled = len(table) - len(np.unique(table.paths))
    if doubled:
        problems.append(f"{doubled:,} paths appear more than once")
    if recorded_hash and recorded_hash != table.content_hash:
        problems.append(
            "the file was edited after it was written: its content no longer has the recorded hash"
        )
    warnings: list[str] = []
    if table.protocol:
        warnings = list(asdict(check_protocol(table, table.protocol))["warnings"])
    return {"problems": problems, "warnings": warnings}
