"""``kappaplace pair``: one pair, lists, filters, pictures, and a calibration of one's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from kappaplace.cli.main import BAD_INPUT
from tests.cli.test_map import kappaplace  # noqa: F401
from tests.maps.test_pairs import street  # noqa: F401


def test_one_pair_prints_its_probability_and_draws_the_evidence(kappaplace, street, tmp_path):  # noqa: F811
    output = kappaplace("pair", street[0], street[1], "--picture", tmp_path / "evidence.png")
    assert "show the same place with probability" in output
    assert "patches that agree" in output
    with Image.open(tmp_path / "evidence.png") as picture:
        assert picture.size == (2 * 360 + 12, 360)
    answer = json.loads(kappaplace("pair", street[0], street[1], "--json"))
    assert 0.5 < answer["probability"] <= 1
    assert answer["a"] == street[0]


def test_a_list_is_filtered_for_colmap(kappaplace, street, tmp_path):  # noqa: F811
    names = [Path(file).name for file in street]
    pairs = [f"{names[0]} {names[1]}", f"{names[0]} {names[3]}", f"{names[4]} {names[5]}"]
    (tmp_path / "pairs.txt").write_text("\n".join(pairs) + "\n")
    folder = Path(street[0]).parent
    words = ("pair", "--pairs", tmp_path / "pairs.txt", "--images", folder)
    kappaplace(*words, "--out", tmp_path / "all.csv")
    rows = [line.split(",") for line in (tmp_path / "all.csv").read_text().splitlines()[1:]]
    middle = sorted(float(row[2]) for row in rows)[1]
    output = kappaplace(*words, "--min-probability", middle - 1e-6, "--out", tmp_path / "kept.txt")
    assert "Wrote 2 of 3 pairs" in output
    assert (tmp_path / "kept.txt").read_text() == f"{pairs[0]}\n{pairs[2]}\n"


def test_a_calibration_is_fitted_on_a_list(kappaplace, street, tmp_path):  # noqa: F811
    lines = [f"{street[row]},{street[row + 1]},1" for row in range(0, 8, 2)] * 15
    lines += [f"{street[row]},{street[(row + 3) % 8]},0" for row in range(0, 8, 2)] * 15
    (tmp_path / "pairs.csv").write_text("a,b,same\n" + "\n".join(lines) + "\n")
    output = kappaplace("pair", "--pairs", tmp_path / "pairs.csv", "--fit", tmp_path / "own.json")
    assert "Fitted on 120 pairs" in output
    answer = json.loads(
        kappaplace("pair", street[0], street[1], "--calibration", tmp_path / "own.json", "--json")
    )
    assert answer["probability"] > 0.5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.jpg"], "Pass two images, or a list with --pairs, got 1 images"),
        (["--pairs", "pairs.txt", "--picture", "x.png"], "--picture draws one pair"),
        (["--pairs", "pairs.txt", "--fit", "x.json"], "--fit needs a CSV list"),
        (["a.jpg", "b.jpg", "--min-probability", "2"], "--min-probability"),
        (["a.jpg", "b.jpg", "--same-rate", "0"], "same_rate"),
    ],
)
def test_mistakes_are_explained(kappaplace, tmp_path, monkeypatch, words, message):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    Path("pairs.txt").write_text("a.jpg b.jpg\n")
    assert message in kappaplace("pair", *words, code=BAD_INPUT)
