"""A calibrated town behind HTTP, and clients that ask it."""

from __future__ import annotations

import http.client
import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from kappaplace.calibration.options import CalibrateOptions
from kappaplace.data.images import Preprocessing
from kappaplace.maps import BuildOptions, PlaceMap
from kappaplace.maps.tune.self_calibrate import self_calibrate_map
from kappaplace.models.place_model import PlaceModel
from kappaplace.serve.app import create_app
from kappaplace.serve.settings import Settings
from tests.maps.conftest import town_table
from tests.serve.fake_api import Behavior, FakeApi
from tests.serve.pages import CHROMIUM, Open

READ, WRITE = "read-token-of-the-tests", "write-token-of-the-tests"


@pytest.fixture(scope="session")
def served_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small map with thumbnails, calibrated on its own images; tests that change it take a copy."""
    import torch

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("served")
    table = town_table(folder / "val")
    table.save(folder / "val.parquet")
    model = PlaceModel.create("resnet_tiny", dim=32, preprocessing=Preprocessing(64, "exact")).eval()
    made = PlaceMap.build(table, folder / "town.map", model, options=BuildOptions(thumbnails=True))
    self_calibrate_map(made, CalibrateOptions(rerank=0), queries=40)
    return folder


@pytest.fixture(scope="session")
def query_files(served_folder: Path) -> list[Path]:
    from kappaplace.data.table import PlaceImages

    table = PlaceImages.open(served_folder / "val.parquet")
    return [Path(path) for path in table.image_paths(table.query_rows)]


@pytest.fixture
def opened(served_folder: Path) -> PlaceMap:
    return PlaceMap.open(served_folder / "town.map")


Serve = Callable[..., TestClient]


@pytest.fixture
def serve(opened: PlaceMap) -> Iterator[Serve]:
    """Start a service; settings as keywords, ``maps`` for others than the town."""
    running: list[TestClient] = []

    def start(maps: dict[str, PlaceMap] | None = None, **settings: Any) -> TestClient:
        app = create_app(maps or {"town": opened}, Settings(**settings))
        client = TestClient(app, raise_server_exceptions=False)
        running.append(client.__enter__())
        end = time.monotonic() + 30
        while client.get("/readyz", headers={"Host": "localhost"}).status_code != 200:
            assert time.monotonic() < end, "the service never got ready"
            time.sleep(0.005)
        return client

    yield start
    for client in running:
        client.__exit__(None, None, None)


@pytest.fixture
def client(serve: Serve) -> TestClient:
    return serve()


def encoded(kind: str = "PNG", size: tuple[int, int] = (48, 32), **options: Any) -> bytes:
    """A picture of noise as a file in memory."""
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def asked(url: str, path: str, image: bytes = b"", seconds: float = 30.0) -> int:
    """Status of a request on a new connection; with an image it is a POST."""
    link = http.client.HTTPConnection(urlsplit(url).netloc, timeout=seconds)
    try:
        method, headers = ("POST", {"Content-Type": "image/png"}) if image else ("GET", {})
        link.request(method, path, image or None, headers)
        return link.getresponse().status
    finally:
        link.close()


def many_scans(scans: int, side: int = 1024) -> bytes:
    """A small progressive JPEG of one color, whose last scan comes many times more."""
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), (90, 120, 60)).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * scans + data[-2:]


def assert_problem(answer: Any) -> None:
    """An error as RFC 9457 describes it, with the request id also in the header."""
    values = answer.json()
    assert set(values) == {"type", "title", "status", "detail", "code", "request_id", "error"}
    assert answer.headers["content-type"] == "application/problem+json"
    assert values["status"] == answer.status_code
    assert values["detail"] == values["error"]
    assert values["request_id"] == answer.headers["x-request-id"]
    assert values["type"] == f"/docs#{values['code']}"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def running() -> Iterator[FakeApi]:
    api = FakeApi()
    yield api
    api.close()


@pytest.fixture
def api(running: FakeApi) -> FakeApi:
    running.behavior = Behavior()
    return running


@pytest.fixture
def visit(chromium: Any, api: FakeApi) -> Iterator[Open]:
    """Open the page; at the end nothing may have failed in it, and no other host been asked."""
    errors: list[str] = []
    hosts: set[str] = set()
    contexts = []

    def start(where: str = "", *, loaded: str = "main h1", **options: Any) -> Any:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        # What the service refuses is reported by the browser too, and wanted here.
        page.on("console", lambda said: errors.append(said.text) if _wrong(said) else None)
        page.on("request", lambda asked: hosts.add(asked.url.partition("/v1/")[0].partition("/static")[0]))
        page.goto(f"{api.address}/{where}")
        page.wait_for_selector(loaded, state="attached")
        return page

    yield start
    for context in contexts:
        context.close()
    assert errors == []
    assert {host for host in hosts if not host.startswith((api.address, "blob:", "data:"))} == set()


def _wrong(said: Any) -> bool:
    return said.type == "error" and "Failed to load resource" not in said.text
