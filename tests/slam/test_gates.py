from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappaplace.slam import ClosingSettings, Frame, LoopCloser
from kappaplace.slam.gates import SLIP, Proposal, covered_area, likelihood_ratio, support, update
from tests.slam.synthetic import calibration

# Two rounds of a straight street, 1 m a frame; odometry of the second has drifted 30 m to the side.
FIRST = np.column_stack([np.arange(50.0), np.zeros(50), np.zeros(50)])
SECOND = FIRST + np.array([0.0, 30.0, 0.0])
POSES = np.concatenate([FIRST, SECOND])


def test_matches_that_move_with_the_camera_agree() -> None:
    before = [Proposal(60, 10), Proposal(61, 11), Proposal(62, 12)]
    assert support(Proposal(63, 13), before, list(POSES), POSES, 2.0) == 3


def test_scattered_and_backward_matches_do_not() -> None:
    before = [Proposal(60, 40), Proposal(61, 3), Proposal(62, 12)]
    assert support(Proposal(63, 13), before, list(POSES), POSES, 2.0) == 1
    backwards = [Proposal(60, 30), Proposal(55, 35)]
    assert support(Proposal(65, 25), backwards, list(POSES), POSES, 2.0) == 0


def test_without_odometry_matches_must_go_on_in_order() -> None:
    before = [Proposal(60, 10), Proposal(61, 30), Proposal(62, 12)]
    assert support(Proposal(63, 14), before, None, POSES, 2.0) == 2
    assert support(Proposal(63, 2), before, None, POSES, 2.0) == 0
    assert support(Proposal(63, 14), [], list(POSES), POSES, 2.0) == 0


def test_odometry_speaks_for_near_and_against_far_closures() -> None:
    near = likelihood_ratio(5.0, 200.0, 50_000.0, drift=0.05, spread=5.0)
    far = likelihood_ratio(150.0, 200.0, 50_000.0, drift=0.05, spread=5.0)
    assert near > 10 > 1 > far
    assert likelihood_ratio(150.0, 5000.0, 50_000.0, drift=0.05, spread=5.0) > far  # after a long way
    assert update(0.9, near) > 0.98
    assert update(0.9, far) < 0.2
    assert update(0.3, 1.0) == 0.3


def test_the_area_is_that_of_the_map() -> None:
    rng = np.random.default_rng(0)
    disc = rng.normal(size=(20000, 2))
    disc = disc / np.linalg.norm(disc, axis=1, keepdims=True) * 100 * np.sqrt(rng.random((20000, 1)))
    assert np.isclose(covered_area(np.column_stack([disc, np.zeros(20000)])), np.pi * 100**2, rtol=0.05)


METERS, WAY, AREA = st.floats(0, 500), st.floats(0, 5000), st.floats(1e3, 1e7)
ANGLE = st.floats(0, np.pi)


@given(METERS, METERS, WAY, AREA, ANGLE, ANGLE)
def test_farther_away_or_turned_is_less_plausible(
    a: float, b: float, way: float, area: float, turn: float, more: float
) -> None:
    def ratio(gap: float, turned: float) -> float:
        return likelihood_ratio(gap, way, area, drift=0.05, spread=5.0, turn=turned)

    near, far = sorted((a, b))
    little, much = sorted((turn, more))
    assert ratio(near, little) >= ratio(far, little) >= SLIP
    assert ratio(near, little) >= ratio(near, much) >= SLIP
    assert ratio(near, 0.0) >= ratio(near, little)  # the same direction is no evidence for a closure


@given(st.floats(0, 1), st.floats(1e-3, 1e3))
def test_odds_are_multiplied(probability: float, ratio: float) -> None:
    found = update(probability, ratio)
    assert 0 <= found <= 1
    if 1e-3 < probability < 1 - 1e-3:
        assert found / (1 - found) == pytest.approx(probability / (1 - probability) * ratio, rel=1e-6)


def test_an_even_disc_covers_its_area() -> None:
    rng = np.random.default_rng(0)
    radius, angle = 300 * np.sqrt(rng.random(20000)), rng.uniform(0, 2 * np.pi, 20000)
    poses = np.column_stack([radius * np.cos(angle), radius * np.sin(angle), angle])
    assert covered_area(poses) == pytest.approx(np.pi * 300**2, rel=0.03)


def test_a_street_that_leaves_the_same_junction_another_way_is_not_closed() -> None:
    """The images match perfectly and the positions are those of the match: only the direction is wrong."""
    rng = np.random.default_rng(0)
    looks = rng.normal(size=(40, 64))
    looks /= np.linalg.norm(looks, axis=1, keepdims=True)

    def accepted(turn: float, drift: float | None = 0.05) -> int:
        settings = ClosingSettings(max_risk=0.2, recent=100.0, fewest=5, least_support=0, drift=drift)
        closer = LoopCloser(calibration(), settings)
        for row in range(60):
            x, yaw = (5.0 * row, 0.0) if row < 40 else (5.0 * (row - 40), turn)
            closer.add(Frame(looks[row % 40], 400.0, odometry=np.array([x, 0.0, yaw])))
        return len(closer.accepted)

    assert accepted(0.0) >= 10
    assert accepted(np.pi / 2, drift=None) >= 10
    assert accepted(np.pi / 2) == 0
