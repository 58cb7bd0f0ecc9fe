"""axe-core finds nothing to criticize: every view, on a desktop and on a phone, light and dark."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.serve.fake_api import FakeApi
from tests.serve.pages import NEEDS_CHROMIUM, PHONE, Open, ask

FOUND = importlib.util.find_spec("axe_playwright_python")
pytestmark = [*NEEDS_CHROMIUM, pytest.mark.skipif(FOUND is None, reason="axe-playwright-python is missing")]
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@pytest.fixture(scope="module")
def axe() -> str:
    assert FOUND is not None
    assert FOUND.origin is not None
    return (Path(FOUND.origin).parent / "axe.min.js").read_text(encoding="utf-8")


def violations(page: Any, axe: str) -> list[str]:
    """Rule and place of each violation. The script is not part of the page, so its policy does not apply."""
    page.evaluate(axe)
    page.wait_for_timeout(300)  # until transitions have their last color
    found = page.evaluate("rules => axe.run(document, { runOnly: rules })", RULES)["violations"]
    return [
        f"{each['id']}: {node['target']} {node['html'][:120]}" for each in found for node in each["nodes"]
    ]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("phone", [False, True], ids=["desktop", "phone"])
def test_axe_finds_nothing(visit: Open, api: FakeApi, axe: str, dark: bool, phone: bool) -> None:
    size = {"viewport": PHONE, "has_touch": True} if phone else {}
    page = visit(color_scheme="dark" if dark else "light", **size)
    page.wait_for_selector(".demo img")
    assert violations(page, axe) == []
    ask(page, api, "clear", "elsewhere", "broken")
    page.locator(".about summary").click()
    assert violations(page, axe) == []
    page.get_by_role("button", name="Photo 3, broken.jpg: failed").click()
    assert violations(page, axe) == []
    page.get_by_role("button", name="Photo 2, elsewhere.jpg: Reject").click()
    page.locator(".pictures").click()
    assert violations(page, axe) == []
    page.keyboard.press("Escape")
    for where, there in (("sure", ".plot"), ("browse/31", ".worst img"), ("drift", ".drift-plot")):
        page.goto(f"{api.address}/#{where}")
        page.wait_for_selector(there)
        assert violations(page, axe) == []
    page.goto(f"{api.address}/docs")
    page.wait_for_selector(".operation")
    page.locator("summary").first.click()
    assert violations(page, axe) == []


def test_axe_sees_what_is_wrong(visit: Open, axe: str) -> None:
    page = visit()
    page.evaluate("document.querySelector('main').append(document.createElement('img'))")
    assert [each.partition(":")[0] for each in violations(page, axe)] == ["image-alt"]
