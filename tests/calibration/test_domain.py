"""Whether a query is like the correctly answered ones: exact on exchangeable queries, whatever they look
like."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.calibration.calibration import Calibration, judge
from kappaplace.calibration.combination import Signal
from kappaplace.calibration.decision import DecisionRule
from kappaplace.calibration.domain import KAPPA, LEVEL, Domain, fit_domain
from kappaplace.calibration.examples import Examples
from kappaplace.calibration.fit import fit_calibration
from kappaplace.calibration.options import CalibrateOptions
from kappaplace.errors import KappaPlaceError
from kappaplace.records import from_plain, to_plain
from kappaplace.retrieval.evidence import retrieve
from kappaplace.retrieval.references import ArrayReferences, Queries
from kappaplace.types import Embeddings


def world(rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    """Skewed, correlated and heavy-tailed signals."""
    light = rng.gamma(2.0, 0.1, n)
    return {
        "cosine": rng.beta(2, 5, n),
        KAPPA: 5 + light + rng.standard_t(3, n) / 10,
        "brightness": light,
        "contrast": light / 2 + rng.normal(0, 0.02, n),
    }


def inside(domain: Domain, signals: dict[str, np.ndarray]) -> np.ndarray:
    """Which queries are like the rows of a domain."""
    return np.array([not reason for reason in domain.differences(signals)])


def test_the_test_costs_as_many_correct_queries_as_it_states() -> None:
    lost = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        domain = fit_domain(world(rng, 200), np.ones(200, bool), seed)
        lost.append((~inside(domain, world(rng, 50))).mean())
    # 100 distances: p ≤ 0.02 exactly if the query is the farthest of the 101.
    expected = 2 / 101 if LEVEL * 101 >= 2 else 1 / 101
    assert np.mean(lost) == pytest.approx(expected, abs=4 * np.sqrt(0.02 / 300 / 10))


def test_against_a_loop() -> None:
    rng = np.random.default_rng(0)
    signals = world(rng, 120)
    domain = fit_domain(signals, np.ones(120, bool))
    queries = world(rng, 30)
    table = np.array(domain.rows)
    first, second = table[:60], table[60:]
    center = np.median(first, axis=0)
    least = np.array([0.02, 0.05, 0.01, 0.01])
    scale = np.maximum(first.std(axis=0), least)

    def deviation(row: np.ndarray) -> np.ndarray:
        z = (row - center) / scale
        z[0] = max(z[0], 0.0)  # a closer match than usual is not suspicious
        return z

    spread = np.mean([np.outer(deviation(row), deviation(row)) for row in first], axis=0)
    matrix = 0.9 * spread + 0.1 * np.diag(np.maximum(np.diag(spread), 0.1))

    def distance(row: np.ndarray) -> float:
        z = deviation(row)
        return float(z @ np.linalg.solve(matrix, z))

    others = [distance(row) for row in second]
    for number in range(30):
        own = distance(np.array([queries[name][number] for name in domain.columns]))
        p = (1 + sum(other >= own for other in others)) / 61
        one = {name: values[number : number + 1] for name, values in queries.items()}
        assert inside(domain, one)[0] == (p > max(LEVEL, 1 / 61))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.floats(0.0, 0.9))
def test_a_better_match_is_never_suspicious(seed: int, gain: float) -> None:
    rng = np.random.default_rng(seed)
    domain = fit_domain(world(rng, 100), np.ones(100, bool), seed)
    queries = world(rng, 20)
    closer = {**queries, "cosine": queries["cosine"] * gain}
    assert (inside(domain, closer) >= inside(domain, queries)).all()


def test_what_differs_most_is_named() -> None:
    rng = np.random.default_rng(0)
    domain = fit_domain(world(rng, 200), np.ones(200, bool))
    query = {name: np.median(values)[None] for name, values in world(rng, 200).items()}
    assert domain.differences(query) == ("",)
    for name, value, words in (
        ("cosine", 3.0, "less similar"),
        (KAPPA, -20.0, "kappa"),
        ("brightness", 30.0, "brightness"),
    ):
        assert words in domain.differences({**query, name: np.array([value])})[0]


def test_only_common_columns_count_and_few_rows_reject_only_what_is_beyond_all() -> None:
    rng = np.random.default_rng(0)
    domain = fit_domain(world(rng, 12), np.ones(12, bool))
    assert not domain.conclusive
    assert not inside(domain, {"cosine": np.array([50.0])})[0]
    assert inside(domain, {"cosine": np.array([0.0])})[0]
    assert inside(domain, {"another": np.array([50.0])})[0]
    assert domain.only([KAPPA]).columns == (KAPPA,)
    one = Domain(("cosine",), ((0.1,),))  # nothing to compare with
    assert inside(one, {"cosine": np.array([9.0])})[0]
    assert from_plain(Domain, to_plain(domain)) == domain
    assert fit_domain({}, np.ones(3, bool)) is None
    assert replace(domain, level=0.2).conclusive


def test_only_correct_queries_are_kept_and_constant_ones_are_no_knife_edge() -> None:
    cosine = np.concatenate([np.full(150, 0.2), np.full(50, 0.9)])
    domain = fit_domain({"cosine": cosine, "contrast": np.full(200, 0.3)}, cosine < 0.5)
    assert len(domain.rows) == 150
    assert inside(domain, {"cosine": np.array([0.2]), "contrast": np.array([0.3])})[0]
    assert not inside(domain, {"cosine": np.array([0.9]), "contrast": np.array([0.3])})[0]


@pytest.fixture
def evidence():
    rng = np.random.default_rng(0)
    unit = rng.normal(size=(40, 8))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    references = ArrayReferences(Embeddings(unit.astype(np.float32)), np.arange(80.0).reshape(40, 2) * 100)
    queries = Queries(Embeddings(np.concatenate([unit[:3], -unit[:1]]).astype(np.float32)))
    return retrieve(queries, references, 5)


def calibration(domain: Domain | None) -> Calibration:
    rng = np.random.default_rng(0)
    uncertainty = rng.random(400) / 10
    right = rng.random(400) > uncertainty
    made = fit_calibration(Examples(uncertainty, right, ["cosine"]), CalibrateOptions(0.2))
    assert isinstance(made.top, Signal)
    assert isinstance(made.rule, DecisionRule)
    return replace(made, domain=domain, rule=replace(made.rule, accept_at=2.0, reject_at=np.inf))


def test_a_query_outside_is_never_accepted_and_nothing_is_guaranteed_for_it(evidence) -> None:
    rows = tuple((float(value),) for value in np.random.default_rng(1).uniform(0, 0.1, 200))
    careful = judge(evidence, calibration(Domain(("cosine",), rows)))
    careless = judge(evidence, calibration(None))
    assert careless.decision == ["accept"] * 4
    assert not careless.guaranteed.any()  # nothing tells which queries are like those of the calibration
    assert careful.decision == ["accept"] * 3 + ["doubtful"]
    assert careful.guaranteed.tolist() == [True, True, True, False]
    assert [bool(reason) for reason in careful.reasons] == [False, False, False, True]


def test_too_few_queries_are_replaced_by_those_of_other_places(evidence) -> None:
    few = Domain(("cosine",), ((0.0,), (0.9,), (1.9,), (0.1,), (1.5,), (1.2,)))
    bank = Domain(("cosine",), tuple((value,) for value in np.random.default_rng(1).uniform(0, 0.1, 200)))
    alone = judge(evidence, calibration(few))
    judged = judge(evidence, calibration(few), bank=bank)
    assert not alone.guaranteed.any()
    assert not judged.guaranteed.any()
    assert judged.decision == ["accept"] * 3 + ["doubtful"]


def test_a_query_must_be_like_the_few_rows_and_like_those_of_other_places(
    evidence,
) -> None:
    """The bank has maps of every kind: photos of other places are like some of them."""
    few = Domain(("cosine",), tuple((value,) for value in np.linspace(0, 0.1, 30)))
    wide = Domain(("cosine",), tuple((value,) for value in np.random.default_rng(1).uniform(0, 3.0, 400)))
    judged = judge(evidence, calibration(few), bank=wide)
    assert judged.decision == ["accept"] * 3 + ["doubtful"]
    assert "than in all of them" in judged.reasons[3]
    assert not judged.guaranteed.any()


def test_few_rows_do_not_reject_what_is_only_slightly_farther_away() -> None:
    lost = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        few = fit_domain(world(rng, 30), np.ones(30, bool), seed)
        lost.append((~inside(few, world(rng, 50))).mean())
    assert np.mean(lost) < 0.8 / 16  # beyond all 15 distances: 1/16


def test_a_calibration_without_a_domain_uses_the_bank_and_guarantees_nothing(evidence) -> None:
    """As files of earlier versions are."""
    bank = Domain(("cosine",), tuple((value,) for value in np.random.default_rng(1).uniform(0, 0.1, 200)))
    judged = judge(evidence, calibration(None), bank=bank)
    assert judged.decision == ["accept"] * 3 + ["doubtful"]
    assert not judged.guaranteed.any()


def test_a_stored_threshold_that_accepts_everything_ends_at_the_queries_of_the_calibration() -> None:
    made = calibration(None)
    values = json.loads(json.dumps(made.to_dict()))
    values["rule"] |= {"accept_at": "inf", "reject_at": "inf"}
    read = Calibration.from_dict(values)
    assert read.rule.accept_at == made.sketch.values["uncertainty"][-1]
    assert list(read.decide(np.array([read.rule.accept_at + 0.01]))) == ["doubtful"]
    values["sketch"] = None
    with pytest.raises(KappaPlaceError, match="cannot accept every answer"):
        Calibration.from_dict(values)
