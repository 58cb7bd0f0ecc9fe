from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.data.poses import between
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.sequence import (
    HistogramFilter,
    PoseMotion,
    RouteMotion,
    WalkMotion,
    likelihood,
    nearby,
    place_matrix,
)

COUNT = 100
STREET = np.column_stack([5.0 * np.arange(COUNT), np.zeros(COUNT), np.zeros(COUNT)])
INDEX = np.arange(COUNT)
PLACE = place_matrix(np.abs(INDEX[:, None] - INDEX) <= 2)
STEP = between(STREET[0], STREET[1])


def _filter() -> HistogramFilter:
    return HistogramFilter(PoseMotion(STREET), PLACE)


def test_two_likely_places_are_told_apart_by_the_way_on() -> None:
    belief = _filter()
    belief.see(np.array([10, 60]), np.array([0.5, 0.5]))
    assert belief.estimate.probability < 0.6
    for row in (1, 2):
        belief.move(STEP)
        belief.see(np.array([10 + row]), np.array([0.9]))  # 0.5 would not speak against being outside
    assert abs(belief.estimate.frame - 12) <= 2
    assert belief.estimate.probability > 0.8


def test_it_recovers_from_being_lost() -> None:
    belief = _filter()
    for row in range(5):  # sure, and wrong
        belief.see(np.array([20 + row]), np.array([0.99]))
        belief.move(STEP)
    assert abs(belief.estimate.frame - 25) <= 2
    for row in range(4):  # carried elsewhere
        belief.see(np.array([70 + row]), np.array([0.9]))
        belief.move(STEP)
    assert abs(belief.estimate.frame - 74) <= 2
    assert belief.estimate.probability > 0.8


def test_an_image_that_is_surely_wrong_speaks_only_for_being_outside() -> None:
    belief = _filter()
    belief.see(np.array([30]), np.array([0.9]))
    before, outside = belief.belief.copy(), belief.outside
    belief.see(np.array([80]), np.array([0.0]))
    assert np.allclose(belief.belief / belief.belief.sum(), before / before.sum(), rtol=0.02)
    assert belief.outside > 2 * outside


def test_many_images_of_a_look_alike_do_not_add_up() -> None:
    """Outside the map, one place often looks like every image: low probabilities never become a high one."""
    belief = _filter()
    for _ in range(30):
        belief.see(np.array([50]), np.array([0.3]))
    assert belief.outside > 0.95
    for _ in range(30):
        belief.see(np.array([50]), np.array([0.9]))
    assert belief.estimate.probability > 0.95
    assert abs(belief.estimate.frame - 50) <= 2


def test_the_likelihood_is_that_of_the_formula() -> None:
    place = place_matrix(np.eye(4) + np.diag([0.5] * 3, 1) + np.diag([0.5] * 3, -1))
    seen = likelihood(place, np.array([0, 3]), np.array([0.6, 0.2]))
    spread = np.array([0.75, 0.75 * 0.5, 0.25 * 0.5, 0.25])  # of the peak at a match
    assert np.allclose(seen.matched, 0.6 * 0.6 * spread)
    assert seen.missed == pytest.approx(0.4 * 0.4)
    assert seen.outside == pytest.approx(0.4)
    belief = HistogramFilter(RouteMotion(4), place, outside=0.5)
    belief.weigh(seen)
    expected = 0.75  # three of four places around the second one
    inside, outside = 0.125 * (seen.matched + 0.16 * expected), 0.5 * 0.4 * expected
    assert np.allclose(belief.belief, inside / (inside.sum() + outside))


def test_one_image_decides_by_its_probability_in_a_map_of_any_size() -> None:
    outside = []
    for count in (20, 2000):
        belief = HistogramFilter(RouteMotion(count), place_matrix(np.eye(count)), outside=0.5)
        belief.see(np.array([3]), np.array([0.9]))
        outside.append(belief.outside)
    assert outside == pytest.approx([0.147, 0.147], abs=0.01)  # 0.1 of 0.6·0.9 + 0.4·0.1 + 0.1


