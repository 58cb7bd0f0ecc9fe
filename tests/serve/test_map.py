"""What is in a map, over HTTP."""

from __future__ import annotations

import io
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from kappaplace.calibration.expected import rule_for
from kappaplace.data.table import PlaceImages
from kappaplace.maps import PlaceMap
from kappaplace.serve.served_map import ORPHAN_SECONDS, images_folder, remove_orphans
from tests.serve.conftest import Serve


def test_the_map_tells_what_it_is_and_not_where_it_lies(
    client: TestClient, opened: PlaceMap, served_folder: Path
) -> None:
    answer = client.get("/v1/map")
    found = answer.json()
    assert found["references"] == len(opened)
    assert found["frame"] == "EPSG:32610"
    at = opened.store.positions
    assert found["bounds"]["x0"] == at[:, 0].min()
    assert found["bounds"]["y1"] == at[:, 1].max()
    assert found["calibration"] == opened.manifest.calibration["origin"]
    assert found["guaranteed"] is False
    assert np.isfinite(found["kappa_percentiles"]).all()
    for path in ("/v1/map", "/v1/maps", "/v1/map/calibration", "/v1/map/references", "/v1/references/3"):
        assert str(served_folder) not in client.get(path).text


def test_references_of_an_area(client: TestClient, opened: PlaceMap) -> None:
    at, kappa = opened.store.positions, opened.store.whole("kappa")
    whole = client.get("/v1/map/references").json()
    assert whole["total"] == len(whole["references"]) == len(opened)
    x0, y0, x1, y1 = (*at.min(0), *np.median(at, axis=0))
    inside = ((at >= [x0, y0]) & (at <= [x1, y1])).all(axis=1)
    part = client.get("/v1/map/references", params={"bbox": f"{x0},{y0},{x1},{y1}"}).json()
    assert [one["id"] for one in part["references"]] == np.flatnonzero(inside).tolist()
    few = client.get("/v1/map/references", params={"limit": 5}).json()
    assert few["total"] == len(opened)
    assert len(few["references"]) == 5
    worst = client.get("/v1/map/references", params={"limit": 3, "order": "kappa"}).json()["references"]
    assert [one["id"] for one in worst] == np.argsort(kappa, kind="stable")[:3].tolist()
    alike = client.get("/v1/map/references", params={"limit": 3, "order": "distinctiveness"}).json()
    values = [one["distinctiveness"] for one in alike["references"]]
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(float(np.nanmax(opened.store.distinctiveness)))
    one = whole["references"][7]
    assert one["name"] == opened.store.name(7)
    assert 36 < one["lat"] < 39
    assert client.get("/v1/references/7").json() == one


@pytest.mark.parametrize("bbox", ["1,2,3", "a,b,c,d", "5,0,1,1", "nan,0,1,1", ""])
def test_a_bad_area_is_told(client: TestClient, bbox: str) -> None:
    answer = client.get("/v1/map/references", params={"bbox": bbox})
    assert answer.status_code == 422
    assert "bbox" in answer.json()["error"]


def test_thumbnails(client: TestClient, opened: PlaceMap) -> None:
    answer = client.get("/v1/references/0/thumbnail")
    assert answer.content == opened.store.thumbnail(0)
    assert Image.open(io.BytesIO(answer.content)).format == "JPEG"
    assert answer.headers["cache-control"].startswith("private")


