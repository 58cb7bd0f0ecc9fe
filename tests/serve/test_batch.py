"""Several images in one request: with errors per image, as a stream, and below the name of a map."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from kappaplace.maps import PlaceMap
from tests.serve.conftest import Serve, encoded
from tests.serve.test_localize import same

NDJSON = {"Accept": "application/x-ndjson"}


def files(paths: list[Path], *broken: int) -> list[tuple[str, bytes]]:
    return [("image", b"nothing" if i in broken else path.read_bytes()) for i, path in enumerate(paths)]


def test_an_invalid_image_can_be_skipped(
    client: TestClient, opened: PlaceMap, query_files: list[Path]
) -> None:
    answer = client.post(
        "/v1/localize/batch", files=files(query_files[:4], 1), data={"on_error": "skip", "k": "3"}
    )
    assert answer.status_code == 200
    answers, (error,) = answer.json()["answers"], answer.json()["errors"]
    assert answers[1] is None
    assert (error["index"], error["code"], error["status"]) == (1, "invalid_image", 422)
    assert error["request_id"] == answer.headers["x-request-id"]
    for i in (0, 2, 3):
        same(answers[i], opened.localize(str(query_files[i]), k=3))


def test_a_stream_has_one_line_per_image(
    client: TestClient, opened: PlaceMap, query_files: list[Path]
) -> None:
    answer = client.post(
        "/v1/localize/batch", files=files(query_files[:5], 2), data={"k": "2"}, headers=NDJSON
    )
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    lines = {line["index"]: line for line in map(json.loads, answer.text.splitlines())}
    assert sorted(lines) == list(range(5))
    assert lines[2]["problem"]["code"] == "invalid_image"
    assert "answer" not in lines[2]
    for i in (0, 1, 3, 4):
        same(lines[i]["answer"], opened.localize(str(query_files[i]), k=2))


def test_the_first_line_does_not_wait_for_the_last(
    serve: Serve, query_files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve(batch_size=1, window=0.0)
    released, calls, real = threading.Event(), [0], PlaceMap.localize_embeddings

    def slow(*values: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] > 1:
            assert released.wait(10)
        return real(*values, **options)

    monkeypatch.setattr("kappaplace.maps.place_map.PlaceMap.localize_embeddings", slow)
    seen = []
    # The test client collects a whole response, so the order is observed where lines are made.
    import kappaplace.serve.routes_localize as routes

    made = routes.localization

    def noted(*values: Any) -> Any:
        seen.append(calls[0])
        released.set()
        return made(*values)

    monkeypatch.setattr(routes, "localization", noted)
    answer = client.post("/v1/localize/batch", files=files(query_files[:2]), headers=NDJSON)
    assert len(answer.text.splitlines()) == 2
    assert released.is_set()
    assert len(seen) == 2


def test_a_full_queue_is_an_error_of_the_stream_itself(serve: Serve, query_files: list[Path]) -> None:
    client = serve(queue=2, max_batch=2)
    served = client.app.state.served["town"]
    with served.batcher.admit(1):
        answer = client.post("/v1/localize/batch", files=files(query_files[:2]), headers=NDJSON)
    assert answer.status_code == 429
    assert answer.json()["code"] == "busy"
    assert served.batcher.admitted == 0


def test_every_route_of_a_map_is_also_below_its_name(
    serve: Serve, opened: PlaceMap, served_folder: Path, query_files: list[Path]
) -> None:
    other = PlaceMap.open(served_folder / "town.map")
    client = serve({"town": opened, "other": other})
    for short, named in (
        ("/v1/map", ""),
        ("/v1/map/references", "/references"),
        ("/v1/map/calibration", "/calibration"),
        ("/v1/map/risk?max_risk=0.1", "/risk?max_risk=0.1"),
        ("/v1/map/drift", "/drift"),
        ("/v1/references/5", "/references/5"),
        ("/v1/references/5/thumbnail", "/references/5/thumbnail"),
    ):
        both = [
            client.get(short, params={"map": "other"} | ({"max_risk": "0.1"} if "?" in short else {})),
            client.get(f"/v1/maps/other{named}"),
        ]
        assert [each.status_code for each in both] == [200, 200], named
        assert both[0].content == both[1].content
    image = {"image": query_files[0].read_bytes()}
    assert client.post("/v1/maps/other/localize", files=image).json()["map"] == "other"
    assert client.post("/v1/maps/other/localize?map=town", files=image).json()["map"] == "other"
    batch = client.post("/v1/maps/other/localize/batch", files=image).json()
    assert batch["answers"][0]["map"] == "other"
    assert client.post("/v1/maps/other/embed", files=image).json()["map"] == "other"


def test_the_rate_of_queries_from_outside_is_an_option(
    client: TestClient, opened: PlaceMap, query_files: list[Path]
) -> None:
    image = {"image": query_files[0].read_bytes()}
    for rate in (0.0, 0.5):
        found = client.post("/v1/localize", files=image, data={"outside_rate": str(rate)}).json()
        direct = opened.localize(str(query_files[0]), outside_rate=rate)
        assert found["probability"] == pytest.approx(direct.probability, rel=1e-4)
    assert client.post("/v1/localize", files=image, data={"outside_rate": "2"}).status_code == 422


def test_per_image_errors_name_no_path(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, query_files: list[Path]
) -> None:
    client = serve()

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret of /home/somebody")

    monkeypatch.setattr("kappaplace.maps.place_map.PlaceMap.localize_embeddings", broken)
    answer = client.post("/v1/localize/batch?on_error=skip", files=[("image", encoded())] * 2)
    assert [error["code"] for error in answer.json()["errors"]] == ["internal"] * 2
    assert "secret" not in answer.text
