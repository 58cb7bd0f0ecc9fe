"""Downloads, from a server on this machine: progress, checksum, interruption, no network."""

from __future__ import annotations

import dataclasses
import socket
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from kappaplace.errors import KappaPlaceError
from kappaplace.models import published as hub
from kappaplace.models.checkpoint import load_model
from kappaplace.models.place_model import PlaceModel
from kappaplace.models.published import fetch
from kappaplace.models.registry import HUB, HubModel

from .test_foreign import cosplace_state


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """URL of a local file server and the folder it serves."""
    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}", folder
        httpd.shutdown()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KAPPAPLACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def entry(address: str) -> HubModel:
    return dataclasses.replace(HUB["cosplace-resnet18-512"], location=f"{address}/model.pth", dim=16)


def test_download_once_then_from_the_cache(
    server: tuple[str, Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, folder = server
    model = PlaceModel.create("resnet18", dim=16, head="none")
    torch.save(cosplace_state(model), folder / "model.pth")
    monkeypatch.setitem(HUB, "mine", entry(address))
    first = load_model("mine")
    (folder / "model.pth").unlink()  # the second time, the server is not queried
    again = load_model("mine")
    images = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(first(images).descriptor, again(images).descriptor)
    assert len((cache / "model.pth.sha256").read_text().strip()) == 64


def test_a_changed_file_is_refused_afterwards(server: tuple[str, Path], cache: Path) -> None:
    address, folder = server
    (folder / "model.pth").write_bytes(b"weights")
    fetch(entry(address))
    (cache / "model.pth").write_bytes(b"Weights")
    with pytest.raises(KappaPlaceError, match="have changed since their first download"):
        fetch(entry(address))


def test_a_missing_record_is_made_good(server: tuple[str, Path], cache: Path) -> None:
    address, folder = server
    (folder / "model.pth").write_bytes(b"weights")
    fetch(entry(address))
    (cache / "model.pth.sha256").unlink()
    fetch(entry(address))
    assert (cache / "model.pth.sha256").exists()


def test_not_found_and_no_network_are_one_sentence(server: tuple[str, Path], cache: Path) -> None:
    address, _ = server
    with pytest.raises(KappaPlaceError, match=r"Could not download http.*not found"):
        fetch(entry(address))
    with pytest.raises(KappaPlaceError, match=r"refused.*or save the file as"):
        fetch(entry("http://127.0.0.1:9"))
    assert not list(cache.glob("*.pth"))


def test_a_broken_connection_leaves_nothing_behind(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Half:
        headers = {"Content-Length": "100"}  # noqa: RUF012 - a stand-in for an HTTP answer
        parts = [b"x" * 40, b""]  # noqa: RUF012

        def __enter__(self) -> Half:
            return self

        def __exit__(self, *args: object) -> None:
            pass

        def read(self, count: int) -> bytes:
            return self.parts.pop(0)

    monkeypatch.setattr(hub.urllib.request, "urlopen", lambda *args, **kwargs: Half())
    with pytest.raises(KappaPlaceError, match="was lost after 40 of 100 bytes"):
        fetch(entry("http://127.0.0.1:9"))
    assert not list(cache.iterdir())


ANSWERS = {
    "silence": b"",
    "junk": b"what?\r\n\r\n",
    "half": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nhalf",
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_broken_server_is_not_blamed_on_the_disk(answer: str, cache: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        connection.recv(4096)
        connection.sendall(ANSWERS[answer])
        connection.close()

    threading.Thread(target=serve, daemon=True).start()
    with pytest.raises(KappaPlaceError, match="the connection was lost"):
        fetch(entry(f"http://127.0.0.1:{listener.getsockname()[1]}"))
    assert not list(cache.iterdir())


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            OSError("no route to host"),
            r"no connection \(no route to host\). Connect to the network for the first",
        ),
        (RuntimeError("It looks like there is no internet connection and …"), "no connection. Connect to"),
        (Exception("Untrusted repository."), "confirm there that you trust"),
        (EOFError("EOF when reading a line"), "confirm there that you trust"),
        (ValueError("unexpected key"), "unexpected key. Check that the installed packages fit"),
        (ModuleNotFoundError("No module named 'lightning'"), "needs a package that is missing"),
    ],
)
def test_torch_hub_failures_are_one_sentence(
    error: Exception, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(torch.hub, "load", refuse)
    with pytest.raises(KappaPlaceError, match=sentence):
        load_model("megaloc")


def test_torch_hub_models_become_frozen_encoders(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 5))
    monkeypatch.setattr(torch.hub, "load", lambda *args, **kwargs: encoder)
    model = load_model("salad")
    assert model.dim == 5
    assert model.preprocessing.fixed_size == (322, 322)
    with torch.no_grad():
        encoder[2].weight.add_(1.0)
    with pytest.raises(KappaPlaceError, match="have changed since their first download"):
        load_model("salad")
