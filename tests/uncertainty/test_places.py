"""Scores that compare places: SUE, margin, aliasing, z-score."""

from __future__ import annotations

import math
import statistics

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.data.near import Neighborhood
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.types import Embeddings, Matches
from kappaplace.uncertainty import score_named
from kappaplace.uncertainty.base import Evidence
from kappaplace.uncertainty.scores import sue, z_score
from tests.uncertainty.helpers import changed, evidence_of, world


def by_hand(
    e: Evidence, row: int, slope: float, k: int, squared: bool, one_sided: bool, cap: float
) -> mpmath.mpf:
    weights, places = [], []
    for s, r in zip(e.matches.similarities[row][:k], e.matches.indices[row][:k], strict=True):
        d = mpmath.sqrt(max(2 - 2 * mpmath.mpf(float(s)), 0))
        weights.append(mpmath.exp(-slope * (d**2 if squared else d)))  # mpmath never underflows
        places.append([mpmath.mpf(float(x)) for x in e.references.positions[r]])
    total, variances = sum(weights), []
    for axis in (0, 1):
        mean = sum(w * p[axis] for w, p in zip(weights, places, strict=True)) / total
        squares = 0
        for w, p in zip(weights, places, strict=True):
            deviation = min(p[axis] - mean, cap)
            deviation = deviation if one_sided else max(deviation, -cap)
            squares += w * deviation**2
        variances.append(squares / total)
    return sum(variances) / 2


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    slope=st.sampled_from([0.0, 3.0, 350.0, 1e5]),
    k=st.integers(2, 12),
    squared=st.booleans(),
    one_sided=st.booleans(),
    extent=st.sampled_from([1.0, 100.0, 5000.0]),
)
def test_equals_the_formula(
    seed: int, slope: float, k: int, squared: bool, one_sided: bool, extent: float
) -> None:
    rng = np.random.default_rng(seed)
    positions = np.array([500_000.0, 5_800_000.0]) + rng.uniform(-extent, extent, (12, 2))  # as UTM
    e = world(seed, queries=3, references=12, k=10, reference_positions=positions)
    options = {"distance": "squared" if squared else "l2", "cap": "one-sided" if one_sided else "symmetric"}
    ours = sue(slope, k=k, **options).query(e)
    logs = sue(slope, k=k, log=True, **options).query(e)
    for row in range(3):
        expected = by_hand(e, row, slope, k, squared, one_sided, 500.0)
        assert ours[row] == pytest.approx(float(expected), rel=1e-9, abs=1e-12)
        assert logs[row] == pytest.approx(float(mpmath.log(expected + 1e-10)), abs=1e-5)


def pair(similarities: list[float], positions: list[list[float]]) -> Evidence:
    s = np.array([similarities], np.float32)
    return evidence_of(Matches(np.arange(s.shape[1])[None], s), reference_positions=np.array(positions))


def test_default_settings_are_the_papers() -> None:
    e = world(references=30, k=20)
    np.testing.assert_array_equal(
        score_named("sue").query(e),
        sue(350.0, k=10, distance="l2", cap="symmetric", cap_meters=500.0).query(e),
    )
    np.testing.assert_allclose(score_named("log-sue").query(e), np.log(score_named("sue").query(e) + 1e-10))


def test_equal_matches_weigh_the_same_even_at_distance_zero() -> None:
    assert sue().query(pair([1.0, 1.0], [[0, 0], [6, 0]])).tolist() == [4.5]  # 3² on one axis of two


def test_weights_that_would_all_underflow_do_not() -> None:
    far = pair([-0.9, -0.9], [[0, 0], [6, 0]])  # exp(−350·1.95) = 1e-296; with slope 1e4 far below any double
    assert sue(1e4).query(far).tolist() == [4.5]


def test_one_place_is_certain_and_its_logarithm_finite() -> None:
    e = pair([0.9, 0.8, 0.7], [[7, 7]] * 3)
    assert sue().query(e).tolist() == [0.0]
    assert sue(log=True).query(e)[0] == pytest.approx(math.log(1e-10))


def test_the_caps_differ_to_the_south_and_west_only() -> None:
    west = pair([0.5, 0.5, 0.5, 0.5], [[0, 0], [0, 0], [0, 0], [-4000, 0]])  # deviations +1000, −3000
    assert sue().query(west)[0] == pytest.approx(500**2 / 2)
    assert sue(cap="one-sided").query(west)[0] == pytest.approx((0.75 * 500**2 + 0.25 * 3000**2) / 2)
    east = changed(west, reference_positions=-west.references.positions)
    assert sue().query(east)[0] == pytest.approx(500**2 / 2)
    assert sue(cap="one-sided").query(east)[0] == pytest.approx((0.25 * 500**2 + 0.75 * 1000**2) / 2)


def test_one_match_has_no_spread() -> None:
    with pytest.raises(KappaPlaceError, match="at least 2 matches"):
        sue().query(pair([0.5], [[0, 0]]))


