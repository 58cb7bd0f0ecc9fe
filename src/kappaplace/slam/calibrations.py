"""Where the probabilities of closures come from: a file, a calibrated map, or the model itself."""

from __future__ import annotations

import json
from pathlib import Path

from kappaplace.calibration.model import Calibration
from kappaplace.errors import KappaPlaceError
from kappaplace.files import replace_file
from kappaplace.maps import PlaceMap
from kappaplace.maps.borrowed import calibration_with
from kappaplace.models.encoder import model_fingerprint
from kappaplace.models.loading import AnyModel

MODEL = "model"
"""The fact that says which model a calibration belongs to, by fingerprint."""


def calibration_for(model: AnyModel, source: str | Path | None = None) -> Calibration:
    """``source`` is a file of `save_calibration`, or a calibrated map; without it, what came with the
    model.
    """
    fingerprint = model_fingerprint(model)
    if source is None:
        found = calibration_with(fingerprint, model.preprocessing)
        if found is None:
            raise KappaPlaceError(
                "Nothing says how probable closures of this model are: give --calibration, a map that was "
                "calibrated "
                "(`kappaplace map build FRAMES --neighbourhood frames:5`, `kappaplace calibrate MAP "
                "--self`) or a file "
                "of `kappaplace slam calibrate`."
            )
        return found
    path = Path(source)
    if path.is_dir():
        place_map = PlaceMap.open(path)
        if place_map.manifest.model.fingerprint != fingerprint:
            raise KappaPlaceError(
                f"The map {path} was made with another model; its calibration says nothing here."
            )
        if place_map.calibration is None:
            raise KappaPlaceError(
                f"The map {path} is not calibrated; run `kappaplace calibrate {path}` first."
            )
        return place_map.calibration
    return load_calibration(path, fingerprint)


def load_calibration(file: str | Path, fingerprint: str = "") -> Calibration:
    """What `save_calibration` wrote; refused where it states another model than the one given."""
    file = Path(file)
    if not file.is_file():
        raise KappaPlaceError(f"There is no calibration {file}.")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise KappaPlaceError(f"{file} cannot be read as a calibration ({error}).") from None
    made = Calibration.from_dict(values)
    stated = made.facts.get(MODEL)
    if stated and fingerprint and stated != fingerprint:
        raise KappaPlaceError(f"The calibration {file} belongs to another model; calibrate with this one.")
    return made


def save_calibration(calibration: Calibration, file: str | Path) -> None:
    """As JSON."""
    text = json.dumps(calibration.to_dict(), indent=1)
    replace_file(Path(file), lambda part: part.write_text(text, encoding="utf-8"))
