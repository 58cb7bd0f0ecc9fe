"""Resamples, intervals, paired comparisons and pooling."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.metrics import (
    ROUTE_BLOCK,
    Replicates,
    Resampling,
    auroc,
    bootstrap,
    bootstrap_many,
    compare,
    holm,
    match_calibration_error,
    paired_bootstrap,
    pool,
    pooled,
    score_summary,
)
from tests.metrics.examples import quick


def rate(success: np.ndarray) -> float:
    return float(success.mean())


def test_strata_keep_their_size_and_routes_their_blocks() -> None:
    sets = np.tile(["route", "photos"], 50)  # interleaved: order within a set is what counts
    route, photos = np.flatnonzero(sets == "route"), np.flatnonzero(sets == "photos")
    plan = Resampling.of(100, strata=sets, block={"route": ROUTE_BLOCK, "photos": 1}, resamples=200)
    starts = set()
    for rows in plan.rows():
        assert len(rows) == 100
        on_route = np.searchsorted(route, rows[np.isin(rows, route)])
        assert len(on_route) == 50
        for block in (on_route[:20], on_route[20:40], on_route[40:]):
            assert (np.diff(block) == 1).all()
            starts.add(int(block[0]))
        assert np.isin(rows, photos).sum() == 50
    assert starts == set(range(31))  # every run of 20 frames of a route of 50, and no other


def test_independent_queries_are_drawn_alike() -> None:
    drawn = np.concatenate(list(Resampling.of(10, resamples=2000).rows()))
    share = np.bincount(drawn, minlength=10) / len(drawn)
    np.testing.assert_allclose(share, 0.1, atol=0.01)


def test_a_plan_always_gives_the_same_rows() -> None:
    plan = Resampling.of(30, block=5, resamples=5)
    first = [rows.tolist() for rows in plan.rows()]
    assert first == [rows.tolist() for rows in plan.rows()]
    assert first != [rows.tolist() for rows in Resampling.of(30, block=5, resamples=5, seed=1).rows()]


def test_a_metric_sees_whole_queries() -> None:
    rng = np.random.default_rng(0)
    uncertainty, hits = rng.random((40, 3)), rng.random((40, 3)) < 0.5
    plan = Resampling.of(40, resamples=20)
    replicates = bootstrap(lambda u, h: match_calibration_error(u, h, 3), (uncertainty, hits), plan)
    assert replicates.value == match_calibration_error(uncertainty, hits, 3)
    expected = [
        match_calibration_error(
            np.array([uncertainty[q] for q in rows]), np.array([hits[q] for q in rows]), 3
        )
        for rows in plan.rows()
    ]
    assert replicates.samples.tolist() == expected


def test_interval_of_a_rate_is_the_textbooks() -> None:
    success = np.arange(400) < 280
    interval = bootstrap(rate, (success,), Resampling.of(400, resamples=4000)).interval()
    half = 1.96 * math.sqrt(0.7 * 0.3 / 400)
    assert interval.value == pytest.approx(0.7)
    assert interval.low == pytest.approx(0.7 - half, abs=0.004)
    assert interval.high == pytest.approx(0.7 + half, abs=0.004)
    assert interval.undefined == 0


def test_a_higher_level_is_wider() -> None:
    samples = bootstrap(rate, (np.arange(50) < 25,), Resampling.of(50))
    narrow, wide = samples.interval(0.5), samples.interval(0.99)
    assert wide.low < narrow.low < narrow.high < wide.high
    ordered = sorted(samples.samples.tolist())
    assert narrow.low == pytest.approx((ordered[249] + ordered[250]) / 2, abs=0.011)


def test_frames_that_fail_together_widen_the_interval() -> None:
    success = np.repeat(np.random.default_rng(1).random(40) < 0.6, 25)  # failures come in stretches of 25
    naive = bootstrap(rate, (success,), Resampling.of(1000)).interval()
    blocks = bootstrap(rate, (success,), Resampling.of(1000, block=50)).interval()
    assert blocks.high - blocks.low > 3 * (naive.high - naive.low)


def test_strata_take_the_difference_between_sets_out() -> None:
    success = np.arange(200) < 100  # one set all right, one all wrong
    plan = Resampling.of(200, strata=np.repeat([0, 1], 100), resamples=50)
    assert bootstrap(rate, (success,), plan).interval() == (0.5, 0.5, 0.5, 0)


def test_undefined_resamples_are_counted_and_left_out() -> None:
    uncertainty, success = np.array([0.1, 0.2, 0.3]), np.array([True, True, False])
    plan = Resampling.of(3, resamples=500)
    expected = sum(len(set(success[rows].tolist())) == 1 for rows in plan.rows())
    interval = bootstrap(auroc, (uncertainty, success), plan).interval()
    assert interval.undefined == expected > 100
    assert interval[:3] == (1.0, 1.0, 1.0)


def test_an_undefined_metric_has_no_interval() -> None:
    plan = Resampling.of(1, resamples=10)
    data = np.array([0.1]), np.array([True])
    np.testing.assert_equal(tuple(bootstrap(auroc, data, plan).interval()), (math.nan,) * 3 + (10,))
    np.testing.assert_equal(
        tuple(paired_bootstrap(auroc, data, data, plan)), (math.nan, math.nan, math.nan, math.nan, 10)
    )


def test_many_metrics_share_their_resamples() -> None:
    rng = np.random.default_rng(3)
    data = rng.random(60), rng.random(60) < 0.5
    plan = Resampling.of(60, resamples=30)
    many = bootstrap_many(score_summary, data, plan)
    assert list(many) == list(score_summary(*data))
    np.testing.assert_array_equal(many["AUROC"].samples, bootstrap(auroc, data, plan).samples)


def test_a_better_score_is_found_better_and_itself_is_not() -> None:
    rng = np.random.default_rng(0)
    success = rng.random(300) < 0.6
    good, bad = rng.normal(size=300) - 2 * success, rng.normal(size=300)
    plan = Resampling.of(300, resamples=400)
    result = paired_bootstrap(auroc, (good, success), (bad, success), plan)
    assert result.difference == pytest.approx(auroc(good, success) - auroc(bad, success))
    assert 0 < result.low < result.difference < result.high
    assert result.p_value == pytest.approx(2 / 401)  # none of 400 resamples says otherwise
    back = paired_bootstrap(auroc, (bad, success), (good, success), plan)
    assert (back.difference, back.p_value) == (-result.difference, result.p_value)
    assert paired_bootstrap(auroc, (good, success), (good, success), plan).p_value == 1.0


def test_pairing_makes_a_small_difference_visible() -> None:
    rng = np.random.default_rng(0)
    success = rng.random(300) < 0.6
    score = rng.normal(size=300) - success
    close = score + 0.05 * rng.normal(size=300)
    plan = Resampling.of(300, resamples=300)
    a, b = bootstrap(auroc, (score, success), plan), bootstrap(auroc, (close, success), plan)
    paired = compare(a, b)
    assert paired.high - paired.low < 0.3 * (a.interval().high - a.interval().low)


def test_p_value_counts_both_tails() -> None:
    plan = Resampling.of(5, resamples=9)
    a = Replicates(1.0, np.array([3.0, 2, 1, 1, 1, 1, 0, -1, math.nan]), plan)
    b = Replicates(0.0, np.zeros(9), plan)
    result = compare(a, b)
    assert result.p_value == pytest.approx(2 * (2 + 1) / (8 + 1))  # 0 and −1 of the 8 that exist
    assert result.undefined == 1


def test_no_difference_is_rarely_called_one() -> None:
    rng = np.random.default_rng(0)
    p_values = []
    for seed in range(40):
        success = rng.random(80) < 0.5
        a, b = rng.normal(size=80), rng.normal(size=80)
        plan = Resampling.of(80, resamples=99, seed=seed)
        p_values.append(paired_bootstrap(auroc, (a, success), (b, success), plan).p_value)
    assert 0.3 < np.mean(p_values) < 0.7
    assert np.mean(np.array(p_values) < 0.05) < 0.15


def holm_by_hand(p_values: list[float]) -> list[float]:
    """Step down by hand: the k-th smallest times the number not yet rejected, never below an earlier one."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for step, i in enumerate(order):
        highest = max(highest, min(1.0, p_values[i] * (len(p_values) - step)))
        adjusted[i] = highest
    return adjusted


