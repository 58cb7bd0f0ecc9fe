"""Combinations of scores, straight and with bends."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from kappaplace.calibration.combination import CLIP, Combination, features_of, fit_combination, fused
from kappaplace.errors import KappaPlaceError
from kappaplace.metrics import auroc
from kappaplace.records import RecordError, from_plain, to_plain
from kappaplace.uncertainty import SCORES, available, score_named
from tests.uncertainty.helpers import changed, world


def sample(seed: int = 0, n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Two useful scores of different scale, one of them heavy-tailed, and a useless one."""
    rng = np.random.default_rng(seed)
    right = rng.random(n) < 0.6
    wrong = ~right
    columns = [wrong + rng.normal(0, 1, n), 1e3 * np.exp(2 * (wrong + rng.normal(0, 1, n))), rng.random(n)]
    return np.column_stack(columns), right


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 999), penalty=st.sampled_from([0.01, 1.0, 100.0]))
def test_is_the_penalised_optimum(seed: int, penalty: float) -> None:
    x, right = sample(seed)
    ours = fit_combination(x, right, ["a", "b", "c"], penalty=penalty)
    quartiles = np.percentile(x, [25, 75], axis=0)
    z = np.clip((x - np.median(x, axis=0)) / ((quartiles[1] - quartiles[0]) / 1.349), -CLIP, CLIP)

    def loss(beta: np.ndarray) -> float:
        logit = beta[0] - z @ beta[1:]
        return float(
            np.logaddexp(0, np.where(right, -logit, logit)).sum() + penalty / 2 * beta[1:] @ beta[1:]
        )

    theirs = minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-6}).x
    np.testing.assert_allclose([ours.bias, *ours.weights], theirs, atol=1e-4)
    assert ours.probability(x).mean() == pytest.approx(right.mean(), abs=1e-6)


def test_beats_its_parts_on_fresh_queries() -> None:
    combination = fit_combination(*sample(0, 2000), ["a", "b", "c"])
    x, right = sample(1, 2000)
    together = auroc(1 - combination.probability(x), right)
    assert together > max(auroc(x[:, j], right) for j in range(3)) + 0.02


def test_separable_classes_get_finite_weights() -> None:
    x = np.arange(20.0)[:, None]
    combination = fit_combination(x, x[:, 0] < 10, ["a"])
    assert 0 < combination.weights[0] < 100
    assert ((combination.probability(x) > 0.5) == (x[:, 0] < 10)).all()


def test_a_constant_score_has_no_say_even_when_it_changes_later() -> None:
    x, right = sample()
    x[:, 2] = 7.0
    combination = fit_combination(x, right, ["a", "b", "c"])
    assert combination.weights[2] == 0
    assert combination.scale[2] == 1
    moved = x.copy()
    moved[:, 2] = -1e6
    np.testing.assert_array_equal(combination.probability(x), combination.probability(moved))
    alone = fit_combination(x[:, 2:], right, ["c"])
    np.testing.assert_allclose(alone.probability(x[:, 2:]), right.mean(), atol=1e-6)


def test_a_mostly_constant_score_keeps_its_scale() -> None:
    x = np.zeros((100, 1))
    x[:20] = 300.0
    right = np.arange(100) >= 15
    assert fit_combination(x, right, ["sue"]).weights[0] > 0


def test_the_same_score_twice_shares_its_weight() -> None:
    x, right = sample()
    twice = fit_combination(x[:, [0, 0]], right, ["a", "a2"])
    assert twice.weights[0] == pytest.approx(twice.weights[1])


def test_one_wild_value_moves_little() -> None:
    x, right = sample()
    wild = x.copy()
    wild[0, 0] = 1e12
    names = ["a", "b", "c"]
    before, after = fit_combination(x, right, names), fit_combination(wild, right, names)
    np.testing.assert_allclose(after.weights, before.weights, atol=0.2)


