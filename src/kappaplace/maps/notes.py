"""What every answer of a map must say of itself, whatever the query."""

from __future__ import annotations

from pathlib import Path

from kappaplace.calibration.model import Calibration
from kappaplace.maps.drift_note import standing_note
from kappaplace.maps.manifest import PROTOCOL, Manifest

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
