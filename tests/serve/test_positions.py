"""Positions in degrees over HTTP: areas, appended references, answers, and the direction of a query."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyproj
import pytest
from starlette.testclient import TestClient

from kappaplace.data.table import PlaceImages
from kappaplace.maps import PlaceMap
from tests.serve.conftest import WRITE, Serve, encoded


def degrees(opened: PlaceMap, row: int) -> tuple[float, float]:
    to_degrees = pyproj.Transformer.from_crs("EPSG:32610", "EPSG:4326", always_xy=True)
    longitude, latitude = to_degrees.transform(*opened.store.positions[row])
    return latitude, longitude


@pytest.mark.parametrize("unit", ["", "m"])
def test_an_area_in_degrees_is_the_same_circle(client: TestClient, opened: PlaceMap, unit: str) -> None:
    latitude, longitude = degrees(opened, 5)
    x, y = opened.store.positions[5].tolist()
    matches = [
        client.post("/v1/localize", files={"image": encoded()}, data={"area": area, "k": "50"}).json()
        for area in (f"{x},{y},30", f"{latitude:.9f},{longitude:.9f},30{unit}")
    ]
    names = [[match["name"] for match in answer["matches"]] for answer in matches]
    assert names[0] == names[1] != []
    near = np.hypot(*(opened.store.positions - [x, y]).T) <= 30
    assert len(names[0]) == near.sum() < len(opened)
    for match in matches[1]["matches"]:
        row = int(opened.store.find([match["name"]])[0])
        assert (match["latitude"], match["longitude"]) == pytest.approx(degrees(opened, row), abs=1e-7)


@pytest.fixture
def table(served_folder: Path) -> PlaceImages:
    return PlaceImages.open(served_folder / "val.parquet").references


def test_a_direction_that_the_map_does_not_show(
    table: PlaceImages, tiny, serve: Serve, tmp_path: Path
) -> None:
    east = table.select(np.flatnonzero(np.abs(table.heading - 105) < 1))
    client = serve({"east": PlaceMap.build(east, tmp_path / "east.map", tiny)})
    noted = {}
    for heading in (90, 270):
        fields = {"heading": str(heading), "area": "{},{},8".format(*east.positions[0])}
        answer = client.post("/v1/localize", files={"image": encoded()}, data=fields).json()
        noted[heading] = "no image that looks this way here" in " ".join(answer["notes"])
    assert noted == {90: False, 270: True}


@pytest.fixture
def writable(served_folder: Path, serve: Serve, tmp_path: Path) -> TestClient:
    folder = shutil.copytree(served_folder / "town.map", tmp_path / "town.map")
    return serve({"town": PlaceMap.open(folder)}, write_token=WRITE)


def test_a_reference_is_appended_in_degrees(writable: TestClient, opened: PlaceMap) -> None:
    latitude, longitude = degrees(opened, 5)
    headers = {"Authorization": f"Bearer {WRITE}"}
    place = {"latitude": str(latitude), "longitude": str(longitude), "heading": "90"}
    added = writable.post("/v1/references", files={"image": encoded()}, data=place, headers=headers)
    assert added.status_code == 201, added.text
    one = writable.get(f"/v1/references/{added.json()['id']}").json()
    assert (one["x"], one["y"]) == pytest.approx(opened.store.positions[5].tolist(), abs=1e-3)
    assert one["heading"] == 90
    for wrong in ({"latitude": "37.7"}, {**place, "x": "1", "y": "2"}, {"latitude": "91", "longitude": "0"}):
        answer = writable.post("/v1/references", files={"image": encoded()}, data=wrong, headers=headers)
        assert answer.status_code == 422


def test_degrees_mean_nothing_in_a_local_frame(
    table: PlaceImages, tiny, serve: Serve, tmp_path: Path
) -> None:
    hall = PlaceImages.create(table.paths[:6], table.positions[:6], root=table.root)
    client = serve({"hall": PlaceMap.build(hall, tmp_path / "hall.map", tiny)}, write_token=WRITE)
    answer = client.post("/v1/localize", files={"image": encoded()}).json()
    assert (answer["frame"], answer["latitude"], answer["longitude"]) == ("local", None, None)
    assert answer["pose"] is not None
    headers = {"Authorization": f"Bearer {WRITE}"}
    place = {"latitude": "37.7", "longitude": "-122.4"}
    refused = client.post("/v1/references", files={"image": encoded()}, data=place, headers=headers)
    assert refused.status_code == 422
    assert "no location on Earth" in refused.json()["error"]
