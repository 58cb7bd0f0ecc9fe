from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.data.poses import as_spatial, chain, compose
from kappaplace.slam.graph_factors import MOST, OdometryNoise, odometry_scale
from kappaplace.slam.pose_graph import optimize
from kappaplace.slam.types import Closure
from tests.slam.synthetic import closure

pytest.importorskip("gtsam")

NOISE = OdometryNoise(meters=0.03, least_meters=0.02, angle=0.006)
LAP, STEP = 60, 4.0


def laps(scale: float, seed: int = 0, sigma: float = 1.0) -> tuple[np.ndarray, list[Closure]]:
    """Three laps of a circle: odometry with so much of the stated noise, closures with the noise they
    state.
    """
    rng = np.random.default_rng(seed)
    steps = np.tile([STEP, 0.0, 2 * np.pi / LAP], (3 * LAP, 1))
    errs = rng.normal(size=steps.shape) * scale * NOISE.sigma(steps[0])
    own = np.array([sigma, sigma, 0.05])
    closures = [
        closure(query % LAP, query, relative=rng.normal(size=3) * own, sigma=own)
        for query in range(LAP, 3 * LAP, 3)
    ]
    return chain(np.zeros(3), compose(steps, errs)), closures


@pytest.mark.parametrize("scale", [0.25, 0.5, 1.0])
def test_the_scale_of_the_noise_is_found(scale: float) -> None:
    found = [odometry_scale(*laps(scale, seed), NOISE) for seed in range(12)]
    assert np.median(found) == pytest.approx(scale, rel=0.25)


def test_perfect_odometry_is_left_alone() -> None:
    kept = 0
    for seed in range(20):
        odometry, closures = laps(0.0, seed)
        if odometry_scale(odometry, closures, NOISE) == 0:
            kept += 1
            assert np.array_equal(optimize(odometry, closures, noise=NOISE), odometry)
    assert kept >= 17  # 5 % are refuted by chance


def test_closures_that_contradict_odometry_never_gain_weight() -> None:
    odometry, closures = laps(0.5)
    false = closure(10, 90, sigma=np.array([1.0, 1.0, 0.05]))
    assert odometry_scale(odometry, [*closures, false], NOISE) == 1.0
    assert odometry_scale(laps(4.0)[0], closures, NOISE) == 1.0


def test_the_plane_and_space_agree() -> None:
    """What lies in a plane and is as sure about the other three axes says nearly the same in space."""
    odometry, closures = laps(0.5)
    spatial = [
        replace(one, relative=as_spatial(one.relative), sigma=np.array([1.0, 1.0, 1.0, 0.05, 0.05, 0.05]))
        for one in closures
    ]
    flat, deep = (
        odometry_scale(odometry, closures, NOISE),
        odometry_scale(as_spatial(odometry), spatial, NOISE),
    )
    # Nothing is ever wrong about the other axes, so that odometry seems better, but not by much.
    assert 0.4 * flat < deep <= flat


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(-np.pi, np.pi))
@settings(max_examples=15, deadline=None)
def test_it_does_not_matter_where_the_drive_lies(x: float, y: float, yaw: float) -> None:
    odometry, closures = laps(0.5)
    moved = compose(np.array([x, y, yaw]), odometry)
    assert odometry_scale(moved, closures, NOISE) == pytest.approx(
        odometry_scale(odometry, closures, NOISE), rel=0.05
    )


def test_without_closures_the_stated_noise_stays() -> None:
    assert odometry_scale(laps(0.5)[0], [], NOISE) == 1.0


def test_many_closures_are_thinned() -> None:
    odometry, closures = laps(0.5)
    many = closures * (1 + MOST // len(closures))
    assert 0 < odometry_scale(odometry, many, NOISE) <= 1


def test_lucky_odometry_is_not_made_worse() -> None:
    """Closures of 3 m against odometry far better than stated: with the stated noise they do harm."""
    adapted, stated = [], []
    for seed in range(8):
        odometry, closures = laps(0.1, seed, sigma=3.0)
        truth = chain(np.zeros(3), np.tile([STEP, 0.0, 2 * np.pi / LAP], (3 * LAP, 1)))

        def error(poses: np.ndarray, truth: np.ndarray = truth) -> float:
            return float(np.hypot(*(poses - truth)[:, :2].T).mean())

        adapted.append(error(optimize(odometry, closures, noise=NOISE)) / error(odometry))
        stated.append(error(optimize(odometry, closures, noise=NOISE, adapt=False)) / error(odometry))
    assert np.median(stated) > 1.05
    assert np.median(adapted) < 1.01
