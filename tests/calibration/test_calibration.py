"""The whole calibration: fitted in one call, stored, used."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.combination import fit_combination
from kappaplace.calibration.decision import Decision
from kappaplace.calibration.drift import DriftMonitor
from kappaplace.calibration.examples import Examples
from kappaplace.calibration.fit import _drawn, check_label_count, fit_calibration
from kappaplace.calibration.options import OUTSIDE_RATE, CalibrateOptions, split_queries
from kappaplace.calibration.risk import RiskRefused, control_risk
from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.agreement import AGREEMENT
from tests.calibration.helpers import with_outside


def world(seed: int, n: int = 2000, rate: float = 0.2) -> Examples:
    """Two scores, pairs and a κ; the first match decides success."""
    u, right, outside = with_outside(seed, n, rate)
    rng = np.random.default_rng(seed + 10_000)
    pair = u[:, None] + np.arange(3) * 0.5 + rng.normal(0, 0.2, (n, 3))
    hits = np.column_stack([right, rng.random((n, 2)) < 0.4]) & ~outside[:, None]
    return Examples(
        np.column_stack([u * 2 - 1.5, u + rng.normal(0, 1, n)]),
        right,
        ["margin", "cosine"],
        pair,
        hits,
        ["l2"],
        outside,
        signals={"kappa": rng.gamma(5, 1, n)},
        facts={"date": "2030-01-01"},
    )


def test_one_call_makes_everything_and_json_keeps_it() -> None:
    data = world(0)
    calibration = fit_calibration(data, CalibrateOptions(max_risk=0.1))
    again = Calibration.from_dict(json.loads(json.dumps(calibration.to_dict(), allow_nan=False)))
    assert again == calibration
    fresh = world(1)
    p = again.probability(fresh.features)
    np.testing.assert_array_equal(p, calibration.probability(fresh.features))
    assert abs(p.mean() - fresh.right.mean()) < 0.05
    inside = again.inside_probability(fresh.features)
    assert inside is not None
    assert abs((1 - inside).mean() - fresh.outside.mean()) < 0.05
    pairs = again.pair_probability(fresh.pairs)
    assert pairs.shape == (2000, 3)
    assert abs(pairs.mean() - fresh.pair_right.mean()) < 0.05
    assert again.scores == ("margin", "cosine")
    assert again.pair_scores == ("l2",)
    assert again.facts["date"] == "2030-01-01"
    assert again.facts["fitted_on"] + again.facts["thresholds_on"] == again.facts["queries"] == 2000
    decisions = again.decide(fresh.features)
    accepted = decisions == Decision.ACCEPT
    assert accepted.any()
    assert (~fresh.right[accepted]).mean() <= 0.1
    assert again.rule is not None
    assert again.rule.guaranteed
    monitor = DriftMonitor(again.sketch, 500)
    uncertainty = again.uncertainty(fresh.features)
    assert monitor.update({"kappa": fresh.signals["kappa"], "uncertainty": uncertainty}) == []
    assert monitor.update({"kappa": fresh.signals["kappa"] / 2, "uncertainty": uncertainty})


def test_thresholds_come_from_the_split_that_nothing_was_fitted_on() -> None:
    data = world(0)
    parts = split_queries(2000, seed=3)
    combination = fit_combination(data.features[parts.fit], data.right[parts.fit], ["margin", "cosine"])
    calibration = fit_calibration(
        Examples(data.features, data.right, data.scores),
        CalibrateOptions(max_risk=0.1, seed=3, calibrator="logistic"),
    )
    assert calibration.top.combination == combination
    uncertainty = 1 - combination.probability(data.features)
    alone = control_risk(uncertainty[parts.threshold], data.right[parts.threshold], 0.1)
    assert calibration.rule is not None
    assert calibration.rule.accepted == alone


def test_the_version_of_patch_matching_is_stored_and_checked() -> None:
    rng = np.random.default_rng(0)
    values = rng.random((200, 1))
    examples = Examples(values, rng.random(200) > values[:, 0], ["patches"], rerank=10)
    calibration = fit_calibration(examples, CalibrateOptions(max_risk=None))
    assert calibration.agreement == AGREEMENT
    stored = calibration.to_dict()
    assert not Calibration.from_dict(stored).outdated
    del stored["agreement"]  # as earlier versions wrote it
    older = Calibration.from_dict(stored)
    assert (older.agreement, older.outdated) == (1, True)
    with pytest.raises(KappaPlaceError, match="earlier version of patch matching"):
        older.check_patches()
    plain = fit_calibration(replace(examples, rerank=0), CalibrateOptions(max_risk=None))
    assert "agreement" not in plain.to_dict()
    plain.check_patches()


def test_a_single_score_and_a_ready_combination() -> None:
    data = world(0)
    single = fit_calibration(
        Examples(data.features[:, 0], data.right, ["margin"]), CalibrateOptions(max_risk=None)
    )
    np.testing.assert_array_equal(single.uncertainty(data.features[:, 0]), data.features[:, 0])
    np.testing.assert_array_equal(
        single.probability(data.features[:, :1]), single.probability(data.features[:, 0])
    )
    with pytest.raises(KappaPlaceError, match="no decision rule"):
        single.decide(data.features[:, 0])
    with pytest.raises(KappaPlaceError, match="single matches"):
        single.pair_probability(data.pairs)
    ready = fit_combination(data.features, data.right, data.scores)
    given = fit_calibration(
        Examples(data.features, data.right, data.scores),
        CalibrateOptions(max_risk=None),
        combination=ready,
    )
    assert given.top.combination == ready


def test_pairs_of_several_scores() -> None:
    data = world(0)
    both = np.stack([data.pairs, data.pairs**2], axis=-1)
    calibration = fit_calibration(
        replace(data, pairs=both, pair_scores=["l2", "cosine"]), CalibrateOptions(max_risk=0.1)
    )
    assert calibration.pair_probability(both).shape == (2000, 3)


def test_a_stated_share_from_outside_moves_probabilities_and_thresholds() -> None:
    data = world(0, 6000, 0.4)
    rare = fit_calibration(data, CalibrateOptions(max_risk=0.25, outside_rate=0.05))
    often = fit_calibration(data, CalibrateOptions(max_risk=0.25, outside_rate=0.5))
    features = data.features
    assert (rare.probability(features) >= often.probability(features)).all()
    assert (rare.probability(features, 0.5) == often.probability(features)).all()
    assert rare.rule is not None
    assert often.rule is not None
    assert rare.rule.accept_at > often.rule.accept_at
    assert rare.rule.accepted is not None
    assert rare.rule.accepted.confidence == 0.95
    for calibration, rate in ((rare, 0.05), (often, 0.5)):
        fresh = world(7, 20_000, rate)
        accepted = calibration.decide(fresh.features) == Decision.ACCEPT
        assert (~fresh.right[accepted]).mean() <= 0.25


def test_the_promise_for_a_stated_share_holds_over_many_draws() -> None:
    """Calibrated at 40 % from outside, used at 10 %: the truth is a large sample of that world."""
    u, right, _ = with_outside(99, 200_000, 0.1)
    order = np.argsort(u)
    risk = np.cumsum(~right[order]) / np.arange(1, len(u) + 1)
    broken = 0
    for seed in range(120):
        v, won, outside = with_outside(seed, 600, 0.4)
        try:
            rule = fit_calibration(
                Examples(v, won, ["margin"], outside=outside),
                CalibrateOptions(
                    0.15, 0.9, outside_rate=0.1, reject_risk=None, calibrator="logistic", seed=seed
                ),
            ).rule
        except RiskRefused:
            continue
        assert rule is not None
        taken = int(np.searchsorted(u[order], rule.accept_at, side="right"))
        broken += risk[taken - 1] > 0.15
    assert broken / 120 <= 0.1 + 3 * np.sqrt(0.09 / 120)


def test_no_example_from_outside_no_guarantee_for_them() -> None:
    u, right, _ = with_outside(0, 2000, 0.0)
    unproven = fit_calibration(Examples(u, right, ["margin"]), CalibrateOptions(0.15, outside_rate=0.2))
    assert unproven.rule is not None
    assert not unproven.rule.guaranteed
    assert any("nothing is guaranteed" in line for line in unproven.rule.promise())
    inside_only = fit_calibration(Examples(u, right, ["margin"]), CalibrateOptions(0.15, outside_rate=0.0))
    assert inside_only.rule is not None
    assert inside_only.rule.guaranteed


def test_self_calibration_never_carries_a_guarantee_and_never_refuses() -> None:
    for n in (60, 2000):
        u, right, outside = with_outside(0, n, 0.5)
        calibration = fit_calibration(
            Examples(u, right, ["margin"], outside=outside, labeled=False), CalibrateOptions(0.01)
        )
        assert calibration.rule is not None
        assert not calibration.rule.guaranteed
        text = " ".join(calibration.rule.promise())
        assert "No guarantee" in text
        assert "Self-calibrated" in text
        assert len(calibration.decide(u)) == n


def test_without_labels_no_answer_is_accepted_that_is_less_certain_than_every_correct_one() -> None:
    """A risk of 30% would allow to accept everything, out-of-map queries included."""
    n = 400
    outside = np.arange(n) >= n // 2
    rng = np.random.default_rng(0)
    u = np.where(outside, rng.uniform(0.7, 1.0, n), rng.uniform(0.0, 0.5, n))
    examples = Examples(u, ~outside, ["margin"], outside=outside, labeled=False)
    made = fit_calibration(examples, CalibrateOptions(0.3, 0.9, outside_rate=0.1))
    assert made.rule is not None
    assert made.rule.on == "uncertainty"
    accepted = made.decide(u) == "accept"
    assert not accepted[outside].any()
    assert accepted[~outside].mean() > 0.9


def test_a_refusal_counts_all_labeled_queries() -> None:
    u, right, outside = with_outside(0, 80, 0.1)
    with pytest.raises(
        RiskRefused, match=r"needs 118 labelled queries, got 80\. Label more, or allow"
    ) as caught:
        fit_calibration(Examples(u, right, ["margin"], outside=outside))
    assert caught.value.needed == 118


def test_bad_input() -> None:
    data = world(0, 300)
    features, right = data.features, data.right
    options = CalibrateOptions(0.3)
    for change, word in (
        ({"features": features[:-1]}, "shape"),
        ({"features": features[:, :1]}, "shape"),
        ({"right": right.astype(float)}, "booleans"),
        ({"outside": right}, "cannot be correct"),
        ({"features": features * np.nan}, "NaN"),
        ({"scores": []}, "one score"),
        ({"pair_right": None}, "booleans"),
        ({"pair_right": data.pair_right[:5]}, "one row per query"),
        ({"signals": {"kappa": np.ones(3)}}, "one value of each signal per query"),
    ):
        with pytest.raises(KappaPlaceError, match=word):
            fit_calibration(replace(data, **change), options)
    with pytest.raises(KappaPlaceError, match="below 1"):
        fit_calibration(data, CalibrateOptions(0.3, outside_rate=1.0))
    calibration = fit_calibration(data, options)
    with pytest.raises(KappaPlaceError, match="margin, cosine"):
        calibration.probability(features[:, 0])
    stored = calibration.to_dict()
    for broken in ({}, None, {**stored, "format": 2}, {**stored, "right": None}, {**stored, "more": 1}):
        with pytest.raises(KappaPlaceError):
            Calibration.from_dict(broken)


def test_only_correct_answers_keep_the_prior_and_abstain_below_it() -> None:
    data = world(0, 400)
    prior = fit_calibration(data, CalibrateOptions(0.3))
    rows = np.flatnonzero(data.right)
    good = replace(
        data,
        features=data.features[rows],
        right=data.right[rows],
        pairs=None,
        pair_right=None,
        outside=None,
        groups=None,
        signals={},
    )
    with pytest.raises(KappaPlaceError, match="only correct ones"):
        fit_calibration(good, CalibrateOptions(0.1))
    made = fit_calibration(good, CalibrateOptions(0.1), prior=prior)
    assert made.rule is not None
    assert (made.rule.on, made.rule.accept_at, made.rule.guaranteed) == ("probability", 0.9, False)
    assert any("at least 10 incorrect" in line for line in made.rule.promise())
    assert (made.probability(good.features) == prior.probability(good.features)).all()
    decisions = made.decide(good.features)
    assert (decisions[prior.probability(good.features) < 0.9] != "accept").all()


def test_counterparts_are_drawn_as_independent_queries() -> None:
    """One of the two of each query sets the threshold, out-of-map with the expected rate."""
    rng = np.random.default_rng(0)
    n = 4000
    groups = np.tile(np.arange(n), 2)
    outside = np.repeat([False, True], n)
    uncertainty = np.where(outside, rng.beta(6, 2, 2 * n), rng.beta(2, 6, 2 * n))
    right = ~outside & (rng.random(2 * n) > 0.02)
    examples = Examples(uncertainty, right, ["margin"], outside=outside, groups=groups, counterparts=True)
    made = fit_calibration(examples, CalibrateOptions(0.05))
    assert made.outside_rate == OUTSIDE_RATE
    assert made.facts["queries"] == n
    assert made.sketch is not None
    assert made.sketch.count == n  # drift is measured against the queries, not their counterparts
    assert made.rule is not None
    assert made.rule.guaranteed
    rows = _drawn(examples, OUTSIDE_RATE, 0, 0.0)
    assert len(set(groups[rows])) == len(rows) == n
    assert outside[rows].mean() == pytest.approx(OUTSIDE_RATE, abs=4 * np.sqrt(0.09 / n))
    accepted = made.rule.decide(uncertainty=uncertainty[rows]) == "accept"
    assert (~right[rows])[accepted].mean() <= 0.05


def test_the_label_in_the_way_is_named_and_the_count_is_one_number() -> None:
    rng = np.random.default_rng(3)
    uncertainty = rng.random(120)
    right = rng.random(120) > 0.26 * uncertainty**2
    right[np.argsort(uncertainty)[[4, 8]]] = False
    names = [f"q{number}.jpg" for number in range(120)]
    options = CalibrateOptions(0.1, 0.9, method="bonferroni")
    with pytest.raises(RiskRefused) as caught:
        fit_calibration(Examples(uncertainty, right, ["margin"], names=names), options)
    message = str(caught.value)
    threshold = split_queries(120, None, 0).threshold
    first = threshold[np.argmin(np.where(right[threshold], np.inf, uncertainty[threshold]))]
    assert f"'q{first}.jpg', the most confident incorrect answer" in message
    assert f"about {caught.value.needed:,} queries in all" in message
    assert len(re.findall(r"\d[\d,]* (?:labelled )?queries", message)) == 2  # what there is, and is needed
    assert "these 120 labelled queries" in message
    assert message.count(". ") == 1
    options = replace(options, method="multi-start")
    advice = rf"about [\d,]+ queries in all, allow a risk of \d+%, or check the label of 'q{first}\.jpg'"
    with pytest.raises(RiskRefused, match=advice) as caught:
        fit_calibration(Examples(uncertainty, right, ["margin"], names=names), options)
    assert caught.value.needed
    right[np.argsort(uncertainty)[:12]] = False
    with pytest.raises(RiskRefused, match=r"incorrect\. Allow a risk of \d+%, or check") as caught:
        fit_calibration(Examples(uncertainty, right, ["margin"], names=names), options)
    assert (caught.value.needed, caught.value.lowest is None) == (None, False)
    with pytest.raises(RiskRefused, match=r"at least 118 labelled queries, got 117"):
        check_label_count(117, CalibrateOptions())
    check_label_count(118, CalibrateOptions())
    check_label_count(1, CalibrateOptions(max_risk=None))
