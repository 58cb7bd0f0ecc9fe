"""Entity tags, HEAD, compression, and errors with a request id."""

from __future__ import annotations

import gzip
import logging
import re

import pytest
from starlette.testclient import TestClient

from tests.serve.conftest import Serve, assert_problem, encoded

PLAIN = {"Accept-Encoding": "identity"}


@pytest.mark.parametrize(
    "path", ["/", "/static/style.css", "/v1/map/references", "/v1/references/3/thumbnail"]
)
def test_an_answer_that_has_not_changed_is_not_sent_again(client: TestClient, path: str) -> None:
    first = client.get(path, headers=PLAIN)
    tag = first.headers["etag"]
    for known in (tag, f'"other", {tag}', tag.removeprefix("W/"), "*"):
        again = client.get(path, headers={"If-None-Match": known})
        assert again.status_code == 304
        assert again.content == b""
        assert again.headers["etag"] == tag
        assert "content-length" not in again.headers
    changed = client.get(path, headers={"If-None-Match": '"other"'})
    assert changed.status_code == 200
    assert changed.content == first.content


def test_tags_depend_on_the_content(client: TestClient) -> None:
    tags = [client.get(f"/v1/references/{i}").headers["etag"] for i in (0, 1, 0)]
    assert tags[0] == tags[2] != tags[1]
    assert "etag" not in client.get("/v1/references/999999").headers


def test_head_is_get_without_a_body(client: TestClient) -> None:
    for path in ("/", "/v1/map", "/healthz", "/v1/references/3/thumbnail", "/nowhere"):
        get, head = client.get(path, headers=PLAIN), client.head(path, headers=PLAIN)
        assert head.status_code == get.status_code
        assert head.content == b""
        for name in ("content-length", "content-type", "etag"):
            assert head.headers.get(name) == get.headers.get(name), (path, name)
    assert client.head("/v1/localize").status_code == 405


def test_text_is_compressed_if_the_client_accepts_it(client: TestClient) -> None:
    plain = client.get("/v1/map/references", headers=PLAIN)
    assert "content-encoding" not in plain.headers
    with client.stream("GET", "/v1/map/references", headers={"Accept-Encoding": "gzip"}) as packed:
        raw = b"".join(packed.iter_raw())
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "Accept-Encoding"
    assert int(packed.headers["content-length"]) == len(raw) < len(plain.content) / 3
    assert gzip.decompress(raw) == plain.content
    assert packed.headers["etag"] == plain.headers["etag"]
    for path in ("/v1/references/3/thumbnail", "/healthz"):  # compressed already, or too small
        answer = client.get(path, headers={"Accept-Encoding": "gzip"})
        assert "content-encoding" not in answer.headers


def test_a_request_has_an_id_that_is_also_in_the_log(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = serve()

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("kappaplace.maps.place_map.PlaceMap.localize_embeddings", broken)
    with caplog.at_level(logging.ERROR):
        answer = client.post(
            "/v1/localize", files={"image": encoded()}, headers={"X-Request-Id": "robot-7.42"}
        )
    assert_problem(answer)
    assert answer.json()["request_id"] == "robot-7.42"
    assert answer.json()["code"] == "internal"
    assert "robot-7.42" in caplog.text
    names = {client.get("/healthz").headers["x-request-id"] for _ in range(5)}
    assert len(names) == 5
    for strange in ("a" * 65, "a b", "ü", "<script>", ""):
        name = client.get("/healthz", headers={"X-Request-Id": strange.encode()}).headers["x-request-id"]
        assert re.fullmatch("[0-9a-f]{16}", name)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/map?map=atlantis", 404, "unknown_map"),
        ("GET", "/v1/maps/atlantis", 404, "unknown_map"),
        ("GET", "/v1/references/99999", 404, "not_found"),
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/v1/map/risk?max_risk=2", 422, "invalid"),
        ("GET", "/v1/localize", 405, "method_not_allowed"),
        ("POST", "/v1/localize", 415, "unsupported_type"),
        ("POST", "/v1/references", 403, "read_only"),
    ],
)
def test_errors_have_codes(client: TestClient, method: str, path: str, status: int, code: str) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    assert_problem(answer)
    assert answer.json()["code"] == code


def test_a_broken_image_has_its_own_code(client: TestClient) -> None:
    answer = client.post("/v1/localize", files={"image": b"no image"})
    assert answer.json()["code"] == "invalid_image"
    wrong = client.post("/v1/localize", files={"image": encoded()}, data={"k": "0"})
    assert wrong.json()["code"] == "invalid"
