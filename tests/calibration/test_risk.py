"""The promise about risk: its numbers, its refusals, and its rate over 1,000 draws."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from time import process_time

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from kappaplace.calibration.risk import (
    METHODS,
    RiskRefused,
    RiskThreshold,
    _binomial_cdf,
    control_risk,
    needed_acceptances,
)
from kappaplace.errors import KappaPlaceError
from kappaplace.records import RecordError, from_plain, to_plain
from tests.calibration.helpers import informative

DRAWS = 1000


@pytest.mark.parametrize(
    ("risk", "confidence", "count"), [(0.01, 0.95, 299), (0.05, 0.95, 59), (0.5, 0.875, 3)]
)
def test_needed_acceptances_by_hand(risk: float, confidence: float, count: int) -> None:
    assert needed_acceptances(risk, confidence) == count


@settings(deadline=None)
@given(risk=st.floats(0.001, 0.9), confidence=st.floats(0.01, 0.999))
def test_needed_acceptances_in_high_precision(risk: float, confidence: float) -> None:
    count = needed_acceptances(risk, confidence)
    with mpmath.workdps(40):
        keep, level = 1 - mpmath.mpf(risk), 1 - mpmath.mpf(confidence)
        assert keep**count <= level * (1 + mpmath.mpf(10) ** -12)
        assert count == 1 or keep ** (count - 1) > level * (1 - mpmath.mpf(10) ** -12)


def test_binomial_tail_in_high_precision() -> None:
    for trials, errors, risk in (
        (59, 0, 0.05),
        (400, 9, 0.05),
        (3000, 17, 0.01),
        (10, 10, 0.3),
        (5, -1, 0.2),
    ):
        exact = sum(
            mpmath.binomial(trials, k) * mpmath.mpf(risk) ** k * (1 - mpmath.mpf(risk)) ** (trials - k)
            for k in range(errors + 1)
        )
        ours = _binomial_cdf(np.array([errors]), np.array([trials]), risk)[0]
        assert ours == pytest.approx(float(exact), rel=1e-9, abs=1e-300)


def test_the_bound_is_clopper_pearson_and_the_counts_are_the_samples() -> None:
    u, right = informative(0, 2000)
    found = control_risk(u, right, method="fixed-sequence")
    taken = u <= found.threshold
    assert (found.accepted, found.errors) == (taken.sum(), (~right[taken]).sum())
    assert found.coverage == taken.mean()
    interval = binomtest(found.errors, found.accepted, alternative="less").proportion_ci(0.95, "exact")
    assert found.bound == pytest.approx(interval.high)
    assert found.bound <= 0.05
    assert binom.cdf(found.errors, found.accepted, 0.05) <= 0.05
    assert from_plain(RiskThreshold, json.loads(json.dumps(to_plain(found)))) == found
    assert "one query per place" in found.assumptions


def test_a_threshold_is_finite_even_if_everything_is_accepted() -> None:
    u = np.random.default_rng(0).random(400)
    found = control_risk(u, np.ones(400, bool), 0.05)
    assert found.threshold == u.max()
    assert found.coverage == 1.0
    text = json.dumps(to_plain(found), allow_nan=False)
    assert from_plain(RiskThreshold, json.loads(text)) == found


# Each world: draw n scores; the error rate at a score; the risk of accepting all scores ≤ t.
World = tuple[
    Callable[[np.random.Generator, int], np.ndarray],
    Callable[[np.ndarray], np.ndarray],
    Callable[[float], float],
]


def uniform(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.random(n)


def tied(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.integers(0, 4, n).astype(float)


GROUP_ERRORS = np.array([0.03, 0.075, 0.06, 0.3])  # the second step takes the risk of the accepted past 5 %

WORLDS: dict[str, World] = {
    # e(u) = 0.005 + 0.9 u³ on uniform scores: the risk up to t is its mean, 0.005 + 0.225 t³.
    "informative": (uniform, lambda u: 0.005 + 0.9 * u**3, lambda t: 0.005 + 0.225 * min(t, 1.0) ** 3),
    "useless, just too bad": (uniform, lambda u: np.full(len(u), 0.0501), lambda t: 0.0501),
    "tied": (
        tied,
        lambda u: GROUP_ERRORS[u.astype(int)],
        lambda t: float(GROUP_ERRORS[: int(min(t, 3) // 1) + 1].mean()),
    ),
    "one value": (lambda rng, n: np.zeros(n), lambda u: np.full(len(u), 0.0501), lambda t: 0.0501),
    "worst first": (
        uniform,
        lambda u: np.where(u < 0.25, 0.08, 0.041),
        lambda t: 0.08 if t < 0.25 else (0.02 + 0.041 * (min(t, 1.0) - 0.25)) / min(t, 1.0),
    ),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("world", WORLDS)
def test_the_promise_holds_over_a_thousand_draws(world: str, method: str) -> None:
    draw, error_rate, risk = WORLDS[world]
    broken, coverage = 0, 0.0
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        u = draw(rng, 500)
        right = rng.random(500) >= error_rate(u)
        try:
            found = control_risk(u, right, 0.05, 0.95, method)
        except RiskRefused:
            continue
        coverage += found.coverage / DRAWS
        broken += risk(found.threshold) > 0.05
    # Three standard errors of a share of 5 % over 1,000 draws.
    assert broken / DRAWS <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / DRAWS)
    if (world, method) == ("one value", "fixed-sequence"):
        assert broken / DRAWS > 0.02  # one test only: its level is used up, not wasted
    if world == "informative":
        assert coverage > {"fixed-sequence": 0.3, "multi-start": 0.15, "bonferroni": 0.05}[method]


def test_outcomes_do_not_choose_the_thresholds() -> None:
    """The same scores with other outcomes end on the same ladder of thresholds."""
    u = np.random.default_rng(0).random(2000)
    ladder = {
        control_risk(u, np.random.default_rng(s).random(2000) >= 0.9 * u**3, 0.05).accepted for s in range(40)
    }
    counts = sorted(ladder)
    assert len(counts) < 15
    assert all(b / a >= 1.05 for a, b in pairwise(counts))


def test_laxer_claims_accept_more() -> None:
    u, right = informative(3, 5000)
    coverages = [control_risk(u, right, risk).coverage for risk in (0.02, 0.05, 0.1, 0.2)]
    assert coverages == sorted(coverages)
    assert coverages[0] < coverages[-1]


def test_below_gives_a_smaller_threshold_that_also_holds() -> None:
    u, right = informative(3, 5000)
    free = control_risk(u, right)
    held = control_risk(u, right, below=free.threshold)
    assert held.threshold < free.threshold
    assert held.bound <= 0.05


def test_too_few_labels_say_how_many() -> None:
    with pytest.raises(RiskRefused, match=r"at least 59 queries .* got 40") as caught:
        control_risk(np.arange(40.0), np.ones(40, bool))
    assert caught.value.needed == 59
    with pytest.raises(RiskRefused, match="299"):
        control_risk(np.arange(298.0), np.ones(298, bool), 0.01)
    assert control_risk(np.arange(299.0), np.ones(299, bool), 0.01).accepted == 299


def test_an_unlucky_sample_names_a_number_that_would_do() -> None:
    u = np.arange(70.0)
    right = np.ones(70, bool)
    right[[25, 69]] = False  # 59 in a row are out of reach
    with pytest.raises(RiskRefused, match="About") as caught:
        control_risk(u, right)
    needed = caught.value.needed
    assert needed is not None
    assert 88 <= needed < 2000
    # If the most confident of every 70 is incorrect, no walk passes its first threshold: the row is named.
    right[[0, 25]] = False, True
    with pytest.raises(
        RiskRefused, match=r"even with 20× as many .* most confident ones are incorrect"
    ) as caught:
        control_risk(u, right)
    lowest = caught.value.lowest
    assert (caught.value.needed, caught.value.row) == (None, 0)
    assert lowest is not None
    assert f"Allow a risk of {100 * lowest:.0f}%" in str(caught.value)
    assert control_risk(u, right, lowest).errors >= 1
    with pytest.raises(RiskRefused):
        control_risk(u, right, lowest - 0.01)


@pytest.mark.parametrize("risk", [0.05, 0.1])
def test_the_number_of_labels_that_a_refusal_names_is_enough_in_nine_of_ten_draws(risk: float) -> None:
    def granted(seed: int, queries: int) -> int | None:
        """Return None if the risk is granted, otherwise the number of queries that the refusal names."""
        rng = np.random.default_rng([seed, queries])
        u = rng.random(queries)
        try:
            control_risk(u, rng.random(queries) >= 0.26 * u**2, risk, 0.9)
        except RiskRefused as refusal:
            return refusal.needed or 0
        return None

    named = [number for seed in range(40) if (number := granted(seed, 62)) is not None]
    assert len(named) > 3
    assert np.mean(np.array(named) > 0) > 0.8  # a number exists: with 600 queries, the risk is always granted
    assert np.median(named) < 1000
    assert np.mean([granted(100 + seed, n) is None for n in named if n for seed in range(20)]) >= 0.9


@pytest.mark.parametrize("incorrect_labels", [0, 1, 2])
@pytest.mark.parametrize(
    ("queries", "risk", "error_rate"),
    [(62, 0.2, lambda u: 0.26 * u**2), (125, 0.1, lambda u: 0.01 + 0.5 * u**4)],
)
def test_a_number_is_named_and_enough_if_confident_labels_are_incorrect(
    queries: int, risk: float, error_rate: Callable[[np.ndarray], np.ndarray], incorrect_labels: int
) -> None:
    def named(seed: int, count: int) -> int | None:
        """Return None if the risk is granted, otherwise the number that the refusal names; half are used."""
        rng = np.random.default_rng([seed, count])
        u = rng.random(2 * count)
        right = rng.random(2 * count) >= error_rate(u)
        right[np.argsort(u)[:incorrect_labels]] = False
        half = rng.permutation(2 * count)[:count]
        try:
            control_risk(u[half], right[half], risk, 0.9)
        except RiskRefused as refusal:
            return refusal.needed or 0
        return None

    numbers = [number for seed in range(200) if (number := named(seed, queries)) is not None][:25]
    assert numbers
    assert np.mean(np.array(numbers) > 0) >= 0.4  # 1,000 labels always grant the risk
    assert all(named(500 + seed, 1000) is None for seed in range(5))
    assert max(numbers) <= 20 * queries
    granted = [named(1000 + seed, number) is None for number in numbers if number for seed in range(10)]
    assert np.mean(granted) >= 0.9


def test_a_refusal_is_fast_even_with_many_queries() -> None:
    rng = np.random.default_rng(0)
    started = process_time()
    with pytest.raises(RiskRefused, match="any number of labels"):
        control_risk(rng.random(20_000), rng.random(20_000) < 0.5, 0.01)
    assert process_time() - started < 1.0


def test_a_hopeless_score_is_told_so() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(RiskRefused, match="use a better score") as caught:
        control_risk(rng.random(500), rng.random(500) < 0.5)
    assert caught.value.needed is None


def test_bad_input() -> None:
    u, right = informative(0, 100)
    for options, word in (
        ({"max_risk": 0.0}, "risk must be between"),
        ({"max_risk": 1.5}, "risk must be between"),
        ({"confidence": 1.0}, "confidence must be between"),
        ({"method": "luck"}, "Choose from"),
    ):
        with pytest.raises(KappaPlaceError, match=word):
            control_risk(u, right, **options)
    with pytest.raises(KappaPlaceError, match="NaN"):
        control_risk(np.full(5, np.nan), np.ones(5, bool))
    with pytest.raises(RecordError, match="the field 'threshold' is missing"):
        from_plain(RiskThreshold, {})


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 9999), levels=st.sampled_from([1, 3, 10, 10_000]), method=st.sampled_from(METHODS))
def test_what_is_promised_was_seen(seed: int, levels: int, method: str) -> None:
    rng = np.random.default_rng(seed)
    u = rng.integers(0, levels, 300) / levels
    right = rng.random(300) >= 0.3 * u
    try:
        found = control_risk(u, right, 0.1, 0.9, method)
    except RiskRefused:
        return
    taken = u <= found.threshold
    assert found.accepted == taken.sum()
    assert found.errors == (~right[taken]).sum()
    assert found.errors / found.accepted <= found.bound <= 0.1
