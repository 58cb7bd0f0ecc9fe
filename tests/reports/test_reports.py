"""Figures and pages: complete, escaped, the same bytes twice."""

from __future__ import annotations

import numpy as np

from kappaplace.metrics import reliability_curve
from kappaplace.reports import html
from kappaplace.reports.figures import (
    RIGHT,
    WRONG,
    GalleryRow,
    gallery_figure,
    kappa_figure,
    reliability_figure,
)


def test_reliability_figure_has_a_panel_a_score_and_repeats_itself() -> None:
    rng = np.random.default_rng(0)
    curve = reliability_curve(rng.random(200), rng.random(200) < 0.5)
    other = reliability_curve(rng.random(200), rng.random(200) < 0.9)
    figures = [reliability_figure({"L2": {1: curve, 5: other}, "PA": {1: curve}}) for _ in range(2)]
    assert [axis.get_title() for axis in figures[0].axes] == [
        f"L2\nECE@1/5\n{curve.error:.3f}, {other.error:.3f}",
        f"PA\nECE@1\n{curve.error:.3f}",
    ]
    lines = {line.get_label(): line.get_ydata() for line in figures[0].axes[0].lines}
    assert list(lines) == ["expected", "R@1", "R@5"]
    np.testing.assert_array_equal(lines["R@5"], other.observed)
    assert html.png_of(figures[0]) == html.png_of(figures[1])


def test_kappa_figure_shows_every_query_once() -> None:
    levels = np.linspace(0, 1, 5)
    curves = {"fog": (levels, 100 - 50 * levels, levels * 0 + 2)}
    success = np.arange(30) % 3 > 0
    figure = kappa_figure(curves, np.linspace(0, 1, 30), np.full(30, 80.0), success)
    assert sum(len(points.get_offsets()) for points in figure.axes[1].collections) == 30


def test_gallery_frames_right_and_wrong_matches() -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    figure = gallery_figure([GalleryRow("High", image, "κ 9", [image, image], [True, False], ["a", "b"])])
    from matplotlib.colors import to_hex

    frames = [to_hex(axis.spines["left"].get_edgecolor()) for axis in figure.axes]
    assert frames[1:] == [RIGHT, WRONG]


def test_page_escapes_what_it_is_given() -> None:
    page = html.page("<T>", "a & b", [html.table(["<h>"], [["<c>"]]), html.paragraph("<p>")])
    for text in ("&lt;T&gt;", "a &amp; b", "&lt;h&gt;", "&lt;c&gt;", "<p>&lt;p&gt;</p>"):
        assert text in page
    assert 'name="viewport"' in page
