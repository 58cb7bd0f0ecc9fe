"""What a map is, as plain values: out of the manifest alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kappaplace.maps.manifest import Manifest


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
        "neighbourhood": manifest.neighbourhood,
        "distinctiveness": (distinct.how if distinct else "none") + (f", {unknown} open" if unknown else ""),
        "calibration": None if record is None else record["origin"],
        "version": manifest.version,
        "format": manifest.format,
        "protocol": manifest.protocol,
        "kappaplace": manifest.kappaplace,
    }
