"""Labels by a person: random samples, the labels file, and calibration with a valid guarantee."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from kappaplace.calibration.options import CalibrateOptions
from kappaplace.data.images import Preprocessing
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import PlaceMap
from kappaplace.maps.tune.label import calibrate_map_on_labels, open_sheet
from kappaplace.maps.tune.label_sheet import (
    NO,
    SECONDS,
    UNKNOWN,
    YES,
    Row,
    Sample,
    Sheet,
    draw_sample,
    new_sheet,
    read_labels,
    sample_id,
    write_labels,
)
from kappaplace.models.place_model import PlaceModel
from kappaplace.reports.label import write_label_page
from tests.browser import CHROMIUM, Browser
from tests.maps.conftest import town_table

EDGES = ("top", "bottom")
LAX = CalibrateOptions(max_risk=0.3, confidence=0.8, keep_twins=True)


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> tuple[PlaceImages, PlaceImages]:
    """References and queries: noisy copies of the references, and views that are hard to find."""
    table = town_table(tmp_path_factory.mktemp("drive"), "test", queries=60)
    folder = tmp_path_factory.mktemp("queries")
    rng = np.random.default_rng(0)
    for row in range(len(table)):
        pixels = np.asarray(Image.open(table.image_path(row)).convert("RGB"), np.float64)
        noisy = np.clip(pixels + rng.normal(0, 6, pixels.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"q{row:03d}.png")
    names = [f"q{row:03d}.png" for row in range(len(table))]
    return table.references, PlaceImages.create(names, root=folder)


@pytest.fixture(scope="module")
def built(drive, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A map and the sheet of a sample."""
    torch.manual_seed(0)
    model = PlaceModel.create("resnet_tiny", dim=32, preprocessing=Preprocessing(64, "exact")).eval()
    folder = tmp_path_factory.mktemp("built")
    made = PlaceMap.build(drive[0], folder / "town.map", model)
    open_sheet(made, draw_sample(drive[1], made.manifest.radius, size=150), folder / "labels.csv", rerank=0)
    return folder


@pytest.fixture
def ready(built: Path, tmp_path: Path) -> PlaceMap:
    shutil.copytree(built, tmp_path, dirs_exist_ok=True)
    return PlaceMap.open(tmp_path / "town.map")


def truth(row: Row) -> str:
    """Return the correct label: a noisy copy has the number of its reference."""
    return YES if row.query[1:4] == row.match[:3] else NO


def labeled(sheet: Sheet, count: int | None = None, odd: str = "") -> Sheet:
    """All rows labelled, or the first ones; every seventh of them as ``odd``."""
    for i in range(len(sheet.rows) if count is None else count):
        sheet = sheet.with_label(i, odd if odd and i % 7 == 0 else truth(sheet.rows[i]))
    return sheet


@pytest.fixture
def sheet(ready, tmp_path: Path) -> Sheet:
    return read_labels(tmp_path / "labels.csv")


def write(sheet: Sheet, tmp_path: Path) -> Path:
    file = tmp_path / "done.csv"
    write_labels(sheet, file)
    return file


# The sample


