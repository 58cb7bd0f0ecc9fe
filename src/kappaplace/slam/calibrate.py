"""Learn what a closure's scores are worth from drives whose true poses are known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration import (
    PATCH_SIGNALS,
    CalibrateOptions,
    Calibration,
    calibration_with,
    fit_calibration,
    load_calibration,
)
from kappaplace.calibration import Examples as QueryExamples
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import PlaceMap
from kappaplace.models import AnyModel
from kappaplace.retrieval import PatchMaps
from kappaplace.slam.loop_closer import ClosingSettings, LoopCloser
from kappaplace.slam.types import Closure, Frame

WITH_KAPPA = ("cosine", "margin", "aliasing", "z-score", "inverse-kappa")
WITHOUT_KAPPA = WITH_KAPPA[:-1]
THIN = 10.0
"""Metres between examples: neighbouring frames fail together, and a promise counts independent ones."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Proposals of one drive with outcomes."""

    scores: tuple[str, ...]
    features: NDArray[np.float64]
    right: NDArray[np.bool_]
    """Whether the proposal shows the place of its frame."""
    outside: NDArray[np.bool_]
    """Whether no frame that could have been proposed does."""
    support: NDArray[np.int64]
    """How many of the last proposals agreed."""
    way: NDArray[np.float64]
    """Metres travelled up to each."""
    closures: tuple[Closure, ...]
    verify: int = 0
    """How many matches were compared cell by cell."""


def scores_for(kappa: bool, verify: int) -> tuple[str, ...]:
    """What is learnt from: as much as there is."""
    return (*(WITH_KAPPA if kappa else WITHOUT_KAPPA), *(PATCH_SIGNALS if verify else ()))


def collect(
    frames: Iterable[Frame],
    same_place: NDArray[np.bool_],
    settings: ClosingSettings | None = None,
    calibration: Calibration | None = None,
    scores: Sequence[str] = WITH_KAPPA,
    patch_maps: PatchMaps | None = None,
) -> Examples:
    """Drive once and note what was proposed; ``same_place`` says of all pairs of frames whether they show
    one.

    With a calibration loops are closed on the way, as in use: then what is near is known better.
    ``patch_maps`` are for settings that compare cells.
    """
    closer = LoopCloser(calibration, settings, scores=tuple(scores), patch_maps=patch_maps)
    for frame in frames:
        closer.add(frame)
    if not closer.closures:
        raise KappaPlaceError(f"A drive of {len(closer.map)} frames is too short for any closure.")
    if same_place.shape != (len(closer.map),) * 2:
        raise KappaPlaceError(
            f"{len(closer.map)} frames need a square of as many marks, got the shape {same_place.shape}."
        )
    return examples_of(closer, same_place)


def examples_of(closer: LoopCloser, same_place: NDArray[np.bool_]) -> Examples:
    """The proposals of a closer that has driven already, with outcomes."""
    query = np.array([closure.query for closure in closer.closures])
    match = np.array([closure.match for closure in closer.closures])
    known = [bool(same_place[q, : closer.askable(q)].any()) for q in query.tolist()]
    return Examples(
        closer.scores,
        np.stack(closer.features) if closer.features else np.empty((len(query), 0)),
        same_place[query, match],
        ~np.array(known, bool),
        np.array([closure.support for closure in closer.closures]),
        closer.map.way[query],
        tuple(closer.closures),
        closer.verify,
    )


def fit_closures(
    drives: Sequence[Examples],
    *,
    max_risk: float | None = None,
    least_support: int = 2,
    thin: float = THIN,
    seed: int = 0,
) -> Calibration:
    """A calibration from all drives, of one frame every ``thin`` metres that enough others agree with.

    What is learnt is the probability *given* the agreement, as it is asked for in use. What odometry says is
    no part of it: the closer adds that by itself.

    ``max_risk`` asks for a proven rule as well (`ClosingSettings.max_risk=None` uses it), or refuses.
    """
    if not drives or len({(drive.scores, drive.verify) for drive in drives}) != 1:
        raise KappaPlaceError("Calibrating closures needs drives with the same scores, one or more.")
    rows = [_thinned(drive, least_support, thin) for drive in drives]
    features = np.concatenate([drive.features[kept] for drive, kept in zip(drives, rows, strict=True)])
    right = np.concatenate([drive.right[kept] for drive, kept in zip(drives, rows, strict=True)])
    outside = np.concatenate([drive.outside[kept] for drive, kept in zip(drives, rows, strict=True)])
    origin = f"closures of {len(drives)} drives with known poses, one every {thin:g} m"
    examples = QueryExamples(
        features, right, drives[0].scores, outside=outside, facts={"origin": origin}, rerank=drives[0].verify
    )
    return fit_calibration(examples, CalibrateOptions(max_risk=max_risk, seed=seed))


def _thinned(drive: Examples, least_support: int, spacing: float) -> NDArray[np.int64]:
    """The first proposal of every stretch among those with support."""
    rows = np.flatnonzero(drive.support >= least_support)
    _, first = np.unique(np.floor(drive.way[rows] / spacing), return_index=True)
    return rows[np.sort(first)].astype(np.int64)


def calibration_for(model: AnyModel, source: str | Path | None = None) -> Calibration:
    """``source`` is a file of `save_calibration`, or a calibrated map; without it, what came with the
    model.
    """
    fingerprint = model.fingerprint
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
