"""Zoom binning, match level and the ECE surface against loops written from their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.metrics import (
    BOTH_TAILS,
    NO_CLAMP,
    UPPER_TAIL,
    clamp_tails,
    ece_surface,
    expected_calibration_error,
    match_calibration_error,
    match_pairs,
    reliability_curve,
)
from tests.metrics.examples import Pair, quick, scored


def bins_of(scores: list[float], edges: list[float]) -> list[list[int]]:
    """Queries of each bin; an inner edge belongs to the right, the top edge closes the last bin."""
    result: list[list[int]] = []
    for i in range(len(edges) - 1):
        last = i == len(edges) - 2
        result.append(
            [
                q
                for q, s in enumerate(scores)
                if edges[i] <= s and (s < edges[i + 1] or (last and s <= edges[i + 1]))
            ]
        )
    return result


def grid(low: float, high: float, bins: int) -> list[float]:
    return [low + (high - low) * i / bins for i in range(bins)] + [high]


def zoomed_by_hand(scores: list[float], success: list[bool], bins: int) -> tuple[float, int]:
    """ECE and the number of queries that fall out."""
    parent = grid(min(scores), max(scores), bins)
    for top in reversed(parent[1:]):
        members = bins_of(scores, grid(parent[0], top, bins))
        if len(members[-1]) > 0.001 * len(scores):
            break
    error = 0.0
    for i, inside in enumerate(members):
        if inside:
            share = sum(success[q] for q in inside) / len(inside)
            error += len(inside) / len(scores) * abs(share - (bins - 1 - i) / (bins - 1))
    return error, len(scores) - sum(map(len, members))


@pytest.mark.parametrize("bins", [5, 10, 16])
@pytest.mark.parametrize("outlier", [20.0, 40.0, 90.0])
def test_zoom_is_its_definition(bins: int, outlier: float) -> None:
    rng = np.random.default_rng(5)
    scores = np.append(rng.gamma(2.0, size=2498), [outlier, outlier + 1])  # two of 2,500 are under 0.1 %
    success = rng.random(2500) < 0.6
    error, outside = zoomed_by_hand(scores.tolist(), success.tolist(), bins)
    curve = reliability_curve(scores, success, NO_CLAMP, bins, zoom=True)
    assert outside >= 2 or outlier == 90.0  # so far out that the coarser grids end without a full last bin
    assert curve.outside == outside
    assert curve.error == pytest.approx(error, abs=1e-9)
    assert curve.counts.sum() + curve.outside == 2500
    plain = reliability_curve(scores, success, NO_CLAMP, bins)
    assert plain.outside == 0
    assert curve.edges[-1] in plain.edges


@quick
@given(data=scored())
def test_zoom_leaves_fewer_than_a_thousand_queries_alone(data: Pair) -> None:
    # The largest score alone is then more than 0.1 %.
    plain = reliability_curve(*data, NO_CLAMP)
    zoomed = reliability_curve(*data, NO_CLAMP, zoom=True)
    np.testing.assert_equal(tuple(zoomed), tuple(plain))


def test_exactly_a_thousandth_is_not_more_than_a_thousandth() -> None:
    scores = np.append(np.linspace(0.0, 0.5, 999), 1.0)
    curve = reliability_curve(scores, np.ones(1000, bool), NO_CLAMP, zoom=True)
    assert curve.outside == 1
    assert curve.edges[-1] == 0.5
    more = reliability_curve(np.append(scores[:-2], [1.0, 1.0]), np.ones(1000, bool), NO_CLAMP, zoom=True)
    assert more.outside == 0


def test_zoom_ends_at_the_first_inner_edge() -> None:
    """STUN and the authors' release take at most nine steps for ten bins."""
    scores = np.array([0.0] * 1999 + [1.0])
    curve = reliability_curve(scores, np.ones(2000, bool), NO_CLAMP, zoom=True)
    assert curve.edges[-1] == pytest.approx(0.1)
    assert curve.counts.tolist() == [1999] + [0] * 9
    assert (curve.error, curve.outside) == (0.0, 1)
    spread = np.append(np.zeros(995), [1e2, 1e4, 1e6, 1e8, 1e10])
    curve = reliability_curve(spread, np.ones(1000, bool), NO_CLAMP, zoom=True)
    assert curve.counts.tolist() == [998, 1] + [0] * 8  # 1e8 is on the edge of the second bin
    assert curve.error == pytest.approx((1 - 8 / 9) / 1000)


def test_a_percentile_on_the_crowd_opens_the_upper_side() -> None:
    """Both percentiles are 1: the authors' release then takes the maximum as the upper limit."""
    scores = np.append(np.ones(995), [2.0, 3.0, 4.0, 5.0, 6.0])
    for clamp in (BOTH_TAILS, UPPER_TAIL):
        curve = reliability_curve(scores, np.ones(1000, bool), clamp)
        assert curve.counts.tolist() == [995, 0, 1, 0, 1, 0, 1, 0, 1, 1]
        gaps = [2 / 9, 4 / 9, 6 / 9, 8 / 9, 1.0]  # all are correct; expected are 7/9, 5/9, 3/9, 1/9 and 0
        assert curve.error == pytest.approx(sum(gaps) / 1000)
        np.testing.assert_array_equal(clamp_tails(scores, clamp), scores)
    assert reliability_curve(np.ones(9), np.ones(9, bool)).counts.tolist() == [0] * 9 + [9]


def test_a_score_on_an_inner_edge_goes_right() -> None:
    curve = reliability_curve(np.array([0.0, 1.0, 2.0, 3.0, 4.0]), np.ones(5, bool), NO_CLAMP, bins=4)
    assert curve.counts.tolist() == [1, 1, 1, 2]


