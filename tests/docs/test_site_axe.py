"""The built site: axe-core finds nothing to criticize, and no page is wider than the screen."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.markdown import ROOT
from tests.serve.pages import CHROMIUM, NEEDS_CHROMIUM
from tests.serve.test_page_axe import FOUND, violations

pytestmark = [
    *NEEDS_CHROMIUM,
    pytest.mark.slow,
    pytest.mark.skipif(FOUND is None, reason="axe-playwright-python is missing"),
]
PAGES = [
    "index.html",
    "quickstart/index.html",
    "commands/index.html",
    "maps/index.html",
    "results/index.html",
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocs_redirects")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing(site: Path, browser: Any, scheme: str, width: int) -> None:
    assert FOUND is not None
    assert FOUND.origin is not None
    axe = (Path(FOUND.origin).parent / "axe.min.js").read_text(encoding="utf-8")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    for name in PAGES:
        page = context.new_page()
        page.goto((site / name).as_uri())
        page.wait_for_timeout(500)  # until the theme has added its buttons
        assert violations(page, axe) == [], name
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    context.close()
