"""A real Chromium with the page of the stand-in service, for all tests of the page."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.serve.fake_api import DEMOS, FakeApi

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AUDIT = (Path(__file__).parent / "audit.js").read_text(encoding="utf-8").rstrip().rstrip(";")
PHONE = {"width": 390, "height": 844}
NEEDS_CHROMIUM = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
]
Open = Callable[..., Any]


def photo(api: FakeApi, kind: str = "clear") -> dict[str, Any]:
    """A file for the input of the page; its name selects the answer."""
    data = api.town.query(DEMOS.index(kind) if kind in DEMOS else 0)
    return {"name": f"{kind}.jpg", "mimeType": "image/jpeg", "buffer": data}


def ask(page: Any, api: FakeApi, *kinds: str) -> None:
    page.set_input_files("#photo", files=[photo(api, kind) for kind in kinds or ("clear",)])
    page.wait_for_selector(".verdict")


def decisions(page: Any) -> list[str]:
    return page.eval_on_selector_all(".card .badge", "list => list.map(b => b.textContent)")


def move_slider(page: Any, key: str) -> None:
    page.focus("#risk")
    with page.expect_response(lambda answer: "/v1/map/risk" in answer.url):
        page.keyboard.press(key)
    page.wait_for_timeout(80)  # for the colours
