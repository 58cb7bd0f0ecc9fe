"""The paper's numbers, and those that can be measured."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.paper import (
    COST,
    NUMBERS,
    POOL,
    POOLED,
    PROTOCOLS_OF,
    ROLES,
    SCORES,
    compare_with_paper,
    paper_rows,
    parse_models,
)
from kappaplace.evaluation.run import Choices, Machine
from kappaplace.uncertainty import SCORES as REGISTRY
from kappaplace.uncertainty import VARIANTS

QUICK = Choices(resamples=0)


def number(table: str, method: str, dataset: str, metric: str) -> float:
    (value,) = [n.value for n in NUMBERS if n[:4] == (table, method, dataset, metric)]
    return value


def test_some_numbers_of_every_table():
    assert number("tab:sf_final", "KappaPlace-JT", "SF-XL v1", "R@1") == 0.789
    assert number("tab:ams_msls_final", "SUE", "MSLS-val", "ECE@10") == 0.264
    assert number("fig:combined_ece_final", "KappaPlace-PT", POOLED, "ECE@1") == 0.066
    assert number("tab:match_level_selected", "KappaPlace-JT", "MSLS-val", "match ECE@10") == 0.363
    assert number("tab:pitts_appendix", "STUN", "Pitts30k", "ECE@5") == 0.475
    assert number("tab:unc_score_city", "KappaPlace-JT 1/κ", "SF-XL v2", "ECE@1") == 0.161
    assert number("tab:ablations_environmental", "Linear-head", "AmsterTime", "ECE@5") == 0.193
    assert number("tab:l2_cosplace_app", "L2 (114 epochs)", "AmsterTime", "R@5") == 0.689
    assert number("tab:urban_longterm_final", "STUN epoch 11", "MSLS-val", "ECE@10") == 0.434
    assert {(n.value, n.spread) for n in NUMBERS if n.set == POOLED and n.role == "seeds-r18"} == {
        (0.079, 0.003),
        (0.170, 0.004),
        (0.198, 0.004),
    }


def test_numbers_are_fractions_with_a_valid_role_set_and_score():
    for each in NUMBERS:
        assert 0 < each.value < 1
        assert each.role in ROLES
        assert each.set in (*PROTOCOLS_OF, POOLED)
        assert not each.score or (each.score in REGISTRY | VARIANTS and each.score in SCORES.split(","))
    assert len({n[:4] for n in NUMBERS}) == len(NUMBERS)
    assert len(NUMBERS) + len(COST) == 391
    assert Counter(n.table for n in NUMBERS)["tab:sf_final"] == 54


def test_without_data_every_row_says_so(tmp_path):
    comparison = compare_with_paper([], tmp_path, QUICK)
    assert len(comparison.rows) == len(NUMBERS) + len(COST)
    reasons = Counter(row.reason for row in comparison.rows)
    assert reasons["no data: Pitts30k"] > 0
    assert reasons["no data: " + ", ".join(POOL)] > 0
    assert "" not in reasons
    with pytest.raises(KappaPlaceError, match="There is no folder"):
        compare_with_paper([], tmp_path / "none", QUICK)


def test_what_can_be_run_is_run(saved_model, table, tmp_path):
    """A small city instead of St. Francis: unverified counts only cause a warning."""
    for name in ("sf-xl-v1", "msls-val"):
        replace(table, name=name, protocol=name).save(tmp_path / f"{name}.parquet")
    machine = Machine(cache=tmp_path / "cache")
    comparison = compare_with_paper([str(saved_model)], tmp_path, QUICK, machine)
    assert set(comparison.evaluations) == {"pt", "baseline"}
    rows = [row for row in paper_rows(comparison) if not row["reason"]]
    assert {row["set"] for row in rows} == {"SF-XL v1", "MSLS-val"}
    assert {row["protocol"] for row in rows} == {"sf-xl-v1", "msls-val"}
    assert {row["method"] for row in rows} == {"L2", "PA-Score", "SUE", "KappaPlace-PT", "KappaPlace-PT 1/κ"}
    metrics = comparison.evaluations["pt"].metrics["sf-xl-v1"]
    (mine,) = [
        r for r in rows if r["set"] == "SF-XL v1" and r["method"] == "PA-Score" and r["metric"] == "ECE@5"
    ]
    assert mine["ours"] == metrics["scores"]["pa"]["ECE@5"]
    assert mine["difference"] == mine["ours"] - 0.713
    reasons = {row.reason for row in comparison.rows}
    assert "no model: jt=MODEL (KappaPlace-JT, ResNet-50)" in reasons
    # MSLS is resized to 512×512, San Francisco keeps its size, whatever the model would do by itself.
    sizes = [each.facts["preprocessing"]["size"] for each in comparison.evaluations["pt"].sets]
    assert sizes == [None, [512, 512]]


def test_roles(saved_model, table, tmp_path):
    assert parse_models(["jt=a", "seeds-r18=b", "seeds-r18=c"]) == {"jt": ["a"], "seeds-r18": ["b", "c"]}
    with pytest.raises(KappaPlaceError, match="more than one model for the role pt"):
        parse_models([str(saved_model), str(saved_model)])
    table.save(tmp_path / "amstertime.parquet")
    with pytest.raises(KappaPlaceError, match="must have the protocol"):
        compare_with_paper([], tmp_path, QUICK)