@given(st.integers(1, 60), st.integers(0, 5), st.integers(0, 10**6))
def test_a_sample_is_seeded_and_one_a_place(size, step, seed):
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.random((50, 2)) * step, axis=0)
    table = PlaceImages.create([f"{i}.jpg" for i in range(50)], at)
    sample = draw_sample(table, 10.0, size=size, seed=seed)
    assert sample == draw_sample(table, 10.0, size=size, seed=seed)
    assert len(sample.names) == min(size, sample.places) == len(set(sample.names))
    rows = [int(name[:-4]) for name in sample.names]
    gaps = np.hypot(*(at[rows][:, None] - at[rows][None]).transpose(2, 0, 1))
    assert (gaps[~np.eye(len(rows), dtype=bool)] >= 10).all()
    shorter = draw_sample(table, 10.0, size=max(size // 2, 1), seed=seed)
    assert sample.names[: len(shorter.names)] == shorter.names  # the first part is a smaller sample


def test_every_place_is_as_likely_to_come_first():
    table = PlaceImages.create([f"{i}.jpg" for i in range(10)], np.arange(20).reshape(10, 2) * 100.0)
    first = [draw_sample(table, 10.0, size=1, seed=seed).names[0] for seed in range(1000)]
    counts = np.unique(first, return_counts=True)[1]
    assert len(counts) == 10
    assert ((counts - 100) ** 2 / 100).sum() < 27.9  # chi-squared, nine degrees of freedom, one in a thousand


def test_time_stands_in_for_position_and_nothing_is_said():
    names = [f"{i}.jpg" for i in range(40)]
    timed = PlaceImages.create(names, timestamp=np.arange(40.0))
    sample = draw_sample(timed, 25.0)
    times = sorted(int(name[:-4]) for name in sample.names)
    assert (np.diff(times) >= SECONDS).all()
    assert sample.thinned == "10 s"
    assert len(draw_sample(timed, 25.0, thin=False).names) == 40
    blind = draw_sample(PlaceImages.create(names), 25.0)
    assert (blind.thinned, blind.places, blind.of) == ("nothing", 40, 40)
    mixed = PlaceImages.create(
        names, np.where(np.arange(40)[:, None] < 10, 0.0, np.nan) * np.ones(2), timestamp=np.full(40, np.nan)
    )
    sample = draw_sample(mixed, 25.0)
    assert sample.places == 31
    assert "without position and time" in sample.thinned


def test_queries_of_a_table_are_drawn_and_references_are_not():
    table = PlaceImages.create([f"{i}.jpg" for i in range(10)], is_query=np.arange(10) < 4)
    assert sorted(draw_sample(table, 25.0).names) == ["0.jpg", "1.jpg", "2.jpg", "3.jpg"]
    with pytest.raises(KappaPlaceError, match="size must be 1 or more"):
        draw_sample(table, 25.0, size=0)


# The file

text = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1)


@given(st.lists(st.tuples(text, text, st.sampled_from([YES, NO, UNKNOWN, ""])), unique_by=lambda row: row[0]))
def test_labels_come_back(tmp_path_factory, rows):
    sample = Sample(tuple(row[0] for row in rows), "/photos", 3, 99, 50, "25 m")
    sheet = new_sheet(sample, [row[1] for row in rows], model="m", map_name="town")
    for i, row in enumerate(rows):
        sheet = sheet.with_label(i, row[2])
    file = tmp_path_factory.mktemp("labels") / "labels.csv"
    write_labels(sheet, file)
    assert read_labels(file) == sheet
    assert sheet.flaw == ""


def test_a_spreadsheet_in_between_does_no_harm(sheet, tmp_path):
    file = write(labeled(sheet, 30), tmp_path)
    lines = file.read_text().splitlines()
    spoiled = [f"{line},,," if line.startswith("#") else line.replace("yes", "YES") for line in lines]
    file.write_bytes(("﻿" + "\r\n".join(spoiled) + "\r\n").encode())
    assert read_labels(file) == labeled(sheet, 30)


def test_what_is_no_random_sample_is_told(sheet):
    assert sheet.flaw == ""
    assert labeled(sheet, 40).flaw == ""
    assert Sheet(sheet.rows[::-1], sheet.sampling).flaw  # the reader sorts rows, so a file never gives this
    assert "removed or changed" in Sheet(sheet.rows[:30], sheet.sampling).flaw
    assert "removed or changed" in Sheet(sheet.rows[:5] + sheet.rows[6:], sheet.sampling).flaw
    swapped = [replace(row, query=f"other{row.query}") for row in sheet.rows]
    assert "removed or changed" in Sheet(tuple(swapped), sheet.sampling).flaw
    assert "does not record how" in Sheet(sheet.rows).flaw


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("a,b\n1,2\n", "needs the columns"),
        ("order,query,match,label\n1,q,r,maybe\n", "must be yes, no, unknown"),
        ("order,query,match,label\none,q,r,yes\n", "must be a whole number"),
        ("order,query,match,label\n1,q,r,yes\n1,p,r,yes\n", "order '?1'? appears more than once"),
        ("order,query,match,label\n1,q,r,yes\n2,q,r,no\n", "query 'q' appears more than once"),
        ("# kappaplace-labels: 3\norder,query,match,label\n", "format 3"),
        ("# kappaplace-labels: 1\n# seed: 0\norder,query,match,label\n", "damaged"),
    ],
)
def test_bad_files_are_one_sentence(content, sentence, tmp_path):
    file = tmp_path / "labels.csv"
    file.write_text(content)
    with pytest.raises(KappaPlaceError, match=sentence):
        read_labels(file)
    with pytest.raises(KappaPlaceError, match="cannot be read"):
        read_labels(tmp_path / "none.csv")


