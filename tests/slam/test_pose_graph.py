from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.data.poses import as_spatial, between, chain, pose_positions
from kappaplace.errors import KappaPlaceError
from kappaplace.slam.evaluation import trajectory_error
from kappaplace.slam.graph_factors import OdometryNoise, closure_factor
from kappaplace.slam.pose_graph import IncrementalGraph, optimize
from tests.slam.synthetic import closure

pytest.importorskip("gtsam")
pytest.importorskip("evo")

SIDE = 20


def square(noise: float = 0.02) -> tuple[np.ndarray, np.ndarray]:
    """Once around a block and one side more: the truth, and odometry that turns a little too far."""
    steps = np.tile([1.0, 0.0, 0.0], (5 * SIDE, 1))
    steps[SIDE - 1 :: SIDE, 2] = np.pi / 2
    truth = chain(np.zeros(3), steps)
    rng = np.random.default_rng(0)
    wrong = steps + rng.normal(size=steps.shape) * [0.01, 0.01, noise] + [0.0, 0.0, 0.002]
    return truth, chain(np.zeros(3), wrong)


CLOSURES = [closure(row, 4 * SIDE + row) for row in range(0, SIDE, 4)]
WRONG = closure(2 * SIDE, 4 * SIDE + 10, probability=0.02)


@pytest.mark.parametrize("spatial", [False, True])
def test_closing_the_loop_corrects_the_drift(spatial: bool) -> None:
    truth, odometry = square()
    closures = CLOSURES
    if spatial:
        truth, odometry = as_spatial(truth), as_spatial(odometry)
        closures = [closure(c.match, c.query, 7) for c in CLOSURES]
    found = optimize(odometry, closures)
    assert found.shape == odometry.shape
    assert trajectory_error(truth, found).absolute < 0.5 * trajectory_error(truth, odometry).absolute
    assert np.allclose(found[0], odometry[0], atol=1e-6)


def test_without_closures_odometry_stays() -> None:
    _, odometry = square()
    assert np.allclose(between(odometry, optimize(odometry, [])), 0, atol=1e-6)


@pytest.mark.parametrize("spatial", [False, True])
def test_frame_by_frame_comes_to_the_same(spatial: bool) -> None:
    _, odometry = square()
    closures = CLOSURES
    if spatial:
        odometry = as_spatial(odometry)
        closures = [closure(c.match, c.query, 7) for c in CLOSURES]
    graph = IncrementalGraph()
    by_query = {c.query: c for c in closures}
    for row, pose in enumerate(odometry):
        graph.add(pose, by_query.get(row))
    batch = optimize(odometry, closures)
    assert np.abs(graph.poses - batch).max() < 0.01


@pytest.mark.parametrize("kernel", ["cauchy", "dcs", "switchable"])
def test_kernels_and_probabilities_hold_back_a_wrong_closure(kernel: str) -> None:
    truth, odometry = square()
    closures = [*CLOSURES, WRONG]
    plain, robust, informed = (
        trajectory_error(truth, optimize(odometry, closures, kernel=name, by_probability=by)).absolute
        for name, by in (("none", False), (kernel, False), (kernel, True))
    )
    assert robust < 0.5 * plain
    assert informed < 0.5 * plain


@given(st.floats(0.1, 20.0), st.floats(0.02, 0.99))
@settings(max_examples=30, deadline=None)
def test_a_switch_costs_what_its_best_setting_costs(gap: float, probability: float) -> None:
    """Against the definition: a switch s of its own, tried out on a fine grid."""
    import gtsam

    one = closure(0, 1, probability=probability, sigma=np.ones(3))
    values = gtsam.Values()
    values.insert(0, gtsam.Pose2(0, 0, 0))
    values.insert(1, gtsam.Pose2(gap, 0, 0))
    prior = probability / (1 - probability)
    switch = np.linspace(0, 1, 20001)
    cost = (switch**2 * gap**2 + prior * (1 - switch) ** 2).min()
    found = closure_factor(one, "switchable", by_probability=True).error(values)
    assert 2 * found == pytest.approx(cost, rel=1e-4)


@pytest.mark.parametrize("spatial", [False, True])
def test_graduated_non_convexity_drops_a_wrong_closure_altogether(spatial: bool) -> None:
    _, odometry = square()
    closures = [*CLOSURES, WRONG]
    if spatial:
        odometry = as_spatial(odometry)
        closures = [closure(c.match, c.query, 7) for c in closures]
    noise = OdometryNoise(angle=0.02)  # as it is: with less, giving up all closures would be as good
    without = optimize(odometry, closures[:-1], noise=noise)
    found = optimize(odometry, closures, noise=noise, kernel="gnc")
    assert np.abs(pose_positions(found) - pose_positions(without)).max() < 0.05
    unchanged = optimize(odometry, [], kernel="gnc")
    assert np.allclose(pose_positions(unchanged), pose_positions(odometry), atol=1e-6)


def test_what_does_not_fit_is_refused() -> None:
    _, odometry = square()
    with pytest.raises(KappaPlaceError, match="does not fit"):
        optimize(odometry, [closure(0, 5000)])
    with pytest.raises(KappaPlaceError, match="does not fit"):
        optimize(odometry, [closure(0, 50, 7)])
    with pytest.raises(KappaPlaceError, match="Unknown kernel"):
        optimize(odometry, CLOSURES, kernel="magic")  # type: ignore[arg-type]
    with pytest.raises(KappaPlaceError, match="calibrated"):
        optimize(odometry, [closure(0, 80, probability=None)], kernel="dcs", by_probability=True)
    with pytest.raises(KappaPlaceError, match="one threshold"):
        optimize(odometry, CLOSURES, kernel="gnc", by_probability=True)
    with pytest.raises(KappaPlaceError, match="all closures together"):
        IncrementalGraph(kernel="gnc")
    with pytest.raises(KappaPlaceError, match="two poses"):
        optimize(odometry[:1], [])
    with pytest.raises(KappaPlaceError, match="empty"):
        _ = IncrementalGraph().poses
