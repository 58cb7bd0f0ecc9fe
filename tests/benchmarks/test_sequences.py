"""SeqSLAM's averages, and the threshold that keeps a risk."""

from __future__ import annotations

import numpy as np

from sequences import Result, Route, threshold
from slam_sequences import average_scores

COUNT = 100


def test_averages_find_the_line_among_noise() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 1, (60, COUNT))
    noise[np.arange(60), np.arange(60) + 20] += 1.5
    single, many = (average_scores(noise, length).argmax(axis=1) for length in (1, 10))
    truth = np.arange(60) + 20
    assert np.array_equal(single, noise.argmax(axis=1))
    assert (np.abs(many - truth) <= 2)[10:].mean() > (np.abs(single - truth) <= 2)[10:].mean() + 0.2


def test_the_threshold_keeps_the_risk_and_accepts_most() -> None:
    truth = np.arange(20.0)
    frames = truth + 10.0 * (np.arange(20) % 5 == 4)  # every fifth is wrong
    route = Route(None, [], truth, truth, 2.0)  # type: ignore[arg-type]  # only truth and radius are used
    sure = Result(frames, np.where(frames == truth, 0.9, 0.1) + 1e-3 * truth)
    least = threshold(route, sure)
    right = frames == truth
    above = sure.confidence >= least
    assert (~right[above]).mean() <= 0.1
    assert above.sum() == 17  # all 16 correct ones, and one of the four others
    assert threshold(route, Result(frames, -sure.confidence)) == np.inf
