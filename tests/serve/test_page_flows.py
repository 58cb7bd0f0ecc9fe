"""What people do on the page: several photos, a place to take along, errors, reload, labels, drift, print."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.serve.fake_api import FakeApi
from tests.serve.pages import NEEDS_CHROMIUM, PHONE, Open, ask, photo

pytestmark = NEEDS_CHROMIUM


def jpeg(width: int, height: int) -> bytes:
    """A picture of noise, which no encoder can make small."""
    out = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(out, "JPEG", quality=92)
    return out.getvalue()


def saved(page: Any, name: str) -> dict[str, Any]:
    with page.expect_download() as download:
        page.get_by_role("button", name=name, exact=True).click()
    assert download.value.suggested_filename == f"clear.{name.lower()}"
    return json.loads(open(download.value.path(), encoding="utf-8").read())


def test_the_place_can_be_taken_along(visit: Open, api: FakeApi) -> None:
    page = visit(permissions=["clipboard-read", "clipboard-write"])
    ask(page, api)
    page.get_by_role("button", name="Copy").click()
    page.wait_for_selector("text=Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "37.76590, -122.41110 ± 19 m"
    link = page.get_by_role("link", name="OpenStreetMap")
    wanted = api.town.answer(0, 8, api.behavior)
    at = f"?mlat={wanted['latitude']:.6f}&mlon={wanted['longitude']:.6f}#map=18/37.76590/-122.41110"
    assert link.get_attribute("href") == f"https://www.openstreetmap.org/{at}"
    assert link.get_attribute("rel") == "noopener noreferrer"
    assert saved(page, "JSON") == wanted
    estimate, *matches = saved(page, "GeoJSON")["features"]
    assert estimate["geometry"]["coordinates"] == [wanted["longitude"], wanted["latitude"]]
    assert estimate["properties"]["decision"] == "accept"
    assert [match["properties"]["rank"] for match in matches] == list(range(1, 9))
    assert matches[0]["geometry"]["coordinates"][1] == pytest.approx(wanted["latitude"], abs=1e-4)


def test_a_map_without_a_location_on_earth_shows_its_own_frame(visit: Open, api: FakeApi) -> None:
    api.behavior.frame, api.behavior.radius = "local", None
    page = visit()
    ask(page, api)
    assert re.fullmatch(r"x 551,\d{3}\.\d, y 4,180,\d{3}\.\d", page.inner_text(".place"))
    assert page.inner_text(".where").startswith("Error unknown; 5 matches agree.")
    assert page.get_by_role("link", name="OpenStreetMap").count() == 0
    assert page.get_by_role("button", name="GeoJSON").count() == 0


def test_an_accepted_answer_has_reasons_too(visit: Open, api: FakeApi) -> None:
    page = visit()
    ask(page, api)
    assert page.inner_text(".why h3") == "Why is it accepted?"
    titles = page.eval_on_selector_all(".why strong", "list => list.map(e => e.textContent)")
    assert titles == ["5 matches agree", "It stands out", "The photo is clear"]


def test_photo_and_match_side_by_side(visit: Open, api: FakeApi) -> None:
    page = visit(has_touch=True)
    page.set_input_files("#photo", files=[{**photo(api), "buffer": jpeg(300, 700)}])
    page.wait_for_selector(".verdict")
    page.wait_for_selector(".pictures .slot img")
    image = page.locator(".pictures img").first
    assert image.evaluate("e => getComputedStyle(e).objectFit") == "contain"  # a portrait photo is whole
    assert page.locator(".patches line").count() == 14
    # Each line begins inside of the part of the frame that the portrait photo fills.
    box = image.evaluate("e => [e.clientWidth, e.clientHeight, e.naturalWidth / e.naturalHeight]")
    half = box[1] * box[2] / 2
    starts = page.eval_on_selector_all(".patches line", "all => all.map(e => Number(e.getAttribute('x1')))")
    assert all(box[0] / 2 - half <= x <= box[0] / 2 + half for x in starts)
    page.get_by_label("patches that match").uncheck()
    assert page.locator(".patches line").count() == 0
    page.get_by_role("button", name="Next match").click()
    assert page.inner_text(".which-match") == "Match 2 of 8"
    assert page.locator(".card.chosen").get_attribute("aria-label").startswith("Match 2")
    swipe = """by => {
        const pictures = document.querySelector('.pictures');
        const at = { pointerType: 'touch', bubbles: true };
        pictures.dispatchEvent(new PointerEvent('pointerdown', { ...at, clientX: 200 }));
        pictures.dispatchEvent(new PointerEvent('pointerup', { ...at, clientX: 200 + by }));
    }"""
    page.evaluate(swipe, -90)
    assert page.inner_text(".which-match") == "Match 3 of 8"
    page.evaluate(swipe, 90)
    assert page.inner_text(".which-match") == "Match 2 of 8"


def test_patches_are_drawn_if_the_map_has_them(visit: Open, api: FakeApi) -> None:
    for there in (True, False):
        api.behavior.evidence = there
        page = visit()
        ask(page, api)
        assert b'name="evidence"\r\n\r\ntrue' in api.behavior.sent[-1]
        assert page.locator(".patch-toggle").is_visible() is there
        assert (page.locator(".patches line").count() > 0) is there


def test_the_large_view(visit: Open, api: FakeApi) -> None:
    page = visit()
    ask(page, api)
    page.locator(".pictures").click()
    page.wait_for_selector(".lightbox[open] .slot img")
    page.keyboard.press("ArrowRight")
    assert page.inner_text(".lightbox .which-match") == "Match 2 of 8"
    page.keyboard.press("Escape")
    assert page.locator(".lightbox").count() == 0
    assert page.inner_text(".which-match") == "Match 2 of 8"


def test_several_photos_are_a_filmstrip(visit: Open, api: FakeApi) -> None:
    page = visit()
    ask(page, api, "clear", "broken", "elsewhere", "blurred", "ambiguous")
    page.wait_for_selector("text=5 photos: 1 accept, 2 doubtful, 1 reject, 1 failed.")
    assert len(api.behavior.sent) == 2  # four together, then the rest
    assert [path for path in api.behavior.asked if path.endswith("/localize/batch")]
    page.get_by_role("button", name="Photo 3, elsewhere.jpg: Reject").click()
    assert page.inner_text(".verdict .badge") == "Reject"
    page.get_by_role("button", name="Photo 2, broken.jpg: failed").click()
    assert "Not an image." in page.inner_text(".problem")
    assert page.locator(".verdict, .card").count() == 0


def test_one_photo_is_not_a_filmstrip(visit: Open, api: FakeApi) -> None:
    page = visit()
    ask(page, api)
    assert page.locator(".filmstrip").is_hidden()
    assert [path for path in api.behavior.asked if path.endswith("/v1/localize")]


def test_errors_are_in_the_words_of_the_user(visit: Open, api: FakeApi) -> None:
    page = visit()
    ask(page, api)
    broken = {"name": "broken.jpg", "mimeType": "image/jpeg", "buffer": b"no photo"}
    page.set_input_files("#photo", files=[broken])
    page.wait_for_selector("text=This file is not a photo. Choose a JPEG, PNG or WebP image.")
    assert page.get_by_role("button", name="Try again").count() == 0
    assert page.locator(".verdict, .card, .query *, .pictures").count() == 0  # nothing of the old photo
    api.behavior.error = (413, "The request is larger than 9 bytes.")
    page.set_input_files("#photo", files=[photo(api)])
    page.wait_for_selector("text=This photo is too large for the service.")
    assert page.get_by_role("button", name="Try again").count() == 0
    api.behavior.error = (500, "Internal error.")
    page.set_input_files("#photo", files=[photo(api)])
    page.wait_for_selector("text=Internal error.")
    api.behavior.error = None
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector(".verdict.accept")


def test_a_large_photo_is_sent_smaller(visit: Open, api: FakeApi) -> None:
    page = visit()
    data = jpeg(2400, 1800)
    assert len(data) > 2e6
    page.set_input_files("#photo", files=[{"name": "clear.jpg", "mimeType": "image/jpeg", "buffer": data}])
    page.wait_for_selector(".verdict")
    sent = api.behavior.sent[0]
    image = Image.open(io.BytesIO(sent[sent.index(b"\xff\xd8\xff") :]))
    assert image.size == (1600, 1200)
    ask(page, api)  # a small one is sent as it is
    assert photo(api)["buffer"] in api.behavior.sent[1]


def test_an_upload_shows_its_progress_and_can_be_canceled(visit: Open, api: FakeApi) -> None:
    page = visit()
    api.behavior.delay = 5.0
    page.set_input_files("#photo", files=[photo(api)])
    page.wait_for_selector("progress")
    page.wait_for_selector("text=Comparing with")
    page.get_by_role("button", name="Cancel").click()
    page.wait_for_selector("text=Canceled.")
    api.behavior.delay = 0.0
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector(".verdict.accept")


def test_a_service_that_never_answers(visit: Open, api: FakeApi) -> None:
    page = visit()
    page.route("**/static/api.js", lambda route: route.continue_())
    page.evaluate("""() => {
        const real = XMLHttpRequest.prototype.send;
        XMLHttpRequest.prototype.send = function (body) { this.timeout = 300; real.call(this, body); };
    }""")
    api.behavior.delay = 2.0
    page.set_input_files("#photo", files=[photo(api)])
    page.wait_for_selector("text=The service did not answer within 90 seconds.")
    assert page.get_by_role("button", name="Try again").count() == 1


def test_on_a_phone_photo_and_verdict_fill_the_first_screen(visit: Open, api: FakeApi) -> None:
    page = visit(viewport=PHONE, has_touch=True, is_mobile=True)
    assert page.locator("#camera").get_attribute("capture") == "environment"
    assert page.locator(".camera").is_visible()
    before = page.locator(".asking").bounding_box()["height"]
    ask(page, api)
    page.wait_for_timeout(600)
    assert page.locator(".asking").bounding_box()["height"] < 80 < before
    for part in (".place", ".verdict .badge", ".chance", ".pictures", ".actions"):
        box = page.locator(part).bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= PHONE["height"]
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_the_camera_is_for_touch_screens(visit: Open) -> None:
    assert visit().locator(".camera").is_hidden()


def test_at_twice_the_size_the_page_scrolls_to_the_answer(visit: Open, api: FakeApi) -> None:
    page = visit(viewport={"width": 640, "height": 450}, device_scale_factor=2, reduced_motion="reduce")
    ask(page, api)
    page.wait_for_function("document.querySelector('.place').getBoundingClientRect().top < 200")
    assert page.evaluate("document.documentElement.scrollWidth") <= 640


def test_a_reload_keeps_the_answers(visit: Open, api: FakeApi) -> None:
    page = visit()
    ask(page, api, "elsewhere", "clear")
    page.get_by_role("button", name="Photo 2, clear.jpg: Accept").click()
    page.wait_for_function("sessionStorage.getItem('kappaplace-answers')")
    sent = len(api.behavior.sent)
    page.reload()
    page.wait_for_selector(".verdict")
    assert page.locator(".film").count() == 2
    page.get_by_role("button", name="Photo 2, clear.jpg: Accept").click()
    assert page.inner_text(".verdict .badge") == "Accept"
    page.wait_for_function("document.querySelector('.pictures img').naturalWidth > 0")
    assert float(page.get_attribute(".map canvas", "data-scale")) > 0.5  # the map shows the matches
    assert len(api.behavior.sent) == sent


def test_the_state_is_in_the_url(visit: Open, api: FakeApi) -> None:
    api.behavior.maps = ("town", "harbour")
    page = visit("?map=harbour&risk=0.1#browse/31", loaded=".chosen-reference")
    assert page.input_value("#map") == "harbour"
    name = api.town.references[31]["name"].rpartition("/")[2]
    assert name in page.inner_text(".chosen-reference")
    page.locator(".worst button").first.click()
    number = min(api.town.references, key=lambda r: r["kappa"])["id"]
    assert page.url.endswith(f"?map=harbour&risk=0.1#browse/{number}")
    page.click("nav a[href='#localize']")
    page.wait_for_selector("#risk")
    assert page.inner_text(".risk output") == "10%"
    page.focus("#risk")
    page.keyboard.press("ArrowRight")
    assert "risk=0.15" in page.url
    page.select_option("#map", "town")
    assert "map=town" in page.url
    page.reload()
    page.wait_for_selector("#risk")
    assert page.input_value("#map") == "town"
    assert page.inner_text(".risk output") == "15%"


def test_people_say_whether_it_is_right(visit: Open, api: FakeApi) -> None:
    page = visit()
    ask(page, api)
    page.get_by_role("button", name="Wrong").click()
    page.wait_for_selector("text=This label is stored apart from those for calibration")
    assert api.behavior.labeled == [{"answer": "answer-clear", "label": "wrong", "map": "town"}]
    page.focus("#risk")
    page.keyboard.press("End")  # the answer is painted again
    page.wait_for_timeout(400)
    assert page.get_by_role("button", name="Wrong").get_attribute("aria-pressed") == "true"
    page.click("nav a[href='#drift']")
    page.wait_for_selector("text=What people said")
    assert page.inner_text("tbody tr") == "Accept\t0\t1\t0"


def test_labels_are_offered_only_if_they_are_stored(visit: Open, api: FakeApi) -> None:
    api.behavior.labels = False
    page = visit()
    ask(page, api)
    assert page.locator(".feedback").count() == 0


def test_drift(visit: Open, api: FakeApi) -> None:
    page = visit("#drift", loaded=".drift-plot")
    assert "The queries are like those of the calibration" in page.inner_text(".drift")
    assert "637 queries so far; the next comparison is after 163 more." in page.inner_text(".drift")
    assert page.locator(".drift-plot").count() == 2
    assert page.locator(".drift-plot circle").count() == 6
    api.behavior.drifting = True
    page.get_by_role("button", name="Refresh").click()
    page.wait_for_selector(".drift.reject")
    assert "kappa has become lower" in page.inner_text(".drift")


def test_paper_has_the_answer_and_no_buttons(visit: Open, api: FakeApi) -> None:
    page = visit(color_scheme="dark")
    ask(page, api)
    page.emulate_media(media="print")
    for part in (".verdict", ".pictures", ".cards", ".legend", ".facts", ".map canvas"):
        assert page.locator(part).first.is_visible(), part
    for part in (".top", ".asking", ".risk", ".actions", ".feedback", ".step >> nth=0", ".mapkeys"):
        assert page.locator(part).is_hidden(), part
    ink = page.locator(".place").evaluate("e => getComputedStyle(e).color")
    assert ink == "rgb(21, 32, 43)"  # dark on white, whatever the screen has


def test_forced_colors_keep_the_legend(visit: Open, api: FakeApi) -> None:
    page = visit(forced_colors="active")
    ask(page, api)
    grounds = page.eval_on_selector_all(
        ".legend .sample", "list => list.slice(0, 3).map(e => getComputedStyle(e).backgroundColor)"
    )
    assert len(set(grounds)) == 3


def test_the_map_shows_where_images_look(visit: Open, api: FakeApi) -> None:
    page = visit()

    def directions() -> int:
        page.wait_for_timeout(100)
        return int(page.get_attribute(".map canvas", "data-directions"))

    assert directions() == 0  # on the whole map they would hide each other
    for _ in range(2):
        page.get_by_role("button", name="Zoom in").click()
    assert 0 < directions() < len(api.town.references)


def test_the_description_of_the_api(visit: Open) -> None:
    page = visit("docs", loaded=".operation")
    assert page.locator(".operation").count() == 19
    first = page.locator("#post-v1-localize")
    assert "/v1/maps/{name}/localize" in first.inner_text()
    first.locator("summary").first.click()
    assert "curl -X POST" in first.inner_text()
    first.locator("summary").nth(1).click()
    assert '"decision": "accept"' in first.inner_text()
    assert page.locator("#invalid_image").count() == 1
