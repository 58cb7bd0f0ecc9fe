"""The paper's numbers, and those that can be measured."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from kappaplace.data.near import Neighborhood
from kappaplace.data.protocols import PROTOCOLS
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.paper import (
    COST,
    LABELS,
    NUMBERS,
    PAPER,
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
from kappaplace.models.checkpoint import load_model, save_model
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


def test_without_data_every_table_and_figure_says_what_it_needs(tmp_path):
    comparison = compare_with_paper([], tmp_path, QUICK)
    assert len(comparison.rows) == len(NUMBERS) + len(COST)
    assert {row.status for row in comparison.rows} == {"measurable"}
    reasons = Counter(row.reason for row in comparison.rows)
    jt = "model: jt=MODEL (KappaPlace-JT, ResNet-50)"
    assert reasons[f"with data: Pitts30k (pitts30k-test.parquet); {jt}"] > 0
    assert reasons["with a GPU: python benchmarks/paper_cost.py --csv FILE, then --cost FILE"] == len(COST)
    items = {item.label: item for item in comparison.items}
    assert len(items) == 19  # 15 tables and 4 figures
    assert items["fig:kappaplace_arch"].status == "not measurable"
    assert items["fig:recall_uncertainty_analysis"].status == "measurable"
    assert all(items["fig:combined_ece_final"].detail.count(f"{name} (") == 1 for name in POOL)
    with pytest.raises(KappaPlaceError, match="There is no folder"):
        compare_with_paper([], tmp_path / "none", QUICK)


def test_every_label_of_the_papers_source_is_listed():
    """The labels of all tables and figures of the paper, without those of the parts of a figure."""
    assert set(LABELS) == {
        *("tab:sf_final", "tab:ams_msls_final", "fig:combined_ece_final", "fig:recall_uncertainty_analysis"),
        *("tab:match_level_selected", "fig:reterival_match_examples", "tab:ablations_combined"),
        *("tab:seed_results_vertical", "tab:pitts_appendix", "tab:ablations_city_scale"),
        *("tab:ablations_environmental", "tab:unc_score_city", "tab:unc_score_environmental"),
        *("fig:kappaplace_arch", "tab:efficiency", "tab:training_times", "tab:l2_cosplace_app"),
        *("tab:sfxl_final", "tab:urban_longterm_final"),
    }


def test_a_small_city_is_not_comparable_with_san_francisco(saved_model, table, tmp_path):
    for name in ("sf-xl-v1", "msls-val"):
        replace(table, name=name, protocol=name).save(tmp_path / f"{name}.parquet")
    machine = Machine(cache=tmp_path / "cache")
    comparison = compare_with_paper([str(saved_model)], tmp_path, QUICK, machine)
    assert set(comparison.evaluations) == {"pt", "baseline"}
    rows = [row for row in paper_rows(comparison) if row["ours"] == row["ours"]]
    assert {row["set"] for row in rows} == {"SF-XL v1", "MSLS-val"}
    assert {row["protocol"] for row in rows} == {"sf-xl-v1", "msls-val"}
    assert {row["method"] for row in rows} == {"L2", "PA-Score", "SUE", "KappaPlace-PT", "KappaPlace-PT 1/κ"}
    metrics = comparison.evaluations["pt"].metrics["sf-xl-v1"]
    (mine,) = [
        r for r in rows if r["set"] == "SF-XL v1" and r["method"] == "PA-Score" and r["metric"] == "ECE@5"
    ]
    assert mine["ours"] == metrics["scores"]["pa"]["ECE@5"]
    assert mine["status"] == "not comparable"
    assert math.isnan(mine["difference"])
    references = len(table.reference_rows)
    assert (mine["queries"], mine["references"], mine["backbone"]) == (24, references, "resnet_tiny")
    assert f"SF-XL v1: 24 × {references} images instead of 1,000 × 2,805,840" in mine["reason"]
    assert "backbone resnet_tiny instead of resnet50" in mine["reason"]
    assert "dimension" in mine["reason"]
    items = {item.label: item for item in comparison.items}
    assert "not comparable" in items["tab:sf_final"].status
    assert "jt=MODEL" in items["tab:sf_final"].detail
    # MSLS is resized to 512×512, San Francisco keeps its size, whatever the model would do by itself.
    sizes = [each.facts["preprocessing"]["size"] for each in comparison.evaluations["pt"].sets]
    assert sizes == [None, [512, 512]]


def test_the_papers_data_and_backbone_are_comparable(saved_model, table, tmp_path, monkeypatch):
    """The same small city, if it were what the paper used."""
    replace(table, name="st", protocol="sf-xl-v1").save(tmp_path / "sf-xl-v1.parquet")
    protocol = replace(PROTOCOLS["sf-xl-v1"], queries=24, references=len(table.reference_rows))
    monkeypatch.setitem(PROTOCOLS, "sf-xl-v1", protocol)
    model = load_model(saved_model)
    monkeypatch.setitem(PAPER["models"], "backbone", model.architecture.backbone)
    monkeypatch.setitem(PAPER["models"], "dim", model.dim)
    comparison = compare_with_paper([str(saved_model)], tmp_path, QUICK, Machine(cache=tmp_path / "cache"))
    row = next(r for r in comparison.rows if r.paper.method == "L2" and r.status == "measured")
    assert row.difference == row.ours - row.paper.value
    assert row.reason == ""


def test_only_the_papers_sets_are_pooled(saved_model, table, tmp_path, monkeypatch):
    """AmsterTime is evaluated, but not pooled: SUE would be missing from all."""
    monkeypatch.setitem(PROTOCOLS, "amstertime", replace(PROTOCOLS["amstertime"], verified=False))
    for name in ("sf-xl-v1", "sf-xl-v2"):
        replace(table, name=name, protocol=name).save(tmp_path / f"{name}.parquet")
    unknown = np.full_like(table.positions, np.nan)
    plain = replace(
        table,
        name="amstertime",
        protocol="amstertime",
        positions=unknown,
        given_positives=table.positives(),
        neighborhood=Neighborhood("self"),
    )
    plain.save(tmp_path / "amstertime.parquet")
    machine = Machine(cache=tmp_path / "cache")
    result = compare_with_paper([f"pt={saved_model}"], tmp_path, QUICK, machine).evaluations["pt"]
    assert [each.name for each in result.sets] == ["sf-xl-v1", "sf-xl-v2", "amstertime"]
    assert "log-sue" not in result.sets[2].scores
    assert result.metrics["pooled"]["queries"] == 2 * 24
    assert set(result.metrics["pooled"]["scores"]) == set(result.sets[0].scores)
    assert result.facts["pool"] == ["sf-xl-v1", "sf-xl-v2"]


def test_seeds_have_our_standard_deviation(saved_model, table, tmp_path):
    replace(table, name="sf-xl-v1", protocol="sf-xl-v1").save(tmp_path / "sf-xl-v1.parquet")
    models = [saved_model]
    for seed in (1, 2):
        other = load_model(saved_model)
        torch.manual_seed(seed)
        torch.nn.init.normal_(other.head.last.weight)
        save_model(other, tmp_path / str(seed))
        models.append(tmp_path / str(seed))
    words = [f"seeds-r18={each}" for each in models]
    comparison = compare_with_paper(words, tmp_path, QUICK, Machine(cache=tmp_path / "cache"))
    row = next(r for r in comparison.rows if r.paper.role == "seeds-r18" and r.ours == r.ours)
    values = [
        each.metrics["sf-xl-v1"]["scores"]["kappaplace"]["ECE@1"] for each in comparison.evaluations.values()
    ]
    assert len(values) == 3
    mean = sum(values) / 3
    assert row.ours == pytest.approx(mean)
    assert row.spread == pytest.approx(math.sqrt(sum((v - mean) ** 2 for v in values) / 2))
    assert "3 of 5 seeds" in row.reason
    assert paper_rows(comparison)[comparison.rows.index(row)]["our spread"] == row.spread


def test_costs_are_read_from_the_benchmark(tmp_path):
    file = tmp_path / "cost.csv"
    header = "device,way,table,method,metric,value"
    file.write_text(
        f"{header}\nH200,paper,tab:efficiency,KappaPlace,parameters M,25.61\n"
        "H200,paper,tab:efficiency,KappaPlace,latency ms,6.7\n"
        "H200,fast,tab:efficiency,Baseline,latency ms,0.5\n"
    )
    comparison = compare_with_paper([], tmp_path, QUICK, cost=file)
    rows = {(row.paper.method, row.paper.metric): row for row in comparison.rows if not row.paper.set}
    assert rows["KappaPlace", "parameters M"].status == "measured"
    assert rows["KappaPlace", "parameters M"].difference == pytest.approx(0)
    latency = rows["KappaPlace", "latency ms"]
    assert (latency.ours, latency.status) == (6.7, "not comparable")
    assert latency.reason.startswith("on H200 instead of NVIDIA RTX PRO 6000")
    assert rows["Baseline", "latency ms"].status == "measurable"
    file.write_text("nothing\n1\n")
    with pytest.raises(KappaPlaceError, match="is not a table of costs"):
        compare_with_paper([], tmp_path, QUICK, cost=file)


def test_roles(saved_model, table, tmp_path):
    assert parse_models(["jt=a", "seeds-r18=b", "seeds-r18=c"]) == {"jt": ["a"], "seeds-r18": ["b", "c"]}
    with pytest.raises(KappaPlaceError, match="more than one model for the role pt"):
        parse_models([str(saved_model), str(saved_model)])
    table.save(tmp_path / "amstertime.parquet")
    with pytest.raises(KappaPlaceError, match="must have the protocol"):
        compare_with_paper([], tmp_path, QUICK)