def test_without_poses_it_is_left_out() -> None:
    reason = score_named("sue").reason(changed(world(), reference_positions=None))
    assert "positions of the references" in reason


@pytest.mark.parametrize(
    "options",
    [{"slope": -1}, {"slope": np.nan}, {"k": 1}, {"cap": "none"}, {"distance": "L1"}, {"cap_meters": 0}],
)
def test_bad_settings_are_refused(options: dict) -> None:
    with pytest.raises(KappaPlaceError, match=r"slope|k must|distance|cap"):
        sue(**options)


def test_the_name_is_the_label_too() -> None:
    mine = sue(slope=1.0, name="mine")
    assert (mine.name, mine.label) == ("mine", "mine")
    assert (sue(slope=1.0).name, sue(slope=1.0).label) == ("sue", "SUE")


MARGIN, ALIASING = score_named("margin"), score_named("aliasing")


def same_place(e: Evidence, a: int, b: int, radius: float) -> bool:
    return a == b or np.hypot(*(e.references.positions[a] - e.references.positions[b])) <= radius


def within(e: Evidence, radius: float):
    return lambda a, b: (
        np.equal(a, b)
        | (np.linalg.norm(e.references.positions[a] - e.references.positions[b], axis=-1) <= radius)
    )


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 9999), k=st.integers(1, 9), radius=st.sampled_from([0.0, 20.0, 50.0, 90.0, 1e9]))
def test_margin_and_aliasing_equal_a_full_sort(seed: int, k: int, radius: float) -> None:
    e = world(seed, k=k)
    e = changed(e, near=within(e, radius))
    matrix = (e.queries.embeddings.descriptor @ e.references.embeddings.descriptor.T).astype(float)
    own = (e.references.embeddings.descriptor @ e.references.embeddings.descriptor.T).astype(float)
    margin, aliasing = MARGIN.query(e), ALIASING.query(e)
    from_matrix = MARGIN.query(changed(e, query=None, similarity_matrix=matrix))
    for row, top in enumerate(e.matches.indices[:, 0]):
        outside = [r for r in range(9) if not same_place(e, r, top, radius)]
        best = max((matrix[row, r] for r in outside), default=-1.0)
        alias = max((own[top, r] for r in outside), default=-1.0)
        assert margin[row] == pytest.approx(best - matrix[row, top], abs=1e-6)
        assert from_matrix[row] == pytest.approx(margin[row], abs=1e-6)
        assert aliasing[row] == pytest.approx(alias - matrix[row, top], abs=1e-6)
    if radius < 1e9:
        assert (margin <= 1e-6).all()


def test_positions_alone_mean_25_meters() -> None:
    e = world()
    for score in (MARGIN, ALIASING):
        np.testing.assert_array_equal(score.query(e), score.query(changed(e, near=within(e, 25.0))))


def test_25_meters_are_still_one_place() -> None:
    indices, similarities = np.array([[0, 1, 2]]), np.array([[0.9, 0.8, 0.5]])
    for step, outside in ((25.0, 0.5), (25.1, 0.8)):  # the second reference is inside, or just not
        positions = np.array([[100.0, 7.0], [100.0 + 0.6 * step, 7.0 - 0.8 * step], [1e3, 1e3]])
        e = evidence_of(Matches(indices, similarities), reference_positions=positions)
        assert MARGIN.query(e)[0] == pytest.approx(outside - 0.9)


@pytest.mark.parametrize("text", ["metres:30", "frames:2", "self"])
def test_a_table_brings_its_own_neighborhood(text: str) -> None:
    e = world(k=2)
    table = PlaceImages.create(
        [f"{i}.jpg" for i in range(9)], e.references.positions, neighborhood=Neighborhood.parse(text)
    )
    e = changed(e, near=table.is_near)
    matrix = e.queries.embeddings.descriptor @ e.references.embeddings.descriptor.T
    margin = MARGIN.query(e)
    for row, top in enumerate(e.matches.indices[:, 0]):
        far = np.setdiff1d(np.arange(9), table.near(top))
        assert margin[row] == pytest.approx(matrix[row, far].max(initial=-1.0) - matrix[row, top], abs=1e-6)


def test_the_list_is_enough_where_it_reaches_outside() -> None:
    listed = Matches(np.array([[0, 1, 2], [2, 1, 0]]), np.array([[0.9, 0.8, 0.5], [0.7, 0.6, 0.1]]))
    e = evidence_of(listed, near=lambda a, b: np.abs(np.subtract(a, b)) <= 1)
    np.testing.assert_allclose(MARGIN.query(e), [-0.4, -0.6])
    short = evidence_of(Matches(listed.indices[:, :2], listed.similarities[:, :2]), near=e.references.near)
    with pytest.raises(KappaPlaceError, match="All matches of 2 queries show the place of the top match"):
        MARGIN.query(short)


