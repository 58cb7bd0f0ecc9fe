"""The client alone: what it sends, when it asks again, and what it makes of services that are none."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kappaplace import Client, KappaPlaceError
from kappaplace.client import ServiceError

Reply = tuple[int, dict[str, str], bytes]
Serve = Callable[..., tuple[str, list[Any]]]
MAPS: Reply = (200, {}, b'{"maps": ["town"]}')


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A service that gives these answers, one after the other; requests are recorded."""
    running: list[ThreadingHTTPServer] = []

    def start(*answers: Reply) -> tuple[str, list[Any]]:
        remaining, requests = list(answers), []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                requests.append((self.path, self.headers, body))
                status, headers, content = remaining.pop(0)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        running.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=running[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{running[-1].server_address[1]}", requests

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def error(status: int, sentence: str, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, named, json.dumps({"error": sentence}).encode()


@pytest.mark.parametrize("status", [409, 429, 503])
def test_a_busy_service_is_asked_again_when_it_says(serve: Serve, status: int) -> None:
    url, requests = serve(error(status, "busy", Retry_After="0.2"), MAPS)
    start = time.monotonic()
    assert Client(url).maps() == ["town"]
    assert time.monotonic() - start >= 0.2
    assert len(requests) == 2


def test_patience_ends(serve: Serve) -> None:
    url, requests = serve(*[error(429, "The queue is full.", Retry_After="0")] * 3)
    with pytest.raises(ServiceError, match="The queue is full") as refused:
        Client(url, tries=3).maps()
    assert refused.value.status == 429
    assert len(requests) == 3


def test_what_will_not_change_is_asked_once(serve: Serve) -> None:
    for answer in (error(422, "Not an image."), error(503, "Broken.")):  # no word of coming back
        url, requests = serve(answer, MAPS)
        with pytest.raises(ServiceError):
            Client(url).maps()
        assert len(requests) == 1


def test_the_token_goes_into_the_header_and_not_to_other_hosts(serve: Serve) -> None:
    elsewhere, redirected = serve(MAPS)
    url, requests = serve((302, {"Location": f"{elsewhere}/v1/maps"}, b""))
    Client(url, token="a-long-secret-token").maps()
    (path, headers, _), (_, other, _) = requests[0], redirected[0]
    assert headers["Authorization"] == "Bearer a-long-secret-token"
    assert "secret" not in path
    assert other["Authorization"] is None


def test_images_and_options_are_one_form(serve: Serve) -> None:
    embeddings = {"descriptors": [[1.0, 0.0]] * 2, "kappa": None}
    url, requests = serve((200, {}, json.dumps(embeddings).encode()))
    assert Client(url, map="harbour").embed([b"one", b"\r\n--two--"]).descriptor.shape == (2, 2)
    body = requests[0][2]
    assert body.count(b'; name="image"') == 2
    assert b"\r\n\r\none\r\n--" in body
    assert b"\r\n\r\n\r\n--two--\r\n--" in body
    assert b'name="map"\r\n\r\nharbour\r\n' in body


def test_what_is_no_service_is_told_in_a_sentence(serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def speak_something_else() -> None:
            with listening.accept()[0] as taken:
                taken.recv(1000)
                taken.sendall(b"220 mail.example ESMTP\r\n")

        threading.Thread(target=speak_something_else, daemon=True).start()
        with pytest.raises(ServiceError, match="does not answer") as refused:
            Client(f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=5).maps()
    assert refused.value.status == 0
    with pytest.raises(ServiceError, match="does not answer"):
        Client("http://127.0.0.1:eighty").maps()
    url, _ = serve((200, {}, b"<html>"), (500, {}, b"<html>"))
    with pytest.raises(ServiceError, match="does not answer"):
        Client(url).maps()
    with pytest.raises(ServiceError, match="status 500"):
        Client(url).maps()
    with pytest.raises(KappaPlaceError, match="at least one image"):
        Client(url).localize_batch([])


def test_errors_have_a_code_for_programs(serve: Serve) -> None:
    problem = {
        "detail": "The queue is full.",
        "code": "busy",
        "request_id": "abc",
        "error": "…",
        "status": 429,
    }
    url, _ = serve((429, {}, json.dumps(problem).encode()), error(404, "Unknown map."))
    with pytest.raises(ServiceError, match="The queue is full") as refused:
        Client(url).maps()
    assert (refused.value.status, refused.value.code, refused.value.request_id) == (429, "busy", "abc")
    with pytest.raises(ServiceError, match="Unknown map") as refused:  # of a service before the codes
        Client(url).maps()
    assert (refused.value.status, refused.value.code) == (404, "")


def test_a_stream_yields_answers_and_errors(serve: Serve) -> None:
    from kappaplace.serve.schemas import example_of

    problem = {"status": 422, "detail": "Not an image.", "code": "invalid_image", "request_id": "r"}
    lines = [{"index": 1, "problem": problem}, {"index": 0, "answer": example_of("LocalizationOut")}]
    url, requests = serve((200, {}, b"".join(json.dumps(line).encode() + b"\n" for line in lines)))
    (first, wrong), (second, right) = Client(url).localize_stream([b"a", b"b"], outside_rate=0.2)
    assert (first, second) == (1, 0)
    assert isinstance(wrong, ServiceError)
    assert (str(wrong), wrong.code) == ("Not an image.", "invalid_image")
    assert not isinstance(right, ServiceError)
    assert right.decision == "accept"
    assert requests[0][1]["Accept"] == "application/x-ndjson"
    assert b'name="outside_rate"\r\n\r\n0.2\r\n' in requests[0][2]


def test_an_unknown_keyword_is_an_error() -> None:
    with pytest.raises(TypeError, match="nearby"):
        Client("http://127.0.0.1:1").localize(b"x", nearby=(0, 0, 1))


def test_a_sequence_is_sent_with_its_session(serve: Serve) -> None:
    url, requests = serve((200, {}, b'{"answers": []}'))
    assert Client(url, map="town").localize_sequence([b"one", b"two"], "bus-7", k=3) == []
    path, _, body = requests[0]
    assert path == "/v1/localize/batch"
    for name, value in {"session": "bus-7", "k": "3", "map": "town"}.items():
        assert f'name="{name}"\r\n\r\n{value}\r\n'.encode() in body
    assert body.index(b"one") < body.index(b"two")


def test_candidate_sets_and_groups_are_requested(serve: Serve) -> None:
    url, requests = serve((200, {}, b'{"answers": []}'))
    assert Client(url).localize_batch([b"one"], coverage=0.9, group="night") == []
    for name, value in {"coverage": "0.9", "group": "night"}.items():
        assert f'name="{name}"\r\n\r\n{value}\r\n'.encode() in requests[0][2]
