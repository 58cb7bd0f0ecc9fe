"""Decisions on matches below the best one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kappaplace.calibration.decision import Decision, decide_matches, fit_rule, pair_rule, rule_by_probability
from kappaplace.errors import KappaPlaceError
from tests.calibration.helpers import informative

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


def test_bad_input():
    rule = rule_by_probability()
    for call in (
        lambda: decide_matches(rule, ["accept"], [0.5], [0.5], [False]),
        lambda: decide_matches(rule, ["accept"], [0.5, 0.5], [[0.5]], [[False]]),
        lambda: decide_matches(rule, ["accept"], [0.5], [[0.5]], [[0.0]]),
        lambda: decide_matches(rule, ["accept"], [np.nan], [[0.5]], [[False]]),
    ):
        with pytest.raises(KappaPlaceError):
            call()
