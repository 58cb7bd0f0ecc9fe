"""`kappaplace map`, `localize` and `calibrate` as a user meets them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kappaplace.cli.localize import _show, _show_end, bar
from kappaplace.cli.main import BAD_INPUT, main
from kappaplace.maps import PlaceMap
from kappaplace.maps.answer import Localization, Match
from kappaplace.models.checkpoint import save_model
from tests.maps.conftest import town, town_folder  # noqa: F401  # fixtures


@pytest.fixture
def kappaplace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Run a command; gives its output, or where it refuses its sentence."""
    monkeypatch.setenv("COLUMNS", "140")

    def run(*words: object, code: int = 0) -> str:
        monkeypatch.setattr("sys.argv", ["kappaplace", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        output = capsys.readouterr()
        assert (stop.value.code or 0) == code, output.err
        if code != BAD_INPUT:
            return output.out
        assert output.err.startswith("kappaplace: ")
        assert output.err.count("\n") == 1
        return output.err

    return run


@pytest.fixture
def model(tiny, tmp_path: Path) -> Path:
    return save_model(tiny, tmp_path / "model")


@pytest.mark.parametrize(
    "command",
    [
        *(("map", verb) for verb in ("build", "add", "remove", "compact", "info", "verify", "reembed")),
        *(("map", verb) for verb in ("export", "import", "label", "monitor")),
        *(("localize",), ("calibrate",)),
    ],
)
def test_help_teaches_by_example(kappaplace, command):
    assert f"kappaplace {' '.join(command)} " in kappaplace(*command, "--help").split("Examples:")[1]


def test_a_map_from_birth_to_another_model(kappaplace, model, town_folder, town, tmp_path):  # noqa: F811
    out, table = tmp_path / "town.map", town_folder / "val.parquet"
    output = kappaplace("map", "build", table, "--out", out, "--model", model, "--thumbnails")
    assert output == f"56 images added. {out} now has 56 references.\n"
    assert "56 already in the map" in kappaplace(
        "map", "build", table, "--out", out, "--model", model, "--thumbnails"
    )
    folder = town_folder / "val"
    output = json.loads(kappaplace("map", "add", out, folder, "--prefix", "all/", "--json"))
    assert output["added"] == 68
    assert output["without_position"] == 68
    names = tmp_path / "names.txt"
    names.write_text("all/000.png\nall/001.png\n")
    assert "2 references removed, 122 remain" in kappaplace("map", "remove", out, "--from", names)
    assert "122 references in" in kappaplace("map", "compact", out)
    info = kappaplace("map", "info", out)
    assert "122 references" in info
    assert "66 without" in info
    assert json.loads(kappaplace("map", "info", out, "--json"))["neighbourhood"] == "metres:25"
    assert "no problems found" in kappaplace("map", "verify", out)

    query = town.image_path(int(town.query_rows[0]))
    shown = kappaplace(
        "localize", out, query, "--k", 3, "--csv", tmp_path / "a.csv", "--html", tmp_path / "a.html"
    )
    assert "█" in shown
    assert "not calibrated" in shown
    assert (tmp_path / "a.csv").read_text().count("\n") == 4
    assert "<img" in (tmp_path / "a.html").read_text()
    x, y = town.positions[0]
    near = json.loads(kappaplace("localize", out, query, "--near", f"{x},{y},30", "--json"))
    assert all((m["x"] - x) ** 2 + (m["y"] - y) ** 2 <= 900 for m in near["matches"])

    for name in ("t.parquet", "t.npz", "t.geojson"):
        assert "122 references written" in kappaplace("map", "export", out, "--out", tmp_path / name)
    assert "122 references" in kappaplace("map", "import", tmp_path / "t.npz", "--out", tmp_path / "b.map")
    kappaplace("map", "export", out, "--queries", table, "--out", tmp_path / "pairs.txt", "--k", 2)
    assert len((tmp_path / "pairs.txt").read_text().splitlines()) == 2 * 12
    assert "no calibration" not in kappaplace("map", "reembed", out, "--model", model)

    part = next((out / "segments").rglob("kappa.npy"))
    part.write_bytes(part.read_bytes()[:-1] + b"\xff")
    assert "1 problem found" in kappaplace("map", "verify", out, code=1)


def test_calibrate_and_what_it_promises(kappaplace, model, town_folder, tmp_path):  # noqa: F811
    out, table = tmp_path / "town.map", town_folder / "val.parquet"
    kappaplace("map", "build", table, "--out", out, "--model", model)
    assert "No guarantee" in kappaplace("calibrate", out, "--self")
    assert json.loads(kappaplace("calibrate", out, "--self", "--json"))["guaranteed"] is False
    output = kappaplace("localize", out, town_folder / "val" / "060.png", "--k", 2)
    assert "no risk is guaranteed" in " ".join(output.split())
    assert "correct with probability" in " ".join(output.split())
    facts = json.loads(kappaplace("calibrate", out, "--self", "--no-decisions", "--json"))
    assert (facts["promise"], facts["guaranteed"]) == ([], False)
    stored = json.loads((out / "manifest.json").read_text())["calibration"]["calibration"]
    assert stored["rule"] is None  # probabilities without a threshold
    assert "exactly one source" in kappaplace("calibrate", out, code=BAD_INPUT)
    assert "--no-thin" in kappaplace("calibrate", out, "--queries", table, code=BAD_INPUT)


def test_bad_input_is_one_sentence(kappaplace, model, town_folder, tmp_path):  # noqa: F811
    (tmp_path / "empty").mkdir()
    new = ("--out", tmp_path / "m", "--model", model)
    assert "contains no images" in kappaplace("map", "build", tmp_path / "empty", *new, code=BAD_INPUT)
    assert "No map at" in kappaplace("map", "info", tmp_path / "nothing", code=BAD_INPUT)
    assert "No map at" in kappaplace("localize", tmp_path / "no", "x.jpg", code=BAD_INPUT)
    kappaplace("map", "build", town_folder / "val.parquet", *new)
    assert "three numbers" in kappaplace("localize", tmp_path / "m", "x.jpg", "--near", "1", code=BAD_INPUT)
    assert "No image file" in kappaplace("localize", tmp_path / "m", "x.jpg", code=BAD_INPUT)
    assert "No references to remove" in kappaplace("map", "remove", tmp_path / "m", code=BAD_INPUT)
    assert "Pairs need queries" in kappaplace(
        "map", "export", tmp_path / "m", "--out", "a.txt", code=BAD_INPUT
    )


def test_bars_are_as_full_as_the_share():
    assert [bar(share) for share in (0.0, 0.5, 1.0, 7.0)] == ["░" * 6, "█" * 3 + "░" * 3, "█" * 6, "█" * 6]


def test_names_have_room_beside_long_numbers(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    numbers = (550745.0, 4180010.0, 0.0, 0.0, 0.9861, 1029.4, 4.88e-4, 0.26)
    match = Match(10, "a/00000031.jpg", *numbers, "doubtful", 0, "")
    answer = Localization("q", 1029.0, 0.1, 0.3, 0.9, "doubtful", True, None, (match,), {})
    _show([answer], True, True)
    _show_end([answer], "exact: all are compared", 0)
    output = capsys.readouterr().out
    row = r"^10 a/00000031.jpg 550745.0 4180010.0 0.986 +1029 0.00049 ██░░░░ 0.26 +doubtful"
    assert re.search(row, output, re.M), output
    assert "Search exact: all are compared." in output


def test_info_shows_where_the_map_looks(kappaplace, town, tiny, tmp_path):  # noqa: F811
    seen = PlaceMap.build(town.references, tmp_path / "m", tiny).directions()
    lines = kappaplace("map", "info", tmp_path / "m").splitlines()
    assert f"  directions  {seen.sentence}" in lines
    lines = kappaplace("map", "info", tmp_path / "m", "--directions").splitlines()[-len(seen.cells) :]
    for cell, line in zip(seen.cells, lines, strict=True):
        assert line.split()[:2] == [f"{cell.latitude:.5f},", f"{cell.longitude:.5f}"]
        assert line.split()[2:] == [str(count or "·") for count in cell.counts]
    listed = json.loads(kappaplace("map", "info", tmp_path / "m", "--directions", "--json"))["directions"]
    assert listed["counts"] == seen.counts
    assert [tuple(cell["counts"]) for cell in listed["cells"]] == [cell.counts for cell in seen.cells]
    assert "cells" not in json.loads(kappaplace("map", "info", tmp_path / "m", "--json"))["directions"]
