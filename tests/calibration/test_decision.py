"""Decision rules: thresholds of answers, and decisions on single matches."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kappaplace.calibration.decision import (
    Decision,
    DecisionRule,
    decide_matches,
    fit_rule,
    pair_rule,
    rule_by_probability,
)
from kappaplace.calibration.risk import RiskRefused
from kappaplace.errors import KappaPlaceError
from kappaplace.records import RecordError, from_plain, to_plain
from tests.calibration.helpers import informative


def sigmoid_world(seed: int, n: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    u = rng.random(n)
    return u, rng.random(n) < 1 / (1 + np.exp(15 * (u - 0.5)))


def test_each_side_keeps_its_risk_on_fresh_queries() -> None:
    rule = fit_rule(*sigmoid_world(0), 0.05, reject_risk=0.1)
    u, right = sigmoid_world(1, 50_000)
    decision = rule.decide(uncertainty=u)
    accepted, rejected = decision == Decision.ACCEPT, decision == Decision.REJECT
    assert (~right[accepted]).mean() <= 0.05
    assert right[rejected].mean() <= 0.1
    assert rule.accepted is not None
    assert rule.rejected is not None
    assert accepted.mean() == pytest.approx(rule.accepted.coverage, abs=0.03)
    assert rejected.mean() == pytest.approx(rule.rejected.coverage, abs=0.03)
    assert (decision == Decision.DOUBTFUL).any()
    assert u[accepted].max() < u[decision == Decision.DOUBTFUL].min()
    assert u[rejected].min() > u[decision == Decision.DOUBTFUL].max()


def test_both_promises_at_once_over_many_draws() -> None:
    grid = (np.arange(20_000) + 0.5) / 20_000
    wrong = 1 - 1 / (1 + np.exp(15 * (grid - 0.5)))
    broken = np.zeros(2)
    refusals = 0
    for seed in range(300):
        try:
            rule = fit_rule(*sigmoid_world(seed, 400), 0.1, 0.9, reject_risk=0.1)
        except RiskRefused:  # no claim, so no broken one
            refusals += 1
            continue
        broken[0] += wrong[grid <= rule.accept_at].mean() > 0.1
        broken[1] += np.isfinite(rule.reject_at) and (1 - wrong[grid >= rule.reject_at]).mean() > 0.1
    assert (broken / 300 <= 0.1 + 3 * np.sqrt(0.09 / 300)).all()
    assert refusals <= 9


def test_rejection_never_reaches_into_what_is_accepted() -> None:
    """All but everything may be accepted and much may be rejected: acceptance wins, the rest holds."""
    rng = np.random.default_rng(0)
    u = rng.random(4000)
    right = u < 0.97
    rule = fit_rule(u, right, 0.05, reject_risk=0.5)
    assert rule.accept_at < rule.reject_at
    assert set(rule.decide(uncertainty=u)) <= set(Decision)


def test_nothing_rejected_where_that_cannot_be_shown() -> None:
    rng = np.random.default_rng(0)
    u = rng.random(600)
    rule = fit_rule(u, rng.random(600) >= 0.3 * (u > 0.5), 0.05)
    assert rule.rejected is None
    assert rule.reject_at == np.inf
    assert any(line.startswith("Nothing is rejected: 600 labelled queries") for line in rule.assumptions)
    assert fit_rule(u, rng.random(600) >= 0.3 * (u > 0.5), reject_risk=None).rejected is None


def test_refuses_what_the_sample_cannot_support() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(RiskRefused):
        fit_rule(rng.random(300), rng.random(300) < 0.5)


def test_by_probability_without_a_guarantee() -> None:
    rule = rule_by_probability(0.05, 0.2)
    assert rule.decide(probability=[1.0, 0.95, 0.5, 0.2, 0.0]).tolist() == [
        Decision.ACCEPT,
        Decision.ACCEPT,
        Decision.DOUBTFUL,
        Decision.REJECT,
        Decision.REJECT,
    ]
    assert rule.promise() == ["No guarantee: these thresholds are estimates."]
    assert rule_by_probability(0.05, None).decide(probability=[0.0]).tolist() == [Decision.DOUBTFUL]


def test_storage_and_sentences() -> None:
    for rule in (
        fit_rule(*sigmoid_world(0), assumptions=("One more.",)),
        replace(fit_rule(*sigmoid_world(0), reject_risk=None), guaranteed=False),
        fit_rule(np.arange(200.0), np.ones(200, bool)),
        rule_by_probability(reject_risk=None),
    ):
        assert from_plain(DecisionRule, json.loads(json.dumps(to_plain(rule), allow_nan=False))) == rule
        text = " ".join(rule.promise())
        assert ("No guarantee" in text) is not rule.guaranteed
    first = fit_rule(*sigmoid_world(0), assumptions=("One more.",)).promise()
    assert first[0].startswith(
        "Accepted answers are incorrect in at most 5% of the cases, with 95% confidence"
    )
    assert first[-1] == "One more."


def test_shapes_and_words() -> None:
    rule = fit_rule(*sigmoid_world(0))
    assert rule.decide(uncertainty=np.zeros((2, 3))).shape == (2, 3)
    assert rule.decide(uncertainty=[]).shape == (0,)
    assert rule.decide(uncertainty=0.0).item() == "accept"
    assert all(isinstance(d, Decision) for d in rule.decide(uncertainty=[0.0, 0.5, 1.0]))
    assert (rule.decide(uncertainty=[0.0, 1.0]) == Decision.ACCEPT).tolist() == [True, False]
    assert [d.value for d in Decision] == ["accept", "doubtful", "reject"]


def test_bad_input() -> None:
    rule = fit_rule(*sigmoid_world(0))
    with pytest.raises(KappaPlaceError, match="decides by uncertainty"):
        rule.decide(probability=[0.5])
    with pytest.raises(KappaPlaceError, match="NaN"):
        rule.decide(uncertainty=[np.nan])
    with pytest.raises(KappaPlaceError, match="overlap"):
        DecisionRule("uncertainty", 0.5, 0.4)
    with pytest.raises(KappaPlaceError, match="overlap"):
        rule_by_probability(0.5, 0.6)
    with pytest.raises(KappaPlaceError, match="must be 'uncertainty' or 'probability'"):
        DecisionRule("mood", 0.1, 0.4)
    with pytest.raises(KappaPlaceError, match="tested"):
        DecisionRule("uncertainty", 0.1, 0.4, guaranteed=True)
    with pytest.raises(KappaPlaceError, match="NaN"):
        DecisionRule("uncertainty", np.nan, 0.4)
    for on, threshold in (("uncertainty", np.inf), ("probability", -np.inf)):
        with pytest.raises(KappaPlaceError, match="cannot accept every answer"):
            DecisionRule(on, threshold, threshold)
    with pytest.raises(RecordError, match="accept_at: expected a number, got 'far'"):
        from_plain(DecisionRule, {**to_plain(rule), "accept_at": "far"})


WORSE = [Decision.ACCEPT, Decision.DOUBTFUL, Decision.REJECT]
shares = st.floats(0, 1)


@given(
    arrays(float, (5, 4), elements=shares),
    arrays(float, 5, elements=shares),
    arrays(bool, (5, 4)),
    st.lists(st.sampled_from(WORSE), min_size=5, max_size=5),
)
def test_no_match_is_decided_better_than_it_may_be(pairs, top, apart, answers):
    found = decide_matches(rule_by_probability(0.1, 0.2), answers, top, pairs, apart)
    assert found[:, 0].tolist() == answers
    for row in range(5):
        for k in range(1, 4):
            p = min(pairs[row, k], 1 - top[row]) if apart[row, k] else pairs[row, k]
            own = Decision.ACCEPT if p >= 0.9 else Decision.REJECT if p <= 0.2 else Decision.DOUBTFUL
            assert WORSE.index(found[row, k]) == max(WORSE.index(own), WORSE.index(answers[row]))


def test_a_match_elsewhere_goes_where_the_answer_is_accepted():
    rule = rule_by_probability(0.05, 0.2)
    apart = np.array([[False, False, True]])
    found = decide_matches(rule, [Decision.ACCEPT], [0.97], [[0.97, 0.96, 0.96]], apart)
    assert found.tolist() == [[Decision.ACCEPT, Decision.ACCEPT, Decision.REJECT]]


def test_thresholds_are_the_risks_of_the_answer():
    rule = fit_rule(*informative(0, 2000), 0.1, 0.9)
    assert (pair_rule(rule).accept_at, pair_rule(rule).reject_at) == (0.9, 0.2)
    assert not pair_rule(rule).guaranteed
    lax = fit_rule(*informative(0, 2000), 0.9, 0.9)  # all is accepted: the thresholds would cross
    assert pair_rule(lax).reject_at == -np.inf
    by_probability = rule_by_probability(0.3)
    assert pair_rule(by_probability) is by_probability


def test_bad_matches():
    rule = rule_by_probability()
    for call in (
        lambda: decide_matches(rule, ["accept"], [0.5], [0.5], [False]),
        lambda: decide_matches(rule, ["accept"], [0.5, 0.5], [[0.5]], [[False]]),
        lambda: decide_matches(rule, ["accept"], [0.5], [[0.5]], [[0.0]]),
        lambda: decide_matches(rule, ["accept"], [np.nan], [[0.5]], [[False]]),
    ):
        with pytest.raises(KappaPlaceError):
            call()
