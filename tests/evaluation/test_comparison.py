"""Evaluations side by side."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from kappaplace.data.positives import Positives
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.comparison import compare, spread_over_seeds, write_comparison
from kappaplace.evaluation.inputs import from_similarities
from kappaplace.evaluation.results import EvaluationResult
from kappaplace.evaluation.run import Choices, evaluate_sets


def noisy(noise: float, seed: int = 0, queries: int = 80, name: str = "SET", **rest) -> EvaluationResult:
    """Query i shows reference i, with more or less noise; the queries are the same for every noise."""
    rng = np.random.default_rng(seed)
    matrix = 0.2 * np.eye(queries) + noise * rng.uniform(-0.2, 0.2, (queries, queries))
    positives = Positives.from_lists([[i] for i in range(queries)], queries)
    measured = from_similarities(matrix.astype(np.float32), positives, name=name)
    measured = replace(measured, facts={"hash": f"{name}{queries}"})
    return evaluate_sets(f"noise {noise}", [measured], Choices("cosine,pa", resamples=0), **rest)


def test_a_clear_difference_is_found_and_none_is_not():
    good, bad = noisy(0.9), noisy(1.6)
    table = compare([good, bad, good], "R@1", resamples=400)
    (first, worse, same) = table.sets[0].rows[""]
    assert first is not None
    assert worse is not None
    assert same is not None
    assert math.isnan(first.p_value)
    assert worse.difference == pytest.approx(worse.value - first.value)
    assert worse.difference < 0
    assert worse.p_value < 0.05
    assert (same.difference, same.p_value) == (0, 1)


def test_seeds_have_a_mean_and_a_standard_deviation():
    runs = [replace(noisy(noise), facts={"fingerprint": str(noise)}) for noise in (0.9, 1.2, 1.6)]
    rows = {row[:3]: row for row in spread_over_seeds(runs)}
    values = [run.metrics["SET"]["scores"]["pa"]["ECE@1"] for run in runs]
    mean = sum(values) / 3
    row = rows["SET", "pa", "ECE@1"]
    assert row.mean == pytest.approx(mean)
    assert row.std == pytest.approx(math.sqrt(sum((value - mean) ** 2 for value in values) / 2))
    assert row.runs == 3
    recall = [run.metrics["SET"]["recall"]["R@1"] for run in runs]
    assert rows["SET", "", "R@1"].mean == pytest.approx(np.mean(recall))
    assert {row.metric for row in spread_over_seeds(runs, ["R@1", "ECE@5"])} == {"R@1", "ECE@5"}


def test_runs_that_are_not_seeds_of_each_other_are_an_error():
    run = replace(noisy(0.9), facts={"fingerprint": "a"})
    with pytest.raises(KappaPlaceError, match="at least two runs, got 1"):
        spread_over_seeds([run])
    with pytest.raises(KappaPlaceError, match="same model"):
        spread_over_seeds([run, run])
    other = replace(noisy(0.9, queries=60), facts={"fingerprint": "b"})
    with pytest.raises(KappaPlaceError, match="must have the same queries"):
        spread_over_seeds([run, other])
    with pytest.raises(KappaPlaceError, match=r"No metric has the name ECE@2"):
        spread_over_seeds([run, replace(noisy(1.2), facts={"fingerprint": "b"})], ["ECE@2"])


def test_the_ece_of_a_constant_score_is_flagged():
    good, bad = noisy(0.9), noisy(1.2)
    bad.sets[0].scores["pa"] = replace(bad.sets[0].scores["pa"], query=np.ones(80))
    rows = compare([good, bad], "ECE@1", resamples=100).sets[0].rows
    assert [cell.flaw for cell in rows["pa"]] == ["", "constant"]
    assert all(cell.flaw == "" for cell in compare([good, bad], "AUROC", resamples=100).sets[0].rows["pa"])


def test_one_evaluation_compares_its_scores():
    table = compare([noisy(1.2)], "AUROC", resamples=200)
    rows = table.sets[0].rows
    assert list(rows) == ["cosine", "pa"]
    cosine, pa = rows["cosine"][0], rows["pa"][0]
    assert cosine is not None
    assert pa is not None
    assert math.isnan(cosine.p_value)
    assert 0 < pa.p_value <= 1
    assert pa.difference == pytest.approx(pa.value - cosine.value)


def test_one_score_against_all_others():
    rows = compare([noisy(1.2)], "AUROC", against="pa", resamples=200).sets[0].rows
    cosine, pa = rows["cosine"][0], rows["pa"][0]
    assert cosine is not None
    assert pa is not None
    assert math.isnan(pa.p_value)
    assert cosine.difference == pytest.approx(cosine.value - pa.value)
    for results, name in (([noisy(1.2)], "beauty"), ([noisy(1.2), noisy(0.9)], "pa")):
        with pytest.raises(KappaPlaceError, match="must be a score of a single evaluation"):
            compare(results, against=name, resamples=5)


@pytest.mark.parametrize("metric", ["AURC", "ECE@5", "zoom ECE@1", "match ECE@10", "R@100%P", "mAP@5"])
def test_every_metric_agrees_with_the_evaluation(metric):
    result = noisy(1.2)
    measured = result.metrics["SET"]
    rows = compare([result], metric, resamples=5).sets[0].rows
    assert rows
    for score, (cell,) in rows.items():
        assert cell is not None
        assert cell.value == (measured["scores"][score][metric] if score else measured["recall"][metric])


def test_other_queries_are_reported_and_not_tested():
    table = compare([noisy(1.2), noisy(1.2, queries=60)], resamples=50)
    assert "do not have the same queries" in table.sets[0].note
    assert all(cell is None or math.isnan(cell.p_value) for cell in table.sets[0].rows["cosine"])


def test_pooled_over_the_sets_that_all_have(tmp_path):
    def both(noise: float) -> EvaluationResult:
        parts = noisy(noise).sets + noisy(noise, 1, name="OTHER").sets
        return EvaluationResult(f"{noise}", parts)

    table = compare([both(0.9), both(1.4), both(0.9)], "R@1", resamples=100)
    assert [each.name for each in table.sets] == ["SET", "OTHER", "pooled"]
    assert table.sets[2].queries == 160
    assert table.names == ("0.9 (1)", "1.4", "0.9 (3)")
    lines = write_comparison([table], tmp_path).read_text().splitlines()
    assert len(lines) == 1 + 9
    assert lines[0].startswith("metric,set,score,evaluation,value,low,high,difference,p_value")


def test_bad_comparisons():
    with pytest.raises(KappaPlaceError, match="No score has the metric 'beauty'"):
        compare([noisy(1.2)], "beauty", resamples=5)
    with pytest.raises(KappaPlaceError, match="no dataset in common"):
        compare([noisy(1.2), noisy(1.2, name="OTHER")], resamples=5)
