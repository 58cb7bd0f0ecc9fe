"""Intervals of a fraction: their definition by binomial tails, and their coverage for clustered failures."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.metrics import LEAST_CLUSTERS, binomial_interval, clustered_interval
from kappaplace.metrics.retrieval import effective_answers


def tail(failures: range, trials: int, rate: float) -> float:
    return sum(comb(trials, k) * rate**k * (1 - rate) ** (trials - k) for k in failures)


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_limits_are_where_a_tail_has_half_of_the_level(case: tuple[int, int]) -> None:
    failures, trials = case
    low, high = binomial_interval(failures, trials, 0.9)
    assert 0 <= low <= failures / trials <= high <= 1
    if failures:
        assert tail(range(failures, trials + 1), trials, low) == pytest.approx(0.05, abs=1e-9)
    if failures < trials:
        assert tail(range(failures + 1), trials, high) == pytest.approx(0.05, abs=1e-9)


def test_independent_answers_are_a_binomial_sample() -> None:
    failures = np.arange(50) < 7
    assert clustered_interval(failures)[:3] == pytest.approx((0.14, *binomial_interval(7, 50)))
    alone = clustered_interval(failures, np.arange(50))
    assert alone == clustered_interval(failures)


def test_copies_of_answers_add_nothing() -> None:
    """Clusters of identical answers are as informative as one answer each, up to the correction for few."""
    rng = np.random.default_rng(0)
    once = rng.random(200) < 0.3
    many = clustered_interval(np.repeat(once, 10), np.repeat(np.arange(200), 10))
    few = clustered_interval(once)
    assert many.value == pytest.approx(few.value)
    assert many.high - many.low == pytest.approx(few.high - few.low, rel=0.02)


def test_without_differences_between_clusters_each_is_one_answer() -> None:
    clusters = np.arange(300) // 20
    assert effective_answers(np.zeros(300, bool), clusters) == 15
    failures = np.zeros(300, bool)
    failures[:LEAST_CLUSTERS] = True  # all in one cluster
    assert effective_answers(failures, clusters) == 15
    assert clustered_interval(np.zeros(300, bool), clusters).high == pytest.approx(1 - 0.025 ** (1 / 15))


def test_the_design_effect_by_hand() -> None:
    sizes, errors = np.array([4, 6, 5, 3, 8, 4]), np.array([1, 2, 1, 1, 5, 0])
    failed = np.concatenate([np.arange(n) < k for n, k in zip(sizes, errors, strict=True)])
    rate = errors.sum() / sizes.sum()
    total = 0.0
    for n, k in zip(sizes.tolist(), errors.tolist(), strict=True):
        total += (k - rate * n) ** 2
    effect = 6 / 5 * total / sizes.sum() ** 2 / (rate * (1 - rate) / sizes.sum())
    few = (2.0452296421 / 2.5705818366) ** 2  # quantiles of Student's t, 29 and 5 degrees of freedom
    expected = min(30.0, 30 / effect * few)
    assert effective_answers(failed, np.repeat(np.arange(6), sizes)) == pytest.approx(expected, rel=1e-8)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=60))
def test_clusters_never_narrow_the_interval(rows: list[tuple[bool, int]]) -> None:
    failures = np.array([failed for failed, _ in rows])
    clusters = np.array([cluster for _, cluster in rows])
    assert 0 < effective_answers(failures, clusters) <= len(rows)
    plain, own = clustered_interval(failures), clustered_interval(failures, clusters)
    assert own.value == plain.value
    assert own.low <= plain.low + 1e-12
    assert own.high >= plain.high - 1e-12


@pytest.mark.parametrize("correlation", [0.1, 0.4, 1.0])
def test_the_interval_covers_the_truth_if_frames_fail_together(correlation: float) -> None:
    rng = np.random.default_rng(1)
    inside, plain, runs = 0, 0, 300
    for _ in range(runs):
        scale = 1 / correlation - 1
        rates = rng.beta(0.1 * scale, 0.9 * scale, 40) if scale else (rng.random(40) < 0.1).astype(float)
        failures = rng.random((40, 15)) < rates[:, None]
        own = clustered_interval(failures.ravel(), np.repeat(np.arange(40), 15))
        naive = clustered_interval(failures.ravel())
        inside += own.low <= 0.1 <= own.high
        plain += naive.low <= 0.1 <= naive.high
    assert inside / runs > 0.915
    assert plain < inside or correlation == 0.1


def test_no_answers_have_no_interval() -> None:
    assert np.isnan(clustered_interval(np.zeros(0, bool))[:3]).all()


def test_bad_input_is_one_message() -> None:
    with pytest.raises(KappaPlaceError, match=r"failures must be between 0 and 3, got 4\."):
        binomial_interval(4, 3)
    with pytest.raises(KappaPlaceError, match="failures must be booleans"):
        clustered_interval(np.zeros(4, bool), np.zeros(3))
