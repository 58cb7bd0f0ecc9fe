from __future__ import annotations

import numpy as np

from kappaplace.slam.gates import Proposal, covered_area, likelihood_ratio, support, update

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
