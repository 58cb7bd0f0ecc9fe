"""Pictures of each screen of the web page: python docs/make_page_pictures.py

They show the stand-in service of the tests: images of the synthetic city, with answers that are made up, so
that every decision and every reason occurs. They say nothing about recognition.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright
from tests.serve.fake_api import FakeApi
from tests.serve.pages import CHROMIUM, PHONE, ask

ASSETS = Path(__file__).parent / "assets"
DESKTOP = {"width": 1280, "height": 900}
ZOOMED = {"viewport": {"width": 640, "height": 450}, "device_scale_factor": 2, "reduced_motion": "reduce"}
TOUCH = {"viewport": PHONE, "has_touch": True, "is_mobile": True}


def save(page: Any, name: str, *, full: bool = False) -> None:
    """Save the screen as a small file."""
    page.wait_for_timeout(800)  # for images and transitions
    image = Image.open(io.BytesIO(page.screenshot(full_page=full))).convert("RGB")
    if name.endswith(".png"):
        image.quantize(128).save(ASSETS / name, optimize=True)
    else:
        image.save(ASSETS / name, quality=72, method=6)


def main() -> None:
    """Draw all screens."""
    api = FakeApi()
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

        def visit(where: str = "", **options: Any) -> Any:
            page = browser.new_context(**{"viewport": DESKTOP} | options).new_page()
            page.goto(f"{api.address}/{where}")
            page.wait_for_selector("main h1", state="attached")
            return page

        page = visit()
        page.wait_for_selector(".demo img")
        save(page, "page_start.webp")
        save(visit(**TOUCH), "page_start_phone.webp")
        answered = {
            "serve_desktop.png": ({}, ["ambiguous"]),
            "page_accept.webp": ({}, ["clear"]),
            "page_several.webp": ({}, ["elsewhere", "clear", "blurred", "broken", "ambiguous"]),
            "page_dark.webp": ({"color_scheme": "dark"}, ["blurred"]),
            "page_zoom.webp": (ZOOMED, ["clear"]),
            "page_forced_colors.webp": ({"forced_colors": "active"}, ["blurred"]),
            "serve_phone.png": (TOUCH | {"color_scheme": "dark"}, ["ambiguous"]),
            "page_phone.webp": (TOUCH, ["clear"]),
        }
        for name, (options, kinds) in answered.items():
            page = visit(**options)
            ask(page, api, *kinds)
            save(page, name)
        page.locator(".pictures").click()
        save(page, "page_large_phone.webp")
        page = visit()
        ask(page, api, "clear")
        page.emulate_media(media="print")
        save(page, "page_print.webp", full=True)
        api.behavior.drifting = True
        for view in ("sure", "browse/31", "drift"):
            for options, end in (({}, ""), (TOUCH, "_phone")):
                save(visit(f"#{view}", **options), f"page_{view.partition('/')[0]}{end}.webp")
        page = visit("docs")
        page.wait_for_selector(".operation")
        save(page, "page_api.webp")
        browser.close()
    api.close()


if __name__ == "__main__":
    main()
