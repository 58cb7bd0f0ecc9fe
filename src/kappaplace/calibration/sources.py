"""Probabilities for a map that nobody has calibrated yet: those that came with the model it was made with.

They were fitted on other places, so they are better than none and promise nothing. They are lent only where
scores mean the same as there: to maps of the very model, with its own preprocessing, whose descriptors are
not coarsely rounded.

Where the probabilities of closures come from: a file, a calibrated map, or the model itself.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.decision import rule_by_probability
from kappaplace.calibration.domain import KAPPA, Domain
from kappaplace.data.appearance import APPEARANCE
from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.files import replace_file, sealed, unsealed
from kappaplace.models.checkpoint import read_card
from kappaplace.models.shipped import CALIBRATION, installed, shipped_folder

ACCEPT_RISK, REJECT_RISK = 0.1, 0.2
"""Accept from a probability of 1 − the first, reject up to the second."""
MODEL = "model"
"""The fact of a calibration that says which model it belongs to, by fingerprint."""
ORIGIN = "origin"
"""The fact that says in words what it was fitted on."""


def calibration_with(fingerprint: str, preprocessing: Preprocessing) -> Calibration | None:
    """Return what came with a model, with a rule by probability; None where nothing fits.

    Args:
        fingerprint: Of the model.
        preprocessing: How images are prepared for it.
    """
    for name in installed():
        made, its_own = read_shipped(shipped_folder(name))
        if made is not None and made.facts.get(MODEL) == fingerprint and its_own == preprocessing:
            return made
    return None


def bank_for(
    fingerprint: str, preprocessing: Preprocessing, rerank: int, *, coarse: bool = False
) -> Domain | None:
    """Return what correctly answered queries of other places look like, for calibrations with too few
    queries.

    Args:
        fingerprint: That of the model.
        preprocessing: How images are prepared for it.
        rerank: Number of matches that the calibration compares patch by patch.
        coarse: Whether descriptors are rounded, which changes similarities.

    Returns:
        All signals if the shipped calibration is of this model; for other models only how images look.
    """
    own = calibration_with(fingerprint, preprocessing)
    if own is not None and own.domain is not None and not coarse:
        return own.domain if own.rerank == rerank else own.domain.only((KAPPA, *APPEARANCE))
    for name in installed():
        shipped, _ = read_shipped(shipped_folder(name))
        if shipped is not None and shipped.domain is not None:
            return shipped.domain.only(APPEARANCE)
    return None


def borrowed_note(calibration: Calibration) -> str:
    """What every answer must say that rests on such a calibration."""
    assert calibration.rule is not None  # see `read_shipped`
    origin = calibration.facts.get(ORIGIN, "")
    return (
        f"Calibrated on other places{f' ({origin})' if origin else ''}: accepted from a probability of "
        f"{calibration.rule.accept_at:.2f}, rejected up to {calibration.rule.reject_at:.2f}; no risk is "
        "guaranteed; calibrate on yours with `kappaplace calibrate`."
    )


@lru_cache(maxsize=8)
def read_shipped(folder: Path) -> tuple[Calibration | None, Preprocessing]:
    """Calibration (None: the folder has none) and preprocessing of a model of ours, read once."""
    file = folder / CALIBRATION
    preprocessing = Preprocessing.from_dict(read_card(folder)["preprocessing"])
    if not file.exists():
        return None, preprocessing
    try:
        made = Calibration.from_dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, KappaPlaceError) as error:
        raise KappaPlaceError(
            f"The calibration {file} cannot be read ({str(error).rstrip('.')}); install kappaplace again."
        ) from None
    # Whatever rule it was fitted with, nothing was proven for these places.
    return replace(made, rule=rule_by_probability(ACCEPT_RISK, REJECT_RISK)), preprocessing


"""The fact that says which model a calibration belongs to, by fingerprint."""


def load_calibration(file: str | Path, fingerprint: str = "") -> Calibration:
    """What `save_calibration` wrote; refused where it states another model than the one given."""
    file = Path(file)
    if not file.is_file():
        raise KappaPlaceError(f"There is no calibration {file}.")
    try:
        values = unsealed(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise KappaPlaceError(f"{file} cannot be read as a calibration ({error}).") from None
    made = Calibration.from_dict(values)
    stated = made.facts.get(MODEL)
    if stated and fingerprint and stated != fingerprint:
        raise KappaPlaceError(f"The calibration {file} belongs to another model; calibrate with this one.")
    return made


def save_calibration(calibration: Calibration, file: str | Path) -> None:
    """Write a calibration as JSON with a checksum.

    Args:
        calibration: The calibration.
        file: The file.
    """
    text = json.dumps(sealed(calibration.to_dict()), indent=1)
    replace_file(Path(file), lambda part: part.write_text(text, encoding="utf-8"))
