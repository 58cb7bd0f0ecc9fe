"""Notes that a map adds to every answer, and the summary of a map.

The warning of `kappaplace map monitor` is stored in a small file next to the map, and every answer repeats
it. The monitor only reads the map itself: ``town.map`` has ``town.map.monitor.json``.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path

from kappaplace.calibration.calibration import Calibration
from kappaplace.maps.store.manifest import PROTOCOL, Manifest
from kappaplace.types import Json

GROWN = 0.2
"""Answers have a note if the map grew or shrank by more than this fraction since its calibration."""
OLDER = (
    "The map was written with protocol {then} and this version uses {now}, so its scores differ. Its "
    "calibration is ignored; calibrate the map again."
)


def monitor_file(folder: str | Path) -> Path:
    """Return the default file of a map's monitor."""
    return Path(os.path.abspath(folder) + ".monitor.json")


def standing_note(folder: str | Path, calibration: str) -> str:
    """Return the monitor's warning about this calibration; empty if there is none."""
    file = monitor_file(folder)
    try:
        stat = os.stat(file)
    except OSError:
        return ""
    note, watched = _stored(str(file), stat.st_mtime_ns, stat.st_size)
    return note if watched == calibration else ""


@lru_cache(maxsize=64)
def _stored(file: str, changed: int, size: int) -> tuple[str, str]:
    """Return the stored note and its calibration. The cache reads the file again only if it has changed."""
    try:
        values = json.loads(Path(file).read_text(encoding="utf-8"))
        return str(values["note"]), str(values["calibration"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", ""  # the monitor reports a damaged file; it must not stop answers


def standing_notes(folder: Path, manifest: Manifest, calibration: Calibration | None) -> list[str]:
    """Return the notes that apply to every answer.

    Args:
        folder: Folder of the map.
        manifest: Manifest of the map.
        calibration: Calibration of the map.

    Returns:
        Notes on the calibration of the map, on changes since then, and on unknown positions.
    """
    notes = []
    if manifest.protocol < PROTOCOL:
        notes.append(OLDER.format(then=manifest.protocol, now=PROTOCOL))
    record = manifest.calibration
    if record is not None and calibration is not None:
        if not record.get("guarantee", False):
            notes.append(f"Calibrated on {record['origin']}; no risk is guaranteed.")
        then, now = int(record["references"]), manifest.count
        if abs(now - then) > GROWN * max(then, 1):
            notes.append(
                f"The map had {then:,} references when it was calibrated and now has {now:,}. Calibrate it "
                "again."
            )
        if drift := standing_note(folder, calibration.fingerprint):
            notes.append(drift)
    if manifest.unposed:
        notes.append(f"{manifest.unposed:,} of {manifest.count:,} references have no position.")
    return notes


def map_info(folder: Path, manifest: Manifest) -> dict[str, Json]:
    """Return the summary that `kappaplace map info` shows."""
    distinct, record, model = manifest.distinctiveness, manifest.calibration, manifest.model
    unknown = manifest.rows - (distinct.rows if distinct else 0)
    return {
        "map": str(folder),
        "name": manifest.name,
        "references": manifest.count,
        "removed": manifest.rows - manifest.count,
        "unposed": manifest.unposed,
        "segments": len(manifest.segments),
        "bytes": sum(file.size for segment in manifest.segments for file in segment.files.values()),
        "dim": model.dim,
        "storage": manifest.storage,
        "thumbnails": manifest.thumbnails,
        "patches": manifest.patches,
        "model": model.source or "not stored (pass --model)",
        "model_fingerprint": model.fingerprint,
        "kappa": model.kappa,
        "preprocessing": model.preprocessing,
        "frame": manifest.frame,
        "radius": manifest.radius,
        "neighbourhood": manifest.neighborhood,
        "distinctiveness": (distinct.how if distinct else "none")
        + (f", {unknown} not computed" if unknown else ""),
        "calibration": None if record is None else record["origin"],
        "version": manifest.version,
        "format": manifest.format,
        "protocol": manifest.protocol,
        "kappaplace": manifest.kappaplace,
    }