def test_a_sheet_is_gone_on_with_and_never_overwritten(ready, drive, sheet, tmp_path, monkeypatch):
    file = tmp_path / "labels.csv"
    write_labels(labeled(sheet, 5), file)
    sample = draw_sample(drive[1], 25.0, size=150)
    monkeypatch.setattr(PlaceMap, "embed", None)  # nothing is embedded again
    assert open_sheet(ready, sample, file) == labeled(sheet, 5)
    before = file.read_bytes()
    with pytest.raises(KappaPlaceError, match="another sample"):
        open_sheet(ready, draw_sample(drive[1], 25.0, size=150, seed=1), file)
    assert file.read_bytes() == before


def test_images_of_the_map_itself_are_not_asked_about(ready, drive, tmp_path):
    sample = draw_sample(drive[0], 25.0, size=5, thin=False)
    with pytest.raises(KappaPlaceError, match="5 of the 5 sampled queries are images of the map itself"):
        open_sheet(ready, sample, tmp_path / "own.csv")
    assert not (tmp_path / "own.csv").exists()


# The page


def test_the_page_holds_everything_and_asks_nobody(ready, sheet, tmp_path):
    page = tmp_path / "label.html"
    assert write_label_page(ready, sheet, page, "labels.csv") == 0
    content = page.read_text()
    assert content.count("data:image/jpeg;base64,") == 2 * len(sheet.rows)
    assert "http://" not in content
    assert "https://" not in content
    assert "default-src 'none'" in content
    assert " onclick" not in content


@pytest.fixture
def browser(tmp_path: Path):
    opened = Browser(tmp_path)
    yield opened
    opened.close()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_the_page_in_a_real_browser(ready, sheet, tmp_path, browser):
    few = Sheet(sheet.rows[:4], replace(sheet.sampling, drawn=4))
    few = few.with_label(0, YES)
    page = tmp_path / "label.html"
    write_label_page(ready, few, page, "mine.csv")
    address = page.as_uri()
    browser.open(address)
    status = "document.getElementById('place').textContent"
    assert browser.run(status) == "2 of 4"  # the first row is already labelled
    assert browser.run("document.getElementById('query-image').naturalWidth") == 32
    assert browser.run("document.getElementById('query-image').alt") == "query"
    shown = browser.run("document.body.innerText")
    assert few.rows[1].query not in shown  # a name would reveal the answer
    assert few.rows[1].match not in shown
    assert not browser.run("document.getElementById('question').hidden")
    browser.press("n")
    browser.press("u")
    assert browser.run(status) == "4 of 4"
    browser.press("Backspace")
    assert browser.run("document.querySelector('[aria-pressed=true]').id") == "unknown"
    browser.open("about:blank")
    browser.open(address)  # the labels are still there
    assert browser.run(status) == "4 of 4"
    browser.screen(390, 844, dark=True)
    browser.click("#yes")
    assert browser.run(status) == "4 of 4 labelled"
    assert browser.run("document.getElementById('yes').disabled")
    browser.press("b")
    browser.press("n")
    browser.click("#end .save")
    saved = browser.downloads / "mine.csv"
    browser.wait(saved.exists)
    expected = few.with_label(1, NO).with_label(2, UNKNOWN).with_label(3, NO)
    write_labels(expected, tmp_path / "expected.csv")
    browser.wait(lambda: saved.read_bytes() == (tmp_path / "expected.csv").read_bytes())
    assert browser.errors == []
    outside = [r for r in browser.requests if not r.startswith(("data:", "blob:", "about:", address))]
    assert outside == []
    # On a phone, both images and all buttons are visible, and nothing overflows.
    browser.press("b")
    for width, height in ((390, 844), (844, 390), (1280, 800)):
        browser.screen(width, height)
        assert browser.run("document.documentElement.scrollWidth") <= width
        top, low = (browser.run(f"document.getElementById('no').getBoundingClientRect().{e}") for e in EDGES)
        assert low <= height
        shown = browser.run("document.getElementById('match-image').getBoundingClientRect().bottom")
        assert shown <= top
        assert browser.run("document.getElementById('no').getBoundingClientRect().height") >= 44
    assert browser.run("[...document.querySelectorAll('button')].every(b => b.textContent.trim())")