@quick
@given(data=scored(), bins=st.sampled_from([2, 4, 8]), zoom=st.booleans(), seed=st.integers(0, 99))
def test_ece_ignores_order_shift_and_unit(data: Pair, bins: int, zoom: bool, seed: int) -> None:
    uncertainty, success = data
    ours = expected_calibration_error(uncertainty, success, NO_CLAMP, bins, zoom)
    order = np.random.default_rng(seed).permutation(len(success))
    assert expected_calibration_error(uncertainty[order], success[order], NO_CLAMP, bins, zoom) == ours
    assert expected_calibration_error(uncertainty * 4 + 8, success, NO_CLAMP, bins, zoom) == ours
    assert 0 <= ours <= 1


def test_one_query_is_in_the_least_certain_bin() -> None:
    assert expected_calibration_error(np.array([0.2]), np.array([True])) == 1.0
    assert expected_calibration_error(np.array([0.2]), np.array([False])) == 0.0


@pytest.mark.parametrize("clamp", [BOTH_TAILS, UPPER_TAIL])
@pytest.mark.parametrize("k", [1, 3])
def test_match_level_pools_all_pairs(clamp: tuple, k: int) -> None:
    rng = np.random.default_rng(2)
    uncertainty, hits = rng.gamma(2.0, size=(60, 5)), rng.random((60, 5)) < 0.4
    pairs = [(uncertainty[q, m], hits[q, m]) for q in range(60) for m in range(k)]
    scores = [float(u) for u, _ in pairs]
    clamped = clamp_tails(np.array(scores), clamp).tolist()
    expected = 0.0
    for i, inside in enumerate(bins_of(clamped, grid(min(clamped), max(clamped), 10))):
        if inside:
            share = sum(bool(pairs[p][1]) for p in inside) / len(inside)
            expected += len(inside) / len(pairs) * abs(share - (9 - i) / 9)
    assert match_calibration_error(uncertainty, hits, k, clamp) == pytest.approx(expected, abs=1e-9)


def test_match_pairs_keep_pairs_together() -> None:
    uncertainty = np.arange(6.0).reshape(2, 3)
    scores, hits = match_pairs(uncertainty, uncertainty % 2 == 0, 2)
    assert scores.tolist() == [0, 1, 3, 4]
    assert hits.tolist() == [True, False, False, True]


@pytest.mark.parametrize(
    ("shape", "k", "sentence"),
    [
        ((2, 3), 4, "between 1 and 3, got 4"),
        ((2, 2), 1, "one score per match"),
        ((0, 3), 1, "one score per match"),
    ],
)
def test_match_level_needs_its_matches(shape: tuple[int, int], k: int, sentence: str) -> None:
    with pytest.raises(KappaPlaceError, match=sentence):
        match_pairs(np.zeros(shape), np.zeros((2, 3), bool), k)


@settings(max_examples=5)
@given(seed=st.integers(0, 999), one_sided=st.booleans())
def test_every_cell_of_the_surface_is_an_ece(seed: int, one_sided: bool) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.lognormal(size=1500).round(2)
    success = rng.random(1500) < 0.5
    bins, clamps = [5, 10, 30], [0.0, 1.0, 5.0]
    surface = ece_surface(scores, success, one_sided, bins, clamps)
    assert surface.bins.tolist() == bins
    assert surface.clamp.tolist() == clamps
    for i, percent in enumerate(clamps):
        clamp = (None if one_sided else percent, 100.0 - percent)
        for j, count in enumerate(bins):
            plain = expected_calibration_error(scores, success, clamp, count)
            assert surface.plain[i, j] == pytest.approx(plain, abs=1e-12)
            zoomed = expected_calibration_error(scores, success, clamp, count, zoom=True)
            assert surface.zoomed[i, j] == pytest.approx(zoomed, abs=1e-12)


def test_the_surface_spans_what_the_report_shows() -> None:
    surface = ece_surface(np.linspace(0, 1, 50), np.arange(50) < 30)
    assert (surface.bins[0], surface.bins[-1]) == (5, 30)
    assert (surface.clamp[0], surface.clamp[-1]) == (0.0, 5.0)
    assert surface.plain.shape == surface.zoomed.shape == (len(surface.clamp), 26)
    assert surface.plain[2, 5] == expected_calibration_error(np.linspace(0, 1, 50), np.arange(50) < 30)
    np.testing.assert_array_equal(surface.clamp, np.arange(11) / 2)  # in steps of half a per cent


def test_curve_and_errors_use_ten_bins_and_both_tails_unless_told() -> None:
    rng = np.random.default_rng(8)
    scores, success = rng.lognormal(size=400), rng.random(400) < 0.5
    error = expected_calibration_error(scores, success, (1.0, 99.0), 10, False)
    assert expected_calibration_error(scores, success) == error
    assert reliability_curve(scores, success).error == error
    pairs = scores.reshape(80, 5), success.reshape(80, 5)
    assert match_calibration_error(*pairs, 5) == error
    assert ece_surface(scores, success, bins=[10], clamp=[1.0]).plain.tolist() == [[error]]


@pytest.mark.parametrize("clamp", [BOTH_TAILS, UPPER_TAIL, NO_CLAMP, (12.5, None)])
def test_tails_are_cut_at_numpys_percentiles(clamp: tuple) -> None:
    scores = np.random.default_rng(1).normal(size=83)
    low = -np.inf if clamp[0] is None else np.percentile(scores, clamp[0])
    high = np.inf if clamp[1] is None else np.percentile(scores, clamp[1])
    expected = [min(max(s, low), high) for s in scores.tolist()]
    np.testing.assert_allclose(clamp_tails(scores, clamp), expected, rtol=1e-14)
