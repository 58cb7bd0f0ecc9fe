"""Positions as GeoJSON, GPX, KML and CSV, read back."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from kappaplace.data.readers.trajectory import read_trajectory
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import Localization, PlaceMap, check_positions_file, write_positions
from kappaplace.maps.answer import COLUMNS, FIRST_COLUMNS, AnswerFile

GPX = {"g": "http://www.topografix.com/GPX/1/1", "k": "urn:kappaplace:gpx"}
KML = {"k": "http://www.opengis.net/kml/2.2"}


@pytest.fixture
def answers(town_map: PlaceMap, queries: list[str]) -> list[Localization]:
    """Answers of which the second has a radius, and the last no position."""
    first, second, third = town_map.localize(queries[:3], k=2)
    second = replace(
        second, radius=18.62, radius_level=0.95, radius_source="labels", decision="accept", far=0.01
    )
    odd = replace(first, query="über <&> \x07.jpg")
    return [odd, second, replace(third, pose=None, latitude=None, longitude=None)]


def test_geojson(answers, tmp_path):
    write_positions(answers, tmp_path / "a.geojson")
    read = json.loads((tmp_path / "a.geojson").read_text())
    assert read["kappaplace"]["coordinates"] == "WGS 84"
    points = [feature["geometry"] for feature in read["features"]]
    assert points[2] is None
    for answer, point in zip(answers[:2], points, strict=False):
        assert point == {"type": "Point", "coordinates": [answer.longitude, answer.latitude]}
    facts = read["features"][1]["properties"]
    assert (facts["radius"], facts["radius_level"], facts["decision"]) == (18.62, 0.95, "accept")
    assert read["features"][0]["properties"]["query"] == answers[0].query
    assert "radius" not in read["features"][0]["properties"]


def test_gpx(answers, tmp_path):
    write_positions(answers, tmp_path / "a.gpx")
    points = ElementTree.parse(tmp_path / "a.gpx").getroot().findall("g:wpt", GPX)
    assert len(points) == 2
    for answer, point in zip(answers[:2], points, strict=True):
        assert float(point.get("lat")) == pytest.approx(answer.latitude, abs=1e-8)
        assert float(point.get("lon")) == pytest.approx(answer.longitude, abs=1e-8)
        assert point.findtext("g:desc", namespaces=GPX) == answer.sentence
    assert [point.findtext("g:name", namespaces=GPX) for point in points] == [
        "über <&> \\x07.jpg",
        answers[1].query,
    ]
    assert points[1].findtext("g:type", namespaces=GPX) == "accept"
    assert points[1].findtext("g:extensions/k:radius", namespaces=GPX) == "18.62"


def test_kml(answers, tmp_path):
    write_positions(answers, tmp_path / "a.kml")
    marks = ElementTree.parse(tmp_path / "a.kml").getroot().findall(".//k:Placemark", KML)
    assert len(marks) == 2
    longitude, latitude = marks[1].findtext("k:Point/k:coordinates", namespaces=KML).split(",")
    assert (float(latitude), float(longitude)) == pytest.approx((answers[1].latitude, answers[1].longitude))
    data = {
        each.get("name"): each.findtext("k:value", namespaces=KML)
        for each in marks[1].iter(f"{{{KML['k']}}}Data")
    }
    assert data["radius"] == "18.62"
    assert float(data["x"]) == pytest.approx(answers[1].pose.x, abs=1e-5)


def test_csv_has_both_frames(answers, tmp_path):
    write_positions(answers, tmp_path / "a.csv")
    rows = list(csv.DictReader((tmp_path / "a.csv").open(encoding="utf-8", newline="")))
    row = next(row for row in rows if row["query"] == answers[1].query)
    assert float(row["answer_latitude"]) == answers[1].latitude
    assert float(row["latitude"]) == answers[1].matches[0].latitude
    assert (row["frame"], row["radius"], row["radius_source"]) == ("EPSG:32610", "18.62", "labels")


def test_a_file_of_an_earlier_version_is_resumed(answers, tmp_path):
    """It has no columns of degrees; those of earlier rows stay empty."""
    write_positions(answers[:2], tmp_path / "a.csv")
    rows = list(csv.DictReader((tmp_path / "a.csv").open(encoding="utf-8", newline="")))
    with (tmp_path / "a.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, FIRST_COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    file = AnswerFile(tmp_path / "a.csv", "")
    assert file.answered == {answers[0].query}  # the last query may be incomplete
    file.add(answers[1:])
    after = list(csv.DictReader((tmp_path / "a.csv").open(encoding="utf-8", newline="")))
    assert list(after[0]) == list(COLUMNS)
    assert (after[0]["name"], after[0]["latitude"]) == (rows[0]["name"], "")
    assert float(after[2]["latitude"]) == pytest.approx(answers[1].matches[0].latitude)


def test_a_local_frame_has_metres_only(answers, tmp_path):
    local = [replace(a, frame="local", latitude=None, longitude=None) for a in answers]
    write_positions(local, tmp_path / "a.geojson")
    read = json.loads((tmp_path / "a.geojson").read_text())
    assert read["kappaplace"]["coordinates"] == "metres"
    assert read["features"][0]["geometry"]["coordinates"] == [local[0].pose.x, local[0].pose.y]
    for suffix in (".gpx", ".kml"):
        with pytest.raises(KappaPlaceError, match="no location on Earth"):
            write_positions(local, tmp_path / f"a{suffix}")
    with pytest.raises(KappaPlaceError, match=r"\.gpx, \.kml or \.mcap files, got 'a\.shp'"):
        check_positions_file("a.shp", "local")


def test_timed_answers_are_a_track_of_the_accepted_ones(answers, tmp_path):
    first = replace(answers[1], decision="accept")
    walk = [
        replace(first, query=str(row), time=1_777_629_600.0 + row / 2, decision=decision)
        for row, decision in enumerate(("accept", "accept", "doubtful", "accept"))
    ]
    write_positions([*walk, answers[0]], tmp_path / "a.gpx")
    root = ElementTree.parse(tmp_path / "a.gpx").getroot()
    assert [child.tag.rpartition("}")[2] for child in root] == ["wpt", "trk"]
    segments = root.findall("g:trk/g:trkseg", GPX)
    names = [[point.findtext("g:name", namespaces=GPX) for point in part] for part in segments]
    assert names == [["0", "1"], ["3"]]
    times = [point.findtext("g:time", namespaces=GPX) for point in segments[0]]
    assert times == ["2026-05-01T10:00:00.000+00:00", "2026-05-01T10:00:00.500+00:00"]
    path = read_trajectory(tmp_path / "a.gpx")  # as the readers of tables read it
    assert path.time.tolist() == [each.time for each in walk if each.decision == "accept"]
