"""What reports say first: summaries in words, which must follow from the numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kappaplace.errors import KappaPlaceError
from kappaplace.maps import PlaceMap
from kappaplace.maps.tune.fit_check import FitRecord, KappaCheck
from kappaplace.reports import write_answers, write_place_map
from kappaplace.reports.comparison import comparison_headline, headline
from kappaplace.reports.groups import MOST_CURVES, group_of
from kappaplace.reports.html import page, short, tokens
from kappaplace.reports.localization import MOST_LISTED
from kappaplace.reports.map_tune import FitFacts, verdict
from tests.maps.conftest import queries, town, town_folder, town_map  # noqa: F401
from tests.reports.synthetic import make_result, make_set


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1950.4, "1,950"),
        (123456.0, "123,456"),
        (12.345, "12.3"),
        (0.5, "0.5"),
        (1e-9, "<0.001"),
        (np.nan, "–"),
    ],
)
def test_numbers_have_no_exponent(value: float, text: str) -> None:
    assert short(value) == text


def test_reports_share_the_colors_of_the_served_page() -> None:
    served = Path("src/kappaplace/serve/page/style.css").read_text(encoding="utf-8")
    for name in ("--ink", "--accept", "--doubtful", "--reject"):
        color = re.search(rf"{name}: (#\w+);", served)
        assert color is not None
        assert f"{name}: {color[1]};" in page("t", "", [])
    assert tokens().count("{") == tokens().count("}")


def test_the_headline_names_the_score_with_the_highest_auroc() -> None:
    part = make_set(queries=200)
    result = make_result("m", part, measured=True)
    group = group_of(result, part)
    best = max(group.scores, key=lambda name: group.values[name]["AUROC"])
    text = headline(group)
    assert f"{group.scores[best].label} detects incorrect matches best of 4 scores" in text
    assert f"{group.recall['R@1']:.3f}" in text
    part = make_set(queries=25, all_right=True, few=True)
    assert "No score can be compared" in headline(group_of(make_result("m", part), part))


def test_overlapping_intervals_are_named() -> None:
    runs = [make_result(name, make_set(queries=60, few=True, seed=s)) for name, s in (("A", 0), ("B", 1))]

    def with_interval(result, low, high):
        metrics = {
            "harbour": {**result.metrics.get("harbour", {}), "intervals": {"recall": {"R@1": [low, high]}}}
        }
        return replace(result, metrics=metrics)

    near = [with_interval(runs[0], 0.5, 0.9), with_interval(runs[1], 0.6, 0.95)]
    far = [with_interval(runs[0], 0.1, 0.2), with_interval(runs[1], 0.6, 0.95)]
    assert ", but the intervals overlap." in comparison_headline(near)
    assert ", and the intervals do not overlap." in comparison_headline(far)
    assert "overlap" not in comparison_headline(runs)  # no intervals were measured


def test_at_most_ten_scores_are_drawn_and_the_best_ones() -> None:
    part = make_set(queries=120, extra=8)
    group = group_of(make_result("m", part), part)
    assert len(group.scores) > MOST_CURVES == len(group.shown)
    worst = max(group.risk_coverage(name).aurc for name in group.shown)
    assert all(group.risk_coverage(n).aurc >= worst for n in group.scores.keys() - group.shown.keys())
    assert f"the {MOST_CURVES} of {len(group.scores)} scores" in group.shown_note


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ((-0.3, -0.1), "The fitted κ is better"),
        ((0.1, 0.3), "The fitted κ is worse"),
        ((-0.3, 0.1), "neither is better"),
        (None, "was not recorded"),
    ],
)
def test_a_fit_is_better_only_beyond_its_interval(interval: tuple[float, float] | None, words: str) -> None:
    check = KappaCheck(
        16, (1, 2, 3), {}, {}, -0.6, 0.5, before=-0.5, level_interval=(-0.7, -0.5), change_interval=interval
    )
    lines = verdict(FitFacts("town", FitRecord("", 20, 16, 2, (), check, 1.0)))
    assert "−0.60 [−0.70, −0.50]" in lines[0]
    assert words in lines[1]


def test_answers_start_with_counts_and_fold(
    town_map: PlaceMap,  # noqa: F811
    queries: list[str],  # noqa: F811
    tmp_path: Path,
) -> None:
    answer = replace(town_map.localize(queries[:1])[0], kappa=1951.2)
    many = [replace(answer, decision=d) for d in ["accept"] * 9 + ["doubtful"] * 4 + ["reject"] * 2]
    write_answers(town_map, many, tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert len(many) > MOST_LISTED
    assert "9 accepted, 4 doubtful and 2 rejected." in text
    assert text.count("<details>") == len(many) + 3  # each answer, and a chapter per decision
    assert "<details open" not in text
    assert text.count('<a class="accept" href="#answer-') == 9
    assert set(re.findall(r'href="#(answer-\d+)"', text)) == set(re.findall(r'id="(answer-\d+)"', text))
    assert "κ 1,951" in text
    assert not re.search(r"\de[+-]\d\d", re.sub(r'src="[^"]*"|href="data[^"]*"', "", text))


def test_a_map_is_drawn(town_map: PlaceMap, tmp_path: Path) -> None:  # noqa: F811
    sentence = write_place_map(town_map, tmp_path / "map.html")
    assert f"{len(town_map):,} references on " in sentence
    assert "<svg" not in (tmp_path / "map.html").read_text()
    assert "data:image/svg+xml" in (tmp_path / "map.html").read_text()
    write_place_map(town_map, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(KappaPlaceError, match=r"must be a \.png"):
        write_place_map(town_map, tmp_path / "map.pdf")
