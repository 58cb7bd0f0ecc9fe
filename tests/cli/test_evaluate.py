"""`kappaplace evaluate` and `kappaplace compare` on the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from kappaplace.cli.main import BAD_INPUT, main
from kappaplace.data.table import PlaceImages
from tests.evaluation.conftest import city_folder, saved_model  # noqa: F401  # fixtures

FILES = {"results.json", "metrics.csv", "queries.parquet", "matches.parquet", "references.parquet"}


@pytest.fixture
def kappaplace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Run a command and return its output, or its error message."""
    monkeypatch.setenv("KAPPAPLACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")

    def run(*words: object, refuses: bool = False) -> str:
        monkeypatch.setattr("sys.argv", ["kappaplace", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        output = capsys.readouterr()
        if not refuses:
            assert stop.value.code in (0, None), output.err
            return output.out
        assert stop.value.code == BAD_INPUT
        assert output.err.startswith("kappaplace: ")
        assert output.err.count("\n") == 1
        return output.err

    return run


@pytest.fixture
def matrix(tmp_path: Path) -> tuple[Path, Path]:
    rng = np.random.default_rng(0)
    cosines = 0.3 * np.eye(40) + rng.uniform(-0.3, 0.3, (2, 40, 40))
    np.savez(tmp_path / "SET.npz", NetVLAD=cosines[0], HOG=cosines[1])
    (tmp_path / "SET.json").write_text(json.dumps([[i] for i in range(40)]))
    return tmp_path / "SET.npz", tmp_path / "SET.json"


QUICK = ("--resamples", 20, "--no-report")


@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_help_teaches_by_example(kappaplace, command):
    assert kappaplace(command, "--help").count(f"kappaplace {command} ") >= 3


def test_a_model_on_two_tables(kappaplace, saved_model, city_folder, tmp_path):  # noqa: F811
    tables = [city_folder / f"{name}.parquet" for name in ("val", "test")]
    out = kappaplace("evaluate", saved_model, *tables, "--out", tmp_path / "out", *QUICK)
    for words in (
        "model, val: 24 queries",
        "model, all datasets pooled: 48 queries",
        "mean over datasets",
        "KappaPlace",
    ):
        assert words in out
    assert "24 of 24 queries evaluated; 0 without positives, counted as failures" in " ".join(out.split())
    assert {file.name for file in (tmp_path / "out").iterdir()} == FILES
    with (tmp_path / "out" / "metrics.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["set"] for row in rows} == {"val", "test", "pooled", "mean"}
    facts = json.loads((tmp_path / "out" / "results.json").read_text())["facts"]
    assert facts["seed"] == 0
    assert len(facts["fingerprint"]) == 64
    assert (tmp_path / "cache" / "embeddings").is_dir()


def test_a_report_is_written(kappaplace, saved_model, city_folder, tmp_path):  # noqa: F811
    words = ("--scores", "l2,kappaplace", "--resamples", 5, "--out", tmp_path / "out", "--json")
    answer = json.loads(kappaplace("evaluate", saved_model, city_folder / "val.parquet", *words))
    assert Path(answer["files"]["report"]).stat().st_size > 10_000
    assert set(answer["metrics"]["val"]["scores"]) == {"l2", "kappaplace"}


def test_similarities_and_comparison(kappaplace, matrix, tmp_path):
    words = ("evaluate", "--similarities", matrix[0], "--positives", matrix[1], *QUICK)
    out = kappaplace(*words, "--neighbourhood", "self", "--out", tmp_path / "all")
    assert "NetVLAD, SET: 40 queries" in out
    assert {file.name for file in (tmp_path / "all").iterdir()} == {"NetVLAD", "HOG"}
    kappaplace(*words, "--method", "HOG", "--out", tmp_path / "one")
    assert {file.name for file in (tmp_path / "one").iterdir()} == FILES
    folders = [tmp_path / "all" / name for name in ("NetVLAD", "HOG")]
    out = kappaplace("compare", *folders, "--resamples", 50, "--out", tmp_path / "both", "--no-report")
    assert "AUROC on SET (40 queries)" in out
    assert "R@1 on SET" in out
    rows = list(csv.DictReader((tmp_path / "both" / "comparison.csv").open()))
    assert {row["evaluation"] for row in rows} == {"NetVLAD", "HOG"}
    answer = json.loads(kappaplace("compare", *folders, "--metric", "AURC", "--resamples", 20, "--json"))
    assert {row["metric"] for row in answer["rows"]} == {"AURC"}


def test_descriptors_and_an_own_score(kappaplace, city_folder, tmp_path):  # noqa: F811
    table = PlaceImages.open(city_folder / "val.parquet")
    rng = np.random.default_rng(0)
    for name, rows in (("q", table.query_rows), ("r", table.reference_rows)):
        np.save(tmp_path / f"{name}.npy", rng.normal(size=(len(rows), 8)))
    (tmp_path / "mine.csv").write_text("query,uncertainty\n" + "".join(f"{i},{i}\n" for i in range(24)))
    out = kappaplace(
        *("evaluate", "--descriptors", tmp_path / "q.npy", tmp_path / "r.npy", city_folder / "val.parquet"),
        *("--uncertainty", tmp_path / "mine.csv", "--out", tmp_path / "out", *QUICK),
    )
    assert "mine" in out
    assert "Margin" in out


def test_fused(kappaplace, saved_model, city_folder, tmp_path):  # noqa: F811
    words = (
        "evaluate",
        saved_model,
        city_folder / "test.parquet",
        "--scores",
        "l2,pa",
        "--out",
        tmp_path / "out",
    )
    out = kappaplace(*words, "--fuse", "pa,margin", "--fit-on", city_folder / "val.parquet", *QUICK)
    assert "Fused" in out
    assert "smECE" in out
    assert "Fit on a table of other places" in kappaplace(
        *words, "--fuse", "pa", "--fit-on", city_folder / "test.parquet", refuses=True
    )
    assert "Pass --fit-on TABLE" in kappaplace(*words, "--fuse", "pa", refuses=True)


def test_the_paper_without_data(kappaplace, tmp_path):
    (tmp_path / "tables").mkdir()
    out = kappaplace(
        "evaluate", "--protocol", "paper", "--data", tmp_path / "tables", "--out", tmp_path / "out"
    )
    assert "measurable" in out
    assert "Pitts30k (pitts30k-test.parquet)" in " ".join(out.split())
    assert (tmp_path / "out" / "paper.csv").read_text().count("\n") == 392


def test_bad_input_is_one_sentence(kappaplace, matrix, saved_model, city_folder, tmp_path):  # noqa: F811
    model = (saved_model, city_folder / "val.parquet")
    similar = ("--similarities", matrix[0], "--positives", matrix[1])
    empty = tmp_path / "empty.json"
    empty.write_text("[]")
    cases = [
        ((saved_model,), "evaluate needs at least one table"),
        ((*model, "--scores", "beauty"), "Unknown score 'beauty'"),
        ((*model, "--k", 99), "k must be between 1 and 56"),
        ((*model, "--k", 0), "k must be 1 or more"),
        ((*model, "--device", "toaster"), "The device 'toaster' cannot be used on this machine"),
        ((*model, "--root", tmp_path / "gone"), "No image file at"),
        ((*model, "--batch-size", 0), "batch_size must be 1 or more"),
        ((*model, "--uncertainty", "gone.csv"), "There is no file gone.csv"),
        ((*model, "--fuse", "beauty", "--fit-on", model[1]), "Unknown score 'beauty'"),
        (("no-such-model", model[1]), "No model 'no-such-model'"),
        ((saved_model, "no.parquet"), "There is no table at no.parquet"),
        ((*similar, "--method", "VGG"), "does not contain the method 'VGG'"),
        ((*similar, "--k", 41), "k must be between 1 and 40, the number of references, got 41"),
        ((*similar, "--neighbourhood", "metres:5"), "needs positions"),
        ((*similar, city_folder / "val.parquet"), "the table val has 24 and 56"),
        ((*similar, "--descriptors", "q.npy", "r.npy"), "Pass only one of"),
        (("--similarities", matrix[0]), "Pass --positives FILE or a table"),
        (("--similarities", matrix[0], "--positives", empty), "40 queries and 40 references to evaluate but"),
        (("--protocol", "other"), '--protocol must be "paper", got "other"'),
        (("matrix", model[1]), "at least one .npy or .npz file"),
    ]
    for words, sentence in cases:
        output = kappaplace("evaluate", *words, "--out", tmp_path / "out", "--no-report", refuses=True)
        assert sentence in output, (words, output)
    assert "There is no evaluation in" in kappaplace("compare", tmp_path, refuses=True)


def test_options_of_another_command_are_rejected(monkeypatch, capsys, saved_model, matrix, tmp_path):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    similar = ("--similarities", matrix[0], "--positives", matrix[1])
    cases = [
        ((), "Missing argument"),
        ((saved_model, "val.parquet", "--resize", "huge"), "'--resize'"),
        ((*similar, "--fuse", "pa"), "--fuse"),
        ((*similar, "--kappa", "q.npy", "r.npy"), "--kappa"),
        (("--protocol", "paper"), "'--data'"),
        ((saved_model, "val.parquet", "--positives", "gone.json"), "--positives"),
        ((saved_model, "val.parquet", "--data", tmp_path), "--data"),
        (("--protocol", "paper", "--data", tmp_path, "--fuse", "pa"), "--fuse"),
    ]
    for words, option in cases:
        monkeypatch.setattr("sys.argv", ["kappaplace", "evaluate", *map(str, words), "--out", "out"])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == BAD_INPUT
        assert option in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_each_spelling_gives_the_same(kappaplace, matrix, saved_model, city_folder, tmp_path):  # noqa: F811
    """The commands, and the options that earlier versions had instead."""
    table, positives = city_folder / "val.parquet", ("--positives", matrix[1], "--method", "HOG")
    rng = np.random.default_rng(0)
    images = PlaceImages.open(table)
    files = [tmp_path / "q.npy", tmp_path / "r.npy"]
    for file, rows in zip(files, (images.query_rows, images.reference_rows), strict=True):
        np.save(file, rng.normal(size=(len(rows), 8)))
    (tmp_path / "tables").mkdir()
    data = ("--data", tmp_path / "tables")
    spellings = [
        (("model", saved_model, table), (saved_model, table)),
        (("matrix", matrix[0], *positives), (f"--similarities={matrix[0]}", *positives)),
        (("descriptors", *files, table), (table, "--descriptors", *files)),
        (("paper", *data), (*data, "--protocol", "paper")),
    ]
    for new, old in spellings:
        answers = [
            json.loads(kappaplace("evaluate", *words, "--out", tmp_path / "out", *QUICK, "--json"))
            for words in (new, old)
        ]
        assert answers[0] == answers[1]


def test_a_folder_named_as_the_command_is_not_taken_for_it(kappaplace, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    assert "Pass ./model" in kappaplace("evaluate", "model", "walk.parquet", refuses=True)
    assert "no table at walk.parquet" in kappaplace("evaluate", "walk.parquet", refuses=True)


def test_a_policy_that_is_not_met_is_one_sentence(kappaplace, matrix, tmp_path):
    (tmp_path / "some.json").write_text(json.dumps([[]] + [[i] for i in range(1, 40)]))
    words = (
        "evaluate",
        "--similarities",
        matrix[0],
        "--positives",
        tmp_path / "some.json",
        "--method",
        "HOG",
    )
    output = kappaplace(*words, "--policy", "error", "--out", tmp_path / "out", refuses=True)
    assert "1 of 40 queries have no positive" in output
    out = kappaplace(*words, "--policy", "skip", "--out", tmp_path / "out", *QUICK)
    assert "HOG, SET: 39 queries" in out


ENCODER = """
import torch
from kappaplace import Preprocessing

class Colors(torch.nn.Module):
    preprocessing = Preprocessing(32, "exact")

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(48, 8)

    def forward(self, images):
        return self.layer(torch.nn.functional.adaptive_avg_pool2d(images, 4).flatten(1))

def build():
    return Colors()

def count():
    return 3

def fail():
    raise RuntimeError("no weights here")
"""


def test_an_encoder_of_ones_own(kappaplace, city_folder, tmp_path, monkeypatch):  # noqa: F811
    """Evaluated without κ, trained with a κ head, and evaluated with it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_encoder.py").write_text(ENCODER)
    table, own = city_folder / "test.parquet", ("--encoder", "own_encoder:build")
    out = kappaplace("evaluate", "model", table, *own, "--out", tmp_path / "plain", *QUICK)
    assert "build" in out
    results = json.loads((tmp_path / "plain" / "results.json").read_text())
    assert "kappaplace" in json.dumps(results["sets"][0]["left_out"])
    train = ("train", "kappa-pt", "--data", table, "--out", tmp_path / "pt", "--cpu", *own)
    few = (
        "anchors.source=views",
        "anchors.views=2",
        "optimizer.epochs=1",
        "optimizer.iterations=2",
        "model.size=32",
    )
    kappaplace(*train, *(word for each in (*few, "run.trackers=[]") for word in ("-s", each)))
    head = tmp_path / "pt" / "model"
    kappaplace("evaluate", "model", head, table, *own, "--out", tmp_path / "pt-results", *QUICK)
    results = json.loads((tmp_path / "pt-results" / "results.json").read_text())
    assert "kappaplace" not in results["sets"][0]["left_out"]
    for function, message in (
        ("own_encoder", "must be package.module:function"),
        ("own_encoder:nothing", "has no attribute 'nothing'"),
        ("no_such_module:build", "No module named 'no_such_module'"),
        ("own_encoder:count", "must return a torch module, got int"),
        ("own_encoder:fail", "no weights here"),
    ):
        words = ("evaluate", "model", table, "--encoder", function, "--out", tmp_path / "bad", *QUICK)
        assert message in kappaplace(*words, refuses=True)


def test_seeds_are_one_command(kappaplace, matrix, tmp_path):
    rng = np.random.default_rng(1)
    folders = []
    for seed in range(3):
        similar = 0.3 * np.eye(40) + rng.uniform(-0.3, 0.3, (40, 40))
        (tmp_path / str(seed)).mkdir()
        np.save(tmp_path / str(seed) / "SET.npy", similar)
        words = ("evaluate", "matrix", tmp_path / str(seed) / "SET.npy", "--positives", matrix[1])
        kappaplace(*words, "--scores", "l2,pa", "--out", tmp_path / f"out-{seed}", *QUICK)
        folders.append(tmp_path / f"out-{seed}")
    out = kappaplace("compare", *folders, "--seeds", "--out", tmp_path / "seeds")
    assert "mean ± std over 3 runs" in out
    assert "depends on R@K" in out
    with (tmp_path / "seeds" / "seeds.csv").open(newline="") as stream:
        rows = {(row["score"], row["metric"]): row for row in csv.DictReader(stream)}
    values = []
    for folder in folders:
        with (folder / "metrics.csv").open(newline="") as stream:
            (row,) = [r for r in csv.DictReader(stream) if (r["score"], r["metric"]) == ("pa", "ECE@1")]
        values.append(float(row["value"]))
    assert float(rows["pa", "ECE@1"]["mean"]) == pytest.approx(np.mean(values))
    assert float(rows["pa", "ECE@1"]["std"]) == pytest.approx(np.std(values, ddof=1))
    asked = json.loads(kappaplace("compare", *folders, "--seeds", "--metric", "R@1", "--json"))["rows"]
    assert [row["metric"] for row in asked] == ["R@1"]
    assert "at least two runs" in kappaplace("compare", folders[0], "--seeds", refuses=True)


def test_a_constant_score_is_marked_and_named(kappaplace, matrix, tmp_path):
    """Its ECE@1 is R@1, which says nothing of the score."""
    (tmp_path / "mine.csv").write_text("query,uncertainty\n" + "".join(f"{i},7\n" for i in range(40)))
    words = ("evaluate", "matrix", matrix[0], "--positives", matrix[1], "--method", "HOG", "--scores", "l2")
    words = (*words, "--uncertainty", tmp_path / "mine.csv", "--out", tmp_path / "out")
    out = kappaplace(*words, "--resamples", 20)
    line = next(line for line in out.splitlines() if line.strip().startswith("mine"))
    assert line.count("*") == 3  # K = 1, 5 and 10
    assert "Warning: SET: queries have the same value of mine (constant)." in " ".join(out.split())
    assert "constant score" in out
    assert "perfect ranking" in out
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Warning: SET: queries have the same value of mine (constant)." in page
    assert "*<small>" in page
    answer = json.loads(kappaplace(*words, *QUICK, "--json"))
    assert len(answer["warnings"]) == 1
    compared = kappaplace("compare", tmp_path / "out", "--metric", "ECE@1", "--resamples", 50)
    assert "* (" in compared
    assert "depends on R@K" in compared
