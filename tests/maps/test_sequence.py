from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappaplace.data.poses import between
from kappaplace.errors import KappaPlaceError
from kappaplace.slam.sequence import (
    HistogramFilter,
    PoseMotion,
    RouteMotion,
    average_scores,
    likelihood,
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
        belief.see(np.array([10 + row]), np.array([0.5]))
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


def test_an_image_that_is_surely_wrong_says_nothing() -> None:
    belief = _filter()
    belief.see(np.array([30]), np.array([0.9]))
    before = belief.belief.copy()
    belief.see(np.array([80]), np.array([0.0]))
    assert np.allclose(belief.belief, before)


def test_driving_out_of_the_map_is_noticed() -> None:
    belief = _filter()
    belief.see(np.array([97]), np.array([0.99]))
    before = belief.estimate.outside
    for _ in range(8):
        belief.move(STEP)
    assert belief.estimate.outside > before + 0.5


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


def test_averages_find_the_line_among_noise() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 1, (60, COUNT))
    noise[np.arange(60), np.arange(60) + 20] += 1.5
    single, many = (average_scores(noise, length).argmax(axis=1) for length in (1, 10))
    truth = np.arange(60) + 20
    assert np.array_equal(single, noise.argmax(axis=1))
    assert (np.abs(many - truth) <= 2)[10:].mean() > (np.abs(single - truth) <= 2)[10:].mean() + 0.2


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(KappaPlaceError):
        likelihood(PLACE, np.array([1, 2]), np.array([0.5]))
    with pytest.raises(KappaPlaceError):
        likelihood(PLACE, np.array([1]), np.array([1.5]))
    with pytest.raises(KappaPlaceError):
        place_matrix(np.zeros((3, 3), bool))
    with pytest.raises(KappaPlaceError):
        average_scores(np.zeros((3, 3)), 0)
    with pytest.raises(KappaPlaceError):
        HistogramFilter(RouteMotion(5), PLACE)
