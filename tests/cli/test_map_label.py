"""`kappaplace map label` and `map monitor` as a user meets them."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kappaplace.cli.main import BAD_INPUT
from kappaplace.maps.tune.label_sheet import read_labels, write_labels
from kappaplace.maps.tune.monitor import monitor_file
from tests.cli.test_map import kappaplace, model  # noqa: F401  # fixtures
from tests.maps.conftest import town, town_folder  # noqa: F401  # fixtures


@pytest.fixture
def built(kappaplace, model, town_folder, tmp_path: Path) -> Path:  # noqa: F811
    out = tmp_path / "town.map"
    kappaplace("map", "build", town_folder / "val.parquet", "--out", out, "--model", model)
    return out


@pytest.fixture
def drive(town, tmp_path: Path) -> Path:  # noqa: F811
    """Each reference again with a little noise."""
    folder = tmp_path / "drive"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for row in town.reference_rows.tolist():
        pixels = np.asarray(Image.open(town.image_path(row)).convert("RGB"), np.float64)
        noisy = np.clip(pixels + rng.normal(0, 6, pixels.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"q{town.paths[row]}")
    return folder


def label_rows(file: Path, labels: list[str]) -> None:
    """Write labels to the first rows of a file, as a person does in a spreadsheet."""
    sheet = read_labels(file)
    for position, label in enumerate(labels):
        sheet = sheet.with_label(position, label)
    write_labels(sheet, file)


def test_label_and_calibrate(kappaplace, built, drive, tmp_path):  # noqa: F811
    out = tmp_path / "labels.csv"
    words = ("map", "label", built, drive, "--out", out)
    output = kappaplace(*words)
    assert "56 queries sampled at random from 56 (seed 0)" in output
    assert "Make sure that no two of them show the same place" in output
    assert "0 of 56 labels" in output
    label_rows(out, ["yes", "unknown"])
    assert "at least 20 labels" in kappaplace("calibrate", built, "--labels", out, code=BAD_INPUT)
    label_rows(out, ["yes", "unknown", "yes", "no", *["yes"] * 52])
    assert "56 of 56 labels" in kappaplace(*words)
    asked = ("calibrate", built, "--labels", out, "--max-risk", 0.3, "--confidence", 0.8)
    assert "got 0 of 56" in kappaplace(*asked, code=BAD_INPUT)  # all of them are copies of map images
    calibration = json.loads(kappaplace(*asked, "--keep-twins", "--json"))
    assert "with 80% confidence" in calibration["promise"][0]
    # As in the answers: with 54 correct ones, queries that differ from them cannot be detected.
    assert not calibration["guaranteed"]
    assert any("54 labelled queries were answered correctly" in line for line in calibration["promise"])
    assert (calibration["facts"]["right"], calibration["facts"]["unknown"]) == (54, 1)
    output = kappaplace(*asked, "--keep-twins")
    assert "54 of 56 top matches were correct" in output
    shown = kappaplace("localize", built, drive / "q003.png", "--k", 3)
    assert "decision" in shown
    assert "another sample" in kappaplace(*words, "--seed", 1, code=BAD_INPUT)
    assert "exactly one source" in kappaplace("calibrate", built, "--labels", out, "--self", code=BAD_INPUT)


def test_a_page_to_label(kappaplace, built, drive, tmp_path):  # noqa: F811
    page = tmp_path / "label.html"
    output = kappaplace(
        "map", "label", built, drive, "--out", tmp_path / "l.csv", "--page", page, "--size", 7, "--no-thin"
    )
    assert "7 queries sampled at random from 56" in output
    assert "no two of them" not in output
    assert f"Open {page}" in output
    assert page.read_text().count("data:image/jpeg") == 14
    assert (tmp_path / "l.csv").read_text().count("\n") == 11 + 1 + 7


def test_monitor_over_several_calls(kappaplace, built, drive, town_folder, tmp_path, monkeypatch):  # noqa: F811
    output = kappaplace("map", "monitor", built, drive, code=BAD_INPUT)
    assert "not calibrated" in output
    kappaplace("calibrate", built, "--self")
    lines = kappaplace("localize", built, drive, "--json", "--k", 1)
    file = tmp_path / "answers.jsonl"
    file.write_text(lines)
    output = kappaplace("map", "monitor", built, file)
    assert "56 queries added, no window of 200 compared; 56 wait" in output
    assert "Too few queries" in output
    # Queries far more certain than the damaged images of the calibration: the range is left.
    words = ("map", "monitor", built, "--window", 50, "--picture", tmp_path / "drift.html")
    drift = json.loads(kappaplace(*words, drive / "q003.png", "--json", code=1))
    assert (drift["queries"], drift["windows"], drift["waiting"], drift["drifting"]) == (1, 1, 7, True)
    assert drift["warnings"][0]["sentence"]
    assert "has become" in (tmp_path / "drift.html").read_text()
    assert drift["state"] == str(monitor_file(built))
    output = kappaplace("localize", built, drive / "q003.png")
    assert "Queries differ from those" in " ".join(output.split())
    outcomes = tmp_path / "outcomes.csv"
    outcomes.write_text("correct\n" + "no\n" * 40)
    checked = json.loads(kappaplace("map", "monitor", built, "--outcomes", outcomes, "--json", code=1))
    assert (checked["queries"], checked["outcomes"], checked["incorrect"]) == (0, 40, 40)
    assert "contradicts a risk" in checked["risk_alarm"]
    assert "needs images, answers or outcomes" in kappaplace("map", "monitor", built, code=BAD_INPUT)
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines.splitlines()[0]))
    output = kappaplace("map", "monitor", built, "-", code=1)  # no new window: what was found still stands
    assert "has become" in output
    csv = tmp_path / "answers.csv"
    kappaplace("localize", built, drive / "q004.png", "--csv", csv)
    elsewhere = ("--state", tmp_path / "mine.json")
    assert "1 queries added" in kappaplace("map", "monitor", built, csv, *elsewhere)
    assert "12 queries added" in kappaplace("map", "monitor", built, town_folder / "val.parquet", *elsewhere)
    assert "got both" in kappaplace("map", "monitor", built, csv, drive, code=BAD_INPUT)
    (tmp_path / "bad.jsonl").write_text("{}")
    assert "not an answer" in kappaplace("map", "monitor", built, tmp_path / "bad.jsonl", code=BAD_INPUT)
    monitor_file(built).write_text("")
    assert "Delete it" in kappaplace("map", "monitor", built, csv, code=BAD_INPUT)
