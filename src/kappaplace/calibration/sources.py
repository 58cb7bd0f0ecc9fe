"""Calibration files, and the calibrations that are shipped with models.

A map without its own calibration uses the shipped calibration of its model. That one was fitted on other
places, so it guarantees nothing. It is used only for the same model and preprocessing, and for descriptors
that are not coarsely rounded: otherwise scores have another meaning.
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
from kappaplace.files import replace_file, sealed, telling, unsealed
from kappaplace.models.checkpoint import read_card
from kappaplace.models.shipped import CALIBRATION, installed, shipped_folder

ACCEPT_RISK, REJECT_RISK = 0.1, 0.2
"""Risk limits of shipped calibrations: they accept from a probability of 1 − the first, and reject up to the
second."""
MODEL = "model"
"""Key of the fact that contains the fingerprint of the model."""
ORIGIN = "origin"
"""Key of the fact that describes the data that a calibration was fitted on."""


def calibration_with(fingerprint: str, preprocessing: Preprocessing) -> Calibration | None:
    """Return the shipped calibration of a model, with a rule by probability; None if there is none.

    Args:
        fingerprint: Fingerprint of the model.
        preprocessing: How images are prepared for the model.

    Returns:
        The calibration; None if none is shipped with this model.
    """
    for name in installed():
        shipped, own = read_shipped(shipped_folder(name))
        if shipped is not None and shipped.facts.get(MODEL) == fingerprint and own == preprocessing:
            return shipped
    return None


def bank_for(
    fingerprint: str, preprocessing: Preprocessing, rerank: int, *, coarse: bool = False
) -> Domain | None:
    """Return the domain of the shipped calibration, for calibrations with too few queries.

    Args:
        fingerprint: Fingerprint of the model.
        preprocessing: How images are prepared for the model.
        rerank: Number of top matches that the calibration re-ranks by patch matching.
        coarse: Whether descriptors are rounded, which changes similarities.

    Returns:
        The domain, with all signals if the calibration is shipped with this model, otherwise with those of
        the image.
    """
    own = calibration_with(fingerprint, preprocessing)
    if own is not None and own.domain is not None and not coarse:
        return own.domain if own.rerank == rerank else own.domain.only((KAPPA, *APPEARANCE))
    for name in installed():
        shipped, _ = read_shipped(shipped_folder(name))
        if shipped is not None and shipped.domain is not None:
            return shipped.domain.only(APPEARANCE)
    return None


def shipped_note(calibration: Calibration) -> str:
    """Return the note for answers that use a shipped calibration."""
    assert calibration.rule is not None  # see `read_shipped`
    origin = calibration.facts.get(ORIGIN, "")
    return (
        f"Calibrated on other places{f' ({origin})' if origin else ''}, so no risk is guaranteed. Answers "
        f"are accepted from a probability of {calibration.rule.accept_at:.2f}, rejected up to "
        f"{calibration.rule.reject_at:.2f}; `kappaplace map calibrate` uses your own places."
    )


@lru_cache(maxsize=8)
def read_shipped(folder: Path) -> tuple[Calibration | None, Preprocessing]:
    """Return calibration (None if there is none) and preprocessing of a shipped model, read once."""
    file = folder / CALIBRATION
    preprocessing = Preprocessing.from_dict(read_card(folder)["preprocessing"])
    if not file.exists():
        return None, preprocessing
    try:
        calibration = Calibration.from_dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, KappaPlaceError) as error:
        raise KappaPlaceError(
            f"The calibration {file} cannot be read ({str(error).rstrip('.')}). Install kappaplace again."
        ) from None
    # The rule of the shipped calibration has no guarantee for other places.
    return replace(calibration, rule=rule_by_probability(ACCEPT_RISK, REJECT_RISK)), preprocessing


def load_calibration(file: str | Path, fingerprint: str = "") -> Calibration:
    """Read a calibration that `save_calibration` wrote.

    Args:
        file: The file (.json).
        fingerprint: Fingerprint of the model, which must match. Default: not checked.

    Returns:
        The calibration.

    Raises:
        KappaPlaceError: If the file is missing or not valid, or belongs to another model.
    """
    file = Path(file)
    if not file.is_file():
        raise KappaPlaceError(f"There is no calibration {file}. Check the path.")
    with telling(f"{file} is not a valid calibration"):
        values = unsealed(json.loads(file.read_text(encoding="utf-8")))
    calibration = Calibration.from_dict(values)
    model = calibration.facts.get(MODEL)
    if model and fingerprint and model != fingerprint:
        raise KappaPlaceError(f"The calibration {file} belongs to another model. Calibrate with this model.")
    return calibration


def save_calibration(calibration: Calibration, file: str | Path) -> None:
    """Write a calibration to a JSON file with a checksum.

    Args:
        calibration: The calibration.
        file: The file.
    """
    text = json.dumps(sealed(calibration.to_dict()), indent=1)
    replace_file(Path(file), lambda part: part.write_text(text, encoding="utf-8"))