def test_smoothing_is_the_posterior_of_all_paths() -> None:
    """Four places and outside of them: sum over all 5⁴ paths."""
    rng = np.random.default_rng(0)
    count, length = 4, 4
    points = np.column_stack([np.arange(count), np.zeros(count)])
    belief = HistogramFilter(WalkMotion(points, 0.8), place_matrix(np.eye(count)), lost=0.1, outside=0.3)
    matrix = belief.motion.matrix(STEP)
    seen = [likelihood(belief.place, rng.integers(0, count, 2), rng.uniform(0, 1, 2)) for _ in range(length)]
    start = np.array([0.7 / count] * count + [0.3])
    step = np.zeros((count + 1, count + 1))  # to, from
    step[:count, :count] = 0.9 * matrix.toarray()
    step[count, count] = 0.9
    step[:count] += 0.1 * 0.7 / count
    step[count] += 0.1 * 0.3
    assert np.allclose(step.sum(axis=0), 1)
    weights, state = np.zeros((length, count + 1)), start
    for row, each in enumerate(seen):  # the largest belief in a place before each image
        state = state if row == 0 else step @ state
        expected = state[:count].max() / state[:count].sum()
        weights[row] = [*(each.matched + each.missed * expected), each.outside * expected]
        state = state * weights[row]
    posterior = np.zeros((length, count + 1))
    for path in np.ndindex(*(count + 1,) * length):
        value = start[path[0]] * weights[0, path[0]]
        for row in range(1, length):
            value *= step[path[row], path[row - 1]] * weights[row, path[row]]
        posterior[np.arange(length), path] += value
    posterior /= posterior.sum(axis=1, keepdims=True)
    images = [(matrix if row else None, each) for row, each in enumerate(seen)]
    for row, estimate in enumerate(belief.smooth(images)):
        assert np.allclose(belief.belief, posterior[row, :count])
        assert estimate.outside == pytest.approx(posterior[row, count])


def test_long_sequences_are_smoothed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    points = np.column_stack([np.arange(20.0), np.zeros(20)])
    belief = HistogramFilter(WalkMotion(points, 1.0), place_matrix(np.eye(20)))
    matrix = belief.motion.matrix(STEP)
    seen = [likelihood(belief.place, np.array([row // 2]), rng.uniform(0.4, 0.9, 1)) for row in range(40)]
    images = [(matrix if row else None, each) for row, each in enumerate(seen)]
    whole = list(belief.smooth(images))
    monkeypatch.setattr("kappaplace.maps.sequence.BLOCK", 12)
    blocks = list(belief.smooth(images))
    assert [each.frame for each in blocks] == [each.frame for each in whole]
    assert np.allclose([each.outside for each in blocks], [each.outside for each in whole], atol=0.02)


def test_a_walk_reaches_near_places_in_any_direction() -> None:
    points = np.column_stack([10.0 * np.arange(6), np.zeros(6)])
    matrix = WalkMotion(points, 5.0).matrix().toarray()
    assert np.allclose(matrix.sum(axis=0), 1)
    assert matrix[2, 3] > matrix[1, 3] == 0  # 20 m are more than three deviations
    assert matrix[2, 3] == pytest.approx(matrix[4, 3])
    assert nearby(points, 15.0, 10.0)[0, 1] == pytest.approx(np.exp(-0.5))


def test_driving_out_of_the_map_is_noticed() -> None:
    belief = _filter()
    belief.see(np.array([97]), np.array([0.99]))
    before = belief.estimate.outside
    for _ in range(8):
        belief.move(STEP)
    assert belief.estimate.outside > before + 0.5


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, COUNT - 1), st.floats(0, 1)), min_size=1, max_size=12))
def test_belief_stays_a_distribution(seen: list[tuple[int, float]]) -> None:
    belief = HistogramFilter(RouteMotion(COUNT), PLACE)
    for frame, sure in seen:
        belief.see(np.array([frame]), np.array([sure]))
        belief.move(STEP)
        assert belief.belief.min() >= 0
        assert belief.belief.sum() + belief.outside == pytest.approx(1)


def test_steps_sum_to_one_inside_the_map() -> None:
    for motion in (PoseMotion(STREET), RouteMotion(COUNT)):
        sums = np.asarray(motion.matrix(STEP).sum(axis=0)).ravel()
        assert np.allclose(sums[: COUNT - 10], 1)
    # Turned round, nothing of a street that was mapped one way is where one comes to.
    turned = PoseMotion(STREET).matrix(np.array([0.0, 0.0, np.pi]))
    assert turned.sum() == 0


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(KappaPlaceError):
        likelihood(PLACE, np.array([1, 2]), np.array([0.5]))
    with pytest.raises(KappaPlaceError):
        likelihood(PLACE, np.array([1]), np.array([1.5]))
    with pytest.raises(KappaPlaceError):
        place_matrix(np.zeros((3, 3), bool))
    with pytest.raises(KappaPlaceError, match="above 0 metres"):
        WalkMotion(np.zeros((3, 2)), 0.0)
    with pytest.raises(KappaPlaceError):
        HistogramFilter(RouteMotion(5), PLACE)
