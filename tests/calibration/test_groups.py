"""Guarantees per group: kept in 1,000 draws, abstaining without labels, and chosen by κ or name."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from kappaplace.calibration.calibration import Calibration, judge
from kappaplace.calibration.decision import DecisionRule
from kappaplace.calibration.examples import Examples
from kappaplace.calibration.fit import fit_calibration
from kappaplace.calibration.groups import RANGES, GroupRules, kappa_edges, kappa_groups
from kappaplace.calibration.options import CalibrateOptions
from kappaplace.calibration.risk import RiskRefused
from kappaplace.data.near import Near
from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.evidence import retrieve
from kappaplace.retrieval.references import ArrayReferences, Queries
from kappaplace.types import Embeddings

SHIFT = {"day": 3.5, "night": 1.2}
OPTIONS = CalibrateOptions(max_risk=0.1, confidence=0.9, groups="condition", calibrator="logistic")


def world(seed: int, n: int = 1500, night: float = 0.4) -> tuple[Examples, np.ndarray]:
    """Return queries by day and night: with the same score, an answer by night is less often correct."""
    rng = np.random.default_rng(seed)
    group = np.where(rng.random(n) < night, "night", "day")
    u = rng.uniform(0, 1, n)
    logit = np.array([SHIFT[name] for name in group.tolist()]) + 3 * (0.6 - u)
    right = rng.random(n) < 1 / (1 + np.exp(-logit))
    kappa = np.where(group == "night", 20.0, 200.0) * rng.uniform(0.8, 1.2, n)
    return Examples(u, right, ["cosine"], strata=group.tolist(), signals={"kappa": kappa}), group


def risk_at(threshold: float, name: str) -> float:
    """Return the true risk of accepting up to a threshold, by integration."""
    u = np.linspace(0, threshold, 2001)
    return float(np.mean(1 / (1 + np.exp(SHIFT[name] + 3 * (0.6 - u)))))


def test_the_risk_is_kept_in_each_group_in_1000_draws() -> None:
    broken = dict.fromkeys(SHIFT, 0)
    tested = dict(broken)
    plain = 0
    for seed in range(1000):
        examples, _ = world(seed)
        try:
            calibration = fit_calibration(examples, replace(OPTIONS, seed=seed))
        except RiskRefused:
            continue
        assert calibration.groups is not None
        for name, rule in calibration.groups.rules.items():
            tested[name] += 1
            broken[name] += risk_at(rule.accept_at, name) > 0.1
        assert calibration.rule is not None
        plain += risk_at(calibration.rule.accept_at, "night") > 0.1
    for name, count in broken.items():
        assert tested[name] >= (900 if name == "day" else 20)
        assert count <= 0.1 * 1000 + 3 * np.sqrt(1000 * 0.1 * 0.9)
    assert plain > 300  # a single threshold does not keep the risk by night


def answers(calibration: Calibration, u: np.ndarray, group: str | None = None, kappa: float = 200.0):
    """Judge queries whose cosine distance is ``u``."""
    references = ArrayReferences(
        Embeddings(np.eye(2, 3, dtype=np.float32), np.ones(2, np.float32)), neighborhood=Near()
    )
    cosine = 1 - np.asarray(u)
    vectors = np.column_stack([cosine, np.zeros_like(cosine), np.sqrt(1 - cosine**2)]).astype(np.float32)
    queries = Queries(Embeddings(vectors, np.full(len(u), kappa, np.float32)))
    return judge(retrieve(queries, references, 1), replace(calibration, domain=None), group=group)


@pytest.fixture(scope="module")
def fitted() -> Calibration:
    return fit_calibration(world(0, 6000)[0], OPTIONS)


def test_each_query_is_decided_by_its_group(fitted: Calibration) -> None:
    assert fitted.groups is not None
    day, night = (fitted.groups.rules[name].accept_at for name in ("day", "night"))
    assert night < day
    assert Calibration.from_dict(json.loads(json.dumps(fitted.to_dict(), allow_nan=False))) == fitted
    u = np.array([night / 2, (night + day) / 2])
    assert answers(fitted, u, "day").decision == ["accept", "accept"]
    assert answers(fitted, u, "night").decision[0] == "accept"
    assert answers(fitted, u, "night").decision[1] != "accept"
    unknown = answers(fitted, u)  # the strictest group decides
    assert unknown.decision == answers(fitted, u, "night").decision
    assert all("No group was selected" in note for note in unknown.notes)
    assert answers(fitted, u, "day").notes == ("", "")
    with pytest.raises(KappaPlaceError, match=r"Unknown group 'dusk' of condition\. Choose from: day, night"):
        answers(fitted, u, "dusk")
    with pytest.raises(KappaPlaceError, match="has no groups"):
        answers(replace(fitted, groups=None), u, "day")


def test_a_group_with_too_few_labels_abstains_and_names_the_number() -> None:
    examples, _ = world(1, 1500, night=0.02)
    calibration = fit_calibration(examples, OPTIONS)
    groups = calibration.groups
    assert groups is not None
    assert list(groups.rules) == ["day"]
    assert groups.needed["night"] >= 44  # 22 accepted answers in the half that sets thresholds
    judged = answers(calibration, np.array([0.001]), "night")
    assert judged.decision != ["accept"]
    assert not judged.guaranteed.any()
    assert f"night (about {groups.needed['night']:,} labelled queries are needed)" in judged.notes[0]
    assert answers(calibration, np.array([0.001])).decision != ["accept"]  # it might be by night
    assert answers(calibration, np.array([0.001]), "day").decision == ["accept"]
    assert any("Nothing is guaranteed or accepted in night" in line for line in calibration.rule.promise())


def test_groups_by_kappa_are_detected() -> None:
    calibration = fit_calibration(world(2, 6000, night=0.34)[0], replace(OPTIONS, groups="kappa"))
    groups = calibration.groups
    assert groups is not None
    assert groups.names == RANGES
    low, high = groups.edges
    assert 16 <= low <= 240
    assert low < high
    assert kappa_groups(np.array([0.0, low, high, 1e9]), groups.edges) == [
        "low kappa",
        "medium kappa",
        "high kappa",
        "high kappa",
    ]
    u = np.array([groups.rules["high kappa"].accept_at - 1e-6])
    assert answers(calibration, u, kappa=230.0).decision == ["accept"]
    assert answers(calibration, u, kappa=18.0).decision != ["accept"]
    with pytest.raises(KappaPlaceError, match="ranges of kappa, which are detected"):
        answers(calibration, u, "low kappa")


def test_what_cannot_be_grouped() -> None:
    examples, _ = world(3)
    with pytest.raises(KappaPlaceError, match="need a model with a kappa head"):
        fit_calibration(replace(examples, signals={}), replace(OPTIONS, groups="kappa"))
    with pytest.raises(KappaPlaceError, match="no column 'condition'"):
        fit_calibration(replace(examples, strata=()), OPTIONS)
    with pytest.raises(KappaPlaceError, match="need labelled queries"):
        fit_calibration(replace(examples, labeled=False), OPTIONS)
    assert fit_calibration(examples, replace(OPTIONS, groups="")).groups is None


def test_edges_are_thirds_of_the_fitting_part() -> None:
    assert kappa_edges(np.arange(1, 10.0)) == pytest.approx((1 + 8 / 3, 1 + 16 / 3))


def test_results_by_quarter_of_difficulty() -> None:
    calibration = fit_calibration(world(4, 4000)[0], OPTIONS)
    parts = calibration.difficulty
    assert sum(part.queries for part in parts) == calibration.facts["thresholds_on"]
    rates = [part.correct / part.queries for part in parts]
    assert rates == sorted(rates, reverse=True)
    assert parts[0].accepted == parts[0].queries
    assert parts[-1].accepted < parts[-1].queries
    assert sum(part.errors for part in parts) <= sum(part.accepted for part in parts) * 0.1 + 1
    assert "correct" in parts[0].sentence


def test_rules_of_groups_need_a_name() -> None:
    groups = GroupRules("condition", {}, {"night": 0})
    decided, valid = groups.decide(["night", None], np.zeros(2), np.ones(2))
    assert [str(each) for each in decided] == ["doubtful", "doubtful"]
    assert not valid.any()
    assert isinstance(DecisionRule("probability", 0.9, 0.1), DecisionRule)
