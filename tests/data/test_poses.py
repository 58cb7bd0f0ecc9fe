from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappaplace.data import poses as p
from kappaplace.errors import KappaPlaceError

NUMBER = st.floats(-50, 50)


@st.composite
def pose(draw: st.DrawFn, size: int) -> np.ndarray:
    values = np.array([draw(NUMBER) for _ in range(size)])
    if size == 7 and np.linalg.norm(values[3:]) < 1e-3:
        values[6] = 1.0
    return p.check_poses(values)


@pytest.mark.parametrize("size", [3, 7])
@given(data=st.data())
def test_a_motion_and_its_inverse_cancel(size: int, data: st.DataObject) -> None:
    a, b = data.draw(pose(size)), data.draw(pose(size))
    stays = p.pose_matrices(p.compose(a, p.inverse(a))[None])[0]
    assert np.allclose(stays, np.eye(4), atol=1e-9)
    assert np.allclose(
        p.pose_matrices(p.compose(a, p.between(a, b))[None]), p.pose_matrices(b[None]), atol=1e-8
    )


@pytest.mark.parametrize("size", [3, 7])
@given(data=st.data())
def test_composing_is_multiplying_matrices(size: int, data: st.DataObject) -> None:
    a, b = data.draw(pose(size)), data.draw(pose(size))
    product = p.pose_matrices(a[None])[0] @ p.pose_matrices(b[None])[0]
    assert np.allclose(p.pose_matrices(p.compose(a, b)[None])[0], product, atol=1e-8)


@given(pose(3))
def test_planar_poses_convert_to_spatial_ones_and_back(a: np.ndarray) -> None:
    back = p.as_planar(p.as_spatial(a))
    assert np.allclose(back[:2], a[:2])
    assert abs(float(p.wrap_angle(back[2] - a[2]))) < 1e-9


@given(pose(7))
def test_matrices_come_back(a: np.ndarray) -> None:
    matrix = p.pose_matrices(a[None])
    assert np.allclose(p.pose_matrices(p.poses_from_matrices(matrix)), matrix, atol=1e-9)


@given(st.floats(-100, 100))
def test_wrapped_angles_are_the_same_angles(angle: float) -> None:
    wrapped = float(p.wrap_angle(angle))
    assert -np.pi <= wrapped <= np.pi
    assert np.isclose(np.cos(wrapped), np.cos(angle))
    assert np.isclose(np.sin(wrapped), np.sin(angle))


def test_a_chain_of_steps_is_the_trajectory() -> None:
    poses = p.chain(np.zeros(3), np.tile([1.0, 0.0, np.pi / 2], (4, 1)))
    assert np.allclose(poses[4], [0, 0, 0], atol=1e-12)
    assert np.allclose(p.distance_traveled(poses), [0, 1, 2, 3, 4])


@pytest.mark.parametrize("bad", [np.zeros(4), np.array([0, 0, np.nan]), np.zeros(7)])
def test_bad_poses_raise(bad: np.ndarray) -> None:
    with pytest.raises(KappaPlaceError):
        p.check_poses(bad)
