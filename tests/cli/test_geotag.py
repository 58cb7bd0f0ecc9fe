"""`kappaplace geotag` on the command line: a dry run first, then files, a report and undo."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kappaplace.cli.main import BAD_INPUT, USE, app
from kappaplace.data.readers.photos import read_pose
from kappaplace.maps.geotag_files import JOURNAL
from tests.hardening.commands import run
from tests.maps.test_geotag_files import everything
from tests.maps.trip import AGAIN, ELSEWHERE, Trip


@pytest.fixture
def words(trip: Trip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    monkeypatch.setenv("KAPPAPLACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    return "geotag", trip.folder / "holiday", "--map", trip.folder / "town.map"


def test_a_dry_run_writes_only_the_report(
    words: tuple[object, ...], trip: Trip, tmp_path: Path, monkeypatch, capsys
) -> None:
    before = everything(trip.folder)
    assert run(monkeypatch, *words, "--report", tmp_path / "holiday.html") == 0
    output = capsys.readouterr().out
    assert everything(trip.folder) == before
    lines = output.splitlines()
    assert sum(line.startswith(("again", "elsewhere")) for line in lines) == AGAIN + ELSEWHERE
    assert re.search(r"again \d+\.jpg: accepted, 37\.\d{6}, -122\.\d{6} ± 25 m; probability 0\.\d\d", output)
    assert "Nothing was written. Run again with --apply" in output
    page = (tmp_path / "holiday.html").read_text(encoding="utf-8")
    assert page.count('<div class="row">') == AGAIN + ELSEWHERE
    assert "Accepted: probability" in page
    assert "Green: the position is written" in page
    assert page.count("data:image/jpeg") >= AGAIN + ELSEWHERE


def test_apply_and_undo(words: tuple[object, ...], trip: Trip, monkeypatch, capsys) -> None:
    before = everything(trip.folder / "holiday")
    assert run(monkeypatch, *words, "--apply", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    placed = [photo for photo in answer["photos"] if photo["status"] == "accepted"]
    assert sorted(answer["written"]) == sorted(f"{photo['photo']}.xmp" for photo in placed)
    after = everything(trip.folder / "holiday")
    assert set(after) - set(before) == {JOURNAL, *(f"{Path(each['photo']).name}.xmp" for each in placed)}
    assert run(monkeypatch, *words, "--apply") == 0
    assert "Wrote 0 files" in capsys.readouterr().out
    assert run(monkeypatch, *words[:2], "--undo") == 0
    assert capsys.readouterr().out == f"Deleted {len(placed)} files.\n"
    assert everything(trip.folder / "holiday") == before


def test_copies_with_exif(words: tuple[object, ...], trip: Trip, tmp_path: Path, monkeypatch, capsys) -> None:
    before = everything(trip.folder / "holiday")
    out = tmp_path / "tagged"
    assert run(monkeypatch, *words, "--write-exif", out) == 0
    assert not out.exists()  # a dry run
    assert run(monkeypatch, *words, "--write-exif", out, "--apply") == 0
    assert f"kappaplace geotag {words[1]} --write-exif {out} --undo" in capsys.readouterr().out
    copies = sorted(out.glob("*.jpg"))
    assert copies
    for copy in copies:
        pose = read_pose(copy)
        assert pose.accuracy == 25.0
        assert pose.latitude == pytest.approx(37.7, abs=0.2)
        assert (
            pose.timestamp == read_pose(trip.folder / "holiday" / copy.name).timestamp or "else" in copy.name
        )
    assert everything(trip.folder / "holiday") == before
    (copies[0]).write_bytes(b"edited")
    assert run(monkeypatch, words[0], words[1], "--write-exif", out, "--undo") == 0
    assert list(out.glob("*.jpg")) == [copies[0]]
    assert "Kept, because it has changed since" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "geotag needs a map"),
        (("--undo",), "nothing to undo"),
        (("--map", "nowhere.map"), "nowhere.map"),
    ],
)
def test_bad_input_is_one_message(
    more: tuple[str, ...], message: str, trip: Trip, tmp_path: Path, monkeypatch, capsys
) -> None:
    assert run(monkeypatch, "geotag", trip.folder / "street", *more) == BAD_INPUT
    error = capsys.readouterr().err
    assert error.startswith("kappaplace: ")
    assert error.count("\n") == 1
    assert message in error


def test_it_is_listed_for_users() -> None:
    own = [each for each in app.registered_commands if each.callback and each.callback.__name__ == "geotag"]
    assert [each.rich_help_panel for each in own] == [USE]
