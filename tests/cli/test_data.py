"""`kappaplace data …` from end to end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from kappaplace.cli.data import app
from kappaplace.cli.main import BAD_INPUT, main
from kappaplace.data.positives import NoPositives
from kappaplace.data.protocols import PROTOCOLS
from kappaplace.data.table import PlaceImages


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What the installed command says on stderr when it refuses: one sentence, exit code 2, no traceback."""
    monkeypatch.setattr("sys.argv", ["kappaplace", "data", *map(str, words)])
    with pytest.raises(SystemExit) as exit_:
        main()
    output = capsys.readouterr()
    assert exit_.value.code == BAD_INPUT == 2
    assert output.out == ""
    assert output.err.startswith("kappaplace: ")
    assert output.err.count("\n") == 1
    return output.err


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
    run("show", table, "--out", tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000
    for by in ("session", "time", "area"):
        words = ("--gap", "0") if by == "time" else ()
        answer = json.loads(run("split", table, "--by", by, "--out", tmp_path / by, "--json", *words).stdout)
        for part in answer["parts"].values():
            assert PlaceImages.open(part["table"]).content_hash == part["hash"]
    assert "dropped" in run("split", table, "--out", tmp_path / "s", "--format", "csv").stdout
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
    assert "val split, positives within 25 m, images resized to 512×512 (exact)" in text
    assert "-o mat=…" in text
    layouts = json.loads(run("layouts", "--json").stdout)
    assert "rosbag" in layouts["layouts"]
    assert layouts["protocols"]["amstertime"]["queries"] == 1231


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("import", "csv", ".", "--out", "t.txt"), "--out must be a .parquet or .csv file"),
        (("import", "magic", ".", "--out", "t.csv"), "Unknown layout or protocol"),
        (("import", "csv", ".", "--out", "t.csv", "-o", "frame"), "needs name=value"),
        (("check", "none.parquet"), "no table at"),
        (("split", "t.csv", "--by", "time", "--block", "5", "--out", "."), "no effect on a split by time"),
        (("import", "csv", ".", "--out", "t.csv", "-o", "folder=x"), 'has no option "folder"'),
        (("import", "csv", ".", "--out", "t.csv", "-o", "ask=x"), 'has no option "ask"'),
        (("import", "sf-xl-v2", ".", "--out", "t.csv", "-o", "name=x"), "has no option name"),
        (("import", "sf-xl-v2", ".", "--out", "t.csv", "-o", "queries=v1"), "sf-xl-v2 fixes queries"),
    ],
)
def test_bad_input_is_one_sentence(words, sentence, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert sentence in refused(monkeypatch, capsys, *words)


@pytest.fixture
def amstertime(tmp_path: Path) -> Path:
    pairs = ["image1,image2,y", *(f"new/{i:04d}.png,old/{i:04d}.jpg,1" for i in range(1231))]
    (tmp_path / "verification.csv").write_text("\n".join(pairs), encoding="utf-8")
    return tmp_path


def test_a_protocol_is_imported_as_it_is(amstertime, monkeypatch, capsys):
    out = amstertime / "t.parquet"
    facts = json.loads(run("import", "amstertime", amstertime, "--out", out, "--json").stdout)
    assert facts["queries"] == 1231
    assert facts["resize"] == {"mode": "none"}
    assert PlaceImages.open(out).protocol == "amstertime"
    text = run("import", "amstertime", amstertime, "--out", out, "--name", "mine").stdout
    assert "images      native size" in text
    assert "mine: 1,231 queries" in text
    assert f"hash        {PlaceImages.open(out).content_hash} (amstertime)" in text
    for words, sentence in (
        (("--radius", "25"), "fixes the radius. Omit --radius"),
        (("--neighbourhood", "self"), "fixes the neighborhood"),
        (("-o", "queries=new"), "amstertime fixes queries"),
        (("-o", "magic=1"), "has no option magic"),
    ):
        answer = refused(monkeypatch, capsys, "import", "amstertime", amstertime, "--out", out, *words)
        assert sentence in answer


def test_the_layout_beside_the_protocol_can_be_reached(amstertime):
    out = amstertime / "t.parquet"
    run("import", "amstertime-csv", amstertime, "--out", out, "-o", "queries=new")
    table = PlaceImages.open(out)
    assert table.protocol == ""
    assert str(table.paths[0]).startswith("old/")


def test_a_protocols_policy_is_the_default(amstertime, monkeypatch):
    monkeypatch.setitem(
        PROTOCOLS, "amstertime", replace(PROTOCOLS["amstertime"], no_positives=NoPositives.SKIP)
    )
    words = ("import", "amstertime", amstertime, "--out", amstertime / "t.parquet")
    assert "0 without positives, omitted" in run(*words).stdout
    assert "0 without positives, omitted" in run("check", words[-1], "--no-images").stdout
    assert "counted as failures" in run(*words, "--policy", "fail").stdout


def test_near_follows_the_radius_unless_stated(drive, tmp_path):
    out = tmp_path / "t.parquet"
    for words, near in (
        (("--radius", "10"), "metres:10"),
        (("-o", "radius=12"), "metres:12"),
        (("--radius", "10", "--neighbourhood", "metres:25"), "metres:25"),
        ((), "metres:25"),
    ):
        run("import", "csv", drive, "--out", out, *words)
        assert str(PlaceImages.open(out).neighborhood) == near


def test_a_policy_that_is_not_met_leaves_the_old_table_alone(drive, tmp_path, monkeypatch, capsys):
    out = tmp_path / "t.csv"
    out.write_text("what was here before", encoding="utf-8")
    table = PlaceImages.create(["q.jpg", "r.jpg"], [[0, 0], [500, 0]], is_query=[True, False])
    monkeypatch.setattr("kappaplace.cli.data.read_layout", lambda *_, **__: table)
    output = refused(monkeypatch, capsys, "import", "csv", drive, "--out", out, "--policy", "error")
    assert "1 of 1 queries have no positive" in output
    assert out.read_text(encoding="utf-8") == "what was here before"


def test_decoding_finds_corrupt_images(drive, tmp_path):
    table = tmp_path / "drive.parquet"
    run("import", "csv", drive, "--out", table)
    whole = (drive / "images" / "7.jpg").read_bytes()
    (drive / "images" / "7.jpg").write_bytes(whole[: len(whole) // 2])
    (drive / "images" / "8.jpg").write_bytes(b"no image at all")
    (drive / "images" / "9.jpg").unlink()
    assert run("check", table, good=False).exit_code == 1  # one is missing; the others are there
    assert json.loads(run("check", table, "--json", good=False).stdout)["problems"][0].startswith("1 of 60")
    result = run("check", table, "--decode", "--json", good=False)
    assert result.exit_code == 1
    facts = json.loads(result.stdout)
    assert "1 of 60 images are missing" in facts["problems"][0]
    assert facts["problems"][1] == "2 of 60 images cannot be decoded"
    assert [Path(word).name for text in facts["corrupt"] for word in text.split() if ".jpg" in word] == [
        "7.jpg",
        "8.jpg",
    ]
    assert "8.jpg is not an image" in run("check", table, "--decode", good=False).output


def test_an_older_part_does_not_stay_beside_a_new_split(drive, tmp_path, monkeypatch, capsys):
    table, out = tmp_path / "drive.parquet", tmp_path / "parts"
    run("import", "csv", drive, "--out", table)
    run("split", table, "--by", "area", "--out", out)
    before = (out / "test.parquet").read_bytes()
    output = refused(monkeypatch, capsys, "split", table, "--by", "session", "--out", out)
    assert "train.parquet belongs to an earlier split" in output
    assert (out / "test.parquet").read_bytes() == before  # nothing was written
    run("split", table, "--by", "area", "--out", out, "--seed", "1")  # the same parts are replaced
    assert (out / "test.parquet").read_bytes() != before


def test_a_route_is_split_by_its_frames(tmp_path, monkeypatch, capsys):
    for i in range(60):
        for role in ("query", "ref"):
            file = tmp_path / "route" / role / f"{i}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    truth = {"positives": [[i] for i in range(60)], "tolerance_frames": 3}
    (tmp_path / "route" / "gt.json").write_text(json.dumps(truth), encoding="utf-8")
    table = tmp_path / "route.parquet"
    run("import", "gt-json", tmp_path / "route", "--out", table)
    answer = json.loads(run("split", table, "--by", "time", "--out", tmp_path / "parts", "--json").stdout)
    assert {name: part["queries"] for name, part in answer["parts"].items()} == {
        "calibration": 27,
        "test": 30,
    }
    assert answer["dropped"] == 3
    output = refused(monkeypatch, capsys, "split", table, "--by", "session", "--out", tmp_path / "s")
    assert "single session" in output


def test_shares_above_one_are_refused(drive, tmp_path, monkeypatch, capsys):
    table = tmp_path / "drive.parquet"
    run("import", "csv", drive, "--out", table)
    words = ("split", table, "--calibration", "0.9", "--test", "0.9", "--out", tmp_path / "s")
    assert "sum to at most 1, got 0.9 and 0.9" in refused(monkeypatch, capsys, *words)


@pytest.mark.parametrize("command", ["import", "check", "show", "split", "city", "layouts"])
def test_help_teaches(command):
    text = run(command, "--help").output
    assert command == "layouts" or f"kappaplace data {command}" in text
