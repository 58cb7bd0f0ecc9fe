"""Tables: what is printed, what is marked, and that nothing breaks out of HTML or LaTeX."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kappaplace.reports.groups import group_of, pooled_group
from kappaplace.reports.html import Cell, Table, latex_text
from kappaplace.reports.tables import (
    comparison_table,
    interval,
    left_out_table,
    mark_best,
    match_table,
    mean_table,
    number,
    probability_table,
    retrieval_table,
    score_table,
)
from tests.reports.synthetic import make_result, make_set


def column(table: Table, name: str) -> list[Cell]:
    """Cells below a header, found by its name without the arrow."""
    headers = [header.split("\u00a0")[0] for header in table.header]
    return [row[headers.index(name)] for row in table.rows]


def test_numbers_and_intervals() -> None:
    assert number(0.12345) == "0.123"
    assert number(float("nan")) == number(None) == "–"
    assert interval((0.1, 0.2)) == "[0.100, 0.200]"
    assert interval((-0.05, 1.0)) == "[-0.050, 1.000]"
    assert interval(None) == interval((float("nan"), 1.0)) == ""


def test_best_is_what_reads_best() -> None:
    assert mark_best([0.1, 0.3, 0.2], larger=True) == [False, True, False]
    assert mark_best([0.1, 0.3, float("nan")], larger=False) == [True, False, False]
    assert mark_best([0.1001, 0.1002, 0.3], larger=False) == [True, True, False]  # the same in print
    assert mark_best([0.5], larger=True) == [False]
    assert mark_best([0.5, 0.5], larger=True) == [False, False]
    assert mark_best([float("nan")] * 2, larger=True) == [False, False]


def test_html_and_latex_escape_names() -> None:
    table = Table(("a_b", "c\u00a0↓"), ((Cell("<b>&"), Cell("0.5", "[0.4, 0.6]", best=True)),), 'x "y" 5 %')
    page = table.html()
    assert "&lt;b&gt;&amp;" in page
    assert "<strong>0.5</strong><small>[0.4, 0.6]</small>" in page
    assert 'aria-label="x &quot;y&quot; 5 %"' in page
    source = table.latex()
    assert r"a\_b & c~$\downarrow$ \\" in source
    assert r"\textless{}b\textgreater{}\& & \textbf{0.5} \\" in source
    assert r" & {\scriptsize [0.4, 0.6]} \\" in source
    assert r"5 \%" in source
    assert latex_text("\\input{x}") == r"\textbackslash{}input\{x\}"
    assert latex_text("--out –") == r"-{}-out \textendash{}"


def test_score_table_shows_the_metrics_and_marks_the_best() -> None:
    group = group_of(make_result(), make_set())
    table = score_table(group)
    scores = list(group.scores)
    for metric, pick in (("ECE@1", min), ("AUROC", max), ("AUGRC", min), ("coverage@10%", max)):
        cells = column(table, metric)[:-2]
        values = [group.values[name][metric] for name in scores]
        assert [cell.text for cell in cells] == [f"{value:.3f}" for value in values]
        assert [cell.best for cell in cells] == [f"{v:.3f}" == f"{pick(values):.3f}" for v in values]
    assert [row[0].text for row in table.rows[-2:]] == ["constant score", "perfect ranking"]
    assert not any(cell.best for row in table.rows[-2:] for cell in row)
    recall = f"{group.recall['R@1']:.3f}"
    assert column(table, "AUC-PR")[-2].text == recall  # the random baseline is R@1
    assert column(table, "ECE@1")[-2].text == recall  # and so is the ECE of a constant
    assert [cell.text for cell in column(table, "AUROC")[-2:]] == ["0.500", "1.000"]
    assert column(table, "AUC-PR")[-1].text == "1.000"


def test_every_table_of_ece_says_that_its_order_depends_on_recall() -> None:
    result = make_result()
    group = group_of(result, result.sets[0])
    mean = {"scores": {"l2": {"ECE@1": 0.5}}, "baselines": {"constant score": {"ECE@1": 0.6}}}
    tables = [score_table(group), match_table(group), mean_table(mean, {"l2": "L2"})]
    tables.append(comparison_table({"a": group, "b": group}, "harbour"))
    for table in tables:
        assert table is not None
        assert "The order of methods by ECE@K depends on R@K" in table.caption
    assert [cell.text for cell in column(tables[2], "ECE@1")] == ["0.500", "0.600"]


def test_the_ece_of_a_constant_score_has_a_star_and_is_never_the_best() -> None:
    part = make_set()
    part.scores["l2"] = replace(part.scores["l2"], query=np.ones(300), match=np.ones((300, 10)))
    group = group_of(make_result("a", part), part)
    table = score_table(group)
    labels = [row[0].text for row in table.rows]
    cell = column(table, "ECE@1")[labels.index("L2")]
    assert cell.text == f"{part.hits[:, 0].mean():.3f}*"
    assert not cell.best
    assert "*" not in column(table, "AUROC")[labels.index("L2")].text
    assert "Most queries have the same value" in table.caption
    match = match_table(group)
    assert match is not None
    assert column(match, "match ECE@1")[0].text.endswith("*")
    assert any(
        row[0].text == "L2" and row[3].text.endswith("*") and not row[3].best
        for row in comparison_table({"a": group, "b": group}, "harbour").rows
    )


def test_only_the_datasets_that_are_pooled_count() -> None:
    """Of a set without positions, SUE is missing: it must not cost the pool a score."""
    result = make_result()
    everything = pooled_group(result)
    first = pooled_group(replace(result, facts={"pool": [result.sets[0].name]}))
    assert everything is not None
    assert first is not None
    assert len(first.hits) == len(result.sets[0].hits) < len(everything.hits)
    assert set(first.scores) == set(result.sets[0].scores) > set(everything.scores)
    assert first.title == f"pooled: {result.sets[0].name}"


def test_given_metrics_count_and_the_rest_is_measured() -> None:
    part = make_set()
    result = make_result("a", part)
    result.metrics["harbour"] = {
        "recall": {"R@1": 0.111},
        "scores": {"l2": {"AUROC": 0.987654, "AURC": None}},
        "intervals": {"scores": {"l2": {"AUROC": [0.9, 0.99]}}},
    }
    table = score_table(group_of(result, part))
    first = column(table, "AUROC")[0]
    assert (first.text, first.small, first.best) == ("0.988", "[0.900, 0.990]", True)
    assert column(table, "AURC")[0].text == "–"  # JSON's null
    fresh = score_table(group_of(make_result("a", part), part))
    assert column(table, "ECE@5") == column(fresh, "ECE@5")
    assert column(table, "AUROC")[1].text == column(fresh, "AUROC")[1].text
    assert column(retrieval_table(result, [group_of(result, part)]), "R@1")[0].text == "0.111"


def test_intervals_may_also_lie_one_level_higher() -> None:
    part = make_set()
    result = make_result("a", part)
    result.metrics["harbour"] = {"intervals": {"l2": {"AUROC": [0.4, 0.6]}}}
    assert column(score_table(group_of(result, part)), "AUROC")[0].small == "[0.400, 0.600]"


def test_pool_holds_what_every_set_has() -> None:
    result = make_result()
    pooled = pooled_group(result)
    assert pooled is not None
    assert list(pooled.scores) == ["l2", "pa", "fused"]  # the second set has no κ
    assert len(pooled.hits) == 500
    expected = sum(part.hits[:, 0].sum() for part in result.sets) / 500
    assert abs(pooled.recall["R@1"] - expected) < 1e-12
    assert pooled_group(make_result("a", make_set())) is None


def test_match_and_probability_tables_hold_only_scores_that_have_them() -> None:
    group = group_of(make_result(), make_set())
    match, probability = match_table(group), probability_table(group)
    assert match is not None
    assert probability is not None
    assert [row[0].text for row in match.rows] == ["L2", "KappaPlace"]
    assert [row[0].text for row in probability.rows] == ["Fused"]
    assert column(match, "match ECE@10")[0].text == f"{group.values['l2']['match ECE@10']:.3f}"


def test_retrieval_table_states_queries_without_positives_and_policy() -> None:
    result = make_result()
    groups = [group_of(result, part) for part in result.sets]
    table = retrieval_table(result, groups)
    assert [cell.text for cell in column(table, "without positives")] == ["7", "7"]
    assert "counted as failures" in table.caption
    assert column(table, "R@5")[0].text == f"{result.sets[0].hits[:, :5].any(axis=1).mean():.3f}"


def test_left_out_table_gives_the_reasons() -> None:
    table = left_out_table(make_result())
    assert table is not None
    assert [cell.text for cell in table.rows[0]][:2] == ["sue", "hills & <woods>"]
    assert "positions" in table.rows[0][2].text
    assert left_out_table(make_result("a", make_set())) is None


def test_mean_table_marks_the_best() -> None:
    mean = {"scores": {"a": {"ECE@1": 0.2, "AUROC": 0.7}, "b": {"ECE@1": 0.1, "AUROC": None}, "c": {}}}
    table = mean_table(mean, {"a": "A", "b": "B"})
    assert [cell.best for cell in column(table, "ECE@1")] == [False, True]
    assert [cell.text for cell in column(table, "AUROC")] == ["0.700", "–"]


def test_comparison_marks_the_better_run_of_each_score() -> None:
    runs = {name: make_set(noise=noise) for name, noise in (("A", 0.5), ("B", 3.0))}
    groups = {name: group_of(make_result(name, part), part) for name, part in runs.items()}
    table = comparison_table(groups, "harbour")
    row = {(r[0].text, r[1].text): cell for r, cell in zip(table.rows, column(table, "AUROC"), strict=True)}
    assert row["KappaPlace", "A"].best
    assert not row["KappaPlace", "B"].best
    assert row["KappaPlace", "B"].text == f"{groups['B'].values['kappaplace']['AUROC']:.3f}"
