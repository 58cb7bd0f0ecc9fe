"""The demo on a folder with positives: numbers of the evaluation, pictures, one sentence for bad input."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kappaplace.calibration.calibration import fit_calibration
from kappaplace.calibration.sources import MODEL
from kappaplace.cli.main import main
from kappaplace.demo.damage import KINDS, LEVELS
from kappaplace.demo.real import PROBABILITY, RealResult, real_table, run_real
from kappaplace.demo.real_output import gallery, missing_line, probability_line, write_real
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.run import evaluate_table
from kappaplace.metrics import recall_at
from kappaplace.models import shipped
from kappaplace.models.checkpoint import load_model, save_model
from kappaplace.models.place_model import PlaceModel
from kappaplace.models.shipped import CALIBRATION, DEFAULT
from kappaplace_city import SyntheticCity


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """24 references and 12 queries in the layout gt-json; two queries have no right reference."""
    views = SyntheticCity(0, (1, 1)).views("val", spacing=20.0, queries=12, query_strength=0.3, seed=0)
    images = views.render(32)
    rows = {"query": np.flatnonzero(views.is_query), "ref": np.flatnonzero(~views.is_query)[:24]}
    for kind, chosen in rows.items():
        (tmp_path / "town" / kind).mkdir(parents=True)
        for number, row in enumerate(chosen):
            Image.fromarray(np.asarray(images[row])).save(tmp_path / "town" / kind / f"{number:03d}.png")
    positives = [[number, number + 1, 2 * number] for number in range(10)] + [[], []]
    text = json.dumps({"positives": positives, "tolerance_frames": 1})
    (tmp_path / "town" / "gt.json").write_text(text)
    return tmp_path / "town"


@pytest.fixture
def stand_in(tmp_path: Path, tiny: PlaceModel, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model in the place of ours, with made-up probabilities."""
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "shipped")
    monkeypatch.setenv("KAPPAPLACE_CACHE", str(tmp_path / "cache"))
    home = save_model(tiny, tmp_path / "shipped" / DEFAULT)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 2))
    made = fit_calibration(
        features, rng.random(200) > 0.5 + 0.3 * features[:, 0], ["cosine", "margin"], max_risk=None
    )
    values = made.to_dict()
    values["facts"][MODEL] = load_model(home).fingerprint
    (home / CALIBRATION).write_text(json.dumps(values))
    return home


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["kappaplace", *map(str, words)])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def result_of(folder: Path, tmp_path: Path, model: PlaceModel | None = None) -> RealResult:
    return run_real(real_table(folder), model or load_model(), "ours", cache=tmp_path / "cache")


def test_numbers_are_those_of_the_evaluation(folder: Path, stand_in: Path, tmp_path: Path) -> None:
    result = result_of(folder, tmp_path)
    other = evaluate_table(load_model(), real_table(folder), "margin", cache=tmp_path / "cache")
    assert result.evaluation.recall[1] == pytest.approx(recall_at(other.hits, 1))
    margin = next(each for each in result.evaluation.scores if each.score.name == "margin")
    rows = other.queries
    np.testing.assert_allclose(margin.uncertainty[rows], other.scores["margin"].query, atol=1e-6)
    assert result.without_positives == 2
    assert "2 queries have no right reference" in missing_line(result)


def test_probabilities_of_our_model_are_judged(folder: Path, stand_in: Path, tmp_path: Path) -> None:
    result = result_of(folder, tmp_path)
    assert result.evaluation.scores[-1].score.name == PROBABILITY
    facts = result.probability_facts()
    assert facts is not None
    probability = 1 - result.evaluation.scores[-1].uncertainty
    assert facts["accepted"] == (probability >= 0.9).sum()
    assert facts["Brier"] == pytest.approx(np.mean((probability - result.evaluation.hits[:, 0]) ** 2))
    assert "No risk is guaranteed." in probability_line(result)


def test_other_models_have_none(folder: Path, stand_in: Path, tmp_path: Path) -> None:
    plain = PlaceModel.create("resnet_tiny", dim=16, head="none", preprocessing=load_model().preprocessing)
    result = result_of(folder, tmp_path, plain)
    assert result.probability_facts() is None
    assert probability_line(result) == ""
    assert result.damage is None
    assert {each.score.name for each in result.evaluation.scores} == {"l2", "pa", "margin"}
    files = write_real(result, tmp_path / "out")
    assert set(files) == {"report", "table", "reliability", "gallery"}


def test_damage_is_the_same_every_time(folder: Path, stand_in: Path, tmp_path: Path) -> None:
    one, other = (result_of(folder, tmp_path).damage for _ in range(2))
    assert one is not None
    assert other is not None
    assert set(one.curves) == set(KINDS)
    assert all(len(mean) == len(LEVELS) for _, mean, _ in one.curves.values())
    np.testing.assert_array_equal(one.kappa, other.kappa)
    # Level 0 is the query as it is, whatever the kind.
    assert len({round(float(mean[0]), 4) for _, mean, _ in one.curves.values()}) == 1
    assert len(one.level) == len(one.kappa) == len(one.right) == 12


def test_gallery_goes_from_sure_to_unsure(folder: Path, stand_in: Path, tmp_path: Path) -> None:
    rows = gallery(result_of(folder, tmp_path))
    assert [row.title.split()[0] for row in rows] == ["High", "Middle", "Low"]
    probability = [float(row.query_caption.split()[-1]) for row in rows]
    assert probability == sorted(probability, reverse=True)


def test_the_command_prints_and_writes(
    folder: Path,
    stand_in: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, "demo", "--real", folder, "--out", tmp_path / "out", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["set"], answer["model"], answer["queries"]) == ("town", DEFAULT, 12)
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "http" not in page
    assert {"report", "table", "reliability", "gallery", "kappa"} == set(answer["files"])
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    assert table == {key: answer[key] for key in table}
    monkeypatch.setattr(  # drawn once is enough
        "kappaplace.demo.real_output.write_real", lambda result, out: {"report": out / "report.html"}
    )
    assert run(monkeypatch, "demo", "--real", folder, "--out", tmp_path / "out") == 0
    out = capsys.readouterr().out
    assert "R@1" in out
    assert "Calibrated on other places" in out


def test_tables_and_named_layouts_are_read(folder: Path, tmp_path: Path) -> None:
    real_table(folder).save(tmp_path / "t.parquet")
    assert len(real_table(tmp_path / "t.parquet")) == len(real_table(folder, "gt-json")) == 36


def test_a_folder_without_truth_asks_for_its_layout(folder: Path, tmp_path: Path) -> None:
    (folder / "gt.json").unlink()
    with pytest.raises(KappaPlaceError, match="name its layout with --layout"):
        real_table(folder)
    with pytest.raises(KappaPlaceError, match="no folder"):
        real_table(tmp_path / "nowhere")


def test_a_set_without_any_positive_is_refused(folder: Path) -> None:
    (folder / "gt.json").write_text(json.dumps({"positives": [[]] * 12}))
    with pytest.raises(KappaPlaceError, match="has a right reference"):
        real_table(folder)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--steps", "3"), "belong to the synthetic city"),
        (("--seed", "3"), "belong to the synthetic city"),
    ],
)
def test_options_of_the_city_are_refused(
    words: tuple[str, ...],
    sentence: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, "demo", "--real", folder, *words) == 2
    assert sentence in capsys.readouterr().err


def test_options_of_real_images_need_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "demo", "--model", "x") == 2
    assert "belong to --real DIR" in capsys.readouterr().err
