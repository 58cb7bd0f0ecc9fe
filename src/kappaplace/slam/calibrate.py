"""Calibration of closures on drives with known poses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration import (
    PATCH_SIGNALS,
    CalibrateOptions,
    Calibration,
    Examples,
    calibration_with,
    fit_calibration,
    join,
    load_calibration,
)
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import PlaceMap
from kappaplace.models import AnyModel
from kappaplace.retrieval import PatchMaps
from kappaplace.slam.loop_closer import ClosingSettings, LoopCloser
from kappaplace.slam.types import Closure, Frame

WITH_KAPPA = ("cosine", "margin", "aliasing", "z-score", "inverse-kappa")
WITHOUT_KAPPA = WITH_KAPPA[:-1]
THIN = 10.0
"""Metres between examples: neighbouring frames fail together, and a guarantee counts independent examples."""


@dataclass(frozen=True, eq=False, kw_only=True)
class DriveExamples(Examples):
    """Proposals of one drive with their outcomes; ``outside`` marks frames of a new place."""

    support: NDArray[np.int64]
    """Number of recent proposals that agreed."""
    distance: NDArray[np.float64]
    """Distance travelled up to each proposal, in metres."""
    closures: tuple[Closure, ...]
    """The proposals."""


def scores_for(kappa: bool, rerank: int) -> tuple[str, ...]:
    """Return the names of all scores that can be computed with or without κ and patch matching."""
    return (*(WITH_KAPPA if kappa else WITHOUT_KAPPA), *(PATCH_SIGNALS if rerank else ()))


def collect(
    frames: Iterable[Frame],
    same_place: NDArray[np.bool_],
    settings: ClosingSettings | None = None,
    scores: Sequence[str] = WITH_KAPPA,
    patch_maps: PatchMaps | None = None,
) -> DriveExamples:
    """Run a `LoopCloser` over a drive and record its proposals with their outcomes.

    Args:
        frames: All frames of the drive.
        same_place: Which pairs of frames show the same place, N×N (`evaluation.same_place`).
        settings: Conditions for closing a loop.
        scores: Names of the scores to record.
        patch_maps: Patch features of images, for settings with patch matching.

    Returns:
        One example per proposal.

    Raises:
        KappaPlaceError: If the drive is too short, or ``same_place`` has another size.
    """
    closer = LoopCloser(None, settings, scores=tuple(scores), patch_maps=patch_maps)
    for frame in frames:
        closer.add(frame)
    if not closer.closures:
        raise KappaPlaceError(
            f"A drive of {len(closer.map)} frames is too short to propose closures. Use a longer drive."
        )
    if same_place.shape != (len(closer.map),) * 2:
        raise KappaPlaceError(
            f"same_place must be a square of {len(closer.map)} rows, one per frame, got shape "
            f"{same_place.shape}."
        )
    return examples_of(closer, same_place)


def examples_of(closer: LoopCloser, same_place: NDArray[np.bool_]) -> DriveExamples:
    """Return the proposals of a finished drive with their outcomes."""
    query = np.array([closure.query for closure in closer.closures])
    match = np.array([closure.match for closure in closer.closures])
    possible = [bool(same_place[q, : closer.candidate_count(q)].any()) for q in query.tolist()]
    return DriveExamples(
        np.stack(closer.features) if closer.features else np.empty((len(query), 0)),
        same_place[query, match],
        closer.scores,
        outside=~np.array(possible, bool),
        rerank=closer.rerank,
        support=np.array([closure.support for closure in closer.closures]),
        distance=closer.map.distance[query],
        closures=tuple(closer.closures),
    )


def fit_closures(
    drives: Sequence[DriveExamples],
    *,
    max_risk: float | None = None,
    least_support: int = 2,
    thin: float = THIN,
    seed: int = 0,
) -> Calibration:
    """Fit a calibration on proposals that enough other proposals support.

    The result is the probability *given* this support, as it is used later. Odometry is not included, because
    `LoopCloser` adds it on its own.

    Args:
        drives: Examples of one or more drives with the same scores.
        max_risk: Also fit a rule with a guaranteed risk (used by ``ClosingSettings(max_risk=None)``).
        least_support: Minimum number of supporting proposals.
        thin: Distance between examples in metres.
        seed: Random seed for the data split.

    Returns:
        The calibration.

    Raises:
        KappaPlaceError: If drives are missing or differ, or there are too few examples.
    """
    if not drives or len({(drive.scores, drive.rerank) for drive in drives}) != 1:
        raise KappaPlaceError(
            "Calibration needs one or more drives, all with the same scores. Collect them with the same "
            "settings."
        )
    examples = join([_thinned(drive, least_support, thin) for drive in drives])
    origin = f"closures of {len(drives)} drives with known poses, one every {thin:g} m"
    examples = replace(examples, facts={"origin": origin})
    return fit_calibration(examples, CalibrateOptions(max_risk=max_risk, seed=seed))


def _thinned(drive: DriveExamples, least_support: int, spacing: float) -> Examples:
    """Return the first proposal with enough support in every stretch of the drive."""
    rows = np.flatnonzero(drive.support >= least_support)
    _, first = np.unique(np.floor(drive.distance[rows] / spacing), return_index=True)
    rows = rows[np.sort(first)]
    outside = None if drive.outside is None else drive.outside[rows]
    return Examples(
        drive.features[rows], drive.right[rows], drive.scores, outside=outside, rerank=drive.rerank
    )


def calibration_for(model: AnyModel, source: str | Path | None = None) -> Calibration:
    """Load the calibration of closures for a model.

    Args:
        model: The model of the drive.
        source: A file of `save_calibration`, or a calibrated map. Default: the calibration shipped with the
            model.

    Returns:
        The calibration.

    Raises:
        KappaPlaceError: If there is none, or it belongs to another model.
    """
    fingerprint = model.fingerprint
    if source is None:
        shipped = calibration_with(fingerprint, model.preprocessing)
        if shipped is None:
            raise KappaPlaceError(
                "This model has no shipped calibration. Pass --calibration with a file of `kappaplace slam "
                "calibrate`, or with a calibrated map of these frames."
            )
        return shipped
    path = Path(source)
    if not path.is_dir():
        return load_calibration(path, fingerprint)
    place_map = PlaceMap.open(path)
    if place_map.manifest.model.fingerprint != fingerprint:
        raise KappaPlaceError(
            f"The map {path} was built with another model, so its calibration does not apply. "
            "Pass a calibration of this model."
        )
    if place_map.calibration is None:
        raise KappaPlaceError(f"The map {path} is not calibrated. Run `kappaplace calibrate {path}` first.")
    return place_map.calibration