@pytest.mark.parametrize(
    ("x", "right", "names", "sentence"),
    [
        (np.zeros((3, 1)), [True] * 3, ["a"], "only correct ones"),
        (np.zeros((3, 1)), [False] * 3, ["a"], "only incorrect ones"),
        (np.zeros((0, 1)), [], ["a"], "got none"),
        (np.array([[np.nan], [1.0]]), [True, False], ["a"], "score a is NaN or infinite"),
        (np.zeros((3, 2)), [True, False, True], ["a"], "one column per score"),
        (np.zeros((3, 0)), [True, False, True], [], "one column per score"),
        (np.zeros((3, 1)), [True, False], ["a"], "one row per query"),
    ],
)
def test_what_cannot_be_fitted_is_refused(x: np.ndarray, right: list, names: list, sentence: str) -> None:
    with pytest.raises(KappaPlaceError, match=sentence):
        fit_combination(x, np.array(right, bool), names)


@pytest.mark.parametrize("penalty", [0.0, -1.0, np.inf, np.nan])
def test_the_penalty_must_be_positive(penalty: float) -> None:
    with pytest.raises(KappaPlaceError, match="penalty"):
        fit_combination(*sample(), ["a", "b", "c"], penalty=penalty)


def test_the_penalty_is_one_unless_told() -> None:
    names = ["a", "b", "c"]
    assert fit_combination(*sample(), names) == fit_combination(*sample(), names, penalty=1.0)


def test_the_score_that_is_not_finite_is_named() -> None:
    x, right = sample(n=40)
    x[5, 1] = np.inf
    with pytest.raises(KappaPlaceError, match="score b is NaN or infinite"):
        fit_combination(x, right, ["a", "b", "c"])


def test_storage_keeps_every_bit() -> None:
    x, right = sample()
    combination = fit_combination(x, right, ["a", "b", "c"])
    assert from_plain(Combination, json.loads(json.dumps(to_plain(combination)))) == combination


@pytest.mark.parametrize(
    "change",
    [
        {"bias": "x"},
        {"weights": [1.0, 2.0]},
        {"scale": [0.0]},
        {"scores": []},
        {"extra": 1},
        {"centre": None},
    ],
)
def test_a_broken_file_is_told(change: dict) -> None:
    stored = to_plain(Combination(("a",), (0.0,), (1.0,), (1.0,), 0.0)) | change
    with pytest.raises((RecordError, KappaPlaceError), match=r"expected|unknown field|combination"):
        from_plain(Combination, stored, "combination")


@pytest.mark.parametrize("scale", [(1.0, 0.0), (-1.0, 1.0)])
def test_one_impossible_scale_is_enough(scale: tuple[float, float]) -> None:
    with pytest.raises(KappaPlaceError, match="scale above 0"):
        Combination(("a", "b"), (0.0, 0.0), scale, (1.0, 1.0), 0.0)


def test_features_must_fit_the_combination() -> None:
    combination = fit_combination(*sample(), ["a", "b", "c"])
    with pytest.raises(KappaPlaceError, match="needs 3 scores per query"):
        combination.probability(np.zeros((4, 2)))


def test_it_is_a_score_like_any_other() -> None:
    names = ["l2", "margin", "inverse-kappa"]
    validation, test = world(0, queries=80), world(1, queries=50)
    right = np.random.default_rng(0).random(80) < 0.5
    combination = fit_combination(features_of(validation, [SCORES[n] for n in names]), right, names)
    score = fused(combination)
    uncertainty = score.query(test)
    columns = np.column_stack([score_named(n).query(test) for n in names])
    np.testing.assert_allclose(uncertainty, 1 - combination.probability(columns))
    assert ((uncertainty >= 0) & (uncertainty <= 1)).all()
    usable, left_out = available([score], changed(test, query=test.queries.embeddings._replace(kappa=None)))
    assert usable == []
    assert "kappa head" in left_out["fused"]


def test_a_combination_of_own_scores() -> None:
    mine = replace(score_named("l2"), name="mine")
    combination = Combination(("mine",), (1.0,), (0.5,), (2.0,), 0.1)
    e = world()
    np.testing.assert_allclose(
        fused(combination, {"mine": mine}).query(e), 1 / (1 + np.exp(0.1 - 2 * (mine.query(e) - 1) / 0.5))
    )
    with pytest.raises(KappaPlaceError, match=r"unknown scores \(mine\)"):
        fused(combination)


