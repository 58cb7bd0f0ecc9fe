"""`kappaplace audit` on the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from kappaplace.cli.main import BAD_INPUT, USE, app
from kappaplace.data.table import PlaceImages
from tests.hardening.commands import run


@pytest.fixture
def log(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    scores = rng.random(2000)
    correct = rng.random(2000) < np.sqrt(scores)
    file = tmp_path / "closures.csv"
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["score", "correct"])
        writer.writerows(zip(scores.tolist(), correct.tolist(), strict=True))
    return file


def test_one_sentence_first_then_a_table(log: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run(monkeypatch, "audit", log, "--threshold", 0.3, "--max-risk", 0.1) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Your threshold of 0.3 accepts 69.")
    assert "with 95% confidence." in lines[0]
    table = [line.split() for line in lines if line.split()[:1] in (["yours"], ["safe"])]
    assert [row[0] for row in table] == ["yours", "safe"]
    assert table[0][1] == "0.3"
    assert "--block 20" in " ".join(lines)


def test_json(log: Path, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "audit", log, "--threshold", 0.3, "--max-risk", 0.1, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["yours"]["threshold"] == 0.3
    assert answer["safe"]["threshold"] > 0.3
    assert answer["safe"]["high"] < 0.12
    assert answer["answers"] == answer["observations"] == 2000


def test_descriptors_with_a_table(tmp_path: Path, monkeypatch, capsys) -> None:
    rng = np.random.default_rng(0)
    where = np.stack([np.arange(40) * 30.0, np.zeros(40)], 1)
    table = PlaceImages.create(
        [f"{row}.png" for row in range(80)], np.concatenate([where, where]), is_query=np.arange(80) < 40
    )
    table.save(tmp_path / "walk.parquet")
    references = rng.normal(size=(40, 16)).astype(np.float32)
    np.save(tmp_path / "r.npy", references)
    np.save(tmp_path / "q.npy", references + rng.normal(0, 0.1, (40, 16)).astype(np.float32))
    words = [tmp_path / name for name in ("q.npy", "r.npy", "walk.parquet")]
    assert run(monkeypatch, "audit", *words, "--threshold", 9, "--metric", "l2", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["lower_is_better"]
    assert answer["yours"] == answer["yours"] | {"accepted": 40, "errors": 0, "recall": 1.0}
    assert answer["safe"] is None  # 40 answers cannot support 5%
    assert "59 queries" in answer["sentence"]


@pytest.mark.parametrize("word", ["nothing.csv", "closures.csv"])
def test_bad_input_is_one_message(log: Path, word: str, monkeypatch, capsys) -> None:
    log.write_text("query,match\n1,2\n")
    assert run(monkeypatch, "audit", log.parent / word, "--threshold", 1) == BAD_INPUT
    error = capsys.readouterr().err
    assert error.startswith("kappaplace: ")
    assert error.count("\n") == 1


def test_it_is_listed_for_users() -> None:
    panels = {
        each.callback.__name__: each.rich_help_panel for each in app.registered_commands if each.callback
    }
    assert panels["audit"] == USE
