"""`kappaplace data …` from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from kappaplace.cli.data import app
from kappaplace.data.place_images import PlaceImages
from kappaplace.errors import KappaPlaceError


def run(*words: object, good: bool = True) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if good and result.exception is not None:
        raise result.exception
    return result


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    folder = tmp_path / "drive"
    rng = np.random.default_rng(0)
    lines = ["file,x,y,session,time"]
    for i, (x, y) in enumerate(rng.uniform(0, 400, (60, 2))):
        file = folder / "images" / f"{i}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6)).save(file)
        lines.append(f"{i}.jpg,{x},{y},drive {i // 12},{1.7e9 + i}")
    (folder / "poses.csv").write_text("\n".join(lines), encoding="utf-8")
    return folder


def test_import_check_show_split(drive, tmp_path):
    table = tmp_path / "drive.parquet"
    result = run("import", "csv", drive, "--out", table, "--name", "town", "--neighbourhood", "metres:10")
    assert "town: 0 queries, 60 references" in result.output
    assert "condition = 'session'" in result.output
    facts = json.loads(run("check", table, "--json").stdout)
    assert facts["problems"] == []
    assert facts["neighbourhood"] == "metres:10"
    assert facts["hash"] == PlaceImages.open(table).content_hash
    run("show", table, "--out", tmp_path / "map.png", "--out", tmp_path / "map.html")
    assert (tmp_path / "map.html").stat().st_size > 1000
    for by in ("session", "time", "area"):
        words = ("--gap", "0") if by == "time" else ()
        answer = json.loads(run("split", table, "--by", by, "--out", tmp_path / by, "--json", *words).stdout)
        for part in answer["parts"].values():
            assert PlaceImages.open(part["table"]).content_hash == part["hash"]
    assert "left out" in run("split", table, "--out", tmp_path / "s", "--format", "csv").stdout
    assert (tmp_path / "s" / "test.csv").is_file()


def test_check_tells_what_is_wrong(drive, tmp_path):
    table = tmp_path / "drive.csv"
    run("import", "csv", drive, "--out", table, "--json")
    (drive / "images" / "7.jpg").unlink()
    table.write_text(table.read_text(encoding="utf-8").replace("drive 0", "drive zero"), encoding="utf-8")
    result = run("check", table, good=False)
    assert result.exit_code == 1
    assert "1 of 60 images are missing" in result.output
    assert "edited after it was written" in result.output
    assert run("check", table, "--no-images", "--json", good=False).exit_code == 1


def test_layouts_are_listed():
    text = run("layouts").stdout
    assert "at-names" in text
    assert "pitts30k-test: 6,816 queries, 10,000 references (verified)" in text
    known = json.loads(run("layouts", "--json").stdout)
    assert "rosbag" in known["layouts"]
    assert known["protocols"]["amstertime"]["queries"] == 1231


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("import", "csv", ".", "--out", "t.txt"), "neither .parquet nor .csv"),
        (("import", "magic", ".", "--out", "t.csv"), "neither a layout"),
        (("import", "csv", ".", "--out", "t.csv", "-o", "frame"), "lacks its value"),
        (("check", "none.parquet"), "no table at"),
        (("split", "t.csv", "--by", "time", "--block", "5", "--out", "."), "no meaning for --by time"),
        (("split", "t.csv", "--out", ".", "--format", "xml"), "choose parquet or csv"),
    ],
)
def test_bad_input_is_one_sentence(words, sentence):
    result = run(*words, good=False)
    assert isinstance(result.exception, KappaPlaceError)
    assert sentence in str(result.exception)


def test_a_protocol_fixes_its_radius(tmp_path):
    pairs = ["image1,image2,y", *(f"new/{i:04d}.png,old/{i:04d}.jpg,1" for i in range(1231))]
    (tmp_path / "verification.csv").write_text("\n".join(pairs), encoding="utf-8")
    out = tmp_path / "t.parquet"
    facts = json.loads(run("import", "amstertime", tmp_path, "--out", out, "--json").stdout)
    assert facts["queries"] == 1231
    assert PlaceImages.open(out).protocol == "amstertime"
    result = run("import", "amstertime", tmp_path, "--out", out, "--radius", "10", good=False)
    assert "fixes the radius" in str(result.exception)


@pytest.mark.parametrize("command", ["import", "check", "show", "split", "layouts"])
def test_help_teaches(command):
    text = run(command, "--help").output
    assert command == "layouts" or f"kappaplace data {command}" in text
