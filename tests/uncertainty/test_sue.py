"""SUE against loops in exact arithmetic; caps, slopes, ties, underflow."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.types import Matches
from kappaplace.uncertainty import score_named
from kappaplace.uncertainty.base import Evidence
from kappaplace.uncertainty.places import sue
from tests.uncertainty.helpers import changed, evidence_of, world


def by_hand(
    e: Evidence, row: int, slope: float, k: int, squared: bool, one_sided: bool, cap: float
) -> mpmath.mpf:
    weights, places = [], []
    for s, r in zip(e.matches.similarities[row][:k], e.matches.indices[row][:k], strict=True):
        d = mpmath.sqrt(max(2 - 2 * mpmath.mpf(float(s)), 0))
        weights.append(mpmath.exp(-slope * (d**2 if squared else d)))  # mpmath never underflows
        places.append([mpmath.mpf(float(x)) for x in e.references.positions[r]])
    total, variances = sum(weights), []
    for axis in (0, 1):
        mean = sum(w * p[axis] for w, p in zip(weights, places, strict=True)) / total
        squares = 0
        for w, p in zip(weights, places, strict=True):
            deviation = min(p[axis] - mean, cap)
            deviation = deviation if one_sided else max(deviation, -cap)
            squares += w * deviation**2
        variances.append(squares / total)
    return sum(variances) / 2


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    slope=st.sampled_from([0.0, 3.0, 350.0, 1e5]),
    k=st.integers(2, 12),
    squared=st.booleans(),
    one_sided=st.booleans(),
    extent=st.sampled_from([1.0, 100.0, 5000.0]),
)
def test_equals_the_formula(
    seed: int, slope: float, k: int, squared: bool, one_sided: bool, extent: float
) -> None:
    rng = np.random.default_rng(seed)
    positions = np.array([500_000.0, 5_800_000.0]) + rng.uniform(-extent, extent, (12, 2))  # as UTM
    e = world(seed, queries=3, references=12, k=10, reference_positions=positions)
    options = {"distance": "squared" if squared else "l2", "cap": "one-sided" if one_sided else "symmetric"}
    ours = sue(slope, k=k, **options).query(e)
    logs = sue(slope, k=k, log=True, **options).query(e)
    for row in range(3):
        expected = by_hand(e, row, slope, k, squared, one_sided, 500.0)
        assert ours[row] == pytest.approx(float(expected), rel=1e-9, abs=1e-12)
        assert logs[row] == pytest.approx(float(mpmath.log(expected + 1e-10)), abs=1e-5)


def pair(similarities: list[float], positions: list[list[float]]) -> Evidence:
    s = np.array([similarities], np.float32)
    return evidence_of(Matches(np.arange(s.shape[1])[None], s), reference_positions=np.array(positions))


def test_default_settings_are_the_papers() -> None:
    e = world(references=30, k=20)
    np.testing.assert_array_equal(
        score_named("sue").query(e),
        sue(350.0, k=10, distance="l2", cap="symmetric", cap_metres=500.0).query(e),
    )
    np.testing.assert_allclose(score_named("log-sue").query(e), np.log(score_named("sue").query(e) + 1e-10))


def test_equal_matches_weigh_the_same_even_at_distance_zero() -> None:
    assert sue().query(pair([1.0, 1.0], [[0, 0], [6, 0]])).tolist() == [4.5]  # 3² on one axis of two


def test_weights_that_would_all_underflow_do_not() -> None:
    far = pair([-0.9, -0.9], [[0, 0], [6, 0]])  # exp(−350·1.95) = 1e-296; with slope 1e4 far below any double
    assert sue(1e4).query(far).tolist() == [4.5]


def test_one_place_is_certain_and_its_logarithm_finite() -> None:
    e = pair([0.9, 0.8, 0.7], [[7, 7]] * 3)
    assert sue().query(e).tolist() == [0.0]
    assert sue(log=True).query(e)[0] == pytest.approx(math.log(1e-10))


def test_the_caps_differ_to_the_south_and_west_only() -> None:
    west = pair([0.5, 0.5, 0.5, 0.5], [[0, 0], [0, 0], [0, 0], [-4000, 0]])  # deviations +1000, −3000
    assert sue().query(west)[0] == pytest.approx(500**2 / 2)
    assert sue(cap="one-sided").query(west)[0] == pytest.approx((0.75 * 500**2 + 0.25 * 3000**2) / 2)
    east = changed(west, reference_positions=-west.references.positions)
    assert sue().query(east)[0] == pytest.approx(500**2 / 2)
    assert sue(cap="one-sided").query(east)[0] == pytest.approx((0.25 * 500**2 + 0.75 * 1000**2) / 2)


def test_one_match_has_no_spread() -> None:
    with pytest.raises(KappaPlaceError, match="at least 2 matches"):
        sue().query(pair([0.5], [[0, 0]]))


def test_without_poses_it_is_left_out() -> None:
    reason = score_named("sue").reason(changed(world(), reference_positions=None))
    assert "positions of the references" in reason


@pytest.mark.parametrize(
    "options",
    [{"slope": -1}, {"slope": np.nan}, {"k": 1}, {"cap": "none"}, {"distance": "L1"}, {"cap_metres": 0}],
)
def test_bad_settings_are_refused(options: dict) -> None:
    with pytest.raises(KappaPlaceError, match=r"slope|distance"):
        sue(**options)


def test_the_name_is_the_label_too() -> None:
    mine = sue(slope=1.0, name="mine")
    assert (mine.name, mine.label) == ("mine", "mine")
    assert (sue(slope=1.0).name, sue(slope=1.0).label) == ("sue", "SUE")
