"""The page as files: what a strict content security policy allows, nothing from outside, enough contrast."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "src" / "kappaplace" / "serve" / "page"
FILES = sorted(PAGE.iterdir())
TEXT, LARGE = 4.5, 3.0
"""WCAG AA: text, and signs or borders of what can be pressed."""


def _without_links(text: str) -> str:
    """Without a name of SVG, and the link to a map that a person can follow; neither is loaded."""
    for url in ("http://www.w3.org/2000/svg", "https://www.openstreetmap.org/"):
        text = text.replace(url, "")
    return text


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_outside_host_and_nothing_inline(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert not re.findall(r"(?:https?:)?//[\w.-]+\.\w+", _without_links(text))
    assert not re.search(r"\son\w+\s*=\s*[\"']|\sstyle\s*=\s*[\"']|javascript:", text) or file.suffix == ".js"
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
    )
    if file.suffix == ".html":
        assert not re.search(r"<style|<script(?![^>]*\bsrc=)", text)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_whatever_a_file_asks_for_is_there(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    asked = re.findall(r'"/static/([^"]+)"', text) + re.findall(r'from "\./([^"]+)"', text)
    assert [name for name in asked if not (PAGE / name).is_file()] == []


def _colors(dark: bool) -> dict[str, str]:
    text = (PAGE / "style.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    assert len(blocks) == 2  # light, then dark
    found: dict[str, str] = {}
    for block in blocks if dark else blocks[:1]:
        found |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    return found


def _luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """WCAG 2.2: from 1 (the same) to 21 (black on white)."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_computed_as_wcag_does() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


DECISIONS = ("accept", "doubtful", "reject", "undecided")
GROUNDS = ("page", "surface", "sunken")
READ = [
    *((ink, ground) for ink in ("ink", "muted") for ground in GROUNDS),
    *(("accent", ground) for ground in GROUNDS),
    *((name, ground) for name in DECISIONS for ground in ("surface", f"{name}-soft")),
    *(("ink", f"{name}-soft") for name in DECISIONS),
    *(("on-decision", name) for name in DECISIONS),
    ("on-accent", "accent"),
]
SEEN = [
    *(("edge", ground) for ground in GROUNDS),
    *((f"step-{i}", ground) for i in range(1, 6) for ground in ("surface", "street")),
    ("ground", "surface"),
    ("ground", "street"),
]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_colors_have_enough_contrast(dark: bool) -> None:
    colors = _colors(dark)
    for pairs, least in ((READ, TEXT), (SEEN, LARGE)):
        measured = {pair: contrast(colors[pair[0]], colors[pair[1]]) for pair in pairs}
        assert {pair: value for pair, value in measured.items() if value < least} == {}


def test_the_first_load_is_small() -> None:
    """Compressed as the service sends it, with everything that the page can load without a map."""
    assert sum(len(gzip.compress(file.read_bytes(), 6)) for file in FILES) < 75_000