def test_a_map_without_pictures_cannot_be_labeled(ready, sheet, tmp_path, monkeypatch):
    from kappaplace.reports import label as label_page

    monkeypatch.setattr(label_page, "match_picture", lambda *_: None)
    with pytest.raises(KappaPlaceError, match="None of the images of the map"):
        write_label_page(ready, sheet, tmp_path / "l.html", "labels.csv")
    assert not (tmp_path / "l.html").exists()


def test_pictures_keep_their_shape(tmp_path):
    from kappaplace.data.decoding import small_image

    wide = tmp_path / "wide.png"
    Image.new("RGB", (300, 100), (200, 0, 0)).save(wide)
    assert Image.open(io.BytesIO(small_image(str(wide), 150))).size == (150, 50)
    assert small_image("", 10) is None
    assert small_image("/nothing/here.jpg", 10) is None


# The calibration


def test_labels_carry_a_promise(ready, sheet, tmp_path):
    made = calibrate_map_on_labels(ready, write(labeled(sheet), tmp_path), LAX)
    assert made.facts["right"] == sum(truth(row) == YES for row in sheet.rows)
    assert made.facts["outside"] == made.facts["right"]  # each correct one without its place
    assert made.rule.guaranteed
    promise = " ".join(made.rule.promise())
    assert f"{len(sheet.rows)} of {len(sheet.rows)} queries drawn at random" in promise
    assert "no two queries show the same place" in promise  # their positions are unknown
    assert "stopped" not in promise
    root = sheet.sampling.root
    answer = ready.localize(f"{root}/{sheet.rows[0].query}", k=3)
    assert answer.decision in ("accept", "doubtful", "reject")
    best, *others = answer.matches
    assert (best.probability, best.decision) == (answer.probability, answer.decision)
    assert [(m.probability, m.decision) for m in others] == [(None, None)] * 2  # these matches have no labels
    assert ready.notes() == []


def test_whoever_stops_early_has_a_smaller_sample(ready, sheet, tmp_path):
    made = calibrate_map_on_labels(ready, write(labeled(sheet, 80), tmp_path), LAX)
    assert made.rule.guaranteed
    assert made.facts["queries"] == 80
    assert "not stopped because of" in " ".join(made.rule.promise())


def test_dont_know_counts_as_wrong(ready, sheet, tmp_path):
    unsure = labeled(sheet, odd=UNKNOWN)
    made = calibrate_map_on_labels(ready, write(unsure, tmp_path), LAX)
    wrong = labeled(sheet, odd=NO)
    strict = calibrate_map_on_labels(ready, write(wrong, tmp_path), LAX)
    assert made.facts["right"] == strict.facts["right"] == sum(r.label == YES for r in unsure.rows)
    assert made.rule.accept_at == strict.rule.accept_at
    assert made.rule.guaranteed
    assert made.rule.rejected is None
    assert made.facts["unknown"] == sum(r.label == UNKNOWN for r in unsure.rows)
    promise = " ".join(made.rule.promise())
    assert "with an unknown label" in promise
    assert "Rejected answers" not in promise
    passed_over = labeled(sheet)
    for i in range(0, len(sheet.rows) - 1, 7):
        passed_over = passed_over.with_label(i, "")
    blank = calibrate_map_on_labels(ready, write(passed_over, tmp_path), LAX)
    assert blank.facts["right"] == made.facts["right"]


