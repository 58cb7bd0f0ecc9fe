"""Combinations whose scores have curves instead of lines."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kappaplace.calibration.combination import CLIP, Combination, fit_combination
from kappaplace.errors import KappaPlaceError
from kappaplace.records import RecordError, from_plain, to_plain


def valley(n: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    """Right in the middle of a score, wrong at both ends; a second score says nothing."""
    rng = np.random.default_rng(3)
    x = np.stack([rng.uniform(-2, 2, n), rng.normal(size=n)], 1)
    return x, rng.random(n) < np.where(np.abs(x[:, 0]) < 1, 0.9, 0.2)


def test_a_curve_follows_what_a_line_cannot() -> None:
    x, right = valley()
    probe = np.array([[-1.8, 0.0], [0.0, 0.0], [1.8, 0.0]])
    line = fit_combination(x, right, ["a", "b"]).probability(probe)
    assert np.ptp(line) < 0.15
    ends_low, middle, ends_high = fit_combination(x, right, ["a", "b"], bends=3).probability(probe)
    assert middle > 0.65
    assert max(ends_low, ends_high) < 0.45


def test_probability_is_the_stated_formula_at_the_penalised_optimum() -> None:
    x, right = valley(400)
    fitted = fit_combination(x, right, ["a", "b"], bends=2)
    gradient, columns = np.zeros(1 + 2 + 4), []
    for row, y in zip(x, right, strict=True):
        z = [float(np.clip((row[j] - fitted.center[j]) / fitted.scale[j], -CLIP, CLIP)) for j in (0, 1)]
        parts = [*z, *(max(z[j] - t, 0.0) for j in (0, 1) for t in fitted.knots[j])]
        slopes = [*fitted.weights, *fitted.bends[0], *fitted.bends[1]]
        p = 1 / (1 + np.exp(-(fitted.bias - sum(s * v for s, v in zip(slopes, parts, strict=True)))))
        assert fitted.probability(row[None])[0] == pytest.approx(p, abs=1e-12)
        columns.append(parts)
        gradient += (p - y) * np.array([1.0, *(-v for v in parts)])
    # Each slope is penalised by how much its part of the curve varies: 0.02 a query, ‖slope·spread‖²/2.
    spread = np.array(columns).std(axis=0)
    np.testing.assert_allclose(gradient[0], 0, atol=1e-5)
    np.testing.assert_allclose(gradient[1:] + 0.02 * 400 * np.array(slopes) * spread**2, 0, atol=1e-5)


def test_a_score_bends_at_its_quantiles() -> None:
    x, right = valley(1000)
    fitted = fit_combination(x, right, ["a", "b"], bends=3)
    for j in (0, 1):
        expected = (np.quantile(x[:, j], [0.25, 0.5, 0.75]) - fitted.center[j]) / fitted.scale[j]
        np.testing.assert_allclose(fitted.knots[j], expected, atol=1e-9)


def test_a_constant_score_has_no_say() -> None:
    x, right = valley(300)
    x[:, 1] = 7.0
    fitted = fit_combination(x, right, ["a", "b"], bends=3)
    moved = x.copy()
    moved[:, 1] = -1e6
    np.testing.assert_array_equal(fitted.probability(x), fitted.probability(moved))


def test_storage_keeps_every_bit_and_lines_have_no_bends() -> None:
    x, right = valley(300)
    bent = fit_combination(x, right, ["a", "b"], bends=3)
    assert from_plain(Combination, json.loads(json.dumps(to_plain(bent)))) == bent
    straight = fit_combination(x, right, ["a", "b"])
    assert straight.knots == straight.bends == ()
    assert not {"knots", "bends"} & set(to_plain(straight))


@pytest.mark.parametrize(
    "change",
    [
        {"bends": [[1.0, 2.0]]},
        {"bends": [[1.0], [2.0]]},
        {"knots": []},
        {"knots": [[0.0, 1.0, float("nan")], [0.0, 1.0, 2.0]]},
        {"knots": "no"},
    ],
)
def test_a_broken_file_is_told(change: dict) -> None:
    stored = to_plain(fit_combination(*valley(300), ["a", "b"], bends=3)) | change
    with pytest.raises((RecordError, KappaPlaceError), match=r"expected|unknown field|combination"):
        from_plain(Combination, stored, "combination")


def test_less_than_no_bend_is_refused() -> None:
    with pytest.raises(KappaPlaceError, match="0 or more, got -1"):
        fit_combination(*valley(50), ["a", "b"], bends=-1)
