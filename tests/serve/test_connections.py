"""Connections that send nothing, or half a header, keep no one else out: health checks and queries answer."""

from __future__ import annotations

import contextlib
import http.client
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kappaplace.serve.connections import IN_ALL, PER_ADDRESS, Waiting, network_of
from tests.serve.conftest import asked, encoded
from tests.serve.test_process import address, start

HALF = b"GET /v1/maps HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
QUICK = (  # the same service with shorter limits
    "import kappaplace.serve.connections as c; c.HEADER_SECONDS = 1.0; c.ANSWER_SECONDS = 1.0; "
    "from kappaplace.cli.main import main; main()"
)


@pytest.fixture(scope="module")
def running(
    served_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    folder = tmp_path_factory.mktemp("connections") / "town.map"
    shutil.copytree(served_folder / "town.map", folder)
    process = start(str(folder), "--port", "0")
    yield address(process), process
    process.kill()
    process.communicate()


def connected(url: str, data: bytes = b"") -> socket.socket:
    parts = urlsplit(url)
    link = socket.create_connection((parts.hostname, parts.port), timeout=10)
    link.sendall(data)
    return link


def flood(url: str, count: int) -> list[socket.socket]:
    """Open connections: every other one silent, the others with half a header."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard < 1 << 20 else max(soft, 8192), hard))
    return [connected(url, HALF if i % 2 else b"") for i in range(count)]


def closed(link: socket.socket) -> bool:
    link.settimeout(0.0)
    try:
        return link.recv(1000) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_a_flood_of_silent_connections_keeps_no_one_out(running: tuple[str, subprocess.Popen[str]]) -> None:
    url, _ = running
    links = flood(url, 1100)
    try:
        for _ in range(3):
            for path in ("/healthz", "/readyz", "/v1/maps"):
                assert asked(url, path) == 200
            assert asked(url, "/v1/localize", encoded()) == 200
        assert sum(not closed(link) for link in links) <= PER_ADDRESS
    finally:
        for link in links:
            link.close()
    assert asked(url, "/healthz") == 200


def test_half_a_header_ends_after_its_time(served_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.serve.test_process.COMMAND", [sys.executable, "-c", QUICK, "serve"])
    process = start(str(served_folder / "town.map"), "--port", "0")
    try:
        url = address(process)
        silent, half = connected(url), connected(url, HALF)
        kept = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
        for _ in range(2):  # the same connection answers twice
            kept.request("GET", "/healthz")
            assert kept.getresponse().read()
        assert kept.sock is not None
        kept.sock.sendall(HALF)  # half a header after an answer
        again = kept.sock
        end = time.monotonic() + 20
        while not all(closed(link) for link in (silent, half, again)):
            assert time.monotonic() < end
            with contextlib.suppress(OSError):
                half.send(b"x")  # bytes that trickle in do not extend the time
            time.sleep(0.1)
        assert asked(url, "/healthz") == 200
    finally:
        process.kill()
        process.communicate()


class Link:
    """A connection as the list of them sees it."""

    def __init__(self, where: Waiting, host: str) -> None:
        self.where, self.address, self.aborted = where, host, False
        where.add(self)  # type: ignore[arg-type]

    def abort(self) -> None:
        self.aborted = True
        self.where.remove(self)  # type: ignore[arg-type]


def test_one_address_ends_only_its_own_connections() -> None:
    where = Waiting()
    other = Link(where, "192.0.2.1")
    mine = [Link(where, "192.0.2.2") for _ in range(3 * PER_ADDRESS)]
    assert not other.aborted
    assert [link.aborted for link in mine] == [True] * 2 * PER_ADDRESS + [False] * PER_ADDRESS


def test_many_addresses_end_those_of_the_busiest() -> None:
    where = Waiting()
    crowd = [Link(where, "192.0.2.1") for _ in range(20)]
    others = [Link(where, f"198.51.{i // 250}.{i % 250}") for i in range(IN_ALL - 5)]
    assert [link.aborted for link in crowd] == [True] * 15 + [False] * 5
    assert not any(link.aborted for link in others)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("::1", "::1"),
        ("testclient", "testclient"),
    ],
)
def test_an_ipv6_client_counts_by_its_network(host: str, network: str) -> None:
    assert network_of(host) == network