@pytest.mark.parametrize("span", [1.0, 2.0, 1e-9])
def test_a_score_that_changes_at_all_has_a_say(span: float) -> None:
    x = np.linspace(0.0, span, 40)[:, None]
    assert fit_combination(x, x[:, 0] < span / 3, ["a"]).weights[0] > 0


def test_steep_problems_reach_their_optimum() -> None:
    """Nearly no penalty and one class rare: full Newton steps overshoot."""
    x = np.repeat([[0.0, 5.0], [1.0, -3.0], [30.0, 0.0], [31.0, 7.0]], [60, 1, 30, 3], axis=0)
    right = np.repeat([True, False, True, False], [60, 1, 30, 3])
    ours = fit_combination(x, right, ["a", "b"], penalty=1e-6)
    center, scale = np.array(ours.center), np.array(ours.scale)
    z = np.clip((x - center) / scale, -CLIP, CLIP)
    p = 1 / (1 + np.exp(-(ours.bias - z @ np.array(ours.weights))))
    # At the optimum the gradient vanishes: bias alone, then each weight with its penalty.
    assert (p - right).sum() == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(z.T @ (right - p) + 1e-6 * np.array(ours.weights), 0, atol=1e-6)


def test_scale_of_mostly_constant_scores_is_their_deviation() -> None:
    x = np.zeros((100, 1))
    x[:20] = 300.0
    found = fit_combination(x, np.arange(100) >= 15, ["sue"])
    assert found.scale[0] == pytest.approx(120.0)  # √(0.2·0.8)·300
    assert found.center == (0.0,)


def test_what_a_combination_is_called() -> None:
    combination = Combination(("l2", "kappaplace"), (1.0, 0.0), (0.5, 1.0), (2.0, 0.1), 0.1)
    assert (fused(combination).name, fused(combination).label) == ("fused", "Fused")
    assert fused(combination, name="mine").label == "mine"
    assert not fused(combination).one_sided
    assert [need.name for need in fused(combination).needs] == ["κ of the queries", "κ of the references"]


@pytest.mark.parametrize(("n", "penalty"), [(30, 1.0), (250, 5.0)])
def test_curves_are_the_penalised_optimum_in_units_of_their_spread(n: int, penalty: float) -> None:
    """The penalty is 0.02 a query and no less than 1."""
    x, right = sample(3, n)
    ours = fit_combination(x[:, :2], right, ["a", "b"], bends=2)
    z = np.clip((x[:, :2] - np.array(ours.center)) / np.array(ours.scale), -CLIP, CLIP)
    thirds = np.quantile(z, [1 / 3, 2 / 3], axis=0)
    columns = [z[:, 0], z[:, 1], *(np.maximum(z[:, j] - thirds[k, j], 0) for j in (0, 1) for k in (0, 1))]
    curves = np.column_stack(columns)
    spread = curves.std(axis=0)

    def loss(beta: np.ndarray) -> float:
        logit = beta[0] - (curves / spread) @ beta[1:]
        fit = np.logaddexp(0, np.where(right, -logit, logit)).sum()
        return float(fit + penalty / 2 * beta[1:] @ beta[1:])

    theirs = minimize(loss, np.zeros(7), method="BFGS", options={"gtol": 1e-6}).x
    slopes = np.array([*ours.weights, *ours.bends[0], *ours.bends[1]])
    np.testing.assert_allclose([ours.bias, *(slopes * spread)], theirs, atol=1e-4)


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
def test_broken_bends_are_reported(change: dict) -> None:
    stored = to_plain(fit_combination(*valley(300), ["a", "b"], bends=3)) | change
    with pytest.raises((RecordError, KappaPlaceError), match=r"expected|unknown field|combination"):
        from_plain(Combination, stored, "combination")


def test_less_than_no_bend_is_refused() -> None:
    with pytest.raises(KappaPlaceError, match="0 or more, got -1"):
        fit_combination(*valley(50), ["a", "b"], bends=-1)