@quick
@given(p_values=st.lists(st.floats(0, 1), min_size=0, max_size=12))
def test_holm_is_its_definition(p_values: list[float]) -> None:
    np.testing.assert_allclose(holm(p_values), holm_by_hand(p_values), atol=1e-12)


def test_holm_leaves_undefined_comparisons_out() -> None:
    np.testing.assert_allclose(holm([0.02, math.nan, 0.01]), [0.02, math.nan, 0.02])


def test_pooling_is_one_large_set() -> None:
    rng = np.random.default_rng(0)
    sets = [(rng.random(n), rng.random(n) < 0.5, rng.random((n, 2))) for n in (5, 1, 30)]
    joined = pool(sets)
    assert joined.strata.tolist() == [0] * 5 + [1] + [2] * 30
    for column, array in enumerate(joined.arrays):
        np.testing.assert_array_equal(array, np.concatenate([s[column] for s in sets]))
    uncertainty, success, _ = joined.arrays
    assert pooled(auroc, [s[:2] for s in sets]) == auroc(uncertainty, success)
    interval = bootstrap(auroc, (uncertainty, success), Resampling.of(36, strata=joined.strata)).interval()
    assert interval.low < interval.value < interval.high


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"queries": 0}, "queries must be 1 or more"),
        ({"queries": 5, "resamples": 0}, "resamples must be between 1 and 1,000,000"),
        ({"queries": 5, "strata": np.zeros(4)}, r"shape \(5,\)"),
        ({"queries": 39, "block": 20}, "39 frames is too short"),
        ({"queries": 5, "block": 0}, "block must be 1 or more"),
        ({"queries": 2, "strata": np.array(["a", "b"]), "block": {"a": 1}}, "dataset 'b'"),
    ],
)
def test_impossible_plans(arguments: dict, sentence: str) -> None:
    with pytest.raises(KappaPlaceError, match=sentence):
        Resampling.of(**arguments)


