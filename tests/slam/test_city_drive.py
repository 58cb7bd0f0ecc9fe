from __future__ import annotations

import numpy as np
import pytest

from kappaplace.data.poses import distance_traveled
from kappaplace.errors import KappaPlaceError
from kappaplace.slam.evaluation import same_place
from kappaplace_city import SyntheticCity
from kappaplace_city.drives import AppearanceModel, Drift, drive_through, look_at, segment_of

CITY = SyntheticCity(3, (2, 2), aliased=0.3, featureless=0.1)


def test_a_drive_keeps_to_the_streets_and_can_be_repeated() -> None:
    drive = drive_through(CITY, legs=20, seed=1)
    CITY.locate(drive.truth[:, :2])  # refuses what is not on a street
    assert (segment_of(CITY, "test", drive.truth[:, :2]) >= 0).mean() > 0.6
    assert np.array_equal(drive.odometry, drive_through(CITY, legs=20, seed=1).odometry)
    again = drive_through(CITY, seed=2, corners=drive.corners)
    assert np.hypot(*(again.truth - drive.truth)[:, :2].T).max() < 4.0
    turns = np.abs(np.diff(drive.corners, axis=0)).sum(axis=1)
    assert (turns == 1).all()
    with pytest.raises(KappaPlaceError):
        drive_through(CITY, legs=0)


def test_odometry_starts_at_the_truth_and_drifts() -> None:
    exact = drive_through(CITY, legs=20, seed=1, drift=Drift(0, 0, 0, 0))
    assert np.allclose(exact.odometry, exact.truth, atol=1e-6)
    drive = drive_through(CITY, legs=20, seed=1)
    gap = np.hypot(*(drive.odometry - drive.truth)[:, :2].T)
    assert gap[0] == 0
    assert 1.0 < gap.max() < 0.2 * distance_traveled(drive.truth)[-1]


def test_descriptors_tell_places_apart_but_for_twins_and_weather() -> None:
    drive = drive_through(CITY, legs=40, seed=1)
    made = look_at(CITY, "test", drive, AppearanceModel(dim=64), seed=1)
    z, rows = made.embeddings.descriptor, np.arange(len(drive.truth))
    assert np.allclose(np.linalg.norm(z, axis=1), 1, atol=1e-5)
    similar = z @ z.T
    later = rows[:, None] - rows[None] > 30
    same = same_place(drive.truth, rows[:, None], rows[None], 4.0) & later
    far = ~same_place(drive.truth, rows[:, None], rows[None], 40.0, 180.0) & later
    assert similar[same].mean() > similar[far].mean() + 0.2
    clear = made.level == 0
    both = clear[:, None] & clear[None]
    assert similar[same & both].mean() > similar[same & ~both].mean() + 0.05
    # Twins: some far pairs look as alike as the same place does.
    assert similar[far & both].max() > np.median(similar[same & both])
    # κ tells the weather.
    assert made.embeddings.kappa[clear].min() > np.median(made.embeddings.kappa[~clear])