def test_only_queries_without_a_match_outside_are_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    e = world(k=9)
    e = changed(e, near=lambda a, b: np.equal(a, b))

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr("kappaplace.retrieval.references.best_outside", fail)
    assert MARGIN.query(e).shape == (6,)
    with pytest.raises(AssertionError, match="searched"):
        ALIASING.query(e)


def test_searches_are_shared() -> None:
    e = world()
    assert e.best_alias is e.best_alias
    assert e.best_outside is e.best_outside


def test_twins_in_another_place_leave_no_margin() -> None:
    z = np.eye(4, dtype=np.float32)[[0, 0, 1]]
    positions = np.array([[0.0, 0.0], [1000.0, 0.0], [2000.0, 0.0]])
    e = evidence_of(
        Matches(np.array([[0, 1]]), np.ones((1, 2), np.float32)),
        Embeddings(z[:1]),
        Embeddings(z),
        reference_positions=positions,
    )
    assert MARGIN.query(e).tolist() == [0.0]
    assert ALIASING.query(e).tolist() == [0.0]


@pytest.mark.parametrize("source", ["descriptors", "matrix"])
def test_z_score_counts_deviations_above_the_map(source: str) -> None:
    e = world(references=20)
    matrix = e.queries.embeddings.descriptor @ e.references.embeddings.descriptor.T
    if source == "matrix":
        e = evidence_of(e.matches, similarity_matrix=matrix)
    ours = score_named("z-score").query(e)
    for row in range(6):
        values = matrix[row].astype(float).tolist()
        expected = (max(values) - statistics.fmean(values)) / statistics.pstdev(values)
        assert ours[row] == pytest.approx(-expected, rel=1e-5)
    np.testing.assert_array_equal(ours, z_score(None).query(e))


def test_z_score_of_a_sample_is_fixed_and_near_that_of_all() -> None:
    e = world(references=4000)
    sampled = z_score(2000)
    np.testing.assert_array_equal(sampled.query(e), sampled.query(e))
    np.testing.assert_allclose(sampled.query(e), z_score(None).query(e), rtol=0.1)
    matrix = evidence_of(
        e.matches, similarity_matrix=e.queries.embeddings.descriptor @ e.references.embeddings.descriptor.T
    )
    np.testing.assert_allclose(sampled.query(e), sampled.query(matrix), rtol=1e-5)


def test_z_score_where_all_references_are_alike() -> None:
    matches = Matches(np.zeros((1, 1), int), np.full((1, 1), 0.3, np.float32))
    assert score_named("z-score").query(
        evidence_of(matches, similarity_matrix=np.full((1, 7), 0.3, np.float32))
    ).tolist() == [0.0]
    one = evidence_of(matches, similarity_matrix=np.full((1, 1), 0.3, np.float32))
    assert score_named("z-score").query(one).tolist() == [0.0]
    with pytest.raises(KappaPlaceError, match="sample must be 2 or more"):
        z_score(1)


def test_z_score_takes_the_sample_of_its_seed() -> None:
    e = world(references=30)
    matrix = (e.queries.embeddings.descriptor @ e.references.embeddings.descriptor.T).astype(float)
    for sample, seed in ((2, 0), (7, 0), (7, 3), (29, 1)):
        drawn = np.random.default_rng(seed).choice(30, sample, replace=False, shuffle=False)
        values = matrix[:, drawn]
        expected = -(e.cosines[:, 0] - values.mean(axis=1)) / values.std(axis=1)
        np.testing.assert_allclose(z_score(sample, seed=seed).query(e), expected, rtol=1e-4)
    for sample in (30, 31):
        np.testing.assert_array_equal(z_score(sample).query(e), z_score(None).query(e))
    assert (z_score(5, name="mine").name, z_score(5, name="mine").label) == ("mine", "mine")


@pytest.mark.parametrize(("step", "told_apart"), [(1e-5, True), (4e-7, True), (3e-8, False)])
def test_z_score_of_small_differences_and_of_rounding(step: float, told_apart: bool) -> None:
    values = (0.3 + step * np.arange(9.0)[::-1]).astype(np.float32)
    e = evidence_of(Matches(np.zeros((1, 1), int), values[:1][None]), similarity_matrix=values[None])
    wide = values.astype(float)
    expected = (wide[0] - wide.mean()) / wide.std() if told_apart else 0.0
    assert score_named("z-score").query(e)[0] == pytest.approx(-expected, rel=0.01)


def test_the_z_score_asks_the_references_for_its_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """A map stores its sample, so that all processes compare with the same references."""
    e, rows = world(references=30), np.array([1, 4, 9, 20])
    monkeypatch.setattr(type(e.references), "sample", lambda _: rows)
    matrix = (e.queries.embeddings.descriptor @ e.references.embeddings.descriptor.T).astype(float)
    values = matrix[:, rows]
    expected = -(e.cosines[:, 0] - values.mean(axis=1)) / values.std(axis=1)
    np.testing.assert_allclose(z_score().query(e), expected, rtol=1e-4)
