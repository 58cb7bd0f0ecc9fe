"""What every answer of a map must say of itself, whatever the query.

What `map monitor` found stands in a small file beside the map, and every answer of the map repeats it.

The monitor only reads the map, so its file lies outside of it: ``town.map`` has ``town.map.monitor.json``.

What a map is, as plain values: out of the manifest alone.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from kappaplace.calibration.calibration import Calibration
from kappaplace.maps.store.manifest import PROTOCOL, Manifest


def monitor_file(folder: str | Path) -> Path:
    """Where the monitor of a map keeps what it has seen, unless told otherwise."""
    return Path(os.path.abspath(folder) + ".monitor.json")


def standing_note(folder: str | Path, calibration: str) -> str:
    """The monitor's warning about this calibration, empty where there is none or nobody watches."""
    file = monitor_file(folder)
    try:
        found = os.stat(file)
    except OSError:
        return ""
    note, judged = _stored(str(file), found.st_mtime_ns, found.st_size)
    return note if judged == calibration else ""


@lru_cache(maxsize=64)
def _stored(file: str, changed: int, size: int) -> tuple[str, str]:
    """Note and calibration; read anew only when the file has changed, for every query asks."""
    try:
        values = json.loads(Path(file).read_text(encoding="utf-8"))
        return str(values["note"]), str(values["calibration"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", ""  # a broken file is the monitor's to complain about; answers go on


GROWN = 0.2
"""A map that grew or shrank by more than this share since its calibration says so in every answer."""
OLDER = (
    "The map was written under protocol {then}, now it is {now} and signals are other numbers: a calibration "
    "from before is left out; calibrate again."
)


def standing_notes(folder: Path, manifest: Manifest, calibration: Calibration | None) -> list[str]:
    """One sentence each: how it was calibrated, what has changed since, what is not known."""
    said = []
    if manifest.protocol < PROTOCOL:
        said.append(OLDER.format(then=manifest.protocol, now=PROTOCOL))
    record = manifest.calibration
    if record is not None and calibration is not None:
        if not record.get("guarantee", False):
            said.append(f"Calibrated on {record['origin']}; no risk is guaranteed.")
        then, now = int(record["references"]), manifest.count
        if abs(now - then) > GROWN * max(then, 1):
            said.append(f"Calibrated when the map had {then:,} references, now it has {now:,}: do it again.")
        if drift := standing_note(folder, calibration.fingerprint):
            said.append(drift)
    if manifest.unposed:
        said.append(f"{manifest.unposed:,} of {manifest.count:,} references have no position.")
    return said


def map_info(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """What `kappaplace map info` shows."""
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
        "model": model.source or "to be given",
        "model_fingerprint": model.fingerprint,
        "kappa": model.kappa,
        "preprocessing": model.preprocessing,
        "frame": manifest.frame,
        "radius": manifest.radius,
        "neighbourhood": manifest.neighborhood,
        "distinctiveness": (distinct.how if distinct else "none") + (f", {unknown} open" if unknown else ""),
        "calibration": None if record is None else record["origin"],
        "version": manifest.version,
        "format": manifest.format,
        "protocol": manifest.protocol,
        "kappaplace": manifest.kappaplace,
    }
