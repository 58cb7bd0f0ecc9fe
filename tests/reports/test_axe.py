"""Reports in a real browser: no violations of axe, nothing wider than a phone, links unfold chapters."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappaplace.reports.evaluation import write_report
from tests.browser import CHROMIUM
from tests.reports.synthetic import make_images, make_result, make_set

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_is_accessible_and_fits_a_phone(tmp_path: Path, scheme: str) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    part = make_set(queries=60, images=make_images(tmp_path / "images", 3))
    file = write_report(make_result("m", part, measured=True), tmp_path / "report")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme)
        page.goto(file.as_uri())
        folded = page.locator("details:not([open])").count()
        assert folded >= 2
        page.click("nav a:last-child >> nth=-1")
        assert page.locator("details:not([open])").count() == folded - 1
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        found = axe.Axe().run(page).response["violations"]
        assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []
        browser.close()
