"""The demo in small: it must run, repeat itself, and show what it claims."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kappaplace.cli.demo import (
    DemoResult,
    DemoSettings,
    evaluation_table,
    gallery,
    run_demo,
    write_results,
)
from kappaplace.cli.demo_map import Threshold
from kappaplace.maps import PlaceMap
from kappaplace.models.checkpoint import load_model

SMALL = DemoSettings(
    size=32, blocks=(1, 1), train_spacing=30.0, queries=40, dim=32, steps=30, batch_size=32, labelled=120
)


@pytest.fixture(scope="module")
def result() -> DemoResult:
    return run_demo(SMALL)


def test_the_same_seed_gives_the_same_table(result: DemoResult) -> None:
    assert run_demo(SMALL).evaluation.to_dict() == result.evaluation.to_dict()


def test_the_table_holds_every_score(result: DemoResult) -> None:
    answer = result.evaluation.to_dict()
    assert set(answer["scores"]) == {"l2", "pa", "inverse-kappa", "kappaplace"}
    for values in answer["scores"].values():
        assert set(values) == {"ECE@1", "ECE@5", "ECE@10", "AUROC"}
    assert answer["recall"]["R@1"] <= answer["recall"]["R@5"] <= answer["recall"]["R@10"]
    assert evaluation_table(result.evaluation).row_count == 4


def test_training_and_test_districts_are_far_apart(result: DemoResult) -> None:
    training = result.queries.city.views("train").positions
    gaps = np.linalg.norm(training[:, None] - result.references.positions[None, :50], axis=-1)
    assert gaps.min() > 100


def test_gallery_goes_from_sure_to_unsure(result: DemoResult) -> None:
    rows = gallery(result)
    assert [row.title.split()[0] for row in rows] == ["High", "Middle", "Low"]
    confidence = [float(row.captions[0].split()[1]) for row in rows]
    assert confidence == sorted(confidence, reverse=True)
    assert all(len(row.matches) == len(row.right) == len(row.captions) == 3 for row in rows)


def test_results_are_complete_and_self_contained(result: DemoResult, tmp_path: Path) -> None:
    steps: list[str] = []
    files, mapped = write_results(result, tmp_path, steps.append)
    page = files["report"].read_text(encoding="utf-8")
    assert page.count("data:image/svg+xml;base64,") == 2 + 2  # the icon, and two figures
    assert not re.search("https?:", page)  # the bare word may be part of an image in base64
    assert html.escape(mapped.sentence) in page
    assert json.loads(files["table"].read_text()) == {**result.evaluation.to_dict(), "map": mapped.to_dict()}
    assert [step.split()[0] for step in steps] == ["Building", "Localizing"]
    place_map = PlaceMap.open(files["map"])
    assert len(place_map) == len(result.references)
    assert len(mapped.answers) == len(mapped.right) == SMALL.queries
    distance = [
        np.hypot(answer.matches[0].x - x, answer.matches[0].y - y)
        for answer, (x, y) in zip(mapped.answers, result.queries.positions, strict=True)
    ]
    np.testing.assert_array_equal(mapped.right, np.array(distance) <= 25.0)
    model = load_model(files["model"])
    assert model.architecture.head == "folded"
    query = result.queries.render(SMALL.size, np.arange(3))
    np.testing.assert_allclose(model.embed(query).kappa, result.kappa[:3], rtol=1e-4)


def test_the_last_line_counts_what_was_accepted(result: DemoResult, tmp_path: Path) -> None:
    _, mapped = write_results(result, tmp_path)
    decisions = ["accept"] * 20 + ["doubtful"] * 15 + ["reject"] * 5
    answers = tuple(replace(a, decision=d) for a, d in zip(mapped.answers, decisions, strict=True))
    right = np.ones(40, bool)
    right[[3, 25]] = False  # one accepted, one doubtful
    counted = replace(mapped, answers=answers, right=right, cosine=Threshold(7, 1), refusal="")
    assert counted.sentence == (
        "Of 40 queries, 20 were accepted and 1 of them are wrong (5.0%; limit 5%). A threshold on cosine at "
        "the same risk would accept 7."
    )
    shown = dict(counted.examples(2))
    assert {title: len(rows) for title, rows in shown.items()} == {
        "Accepted": 2,
        "Doubtful": 2,
        "Rejected": 2,
    }
    assert all(decisions[row] == "reject" for row in shown["Rejected"])
    refused = replace(mapped, refusal="Too few labels.")
    assert refused.sentence == "The map could not be calibrated. Too few labels."


@pytest.mark.slow
def test_the_full_demo_is_uncertain_but_not_lost(tmp_path: Path) -> None:
    result = run_demo()
    _, mapped = write_results(result, tmp_path)
    assert mapped.counts["accept"] > mapped.cosine.accepted
    assert mapped.wrong <= 0.05 * mapped.counts["accept"]
    answer = result.evaluation
    assert 0.6 <= answer.recall[1] <= 0.95
    for levels, kappa, _ in result.kappa_curves.values():
        assert kappa[-1] < kappa[0], levels
    blank = result.queries.featureless
    assert result.kappa[blank > 0.6].mean() < 0.9 * result.kappa[blank < 0.1].mean()
    ece = {r.score.name: r.ece[1] for r in answer.scores}
    assert ece["kappaplace"] < ece["l2"] < ece["pa"]  # the paper's order
