"""The drawn evidence: lines where the patches are, in the picture and on the page of answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from kappaplace.maps import PlaceMap
from kappaplace.reports import draw_evidence, write_answers
from kappaplace.reports.pairs import GAP, HEIGHT, MOST_LINES
from kappaplace.retrieval import PatchMatches
from tests.maps.conftest import queries, town, town_folder, town_map  # noqa: F401

GRAY = np.full((90, 120, 3), 128, np.uint8)


def matches(start: list[list[float]], end: list[list[float]], weights: list[float]) -> PatchMatches:
    return PatchMatches(np.array(start), np.array(end), np.array(weights))


def test_a_line_joins_the_two_patches() -> None:
    picture = np.asarray(draw_evidence(GRAY, GRAY, matches([[0.5, 0.25]], [[0.5, 0.75]], [1.0])), int)
    width = HEIGHT * 120 // 90
    assert picture.shape == (HEIGHT, 2 * width + GAP, 3)
    changed = np.abs(picture - 128).max(2) > 40
    assert changed[HEIGHT // 4, width // 2]
    assert changed[3 * HEIGHT // 4, width + GAP + width // 2]
    middle = width // 2 + (width + GAP) // 4  # a quarter of the way
    assert changed[HEIGHT // 4 + HEIGHT // 8 - 3 : HEIGHT // 4 + HEIGHT // 8 + 4, middle].any()
    assert not changed[: HEIGHT // 4 - 10, :width].any()


def test_stronger_pairs_are_more_opaque() -> None:
    picture = draw_evidence(GRAY, GRAY, matches([[0, 0.2], [0, 0.8]], [[1, 0.2], [1, 0.8]], [0.1, 1.0]))
    rows = np.abs(np.asarray(picture, int)[:, 100] - 128).max(1)
    assert (
        rows[HEIGHT // 5 - 3 : HEIGHT // 5 + 4].max() < rows[4 * HEIGHT // 5 - 3 : 4 * HEIGHT // 5 + 4].max()
    )


def test_no_agreement_and_very_much_can_be_drawn() -> None:
    empty = draw_evidence(GRAY, GRAY, PatchMatches(np.empty((0, 2)), np.empty((0, 2)), np.empty(0)))
    assert empty.height == HEIGHT
    many = np.random.default_rng(0).random((4 * MOST_LINES, 2))
    assert draw_evidence(GRAY, GRAY, PatchMatches(many, many, np.ones(len(many)))).size == empty.size


def test_the_page_of_answers_shows_the_evidence(
    town_map: PlaceMap,  # noqa: F811
    queries: list[str],  # noqa: F811
    tmp_path: Path,
) -> None:
    answers = town_map.localize(queries[:1])
    write_answers(town_map, answers, tmp_path / "answers.html")
    assert "Patches that agree with the best match" in (tmp_path / "answers.html").read_text()
    Image.open(queries[0]).save(tmp_path / "gone.png")
    gone = town_map.localize([str(tmp_path / "gone.png")])
    (tmp_path / "gone.png").unlink()
    write_answers(town_map, gone, tmp_path / "answers.html")
    assert "Patches that agree" not in (tmp_path / "answers.html").read_text()