def test_a_chosen_subset_gives_no_guarantee(ready, sheet, tmp_path):
    full = labeled(sheet)
    chosen = Sheet(tuple(row for i, row in enumerate(full.rows) if row.label == YES or i % 3), full.sampling)
    for picked in (chosen, Sheet(full.rows)):
        file = write(picked, tmp_path)
        root = sheet.sampling.root
        made = calibrate_map_on_labels(ready, file, LAX, root=root)
        assert not made.rule.guaranteed
        assert "Only a random sample has a guarantee" in " ".join(made.rule.promise())
        assert any("no risk is guaranteed" in note for note in ready.notes())
    mixed = write(Sheet(full.rows, full.sampling), tmp_path)
    lines = mixed.read_text().splitlines(keepends=True)
    rows = next(i for i, line in enumerate(lines) if line.startswith("order")) + 1
    mixed.write_text("".join(lines[:rows] + lines[: rows - 1 : -1]))
    assert calibrate_map_on_labels(
        ready, mixed, LAX
    ).rule.guaranteed  # the order of the lines does not matter


def test_labels_of_another_map_are_refused(ready, sheet, drive, tmp_path):
    full = labeled(sheet)
    for change, sentence in (
        ({"sampling": replace(full.sampling, model="other")}, "another model"),
        ({"rows": tuple(replace(row, match=f"x{row.match}") for row in full.rows)}, "are not in the map"),
        ({"rows": labeled(sheet, 5).rows}, "at least 20 labels"),
        ({"sampling": replace(full.sampling, root="/nowhere")}, "--root"),
        (
            {"rows": tuple(replace(row, match=full.rows[i - 1].match) for i, row in enumerate(full.rows))},
            "returns another match",
        ),
    ):
        with pytest.raises(KappaPlaceError, match=sentence):
            calibrate_map_on_labels(ready, write(replace(full, **change), tmp_path), LAX)
        assert ready.calibration is None
    with pytest.raises(KappaPlaceError, match="--outside-rate cannot be used"):
        calibrate_map_on_labels(ready, write(full, tmp_path), replace(LAX, outside_rate=0.1))


def test_a_match_that_has_changed_counts_as_unknown(ready, sheet, drive, tmp_path):
    full = labeled(sheet)
    rows = list(full.rows)
    other = next(row.match for row in rows if row.match != rows[0].match)
    rows[0] = replace(rows[0], match=other, label=YES)
    made = calibrate_map_on_labels(ready, write(replace(full, rows=tuple(rows)), tmp_path), LAX)
    assert made.facts["stale"] == 1
    assert made.facts["right"] == sum(row.label == YES for row in full.rows[1:])


@pytest.mark.parametrize("label", [NO, UNKNOWN])
def test_incorrect_answers_alone_teach_nothing(ready, sheet, tmp_path, label):
    for i in range(40):
        sheet = sheet.with_label(i, label)
    with pytest.raises(KappaPlaceError, match=r"None of the 40 queries was answered correctly"):
        calibrate_map_on_labels(ready, write(sheet, tmp_path), LAX)


def test_correct_answers_alone_are_enough(ready, sheet, tmp_path):
    """Each one is searched without its place, too, which makes an incorrect answer."""
    for i in range(60):
        sheet = sheet.with_label(i, YES)
    made = calibrate_map_on_labels(
        ready, write(sheet, tmp_path), CalibrateOptions(max_risk=0.5, confidence=0.6, keep_twins=True)
    )
    assert made.facts["right"] == 60 - made.facts["stale"]
    assert made.facts["counterparts"]
    assert np.isfinite(made.rule.accept_at)


def test_a_sample_is_told_by_model_seed_and_order():
    ids = {sample_id(m, s, n) for m in "ab" for s in (0, 1) for n in (["p", "q"], ["q", "p"], ["pq"])}
    assert len(ids) == 12
