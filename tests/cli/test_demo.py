"""The demo in small: it must run, repeat itself, and show what it claims."""

from __future__ import annotations

import json
import re
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
    files = write_results(result, tmp_path)
    page = files["report"].read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 3
    assert not re.search("https?:", page)  # the bare word may be part of an image in base64
    assert "KappaPlace" in page
    assert json.loads(files["table"].read_text()) == result.evaluation.to_dict()
    model = load_model(files["model"])
    assert model.architecture.head == "folded"
    query = result.queries.render(SMALL.size, np.arange(3))
    np.testing.assert_allclose(model.embed(query).kappa, result.kappa[:3], rtol=1e-4)


@pytest.mark.slow
def test_the_full_demo_is_uncertain_but_not_lost(tmp_path: Path) -> None:
    result = run_demo()
    answer = result.evaluation
    assert 0.6 <= answer.recall[1] <= 0.95
    for levels, kappa, _ in result.kappa_curves.values():
        assert kappa[-1] < kappa[0], levels
    blank = result.queries.featureless
    assert result.kappa[blank > 0.6].mean() < 0.9 * result.kappa[blank < 0.1].mean()
    ece = {r.score.name: r.ece[1] for r in answer.scores}
    assert ece["kappaplace"] < ece["l2"] < ece["pa"]  # the paper's order
