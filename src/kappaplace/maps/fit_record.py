"""What a fit was asked for and what came of it: a file beside the fitted model, inside the map."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kappaplace.errors import KappaPlaceError
from kappaplace.files import replace_file
from kappaplace.maps.fit_check import Learnt
from kappaplace.maps.manifest import Manifest

FILE = "fit.json"


@dataclass(frozen=True)
class FitRecord:
    """One fit of κ to a map."""

    key: str
    """Stands for the images, the encoder and the options: the same fit is not made twice."""
    references: int
    images: int
    """References that it learnt from."""
    views: int
    epochs: list[dict[str, Any]]
    """One row an epoch, its loss among them."""
    learnt: Learnt
    seconds: float


def write_record(folder: Path, record: FitRecord) -> None:
    """Put it beside a model."""
    text = json.dumps(asdict(record), indent=1) + "\n"
    replace_file(folder / FILE, lambda part: part.write_text(text, encoding="utf-8"))


def read_record(map_folder: Path, manifest: Manifest) -> FitRecord | None:
    """The fit of a map's model; None where κ was not fitted for this map."""
    source = manifest.model.source
    file = (map_folder / source if source.startswith("./") else Path(source)) / FILE
    if not manifest.model.base or not file.is_file():
        return None
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        return FitRecord(**(values | {"learnt": Learnt.from_dict(values["learnt"])}))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KappaPlaceError(
            f"{file} is damaged ({error}); remove it and run `kappaplace map fit`."
        ) from None


def fit_key(manifest: Manifest, options: dict[str, Any]) -> str:
    """A name for the fit of these references with these options, whatever their κ is now."""
    segments = [
        [record.files[name].sha256 for name in ("digests.npy", "keys.npy", "descriptors.npy")]
        for record in manifest.segments
    ]
    removed = None if manifest.removed is None else manifest.removed.record.sha256
    base = manifest.model.base or manifest.model.fingerprint
    told = [base, manifest.model.preprocessing, segments, removed, options]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
