"""The page in a real Chromium: photo in, answer out, slider, map, errors, phone, keys, dark."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from kappaplace.calibration.decision import DecisionRule, decide_matches, rule_by_probability
from kappaplace.records import to_plain
from tests.serve.fake_api import DEMOS, Behavior, FakeApi
from tests.serve.pages import AUDIT, NEEDS_CHROMIUM, PHONE, Open, ask, decisions, move_slider, photo

pytestmark = NEEDS_CHROMIUM


def test_a_photo_is_answered(visit: Open, api: FakeApi) -> None:
    page = visit()
    ask(page, api)
    assert page.inner_text(".verdict .badge") == "Accept"
    assert page.inner_text(".chance .big") == "97%"
    assert page.inner_text(".place") == "37.76590, -122.41110 ± 19 m"  # rounded up
    assert "95% of correct answers" in page.inner_text(".where")
    assert "5 matches agree" in page.inner_text(".where")
    said = decisions(page)
    assert len(said) == 8
    assert said[0] == "Accept"
    assert "Doubtful" in said
    assert "Reject" in said
    assert page.locator(".card").first.locator(".value").text_content() == "97% probability"
    page.locator(".about summary").click()
    facts = page.inner_text(".facts")
    assert "0.880" in facts
    assert "382" in facts
    assert "0.3 m" in facts
    page.wait_for_selector(".card img")
    assert page.get_attribute(".compare img >> nth=0", "alt") == "Your photo: clear.jpg"
    assert page.inner_text(".query .big") == "κ 344"
    assert "33%" in page.inner_text(".query")
    marks = page.get_attribute(".map canvas", "data-markers").split()
    assert [mark.title() for mark in marks] == said  # the map shows the same decisions as the cards
    assert b'name="k"' in api.behavior.sent[0]


@pytest.mark.parametrize(
    ("kind", "decision", "reason"),
    [
        ("blurred", "Doubtful", "The photo has little information"),
        ("ambiguous", "Doubtful", "An ambiguous place"),
        ("elsewhere", "Reject", "Probably not in this map"),
    ],
)
def test_it_says_why_not(visit: Open, kind: str, decision: str, reason: str) -> None:
    page = visit()
    page.get_by_role("button", name=f"Demo query {DEMOS.index(kind) + 1}").click()
    page.wait_for_selector(".verdict")
    assert page.inner_text(".verdict .badge") == decision
    titles = page.eval_on_selector_all(".why strong", "list => list.map(e => e.textContent)")
    assert titles[0] == reason
    assert len(titles) == (2 if kind == "elsewhere" else 1)


def test_pasted_and_dropped_photos(visit: Open, api: FakeApi) -> None:
    page = visit()
    give = """async ([kind, name]) => {
        const blob = await (await fetch('/v1/demo/queries/0/image')).blob();
        const data = new DataTransfer();
        data.items.add(new File([blob], name, {type: 'image/jpeg'}));
        document.querySelector('main').dispatchEvent(kind === 'paste'
            ? new ClipboardEvent('paste', {clipboardData: data, bubbles: true})
            : new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true}));
    }"""
    page.evaluate(give, ["paste", "clear.jpg"])
    page.wait_for_selector(".verdict.accept")
    page.evaluate(give, ["drop", "elsewhere.jpg"])
    page.wait_for_selector(".verdict.reject")
    assert len(api.behavior.sent) == 2


def test_the_slider_recolors_without_asking_again(visit: Open, api: FakeApi) -> None:
    page = visit()
    ask(page, api, "blurred")
    page.wait_for_selector(".coverage strong")
    assert "57%" in page.inner_text(".coverage")
    assert "Guaranteed" in page.inner_text(".risk")
    assert decisions(page)[0] == "Doubtful"
    move_slider(page, "End")
    assert page.inner_text(".risk output") == "50%"
    assert "100%" in page.inner_text(".coverage")
    assert "not a guarantee" in page.inner_text(".risk")
    assert page.inner_text(".verdict .badge") == "Accept"
    assert decisions(page)[:2] == ["Accept", "Doubtful"]
    assert page.get_attribute(".map canvas", "data-markers").startswith("accept doubtful")
    move_slider(page, "Home")
    assert "nothing is accepted" in page.inner_text(".coverage")
    assert "Accept" not in decisions(page)
    assert page.get_attribute("#risk", "aria-valuetext").startswith("0.5% of the accepted")
    assert len(api.behavior.sent) == 1


def test_decisions_are_those_of_the_library(visit: Open) -> None:
    """decisions.js mirrors kappaplace.calibration, so that the slider answers at once."""
    page = visit()
    rng = np.random.default_rng(7)
    cases, wanted = [], []
    for number in range(300):
        max_risk, radius = float(rng.uniform(0.005, 0.6)), 25.0
        accept = float(rng.choice([rng.random(), -np.inf]))
        reject = float(rng.choice([np.inf, accept + rng.random()])) if np.isfinite(accept) else np.inf
        rejecting = float(rng.choice([0.1, 0.2, 0.45]))
        if number % 3:
            rule = DecisionRule("uncertainty", accept, reject)
        else:
            rule = rule_by_probability(max_risk, rejecting if rejecting < 1 - max_risk else None)
        places = rng.uniform(0, 90, (6, 2))
        pairs = rng.choice([*rng.random(4), 1 - max_risk, rejecting], 6)
        probability, uncertainty = float(rng.random()), float(rng.random())
        top = rule.decide(uncertainty=[uncertainty], probability=[probability])
        single = rule_by_probability(max_risk, rejecting if rejecting < 1 - max_risk else None)
        apart = np.hypot(*(places - places[0]).T) > 2 * radius
        made = decide_matches(single, top, [probability], pairs[None], apart[None])[0]
        values = to_plain(rule)
        risk = {"max_risk": max_risk, "on": rule.on, "threshold": values["accept_at"]}
        risk |= {"reject_at": values["reject_at"], "reject_risk": rejecting}
        matches = [
            {"x": x, "y": y, "probability": p} for (x, y), p in zip(places.tolist(), pairs, strict=True)
        ]
        answer = {"decision": "doubtful", "probability": probability, "uncertainty": uncertainty}
        cases.append([{**answer, "matches": matches}, risk, radius])
        wanted.append([str(each) for each in made])
    script = """async (cases) => {
        const { decideMatches } = await import('/static/decisions.js');
        return cases.map((one) => decideMatches(...one));
    }"""
    assert page.evaluate(script, json.loads(json.dumps(cases))) == wanted
    assert {each for row in wanted for each in row} == {"accept", "doubtful", "reject"}


def test_the_map_is_moved_by_mouse_and_keys(visit: Open, api: FakeApi) -> None:
    page = visit()
    ask(page, api)
    canvas = page.locator(".map canvas")

    def state() -> tuple[float, list[float]]:
        page.wait_for_timeout(80)
        at = canvas.get_attribute("data-centre").split()
        return float(canvas.get_attribute("data-scale")), [float(part) for part in at]

    scale, (x, y) = state()
    canvas.focus()
    page.keyboard.press("+")
    assert state()[0] == pytest.approx(1.5 * scale, rel=1e-3)
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    _, (west, north) = state()
    assert west < x
    assert north > y
    page.keyboard.press("0")
    whole = state()[0]
    assert whole < scale
    page.get_by_role("button", name="Zoom in").click()
    assert state()[0] == pytest.approx(1.6 * whole, rel=1e-3)
    page.get_by_role("button", name="Whole map").click()
    scale, (x, y) = state()
    assert scale == pytest.approx(whole)
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 260, box["y"] + 170, steps=4)
    page.mouse.up()
    assert state()[1] == pytest.approx([x - 60 / scale, y - 30 / scale], abs=0.5)
    canvas.focus()
    page.mouse.wheel(0, -200)
    assert state()[0] > scale


def test_a_marker_and_its_card_belong_together(visit: Open, api: FakeApi) -> None:
    page = visit()
    ask(page, api)
    button = page.get_by_role("button", name="Match 6: compare it and show it on the map")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert page.locator(".card.chosen").count() == 1
    button.click()
    assert page.locator(".card.chosen").count() == 0
    page.wait_for_timeout(100)
    # The best match lies where the map says; a click on it chooses the first card.
    at = api.town.answer(0, 8, api.behavior)["matches"][0]
    canvas = page.locator(".map canvas")
    canvas.scroll_into_view_if_needed()
    box, scale = canvas.bounding_box(), float(canvas.get_attribute("data-scale"))
    x, y = (float(part) for part in canvas.get_attribute("data-centre").split())
    place = {"x": box["width"] / 2 + (at["x"] - x) * scale, "y": box["height"] / 2 - (at["y"] - y) * scale}
    canvas.click(position=place)
    assert page.locator(".card.chosen").get_attribute("aria-label") == "Match 1: Accept"


def test_errors_are_one_sentence_and_a_way_on(visit: Open, api: FakeApi) -> None:
    page = visit()
    api.behavior.error = (503, "The image is truncated; send it again.")
    page.set_input_files("#photo", files=[photo(api)])
    page.wait_for_selector(".problem")
    assert "The image is truncated; send it again." in page.inner_text("[role=alert]")
    assert page.locator(".card").count() == 0
    api.behavior.error = None
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector(".verdict.accept")
    text = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no photo"}
    page.set_input_files("#photo", files=[text])
    page.wait_for_selector("text=This file is not a photo.")
    assert not page.get_by_role("button", name="Try again").count()  # it would fail again
    page.route("**/v1/localize", lambda route: route.abort())
    page.set_input_files("#photo", files=[photo(api)])
    page.wait_for_selector("text=cannot be reached")


def test_loading_and_busy_are_shown(visit: Open, api: FakeApi) -> None:
    page = visit()
    api.behavior.delay = 0.6
    page.set_input_files("#photo", files=[photo(api)])
    page.wait_for_selector("text=Comparing with 1,340 references")
    assert page.locator(".sending .preview").count() == 1
    api.behavior.busy = 2
    page.wait_for_selector("text=The service is busy. Retrying")
    page.wait_for_selector(".verdict.accept")
    assert len(api.behavior.sent) == 3


def test_a_later_photo_wins(visit: Open, api: FakeApi) -> None:
    page = visit()
    api.behavior.delay = 0.7
    page.set_input_files("#photo", files=[photo(api, "elsewhere")])
    page.wait_for_timeout(100)
    api.behavior.delay = 0.0
    ask(page, api, "clear")
    page.wait_for_timeout(900)
    assert page.inner_text(".verdict .badge") == "Accept"


def test_a_token_is_asked_for_once(visit: Open, api: FakeApi) -> None:
    api.behavior.token = "a-good-long-token"
    page = visit(loaded="dialog[open]")
    page.fill("#token-field", "wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=The token was not accepted")
    page.fill("#token-field", "a-good-long-token")
    page.get_by_role("button", name="Use this token").click()
    page.wait_for_selector(".demo img")  # pictures are fetched with it too
    ask(page, api)
    assert page.inner_text(".verdict .badge") == "Accept"
    kept = "[Object.keys(sessionStorage).sort(), localStorage.length, document.cookie]"
    assert page.evaluate(kept) == [["kappaplace-answers", "kappaplace-token"], 0, ""]
    assert not [path for path in api.behavior.asked if "a-good-long-token" in path]
    page.reload()
    page.wait_for_selector(".demo img")
    assert not page.locator("dialog[open]").count()


def test_without_a_token_it_says_so(visit: Open, api: FakeApi) -> None:
    api.behavior.token = "a-good-long-token"
    page = visit(loaded="dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("text=This service requires a token.")
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector("dialog[open]")


def test_a_map_without_calibration(visit: Open, api: FakeApi) -> None:
    api.behavior.calibrated = False
    page = visit()
    assert "This map is not calibrated" in page.inner_text(".risk")
    assert page.locator("#risk").count() == 0
    ask(page, api)
    assert page.inner_text(".verdict .badge") == "Undecided"
    assert set(decisions(page)) == {"Undecided"}
    assert page.locator(".why").count() == 0
    page.click("nav a[href='#sure']")
    page.wait_for_selector("text=kappaplace calibrate MAP --self")
    assert page.evaluate(AUDIT) == []


def test_an_empty_map_and_one_without_kappa(visit: Open, api: FakeApi) -> None:
    api.behavior.references = False
    page = visit(loaded=".empty")
    assert "This map is empty" in page.inner_text("main")
    api.behavior = Behavior(kappa=False)
    page = visit()
    ask(page, api, "blurred")
    assert "has no κ" in page.inner_text(".query")
    assert "The photo has" not in page.inner_text(".verdict")
    page.click("nav a[href='#browse']")
    page.wait_for_selector(".worst img")
    assert page.locator(".option").count() == 1


def test_a_map_without_positions(visit: Open, api: FakeApi) -> None:
    api.behavior.posed = False
    page = visit()
    ask(page, api)
    assert page.inner_text(".place") == "No position"
    page.locator(".about summary").click()
    assert "no position" in page.inner_text(".facts")
    assert "have no positions" in page.inner_text(".map")
    page.click("nav a[href='#browse']")
    page.wait_for_selector(".worst img")
    page.locator(".worst button").first.click()
    page.wait_for_selector(".chosen-reference")
    assert "unknown" in page.inner_text(".chosen-reference")


def test_several_maps(visit: Open, api: FakeApi) -> None:
    api.behavior.maps = ("town", "harbour")
    page = visit()
    page.select_option("#map", "harbour")
    page.wait_for_selector(".demo img")
    ask(page, api)
    assert b"harbour" in api.behavior.sent[0]
    page.wait_for_selector(".card img")
    assert [path for path in api.behavior.asked if "/thumbnail?map=harbour" in path]


def test_names_are_text_whatever_they_hold(visit: Open, api: FakeApi) -> None:
    api.behavior.name = "<img src=x onerror=alert(1)><b>bold<b>.jpg"
    page = visit()
    ask(page, api)
    assert page.inner_text(".card .name >> nth=0").startswith("<img src=x onerror")
    assert page.locator(".card b").count() == 0


def test_how_sure_is_it(visit: Open) -> None:
    page = visit("#sure")
    assert "incorrect in at most 5% of the cases" in page.inner_text(".promise")
    assert page.locator(".plot").count() == 2
    assert page.locator(".plot circle").count() == 10
    page.locator("summary").first.click()
    assert page.locator("details[open] tbody tr").count() == 10
    assert page.evaluate(AUDIT) == []


def test_browse_by_uncertainty(visit: Open, api: FakeApi) -> None:
    page = visit("#browse", loaded=".worst img")
    kappas = [r["kappa"] for r in api.town.references]
    assert page.inner_text(".worst .what .small >> nth=0") == f"κ {min(kappas):.3g}"
    assert page.locator(".worst li").count() == 12
    first = page.inner_text(".worst .name >> nth=0")
    page.locator(".worst button").nth(2).click()
    page.wait_for_selector(".chosen-reference img")
    page.get_by_role("radio", name="Confusable places").check()
    page.wait_for_selector("text=to a far image")
    assert page.inner_text(".worst .name >> nth=0") != first
    assert page.evaluate(AUDIT) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("phone", [False, True], ids=["desktop", "phone"])
def test_every_page_passes_the_audit(visit: Open, api: FakeApi, dark: bool, phone: bool) -> None:
    size = {"viewport": PHONE, "has_touch": True} if phone else {}
    page = visit(color_scheme="dark" if dark else "light", **size)
    for kind in ("clear", "elsewhere"):
        ask(page, api, kind)
        page.wait_for_selector(".card img")
        assert page.evaluate(AUDIT) == []
    gray = page.evaluate("getComputedStyle(document.body).backgroundColor").strip("rgb()").split(", ")
    assert (int(gray[0]) < 60) == dark
    for where, there in (("#sure", ".plot"), ("#browse", ".worst img")):
        page.click(f"nav a[href='{where}']")
        page.wait_for_selector(there)
        assert page.evaluate(AUDIT) == []


def test_the_answer_comes_before_the_slider_on_a_phone(visit: Open, api: FakeApi) -> None:
    page = visit(viewport=PHONE, has_touch=True)
    ask(page, api)
    tops = [
        page.locator(part).bounding_box()["y"] for part in (".asking", ".verdict", ".map", ".cards", ".risk")
    ]
    assert tops == sorted(tops)


def test_everything_by_keyboard(visit: Open) -> None:
    page = visit(loaded=".demo img")
    seen = []
    for _ in range(16):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
                "(e => e.getAttribute('aria-label') || e.id || e.textContent.trim().slice(0, 20)"
                " || e.className)(document.activeElement)"
            )
        )
        drawn = page.evaluate(
            "(e => (e.matches('#photo') ? e.nextElementSibling : e))(document.activeElement)"
            ".computedStyleMap().get('outline-style').toString()"
        )
        assert drawn == "solid", seen[-1]
        if seen[-1] == "demo" and "demo" in seen[:-1]:
            break
    assert seen[0] == "Skip to the content"
    assert "Reliability" in seen
    assert "photo" in seen
    page.keyboard.press("Enter")  # the second demo query
    page.wait_for_selector(".verdict.doubtful")
    assert "Doubtful" in page.inner_text("#live")  # told to screen readers
    for _ in range(4):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "risk":
            break
    page.keyboard.press("End")
    page.wait_for_selector(".verdict.accept")


def test_tiles_lie_where_they_belong(visit: Open, api: FakeApi) -> None:
    from pyproj import Transformer

    api.behavior.tiles = True
    page = visit()
    page.wait_for_timeout(200)
    assert [path for path in api.behavior.asked if path.endswith(".png")]
    assert len([path for path in api.behavior.asked if path.endswith(".png")]) <= 80
    rng = np.random.default_rng(0)
    for code, north in ((32610, rng.uniform(1e5, 9e6, 20)), (32733, rng.uniform(2e6, 9.9e6, 20))):
        east = rng.uniform(2e5, 8e5, 20)
        lon, lat = Transformer.from_crs(code, 4326, always_xy=True).transform(east, north)
        script = """async ([frame, places]) => {
            const { toDegrees, toUtm, utmZone } = await import('/static/tiles.js');
            return places.map((p) => {
                const there = toDegrees(...p, utmZone(frame));
                return [...there, ...toUtm(...there, utmZone(frame))];
            });
        }"""
        got = np.array(page.evaluate(script, [f"EPSG:{code}", np.stack([east, north], 1).tolist()]))
        np.testing.assert_allclose(got[:, :2], np.stack([lon, lat], 1), atol=1e-7)  # a centimetre
        np.testing.assert_allclose(got[:, 2:], np.stack([east, north], 1), atol=0.01)


def test_whose_the_tiles_are_stands_under_the_map(visit: Open, api: FakeApi) -> None:
    said = "<b>© The mappers</b>, https://maps.example/copyright; all rights"
    api.behavior = Behavior(tiles=True, attribution=said)
    for where, size in (("", {}), ("#browse", {"viewport": PHONE})):
        page = visit(where, **size)
        page.wait_for_selector(".map .attribution")
        assert page.inner_text(".attribution") == "<b>© The mappers</b>, maps.example/copyright; all rights"
        link = page.locator(".attribution a")
        assert link.get_attribute("href") == "https://maps.example/copyright"
        assert link.get_attribute("rel") == "noopener noreferrer"
        assert page.evaluate(AUDIT) == []
    # Tiles cannot be laid under other frames: then there is nothing to attribute, and streets are drawn.
    api.behavior = Behavior(tiles=True, attribution=said, frame="local")
    page = visit()
    ask(page, api)
    assert page.locator(".attribution").count() == 0
    assert not [path for path in api.behavior.asked if path.endswith(".png")]


def test_an_estimate_of_one_match_claims_no_precision(visit: Open, api: FakeApi) -> None:
    api.behavior.alone = True
    page = visit()
    ask(page, api, "blurred")
    assert page.inner_text(".where").endswith("position of match 1; no other match agrees.")


@pytest.mark.parametrize("phone", [False, True], ids=["desktop", "phone"])
def test_long_names_break_nothing(visit: Open, api: FakeApi, phone: bool) -> None:
    api.behavior.name = f"@{'0551615.00@4180065.00@10@S@' * 6}.jpg"
    page = visit("#browse", loaded=".worst img", **({"viewport": PHONE} if phone else {}))
    page.locator(".worst button").first.click()
    page.wait_for_selector(".chosen-reference img")
    assert page.evaluate(AUDIT) == []
    inner = page.locator(".chosen-reference dd").first.bounding_box()
    outer = page.locator(".chosen-reference").bounding_box()
    assert inner["x"] + inner["width"] <= outer["x"] + outer["width"]


def test_the_demo_query_chosen_last_wins(visit: Open, api: FakeApi) -> None:
    page = visit(loaded=".demo img")
    held: list[Any] = []
    page.route("**/queries/3/image*", lambda route: held.append(route))
    page.locator(".demo").nth(3).click()
    page.wait_for_timeout(100)
    page.locator(".demo").nth(0).click()
    page.wait_for_selector(".verdict.accept")
    held[0].continue_()
    page.wait_for_timeout(400)
    assert page.inner_text(".verdict .badge") == "Accept"
    assert len(api.behavior.sent) == 1


def test_the_map_chosen_last_is_shown(visit: Open, api: FakeApi) -> None:
    api.behavior.maps = ("town", "harbour")
    page = visit(loaded=".demo img")
    held: list[Any] = []
    page.route("**/v1/map/calibration?map=harbour", lambda route: held.append(route))
    page.select_option("#map", "harbour")
    page.wait_for_timeout(100)
    page.select_option("#map", "town")
    page.wait_for_selector(".demo img")
    held[0].fulfill(json={"calibrated": False, "promise": [], "notes": []})
    page.wait_for_timeout(200)
    page.click("nav a[href='#sure']")
    page.wait_for_selector("main h1:has-text('How reliable is it?')")
    assert page.locator(".plot").count() == 2  # the other map would have none
