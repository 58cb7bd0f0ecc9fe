"""Who may ask, how much, and what leaves the service."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from kappaplace.errors import KappaPlaceError
from kappaplace.maps import PlaceMap
from kappaplace.serve.settings import Settings
from tests.serve.conftest import READ, WRITE, Serve, assert_problem, encoded


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_reading_asks_for_a_token_where_there_is_one(serve: Serve) -> None:
    client = serve(read_token=READ, write_token=WRITE)
    asked = [("GET", p) for p in ("/v1/maps", "/v1/map", "/v1/references/0", "/v1/demo/queries", "/metrics")]
    for method, path in [*asked, ("POST", "/v1/localize"), ("POST", "/v1/embed")]:
        refused = client.request(method, path)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Bearer")
        assert client.request(method, path, headers=bearer(READ[:-1])).status_code == 401
        assert client.request(method, path, headers={"Authorization": f"Basic {READ}"}).status_code == 401
        assert client.request(method, path, headers=bearer("")).status_code == 401
    for token in (READ, WRITE):
        assert client.get("/v1/map", headers=bearer(token)).status_code == 200
    for path in ("/healthz", "/readyz", "/", "/openapi.json"):
        assert client.get(path).status_code == 200


def test_appending_asks_for_the_write_token(serve: Serve) -> None:
    data = {"image": encoded()}
    assert serve().post("/v1/references", files=data).status_code == 403
    client = serve(write_token=WRITE)
    assert client.post("/v1/references", files=data).status_code == 401
    assert client.post("/v1/references", files=data, headers=bearer(READ)).status_code == 401
    assert client.get("/v1/map").status_code == 200


def test_an_appended_image_is_found_at_once(serve: Serve, served_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy.map"
    shutil.copytree(served_folder / "town.map", folder)
    client = serve({"town": PlaceMap.open(folder)}, write_token=WRITE)
    before = client.get("/v1/map").json()
    data = encoded("JPEG", (200, 160))
    values = {"x": "545000.5", "y": "4180000", "heading": "90"}
    answer = client.post(
        "/v1/references", files={"image": ("../../etc/passwd", data)}, data=values, headers=bearer(WRITE)
    )
    assert answer.status_code == 201, answer.text
    added = answer.json()
    assert added["added"]
    assert added["references"] == before["references"] + 1
    assert re.fullmatch(r"appended/[0-9a-f]{32}\.jpg", added["name"])
    found = client.post("/v1/localize", files={"image": data}).json()
    assert found["matches"][0]["name"] == added["name"]
    assert found["matches"][0]["x"] == 545000.5
    assert found["version"] > before["version"]
    again = client.post("/v1/references", files={"image": data}, data=values, headers=bearer(WRITE)).json()
    assert not again["added"]
    assert again["id"] == added["id"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy.map", "copy.map.images"]
    assert client.get(f"/v1/references/{added['id']}/thumbnail").status_code == 200


def test_what_cannot_be_appended_leaves_nothing_behind(
    serve: Serve, served_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "copy.map"
    shutil.copytree(served_folder / "town.map", folder)
    client = serve({"town": PlaceMap.open(folder)}, write_token=WRITE)
    for files, values in (
        ({"image": b"no image"}, {"x": "1", "y": "2"}),
        ({"image": encoded()}, {"x": "1"}),
        ({"image": encoded()}, {"x": "inf", "y": "1"}),
        ({"image": encoded()}, {"x": "1e300", "y": "1"}),  # distances to it would overflow, for everybody
        ({"image": encoded()}, {"x": "1", "y": "2", "heading": "400"}),
        ({"image": encoded()}, {"name": "../x"}),
    ):
        answer = client.post("/v1/references", files=files, data=values, headers=bearer(WRITE))
        assert answer.status_code == 422, answer.text
    kept = tmp_path / "copy.map.images"
    assert not kept.exists() or not list(kept.iterdir())


def test_a_map_that_another_process_writes_is_told(serve: Serve, served_folder: Path, tmp_path: Path) -> None:
    from kappaplace.files import writing

    folder = tmp_path / "copy.map"
    shutil.copytree(served_folder / "town.map", folder)
    client = serve({"town": PlaceMap.open(folder)}, write_token=WRITE)
    with writing(folder):
        answer = client.post("/v1/references", files={"image": encoded()}, headers=bearer(WRITE))
    assert answer.status_code == 409
    assert answer.headers["retry-after"]
    assert answer.json()["error"].startswith("Another process")
    assert not list((tmp_path / "copy.map.images").iterdir())


def test_another_process_appends_and_the_service_sees_it(
    serve: Serve, served_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kappaplace.serve.served_map.LOOK_SECONDS", 0.01)
    folder = tmp_path / "copy.map"
    shutil.copytree(served_folder / "town.map", folder)
    client = serve({"town": PlaceMap.open(folder)})
    photo = tmp_path / "photo.png"
    photo.write_bytes(encoded(size=(64, 64)))
    before = client.get("/v1/map").json()
    PlaceMap.open(folder).add([photo])
    end = time.monotonic() + 10
    while client.get("/v1/map").json()["version"] == before["version"]:  # seen by those who only look, too
        assert time.monotonic() < end
        time.sleep(0.01)
    assert client.get("/v1/map").json()["references"] == before["references"] + 1
    found = client.post("/v1/localize", files={"image": photo.read_bytes()}).json()
    assert found["matches"][0]["name"] == "photo.png"


def test_headers(serve: Serve) -> None:
    for client, tiles in (
        (serve(), ""),
        (serve(tile_url="https://tile.example/{z}/{x}/{y}.png"), "https://tile.example"),
    ):
        for path in ("/", "/v1/map", "/nowhere", "/healthz"):
            headers = client.get(path).headers
            policy = headers["content-security-policy"]
            assert policy.startswith("default-src 'self';")
            assert "unsafe" not in policy
            assert f"img-src 'self' data: blob:{' ' if tiles else ''}{tiles};" in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert "access-control-allow-origin" not in headers
    answer = serve().get("/v1/map", headers={"Origin": "https://elsewhere.example"})
    assert "access-control-allow-origin" not in answer.headers
    allowed = serve(origins=("https://fleet.example",))
    answer = allowed.get("/v1/map", headers={"Origin": "https://fleet.example"})
    assert answer.headers["access-control-allow-origin"] == "https://fleet.example"
    assert "Retry-After" in answer.headers["access-control-expose-headers"]  # else no script could wait


def test_another_name_of_the_host_is_refused(serve: Serve) -> None:
    client = serve(hosts=("localhost", "127.0.0.1", "::1"))
    for host in ("localhost", "localhost:8000", "127.0.0.1:1", "[::1]:80", "LOCALHOST"):
        assert client.get("/healthz", headers={"Host": host}).status_code == 200
    for host in (
        *("evil.example", "localhost.evil.example:8000", "127.0.0.1.nip.io", ""),
        *("[localhost].evil.com", "localhost:80@evil.com", "[::1].evil.com", "[::1", "localhost:", "::1"),
        *("localhost:80:80", "localhost/evil.com", "evil.com#localhost", "localhost:x", "[localhost]"),
    ):
        assert client.get("/healthz", headers={"Host": host}).status_code == 421


def test_bodies_that_are_too_large(serve: Serve) -> None:
    client = serve(max_body=2000)
    answer = client.post("/v1/localize", files={"image": bytes(3000)})
    assert answer.status_code == 413
    assert "2,000 bytes" in answer.json()["error"]

    def chunks() -> object:  # without a length that could be believed
        for _ in range(10):
            yield bytes(1000)

    answer = client.post("/v1/localize", content=chunks(), headers={"content-type": "image/png"})
    assert answer.status_code == 413
    answer = client.post(
        "/v1/localize", content=chunks(), headers={"content-type": "multipart/form-data; boundary=b"}
    )
    assert answer.status_code in (400, 413)
    assert client.post("/v1/localize/batch", files=[("image", b"x")] * 33).status_code in (400, 413)


def test_no_traceback_leaves_the_service(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    client = serve()

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret of /home/somebody")

    monkeypatch.setattr("kappaplace.maps.place_map.PlaceMap.localize_embeddings", broken)
    answer = client.post("/v1/localize", files={"image": encoded()})
    assert answer.status_code == 500
    assert_problem(answer)
    assert "secret" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_sentences_name_maps_and_not_paths(
    serve: Serve, tiny: object, tmp_path: Path, query_files: list[Path]
) -> None:
    made = PlaceMap.build([query_files[0]], tmp_path / "one.map", tiny)
    made.remove([made.store.name(0)])
    answer = serve({"one": made}).post("/v1/localize", files={"image": encoded()})
    assert answer.status_code == 422
    assert answer.json()["error"] == "The map one is empty. Add images to it first."


@pytest.mark.parametrize(
    "message",
    [
        "Cannot decode /home/Jane Doe/My Photos/a b.jpg (truncated). Replace it.",
        "Cannot decode 'C:\\Users\\Jane Doe\\a.jpg'.",
        "{map}/segments/000000/poses.npy is damaged.",
        "{map}.images/a b.jpg cannot be read.",
        "No image (~/secret place/a.jpg).",
    ],
)
def test_a_fault_of_the_server_is_500_and_names_no_path(
    message: str, serve: Serve, opened: PlaceMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve()

    def broken(*_: object, **__: object) -> None:
        raise KappaPlaceError(message.format(map=opened.folder))

    monkeypatch.setattr("kappaplace.maps.place_map.PlaceMap.localize_embeddings", broken)
    answer = client.post("/v1/localize", files={"image": encoded()})
    assert answer.status_code == 500
    assert_problem(answer)
    assert answer.json()["detail"] == "Internal error. The log of the service has the details."


def test_a_disk_error_is_a_fault_of_the_server(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    client = serve()

    def broken(*_: object, **__: object) -> None:
        try:
            raise OSError(5, "Input/output error", "secret place")
        except OSError:
            raise KappaPlaceError("Cannot read secret place.") from None

    monkeypatch.setattr("kappaplace.maps.place_map.PlaceMap.localize_embeddings", broken)
    answer = client.post("/v1/localize", files={"image": encoded()})
    assert (answer.status_code, "secret" in answer.text) == (500, False)


def test_one_address_leaves_requests_to_others() -> None:
    from kappaplace.serve.protect import Limits

    async def main() -> list[int]:
        release = asyncio.Event()

        async def slow(scope: dict, receive: object, send: object) -> None:
            await release.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        async def asked(host: str) -> int:
            said: list[dict] = []

            async def send(message: dict) -> None:
                said.append(message)

            scope = {"type": "http", "method": "GET", "path": "/v1/maps", "headers": [], "client": (host, 1)}
            await limits(scope, asyncio.Event().wait, send)
            return said[0]["status"]

        limits = Limits(slow, most=1000, seconds=5.0, at_once=4)
        pending = [
            asyncio.create_task(asked(host)) for host in ("a", "a", "a", "b", "2001:db8::1", "2001:db8::2")
        ]
        await asyncio.sleep(0.05)
        release.set()
        return [*await asyncio.gather(*pending), await asked("a"), len(limits.running)]

    assert asyncio.run(main()) == [200, 200, 503, 200, 200, 503, 200, 0]


@pytest.mark.parametrize(
    "name",
    ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "/etc/passwd", "page/../../settings.py", "x%00y", ""],
)
def test_the_page_serves_its_own_files_only(serve: Serve, name: str) -> None:
    assert serve().get(f"/static/{name}").status_code in (400, 404)


def test_the_page_is_there(serve: Serve) -> None:
    client = serve()
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    for file in re.findall(r'"(/static/[^"]+)"', page.text):
        assert client.get(file).status_code == 200, file


@pytest.mark.parametrize(
    "values",
    [
        {"read_token": "short"},
        {"read_token": "with a space in the middle"},
        {"read_token": READ, "write_token": READ},
        {"max_body": 0},
        {"timeout": 0.0},
        {"window": 2.0},
        {"queue": 8, "max_batch": 9},
        {"tile_url": "tiles"},
        {"tile_url": "https://a;script-src *{z}{x}{y}/"},
        {"tile_attribution": "© nobody"},
    ],
)
def test_bad_settings_are_told(values: dict) -> None:
    with pytest.raises(KappaPlaceError):
        Settings(**values)


def test_metrics_count_requests_and_batches(serve: Serve) -> None:
    client = serve()
    client.post("/v1/localize", files={"image": encoded()})
    client.get("/v1/references/3")
    client.get("/made/up/by/a/stranger")
    text = client.get("/metrics").text
    assert 'kappaplace_requests_total{method="POST",route="/v1/localize",status="200"} 1' in text
    assert 'route="/v1/references/{id}",status="200"' in text
    assert "stranger" not in text
    assert 'kappaplace_batch_images_count{map="town"} 1' in text
    assert 'kappaplace_map_references{map="town"}' in text
    for line in text.splitlines():
        assert line.startswith("#") or re.fullmatch(
            r"[a-z_]+(\{[^}]*(\{[^}]*\}[^}]*)*\})? [0-9.e+-]+", line
        ), line
    buckets = [int(v) for v in re.findall(r'batch_images_bucket\{map="town",le="[^"]+"\} (\d+)', text)]
    assert buckets == sorted(buckets)
    assert np.isfinite(buckets).all()


def test_appending_takes_no_decoder_from_queries_and_no_longer_than_allowed(
    serve: Serve, served_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "copy.map"
    shutil.copytree(served_folder / "town.map", folder)
    release, begun = threading.Event(), threading.Event()

    def stuck(*_: object, **__: object) -> None:
        begun.set()
        release.wait(10)
        raise KappaPlaceError("stuck")

    monkeypatch.setattr("kappaplace.serve.served_map.add_images", stuck)
    client = serve({"town": PlaceMap.open(folder)}, write_token=WRITE, timeout=0.8)
    answers: list[int] = []

    def append(number: int) -> None:
        image = {"image": encoded(size=(48, 32 + number))}
        answer = client.post("/v1/references", files=image, headers=bearer(WRITE))
        assert answer.headers["retry-after"]
        answers.append(answer.status_code)

    appending = [threading.Thread(target=append, args=(i,)) for i in range(6)]
    for thread in appending:
        thread.start()
    try:
        assert begun.wait(5)
        assert client.post("/v1/localize", files={"image": encoded()}).status_code == 200
        for thread in appending:
            thread.join(5)
    finally:
        release.set()
        for thread in appending:
            thread.join(15)
    assert answers == [503] * 6


def test_too_many_requests_at_once_are_told_when_to_come_back() -> None:
    from kappaplace.serve.protect import Limits

    async def main() -> list[tuple[int, dict]]:
        release = asyncio.Event()

        async def slow(scope: dict, receive: object, send: object) -> None:
            await release.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        async def asked(path: str) -> tuple[int, dict]:
            said: list[dict] = []

            async def send(message: dict) -> None:
                said.append(message)

            scope = {"type": "http", "method": "GET", "path": path, "headers": []}
            await limits(scope, asyncio.Event().wait, send)
            return said[0]["status"], dict(said[0]["headers"])

        limits = Limits(slow, most=1000, seconds=5.0, at_once=2)
        taken = [asyncio.create_task(asked("/v1/localize")) for _ in range(2)]
        await asyncio.sleep(0)
        refused = await asked("/v1/localize")
        probe = asyncio.create_task(asked("/healthz"))  # waits for `slow`, so it was let in
        await asyncio.sleep(0)
        release.set()
        after = [*await asyncio.gather(*taken), await probe, await asked("/v1/localize")]
        return [refused, *after]

    (status, headers), *others = asyncio.run(main())
    assert status == 503
    assert int(headers[b"retry-after"]) >= 1
    assert [status for status, _ in others] == [200] * 4


def test_no_answer_sends_elsewhere(serve: Serve) -> None:
    answer = serve().get("/v1/maps/", headers={"Host": "evil.example"}, follow_redirects=False)
    assert answer.status_code == 404
    assert "location" not in answer.headers


def test_what_an_error_quotes_need_not_be_text(serve: Serve) -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="\\ud800"; filename="x"\r\n\r\nabc\r\n--b--\r\n'
    kind = "multipart/form-data; boundary=b; charset=raw_unicode_escape"
    answer = serve().post("/v1/localize", content=part, headers={"content-type": kind})
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("Files must be sent as the field `image`")


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("127.0.0.1.nip.io", False),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.5", False),
    ],
)
def test_only_loopback_is_loopback(host: str, local: bool) -> None:
    from kappaplace.serve.app import is_loopback

    assert is_loopback(host) is local


def test_whose_the_tiles_are_is_told(serve: Serve) -> None:
    url = "https://tile.example/{z}/{x}/{y}.png"
    told = serve(tile_url=url, tile_attribution="© The mappers").get("/v1/maps").json()
    assert (told["tile_url"], told["tile_attribution"]) == (url, "© The mappers")
    assert serve().get("/v1/maps").json()["tile_attribution"] is None


def test_a_full_queue_is_told_over_http_and_empties(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    client = serve(queue=1, max_batch=1)
    release, begun, real = threading.Event(), threading.Event(), PlaceMap.localize_embeddings

    def slow(*values: object, **options: object) -> object:
        begun.set()
        release.wait(10)
        return real(*values, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("kappaplace.maps.place_map.PlaceMap.localize_embeddings", slow)
    answers: list[int] = []

    def ask() -> None:
        answers.append(client.post("/v1/localize", files={"image": encoded()}).status_code)

    first = threading.Thread(target=ask)
    first.start()
    try:
        assert begun.wait(5)
        refused = client.post("/v1/localize", files={"image": encoded()})
    finally:
        release.set()
        first.join(10)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert_problem(refused)
    ask()
    assert answers == [200, 200]