@pytest.mark.parametrize("path", ["/v1/references/4800", "/v1/references/99999/thumbnail"])
def test_a_reference_that_is_not_there(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert "no reference" in answer.json()["error"]


def test_without_thumbnails_the_image_itself_is_shown_while_it_is_there(
    serve: Serve, town_folder_copy: Path, tiny: object
) -> None:
    from kappaplace.data.table import PlaceImages

    table = PlaceImages.open(town_folder_copy / "val.parquet", root=town_folder_copy / "val")
    made = PlaceMap.build(table, town_folder_copy / "plain.map", tiny)
    client = serve({"plain": made})
    assert client.get("/v1/references/0/thumbnail").status_code == 200
    Path(made.store.image_path(0)).unlink()
    answer = client.get("/v1/references/0/thumbnail")
    assert answer.status_code == 404
    assert str(town_folder_copy) not in answer.text
    assert client.get("/v1/map/risk").status_code == 404
    calibration = client.get("/v1/map/calibration").json()
    assert calibration["calibrated"] is False
    assert calibration["reliability"] is None
    assert calibration["risk_coverage"] is None


@pytest.fixture
def town_folder_copy(served_folder: Path, tmp_path: Path) -> Path:
    import shutil

    shutil.copytree(served_folder / "val", tmp_path / "val")
    shutil.copy(served_folder / "val.parquet", tmp_path / "val.parquet")
    return tmp_path


def test_the_calibration_and_its_curves(client: TestClient, opened: PlaceMap) -> None:
    found = client.get("/v1/map/calibration").json()
    assert found["calibrated"]
    assert not found["guaranteed"]
    assert found["promise"] == opened.calibration.rule.promise()
    assert sum(bin["count"] for bin in found["reliability"]) > 0
    coverage = [point["coverage"] for point in found["risk_coverage"]]
    risk = [point["risk"] for point in found["risk_coverage"]]
    assert coverage == sorted(coverage)
    assert coverage[-1] == pytest.approx(1.0)
    assert risk == sorted(risk)
    assert found["fingerprint"] == opened.calibration.fingerprint
    json.dumps(found, allow_nan=False)


def test_the_expected_coverage_grows_with_the_risk(client: TestClient, opened: PlaceMap) -> None:
    before = -1.0
    for risk in (0.01, 0.05, 0.2, 0.5, 0.99):
        found = client.get("/v1/map/risk", params={"max_risk": risk}).json()
        rule = rule_for(opened.calibration, risk)
        assert found["on"] == rule.on
        assert float(found["threshold"]) == rule.accept_at
        assert found["coverage"] >= before
        assert found["risk"] is None or found["risk"] <= risk
        before = found["coverage"]
    assert client.get("/v1/map/risk?max_risk=1.5").status_code == 422


def test_demo_queries(serve: Serve, query_files: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "queries"
    folder.mkdir()
    for file in query_files[:3]:
        (folder / file.name).write_bytes(file.read_bytes())
    client = serve(demo_queries=folder)
    listed = client.get("/v1/demo/queries").json()["queries"]
    assert [one["name"] for one in listed] == sorted(file.name for file in query_files[:3])
    answer = client.get(listed[1]["image"])
    assert answer.content == (folder / listed[1]["name"]).read_bytes()
    assert answer.headers["content-type"] == "image/png"
    assert client.get("/v1/demo/queries/3/image").status_code == 404
    assert serve().get("/v1/demo/queries").json() == {"queries": []}


def test_a_thumbnail_is_made_of_the_image_that_was_embedded_only(served_folder: Path, serve: Serve, tmp_path):
    """Somebody else's map can name any file of this machine, but it does not have the hash of its content."""
    table = PlaceImages.open(served_folder / "val.parquet")
    folder = tmp_path / "images"
    shutil.copytree(table.root, folder)
    with_model = PlaceMap.open(served_folder / "town.map").model
    made = PlaceMap.build(folder, tmp_path / "plain.map", with_model)
    client = serve({"plain": made})
    assert client.get("/v1/references/0/thumbnail").status_code == 200
    shutil.copy(folder / made.store.name(1), folder / made.store.name(0))
    assert client.get("/v1/references/0/thumbnail").status_code == 404


def test_images_of_killed_appends_are_removed(served_folder: Path, tmp_path: Path) -> None:
    town = tmp_path / "town.map"
    shutil.copytree(served_folder / "town.map", town)
    images = images_folder(town)
    images.mkdir()
    for name, age in (("old.jpg", 2 * ORPHAN_SECONDS), ("new.jpg", 0)):
        (images / name).write_bytes(b"an image")
        os.utime(images / name, (time.time() - age,) * 2)
    remove_orphans(town)
    assert [file.name for file in images.iterdir()] == ["new.jpg"]
