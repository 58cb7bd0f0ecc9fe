"""``kappaplace localize`` on many images: answers as they come, bad files, a run that was stopped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kappaplace.cli.main import BAD_INPUT, app
from kappaplace.data.geodesy import unproject
from kappaplace.maps import BuildOptions, PlaceMap
from tests.cli.test_map import kappaplace, town, town_folder  # noqa: F401


@pytest.fixture
def world(tiny, town, tmp_path) -> Path:  # noqa: F811
    """A map, and a folder of eight queries of which one is broken."""
    folder = tmp_path / "world"
    folder.mkdir()
    PlaceMap.build(town.references, folder / "town.map", tiny, BuildOptions(name="town")).self_calibrate()
    (folder / "asked").mkdir()
    for row in town.query_rows[:8].tolist():
        shutil.copy(town.image_path(row), folder / "asked" / Path(town.image_path(row)).name)
    sorted((folder / "asked").iterdir())[4].write_bytes(b"no image")
    return folder


def test_many_images_print_a_line_each_and_their_decisions(kappaplace, world):  # noqa: F811
    output = kappaplace("localize", world / "town.map", world / "asked", "--batch-size", 3)
    lines = output.splitlines()
    answers = [line for line in lines if "Best match" in line]
    assert len(answers) == 7
    counts = [int(word) for word in lines[-1].replace(",", "").split() if word.isdigit()]
    assert sum(counts) == 8
    assert lines[-1].endswith("1 unreadable")
    assert "κ of the query" not in output


def test_more_is_told_when_asked_for(kappaplace, world):  # noqa: F811
    one = next(iter(sorted((world / "asked").iterdir())))
    assert "κ" not in kappaplace("localize", world / "town.map", one).split("Best match")[1]
    output = kappaplace("localize", world / "town.map", one, "--verbose")
    assert "κ of the query" in output
    assert "Search exact" in output


def test_a_broken_image_can_stop_and_loses_nothing(kappaplace, world, tmp_path):  # noqa: F811
    words = ("localize", world / "town.map", world / "asked", "--batch-size", 2, "--csv", tmp_path / "a.csv")
    output = kappaplace(*words, "--on-error", "stop", code=BAD_INPUT)
    assert "is not an image" in output
    rows = (tmp_path / "a.csv").read_text().splitlines()[1:]
    assert len({row.split(",")[0] for row in rows}) == 4


@pytest.mark.parametrize("cut", [0, 7, 60])
def test_a_csv_file_resumes(kappaplace, world, tmp_path, cut):  # noqa: F811
    words = ("localize", world / "town.map", world / "asked", "--batch-size", 3)
    kappaplace(*words, "--csv", tmp_path / "whole.csv")
    whole = (tmp_path / "whole.csv").read_bytes()
    half = whole[: whole.index(b"\n", len(whole) // 2) + 1 - cut]
    (tmp_path / "half.csv").write_bytes(half)
    kappaplace(*words, "--csv", tmp_path / "half.csv")
    assert (tmp_path / "half.csv").read_bytes() == whole


def test_files_of_something_else_are_refused(kappaplace, world, tmp_path):  # noqa: F811
    words = ("localize", world / "town.map", world / "asked", "--csv")
    (tmp_path / "own.csv").write_text("a,b\n1,2\n")
    assert "not a file of answers" in kappaplace(*words, tmp_path / "own.csv", code=BAD_INPUT)
    kappaplace(*words, tmp_path / "a.csv")
    rows = [line.split(",") for line in (tmp_path / "a.csv").read_text().splitlines()]
    for row in rows[1:]:
        row[rows[0].index("calibration")] = "x"
    (tmp_path / "a.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    assert "another calibration" in kappaplace(*words, tmp_path / "a.csv", code=BAD_INPUT)
    assert (tmp_path / "own.csv").read_text() == "a,b\n1,2\n"


def test_an_area_in_degrees_is_that_in_meters(kappaplace, world, town):  # noqa: F811
    x, y = town.positions[0]
    latitude, longitude = (float(value[0]) for value in unproject(town.positions[:1], town.frame))
    one = next(iter(sorted((world / "asked").iterdir())))
    answers = [
        json.loads(kappaplace("localize", world / "town.map", one, "--area", area, "--json", "-k", 99))
        for area in (f"{latitude},{longitude},33", f"{x},{y},33")
    ]
    assert answers[0]["matches"] == answers[1]["matches"]
    assert 0 < len(answers[0]["matches"]) < 56
    assert "three numbers" in kappaplace("localize", world / "town.map", one, "--area", "1,2", code=BAD_INPUT)


@pytest.mark.parametrize("words", [("--rerank",), ("--rerank", "q.jpg")])
def test_the_flag_of_before_names_the_order(words):
    result = CliRunner().invoke(app, ["localize", "town.map", "x.jpg", *words])
    assert result.exit_code == BAD_INPUT
    assert "--order probability" in " ".join(result.output.replace("│", " ").split())


def test_a_sequence_is_localized_together(kappaplace, world, tmp_path):  # noqa: F811
    words = ("localize", world / "town.map", "--sequence", world / "asked", "--rerank", 0)
    output = kappaplace(*words, "--csv", tmp_path / "a.csv", "--out", tmp_path / "poses.mcap", "--step", 20)
    assert len([line for line in output.splitlines() if "Best match" in line]) == 7  # one image is broken
    assert "fused with those" in output.replace("\n", " ")
    assert len({row.split(",")[0] for row in (tmp_path / "a.csv").read_text().splitlines()[1:]}) == 7
    assert (tmp_path / "poses.mcap").stat().st_size > 0
    assert "cannot resume" in kappaplace(*words, "--csv", tmp_path / "a.csv", code=BAD_INPUT)
    assert "is not an image" in kappaplace(*words, "--on-error", "stop", code=BAD_INPUT)
    assert ".mcap" in kappaplace(*words, "--out", tmp_path / "poses.txt", code=BAD_INPUT)


def test_a_video_is_localized_as_a_sequence(kappaplace, world, tmp_path):  # noqa: F811
    cv2 = pytest.importorskip("cv2")
    files = [file for row, file in enumerate(sorted((world / "asked").iterdir())) if row != 4]
    writer = cv2.VideoWriter(str(tmp_path / "walk.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 2.0, (32, 32))
    for file in files:
        writer.write(cv2.imread(str(file)))
    writer.release()
    words = ("localize", world / "town.map", "--sequence", tmp_path / "walk.avi", "--every", 1, "--json")
    answers = [json.loads(line) for line in kappaplace(*words).splitlines() if line.startswith("{")]
    assert [answer["query"] for answer in answers] == [f"walk.avi/{row:07d}" for row in (0, 2, 4, 6)]
    assert all(answer["guaranteed"] is False for answer in answers)


def test_positions_are_written_by_the_suffix(kappaplace, world, tmp_path):  # noqa: F811
    words = ("localize", world / "town.map", world / "asked")
    kappaplace(*words, "--out", tmp_path / "a.geojson")
    kappaplace(*words, "--out", tmp_path / "a.gpx")
    points = [each["geometry"] for each in json.loads((tmp_path / "a.geojson").read_text())["features"]]
    assert len(points) == 7
    assert (tmp_path / "a.gpx").read_text().count("<wpt ") == sum(point is not None for point in points)
    kappaplace(*words, "--out", tmp_path / "a.csv")
    kappaplace(*words, "--csv", tmp_path / "b.csv")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert "one of these suffixes" in kappaplace(*words, "--out", tmp_path / "a.shp", code=BAD_INPUT)


def test_an_area_may_end_with_its_unit(kappaplace, world):  # noqa: F811
    town_map = PlaceMap.open(world / "town.map")
    x, y = town_map.store.positions[3].tolist()
    latitude, longitude = (
        float(value[0]) for value in unproject(town_map.store.positions[3:4], "EPSG:32610")
    )
    one = next(iter(sorted((world / "asked").iterdir())))
    answers = [
        json.loads(kappaplace("localize", world / "town.map", one, "--json", "-k", 50, "--area", area))
        for area in (f"{x},{y},30", f"{latitude:.8f},{longitude:.8f},30m")
    ]
    assert answers[0]["matches"] == answers[1]["matches"] != []
    circle = (latitude, longitude, 30.0)
    assert [m.name for m in town_map.localize(str(one), k=50, area=circle).matches] == [
        m["name"] for m in answers[0]["matches"]
    ]


def test_candidate_sets_are_printed_and_in_json(kappaplace, world):  # noqa: F811
    image = sorted((world / "asked").iterdir())[0]
    output = kappaplace("localize", world / "town.map", image, "--coverage", 0.3)
    assert "30% candidate set: " in " ".join(output.split())
    values = json.loads(kappaplace("localize", world / "town.map", image, "--coverage", 0.3, "--json"))
    assert values["candidates"]["coverage"] == 0.3
    assert not values["candidates"]["guaranteed"]  # self-calibrated
    assert values["candidates"]["places"] or values["candidates"]["unmapped"]
