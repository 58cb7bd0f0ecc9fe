"""The page on the real service: what one sends is what the other understands."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kappaplace.maps import PlaceMap
from kappaplace.serve.app import create_app
from kappaplace.serve.settings import Settings
from tests.serve.conftest import READ

playwright = pytest.importorskip("playwright.sync_api")
uvicorn = pytest.importorskip("uvicorn")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
]


@pytest.fixture
def address(opened: PlaceMap, query_files: list[Path], tmp_path: Path) -> Iterator[str]:
    """A service on loopback that asks for a token and offers three demo queries."""
    for file in query_files[:3]:
        shutil.copy(file, tmp_path)
    app = create_app({"town": opened}, Settings(read_token=READ, demo_queries=tmp_path))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join(20)


def test_the_page_and_the_service_understand_each_other(
    address: str, opened: PlaceMap, query_files: list[Path]
) -> None:
    errors: list[str] = []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.goto(address)
        page.wait_for_selector("dialog[open]")
        errors.clear()  # the browser notes the 401 that the dialog answers
        page.fill("#token-field", READ)
        page.keyboard.press("Enter")
        page.wait_for_selector(".demo img")
        assert page.locator(".demo").count() == 3
        page.set_input_files("#photo", files=[query_files[0]])
        page.wait_for_selector(".verdict")
        page.wait_for_selector(".card img")
        wanted = opened.localize(query_files[0], k=8)
        assert page.inner_text(".verdict .badge") == wanted.decision.title()
        degrees = wanted.latitude is not None and f"{wanted.latitude:.5f}, {wanted.longitude:.5f}"
        assert page.inner_text(".place .at") == (degrees or "No position")
        names = page.eval_on_selector_all(".card .name", "list => list.map(e => e.title)")
        assert names == [match.name for match in wanted.matches]
        said = page.eval_on_selector_all(".card .badge", "list => list.map(e => e.textContent.toLowerCase())")
        assert said == [match.decision for match in wanted.matches]
        page.click("nav a[href='#sure']")
        page.wait_for_selector(".plot circle")  # the map keeps its reliability
        assert page.locator(".plot").count() == 2
        page.click("nav a[href='#browse']")
        page.wait_for_selector(".worst img")
        browser.close()
    assert errors == []
