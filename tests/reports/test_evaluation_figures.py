"""Each figure of the report draws what it is given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex

from kappaplace.metrics import acceptance_curve, ece_surface, reliability_curve
from kappaplace.reports import ground as place_map
from kappaplace.reports.artifacts import Artifacts, slug
from kappaplace.reports.figures import (
    BINS,
    COLORS,
    POINTS,
    WRONG,
    comparison_figure,
    ece_bars_figure,
    ece_sensitivity_figure,
    kappa_histogram_figure,
    line_style,
    reliability_figure,
    risk_coverage_figure,
    score_histogram_figure,
    thinned,
)
from kappaplace.reports.gallery import (
    confident_queries,
    gallery_html,
    gallery_rows,
    shown_score,
    worst_failures,
)
from kappaplace.reports.html import png_of, svg_of
from tests.reports.synthetic import make_images, make_set


@pytest.fixture
def scored() -> tuple[np.ndarray, np.ndarray]:
    """Uncertainty and success of 200 queries."""
    rng = np.random.default_rng(0)
    values = rng.random(200)
    return values, rng.random(200) > values


def test_reliability_writes_the_counts_of_many_scores(scored: tuple[np.ndarray, np.ndarray]) -> None:
    curve = reliability_curve(*scored)
    curves = {f"score {i}": {1: curve} for i in range(8)}
    figure = reliability_figure(curves, columns=2)
    assert len(figure.axes) == 8
    assert [text.get_text() for text in figure.axes[0].texts] == [str(count) for count in curve.counts]
    assert figure.axes[7].get_title() == f"score 7\nECE@1\n{curve.error:.3f}"


def test_risk_coverage_ends_at_the_error_rate(scored: tuple[np.ndarray, np.ndarray]) -> None:
    values, success = scored
    worse = np.random.default_rng(1).random(200)
    curves = {"worse": acceptance_curve(worse, success), "better": acceptance_curve(values, success)}
    figure = risk_coverage_figure(curves)
    for line in figure.axes[0].get_lines():
        assert line.get_ydata()[-1] == pytest.approx(1 - success.mean())
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == [f"{name} {curves[name].aurc:.3f}" for name in ("better", "worse")]  # best first


def test_long_curves_are_thinned() -> None:
    rng = np.random.default_rng(0)
    curve = acceptance_curve(rng.random(50_000), rng.random(50_000) < 0.7)
    coverage, risk = thinned(curve)
    assert len(coverage) == POINTS
    assert (coverage[-1], risk[-1]) == (1.0, curve.risk[-1])


def test_comparison_has_a_panel_a_score_and_a_line_a_run(scored: tuple[np.ndarray, np.ndarray]) -> None:
    curve = acceptance_curve(*scored)
    figure = comparison_figure(
        {"L2": {"A": curve, "B": curve}, "PA": {"B": curve, "A": curve}, "x": {"A": curve}}
    )
    assert [len(axis.get_lines()) for axis in figure.axes] == [2, 2, 1]
    first, second = (
        {line.get_label(): line.get_color() for line in axis.get_lines()} for axis in figure.axes[:2]
    )
    assert first == second  # a run keeps its colour


def test_two_dozen_lines_are_told_apart() -> None:
    assert len({tuple(line_style(i).values()) for i in range(24)}) == 24


def test_histograms_hold_every_query(scored: tuple[np.ndarray, np.ndarray]) -> None:
    values, success = scored
    figure = score_histogram_figure({"a": values, "constant": np.ones(200)}, success)
    for axis in figure.axes:
        outlines = [patch for patch in axis.patches if patch.get_label()]
        assert len(outlines) == 2
        for outline in outlines:
            assert outline.get_data().values.sum() == pytest.approx(1)
            assert len(outline.get_data().values) == BINS
    assert f"correct ({success.sum()})" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_kappa_histogram_without_references_or_failures() -> None:
    kappa = np.linspace(1, 50, 40)
    full = kappa_histogram_figure(kappa, kappa * 2, kappa > 10)
    assert len(full.legends[0].get_texts()) == 3
    bare = kappa_histogram_figure(kappa, None, np.ones(40, bool))
    assert [text.get_text() for text in bare.legends[0].get_texts()] == ["queries, top match correct (40)"]


def test_bars_have_the_values_they_stand_for() -> None:
    errors = {"L2": {1: 0.4, 5: 0.5, 10: 0.6}, "PA": {1: 0.7, 5: 0.8, 10: 0.9}}
    figure = ece_bars_figure(errors, (1, 5, 10))
    axis = figure.axes[0]
    assert [bar.get_width() for bars in axis.containers for bar in bars] == [0.4, 0.7, 0.5, 0.8, 0.6, 0.9]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["L2", "PA"]


def test_sensitivity_marks_the_papers_choice_and_the_range(scored: tuple[np.ndarray, np.ndarray]) -> None:
    surface = ece_surface(*scored)
    figure = ece_sensitivity_figure({"a": surface, "b": surface})
    curve = reliability_curve(*scored)
    for axis in figure.axes:
        dot = axis.get_lines()[-1]
        assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (10, pytest.approx(curve.error))
        assert axis.get_ylim()[1] > surface.plain.max()
        assert f"\n{curve.error:.3f} (" in axis.get_title()


def test_map_marks_failures_and_says_what_it_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    references, queries = rng.random((50, 2)) * 100, rng.random((30, 2)) * 100
    success = np.arange(30) % 3 > 0
    figure = place_map.map_figure(references, queries, rng.random(30), success)
    gray, dots, crosses = figure.axes[0].collections
    assert [len(points.get_offsets()) for points in (gray, dots, crosses)] == [50, 30, 10]
    assert to_hex(crosses.get_edgecolor()[0]) == WRONG
    assert all(points.get_rasterized() for points in (gray, dots, crosses))
    assert place_map.thinning(50, 30) == ""
    monkeypatch.setattr(place_map, "MOST_REFERENCES", 20)
    monkeypatch.setattr(place_map, "MOST_QUERIES", 10)
    figure = place_map.map_figure(references, queries, rng.random(30), success)
    assert [len(points.get_offsets()) for points in figure.axes[0].collections[:2]] == [20, 10]
    assert "20 of 50 references and 10 of 30 queries" in place_map.thinning(50, 30)


def test_gallery_goes_from_sure_to_unsure_without_repeats() -> None:
    uncertainty = np.random.default_rng(0).permutation(np.arange(101.0))
    queries = confident_queries(uncertainty)
    assert [title for title, _ in queries] == [
        f"{level} confidence" for level in ("High", "Middle", "Low") for _ in "ab"
    ]
    assert [uncertainty[query] for _, query in queries] == [3, 15, 45, 55, 85, 97]
    assert confident_queries(np.zeros(1)) == [("High confidence", 0)]


def test_worst_failures_are_wrong_and_surest_first() -> None:
    uncertainty = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    assert worst_failures(uncertainty, np.array([True, False, True, False, False])) == [1, 3, 4]
    assert worst_failures(uncertainty, np.ones(5, bool)) == []


def test_gallery_shows_kappaplace_else_a_score_of_matches() -> None:
    shown = [shown_score(make_set(queries=5, kappa=kappa)) for kappa in (True, False)]
    assert [score.name for score in shown if score] == ["kappaplace", "l2"]


def test_gallery_frames_matches_and_gives_their_confidence(tmp_path: Path) -> None:
    part = make_set(queries=20, images=make_images(tmp_path, 3))
    score = part.scores["kappaplace"]
    assert score.match is not None
    rows = gallery_rows(part, score, [("High confidence", 4), ("Low confidence", 7)])
    for row in rows:
        query, *matches = row.cards
        assert query.right is None
        assert query.captions[1].startswith("κ ")
        assert [card.right for card in matches] == part.hits[row.query, :3].tolist()
        for rank, card in enumerate(matches):
            confidence = float(card.captions[1].removeprefix("confidence ").replace(",", ""))
            assert confidence == pytest.approx(1 / score.match[row.query, rank], rel=0.01)
    page = gallery_html(rows)
    hits = part.hits[[4, 7], :3]
    assert page.count('class="right"') == hits.sum()
    assert page.count('class="wrong"') == (~hits).sum()


def test_scores_that_reach_zero_show_themselves(tmp_path: Path) -> None:
    part = make_set(queries=5, images=make_images(tmp_path, 2))
    score = part.scores["l2"]
    assert score.match is not None
    score.match[0, 0] = 0.0
    row = gallery_rows(part, score, [("x", 1)])[0]
    assert row.cards[1].captions[1].startswith("uncertainty ")


def test_dollar_signs_are_no_formula(scored: tuple[np.ndarray, np.ndarray]) -> None:
    curve = acceptance_curve(*scored)
    assert png_of(risk_coverage_figure({"$\\bad{$": curve})).startswith(b"\x89PNG")


def test_svg_repeats_itself_and_has_no_date(scored: tuple[np.ndarray, np.ndarray]) -> None:
    first, second = (svg_of(score_histogram_figure({"a": scored[0]}, scored[1])) for _ in range(2))
    assert first == second
    assert b"<dc:date>" not in first


def test_file_names_are_tame_and_free(tmp_path: Path) -> None:
    assert slug("SF-XL v1 / Nacht ☾") == "sf-xl-v1-nacht"
    assert slug("☾") == "unnamed"
    assert slug("../x") == "x"
    files = Artifacts(tmp_path)
    for name in ("map-☾", "map-☆"):
        files.figure(name, ece_bars_figure({"a": {1: 0.1}}, (1,)), "alt", "how")
    assert {file.name for file in files.figures.glob("*.png")} == {"map.png", "map-2.png"}


def test_colors_are_enough_for_three_bars() -> None:
    assert len(COLORS) >= 3