def test_the_ends_of_what_a_plan_may_be() -> None:
    for allowed in ({"resamples": 1}, {"resamples": 1_000_000}, {"seed": 0}, {"block": 1}):
        Resampling.of(1, **allowed)
    assert Resampling.of(40, block=20).strata[0][1] == 20
    assert Resampling.of(7).resamples == 1000
    for refused in ({"resamples": 1_000_001}, {"seed": -1}):
        with pytest.raises(KappaPlaceError, match=r"^(resamples|seed) must be"):
            Resampling.of(5, **refused)


def test_the_seed_is_0_and_blocks_are_moving_blocks() -> None:
    """Drawn as documented: ⌈n/block⌉ starts anywhere in a set, the last block cut to fit."""
    rng = np.random.default_rng(0)
    for rows in Resampling.of(23, block=5, resamples=4).rows():
        starts = rng.integers(0, 19, 5)
        assert rows.tolist() == [int(start) + i for start in starts for i in range(5)][:23]


def test_intervals_are_at_95_per_cent_unless_told() -> None:
    plan = Resampling.of(2, resamples=201)
    a = Replicates(0.4, np.arange(201.0), plan)
    assert a.interval() == pytest.approx((0.4, 5.0, 195.0, 0))
    result = compare(a, Replicates(0.1, np.zeros(201), plan))
    assert result[1:3] == pytest.approx((5.0, 195.0))
    narrow = compare(a, Replicates(0.1, np.zeros(201), plan), 0.5)
    assert narrow[1:3] == pytest.approx((50.0, 150.0))
    rng = np.random.default_rng(0)
    score, other, success = rng.random(30), rng.random(30), rng.random(30) < 0.5
    plan = Resampling.of(30, resamples=50)
    assert paired_bootstrap(auroc, (score, success), (other, success), plan) == compare(
        bootstrap(auroc, (score, success), plan), bootstrap(auroc, (other, success), plan), 0.95
    )


def test_infinite_replicates_are_undefined_too() -> None:
    plan = Resampling.of(2, resamples=3)
    result = Replicates(1.0, np.array([math.inf, 1.0, 3.0]), plan).interval()
    assert (result.low, result.high, result.undefined) == (pytest.approx(1.05), pytest.approx(2.95), 1)


def test_arrays_must_fit_the_plan() -> None:
    with pytest.raises(KappaPlaceError, match="5 rows, as in the plan, got 4"):
        bootstrap(rate, (np.ones(4),), Resampling.of(5))


def test_only_the_same_plan_can_be_paired() -> None:
    success = np.arange(5) < 3
    a, b = (bootstrap(rate, (success,), Resampling.of(5, resamples=3)) for _ in range(2))
    with pytest.raises(KappaPlaceError, match="different plans"):
        compare(a, b)


@pytest.mark.parametrize("level", [0.0, 1.0, 95])
def test_a_level_is_a_share(level: float) -> None:
    with pytest.raises(KappaPlaceError, match="level"):
        bootstrap(rate, (np.ones(3),), Resampling.of(3, resamples=3)).interval(level)


@pytest.mark.parametrize(
    "sets", [[], [(np.zeros(2), np.zeros(3))], [(np.zeros(2),), (np.zeros(2), np.zeros(2))]]
)
def test_sets_that_cannot_be_pooled(sets: list) -> None:
    with pytest.raises(KappaPlaceError, match=r"at least one dataset|arrays of the same length"):
        pool(sets)


def test_drives_are_sampled_as_a_whole_and_datasets_without_drives_as_before() -> None:
    """Rows 0 to 9 are three drives; rows 10 to 15 have none."""
    drives = np.array([4, 4, 7, 4, 7, 7, 7, 9, 9, 4, *[-1] * 6])
    strata = np.array([0] * 10 + [1] * 6)
    plan = Resampling.of(16, strata=strata, groups=drives, resamples=300, seed=1)
    seen: set[int] = set()
    for rows in plan.rows():
        first, others = rows[rows < 10], rows[rows >= 10]
        counts = {drive: int((drives[first] == drive).sum()) for drive in (4, 7, 9)}
        times = {drive: counts[drive] // int((drives == drive).sum()) for drive in counts}
        assert sum(times.values()) == 3  # as many drives as there are
        for row in range(10):
            assert (first == row).sum() == times[int(drives[row])]
        assert len(others) == 6
        seen |= {drive for drive, count in times.items() if count}
    assert seen == {4, 7, 9}
