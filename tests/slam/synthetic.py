"""One small simulated world for the tests of this folder."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from kappaplace.calibration.calibration import Calibration
from kappaplace.slam import Closure, Frame
from kappaplace.slam.calibrate import DriveExamples, collect, fit_closures
from kappaplace.slam.evaluation import same_place
from kappaplace_city import SyntheticCity
from kappaplace_city.drives import AppearanceModel, CityDrive, drive_through, look_at

LOOKS = AppearanceModel(dim=64)


@lru_cache(maxsize=8)
def world(seed: int) -> tuple[CityDrive, list[Frame], np.ndarray]:
    """A drive of some 350 frames, its frames, and which of them show one place."""
    city = SyntheticCity(seed, (2, 2), aliased=0.2, featureless=0.1)
    drive = drive_through(city, legs=26, step=5.0, seed=seed)
    made = look_at(city, "test", drive, LOOKS, seed=seed).embeddings
    frames = [
        Frame(z, float(k), odometry=pose, time=0.5 * row, name=f"{row:04d}.jpg")
        for row, (z, k, pose) in enumerate(zip(made.descriptor, made.kappa, drive.odometry, strict=True))
    ]
    rows = np.arange(len(frames))
    return drive, frames, same_place(drive.truth, rows[:, None], rows[None])


@lru_cache(maxsize=1)
def examples() -> tuple[DriveExamples, ...]:
    return tuple(collect(world(seed)[1], world(seed)[2]) for seed in (101, 102))


@lru_cache(maxsize=1)
def calibration() -> Calibration:
    """Learnt on drives through other cities."""
    return fit_closures(examples())


def closure(
    match: int, query: int, size: int = 3, probability: float | None = 0.99, **changed: object
) -> Closure:
    """An accepted closure of two frames at the same pose."""
    relative = np.zeros(3) if size == 3 else np.array([0.0] * 6 + [1.0])
    values: dict[str, object] = {
        "query": query,
        "match": match,
        "similarity": 0.8,
        "uncertainty": 0.01,
        "probability": probability,
        "concentration": 500.0,
        "support": 3,
        "inliers": None,
        "accepted": True,
        "reason": "",
        "relative": relative,
        "sigma": np.full(3 if size == 3 else 6, 0.1),
    }
    return Closure(**{**values, **changed})  # type: ignore[arg-type]
