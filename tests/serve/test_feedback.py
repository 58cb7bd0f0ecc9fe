"""What people say about answers, drift of the queries, and both in the metrics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from kappaplace.calibration.drift import WINDOW
from kappaplace.maps import PlaceMap
from tests.serve.conftest import READ, Serve


def localized(client: TestClient, file: Path, **options: str) -> dict:
    return client.post("/v1/localize", files={"image": file.read_bytes()}, data=options).json()


def test_a_label_is_stored_with_what_the_service_answered(
    serve: Serve, tmp_path: Path, query_files: list[Path]
) -> None:
    client = serve(labels=tmp_path / "labels")
    assert client.get("/v1/maps").json()["labels"] is True
    answer = localized(client, query_files[0])
    for label in ("right", "unknown"):
        said = client.post("/v1/labels", json={"answer": answer["id"], "label": label})
        assert said.status_code == 201, said.text
    assert said.json()["stored"] == 2
    assert said.json()["counts"] == {answer["decision"]: {"right": 1, "wrong": 0, "unknown": 1}}
    (file,) = (tmp_path / "labels").iterdir()
    assert file.name == "town.labels.jsonl"
    first, _ = map(json.loads, file.read_text().splitlines())
    assert first["sample"] == "volunteered"  # never mistaken for a random sample
    assert first["label"] == "right"
    for key in ("decision", "probability", "calibration", "version", "map"):
        assert first[key] == answer[key]
    assert first["reference"] == answer["matches"][0]["name"]
    assert client.get("/v1/labels").json() == said.json()


def test_labels_of_people_are_no_labels_for_a_calibration(
    serve: Serve, opened: PlaceMap, tmp_path: Path, query_files: list[Path]
) -> None:
    from kappaplace.errors import KappaPlaceError
    from kappaplace.maps import calibrate_map_on_labels

    client = serve(labels=tmp_path)
    client.post("/v1/labels", json={"answer": localized(client, query_files[0])["id"], "label": "right"})
    with pytest.raises(KappaPlaceError):
        calibrate_map_on_labels(opened, tmp_path / "town.labels.jsonl")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"answer": "unknown", "label": "right"}, 404, "unknown_answer"),
        ({"answer": "x", "label": "maybe"}, 422, "invalid"),
        ({"label": "right"}, 422, "invalid"),
        ({"answer": "x" * 65, "label": "right"}, 422, "invalid"),
        ({"answer": "x", "label": "right", "decision": "accept"}, 422, "invalid"),
        ({"answer": "x", "label": "right", "map": "atlantis"}, 404, "unknown_map"),
    ],
)
def test_labels_that_are_none(serve: Serve, tmp_path: Path, body: dict, status: int, code: str) -> None:
    answer = serve(labels=tmp_path / "labels").post("/v1/labels", json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert not (tmp_path / "labels").exists()


def test_nothing_is_stored_unless_the_operator_wants_it(
    client: TestClient, query_files: list[Path], served_folder: Path
) -> None:
    before = sorted(served_folder.iterdir())
    answer = client.post(
        "/v1/labels", json={"answer": localized(client, query_files[0])["id"], "label": "wrong"}
    )
    assert answer.status_code == 403
    assert client.get("/v1/maps").json()["labels"] is False
    assert sorted(served_folder.iterdir()) == before


def test_labels_need_the_token_and_end_at_a_limit(
    serve: Serve, tmp_path: Path, query_files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve(labels=tmp_path, read_token=READ)
    assert client.post("/v1/labels", json={"answer": "x", "label": "right"}).status_code == 401
    client.headers["Authorization"] = f"Bearer {READ}"
    label = {"answer": localized(client, query_files[0])["id"], "label": "right"}
    assert client.post("/v1/labels", json=label).status_code == 201
    monkeypatch.setattr("kappaplace.serve.feedback.MOST_BYTES", 10)
    full = client.post("/v1/labels", json=label)
    assert (full.status_code, full.json()["code"]) == (503, "unavailable")


def test_old_answers_are_forgotten(
    serve: Serve, tmp_path: Path, query_files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kappaplace.serve.feedback.REMEMBERED", 2)
    client = serve(labels=tmp_path)
    names = [localized(client, query_files[0])["id"] for _ in range(3)]
    status = [client.post("/v1/labels", json={"answer": n, "label": "right"}).status_code for n in names]
    assert status == [404, 201, 201]


def test_a_name_of_a_map_is_never_a_path(
    serve: Serve, opened: PlaceMap, tmp_path: Path, query_files: list[Path]
) -> None:
    client = serve({"../evil": opened}, labels=tmp_path / "labels")
    label = {"answer": localized(client, query_files[0])["id"], "label": "right"}
    assert client.post("/v1/labels", json=label).status_code == 201
    assert [path.name for path in tmp_path.rglob("*.jsonl")] == ["..%2Fevil.labels.jsonl"]
    assert [path.name for path in tmp_path.iterdir()] == ["labels"]


def test_drift_compares_the_queries_of_this_service(
    client: TestClient, opened: PlaceMap, query_files: list[Path]
) -> None:
    from kappaplace.maps import MapMonitor

    before = client.get("/v1/map/drift").json()
    assert before["available"]
    assert (before["queries"], before["windows"], before["window"]) == (0, [], WINDOW)
    asked = [query_files[i % 5] for i in range(WINDOW + 10)]
    for start in range(0, len(asked), 30):
        files = [("image", path.read_bytes()) for path in asked[start : start + 30]]
        assert client.post("/v1/localize/batch", files=files).status_code == 200
    drift = client.get("/v1/map/drift").json()
    assert (drift["queries"], drift["waiting"], len(drift["windows"])) == (WINDOW + 10, 10, 1)
    calibration = opened.calibration
    assert calibration is not None
    monitor = MapMonitor(calibration)
    answers = {path: opened.localize(str(path)) for path in query_files[:5]}
    monitor.feed([answers[path] for path in asked])
    assert drift["drifting"] == bool(monitor.drifting)
    assert drift["drifting"]  # five images again and again are not like the calibration
    kappa = drift["windows"][0]["quantiles"]["kappa"]
    assert kappa == pytest.approx(list(monitor.drift.history[0].quantiles["kappa"]), rel=1e-4)
    sketch = calibration.sketch
    assert sketch is not None
    assert drift["calibrated"]["kappa"][1] == pytest.approx(
        sorted(sketch.values["kappa"])[len(sketch.ranks) // 2], rel=0.05
    )
    assert 'kappaplace_drifting{map="town"} 1' in client.get("/metrics").text


def test_a_map_without_calibration_has_no_drift(
    serve: Serve, tiny: object, tmp_path: Path, query_files: list[Path]
) -> None:
    made = PlaceMap.build([query_files[0], query_files[1]], tmp_path / "bare.map", tiny)
    client = serve({"bare": made})
    localized(client, query_files[0])
    drift = client.get("/v1/map/drift").json()
    assert drift == {
        "map": "bare",
        "available": False,
        "drifting": False,
        "calibrated": {},
        "windows": [],
        "window": 0,
        "queries": 0,
        "waiting": 0,
    }


def test_decisions_probabilities_and_labels_are_metrics(
    serve: Serve, tmp_path: Path, query_files: list[Path]
) -> None:
    client = serve(labels=tmp_path)
    answers = [localized(client, path) for path in query_files[:6]]
    client.post("/v1/labels", json={"answer": answers[0]["id"], "label": "wrong"})
    text = client.get("/metrics").text
    for decision in {answer["decision"] for answer in answers}:
        count = sum(answer["decision"] == decision for answer in answers)
        assert f'kappaplace_decisions_total{{map="town",decision="{decision}"}} {count}' in text
    low = sum(answer["probability"] <= 0.5 for answer in answers)
    assert f'kappaplace_probability_bucket{{map="town",le="0.5"}} {low}' in text
    assert 'kappaplace_probability_count{map="town"} 6' in text
    decision = answers[0]["decision"]
    assert f'kappaplace_labels_total{{map="town",decision="{decision}",label="wrong"}} 1' in text
    for line in text.splitlines():
        assert line.startswith("#") or line.rpartition(" ")[2].replace(".", "").replace("e-", "").isdigit()
