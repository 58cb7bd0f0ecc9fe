"""The picture in the documentation shows what its words say."""

from __future__ import annotations

import numpy as np
from docs.make_figures import rescaling_example, rescaling_figure

from kappaplace.metrics import UPPER_TAIL, expected_calibration_error, score_summary
from kappaplace.reports.html import png_of


def test_rescaling_moves_ece_and_nothing_else() -> None:
    before, after, success = rescaling_example()
    assert np.array_equal(np.argsort(before, kind="stable"), np.argsort(after, kind="stable"))
    assert round(expected_calibration_error(before, success, UPPER_TAIL), 2) == 0.03
    assert round(expected_calibration_error(after, success, UPPER_TAIL), 2) == 0.76
    assert score_summary(before, success) == score_summary(after, success)


def test_a_score_without_knowledge_can_be_given_a_good_ece() -> None:
    rng = np.random.default_rng(0)
    success = rng.random(4000) < 0.78  # the target of the third bin is 7/9
    crowded = 0.25 + 0.01 * rng.random(4000)
    crowded[:2] = 0.0, 1.0
    assert expected_calibration_error(crowded, success, (None, None)) < 0.02


def test_rescaling_figure_says_both_numbers_and_repeats_itself() -> None:
    figure = rescaling_figure()
    titles = [axis.get_title() for axis in figure.axes]
    assert "ECE@1 0.03" in titles
    assert "ECE@1 0.76" in titles
    assert titles[-1] == titles[-2]  # AUROC and AURC are the same on both sides
    assert png_of(figure) == png_of(rescaling_figure())
