"""Scores of one pair or one match list against their formulas, written out pair by pair."""

from __future__ import annotations

import math
import statistics

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.types import Embeddings, Matches
from kappaplace.uncertainty import score_named
from kappaplace.uncertainty.base import Evidence
from tests.uncertainty.helpers import evidence_of, world


def listed(*similarities: list[float]) -> Evidence:
    """Matches with these similarities, and nothing else."""
    s = np.array(similarities, np.float32)
    return evidence_of(Matches(np.tile(np.arange(s.shape[1]), (len(s), 1)), s))


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_kappaplace_is_the_inverse_resultant(seed: int) -> None:
    e = world(seed)
    ours = score_named("kappaplace").match(e)
    for i, row in enumerate(e.matches.indices):
        for j, r in enumerate(row):
            resultant = float(e.queries.embeddings.kappa[i]) * e.queries.embeddings.descriptor[i].astype(
                float
            ) + float(e.references.embeddings.kappa[r]) * e.references.embeddings.descriptor[r].astype(float)
            assert ours[i, j] == pytest.approx(1 / np.linalg.norm(resultant), rel=1e-4)
    np.testing.assert_array_equal(score_named("kappaplace").query(e), ours[:, 0])


def test_more_evidence_means_less_uncertainty_at_equal_similarity() -> None:
    matches = Matches(np.array([[0], [1]]), np.full((2, 1), 0.8, np.float32))
    z = np.eye(2, dtype=np.float32)
    e = evidence_of(matches, Embeddings(z, np.array([5.0, 50.0])), Embeddings(z, np.array([5.0, 50.0])))
    unsure, sure = score_named("kappaplace").query(e)
    assert sure < unsure / 9


def test_l2_is_the_distance_and_cosine_half_its_square() -> None:
    e = world()
    l2, cosine = (score_named(name).match(e) for name in ("l2", "cosine"))
    for i, row in enumerate(e.matches.indices):
        for j, r in enumerate(row):
            distance = math.dist(e.queries.embeddings.descriptor[i], e.references.embeddings.descriptor[r])
            assert l2[i, j] == pytest.approx(distance, abs=1e-6)
            assert cosine[i, j] == pytest.approx(distance**2 / 2, abs=1e-6)
    np.testing.assert_array_equal(score_named("cosine").query(e), cosine[:, 0])


def test_pa_is_the_ratio_of_two_distances_and_one_where_both_vanish() -> None:
    e = world()
    distances = score_named("l2").match(e)
    np.testing.assert_allclose(score_named("pa").query(e), distances[:, 0] / distances[:, 1])
    assert score_named("pa").query(listed([1.0, 1.0])).tolist() == [1.0]
    with pytest.raises(KappaPlaceError, match="at least 2 matches"):
        score_named("pa").query(listed([1.0]))


def test_inverse_kappa_is_floored_at_one() -> None:
    e = evidence_of(Matches(np.zeros((2, 1), int), np.ones((2, 1))), Embeddings(None, np.array([0.2, 4.0])))
    assert score_named("inverse-kappa").query(e).tolist() == [1.0, 0.25]


def test_variance_is_what_the_model_says() -> None:
    e = world()
    np.testing.assert_array_equal(
        score_named("variance").query(e), e.queries.embeddings.variance.astype(np.float64)
    )


def overlap_on_the_sphere(dim: int, kappas: tuple[float, float], angle: float) -> float:
    """∫ of the product of two vMF densities in 2 or 3 dimensions by quadrature."""
    first, second = mpmath.mpf(kappas[0]), mpmath.mpf(kappas[1])

    def normalizer(kappa: mpmath.mpf) -> mpmath.mpf:
        v = mpmath.mpf(dim) / 2 - 1
        return kappa**v / ((2 * mpmath.pi) ** (mpmath.mpf(dim) / 2) * mpmath.besseli(v, kappa))

    def in_plane(t: mpmath.mpf) -> mpmath.mpf:
        return mpmath.exp(first * mpmath.cos(t) + second * mpmath.cos(t - angle))

    def on_ball(t: mpmath.mpf) -> mpmath.mpf:
        # Around the first mean: the second's cosine is cos t·cos a + sin t·sin a·cos φ; φ gives 2π·I₀.
        turn = 2 * mpmath.pi * mpmath.besseli(0, second * mpmath.sin(t) * mpmath.sin(angle))
        return mpmath.sin(t) * turn * mpmath.exp((first + second * mpmath.cos(angle)) * mpmath.cos(t))

    if dim == 2:
        integral = mpmath.quad(in_plane, mpmath.linspace(-mpmath.pi, mpmath.pi, 9))
    else:
        integral = mpmath.quad(on_ball, mpmath.linspace(0, mpmath.pi, 5))
    return float(normalizer(first) * normalizer(second) * integral)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("kappas", [(0.5, 2.0), (3.0, 3.0), (20.0, 7.0)])
@pytest.mark.parametrize("angle", [0.0, 1.0, 3.0])
def test_expected_likelihood_is_the_integral(dim: int, kappas: tuple[float, float], angle: float) -> None:
    z = np.zeros((1, dim))
    e = evidence_of(
        Matches(np.array([[0]]), np.array([[math.cos(angle)]])),
        Embeddings(z, np.array(kappas[:1])),
        Embeddings(z, np.array(kappas[1:])),
    )
    (ours,) = score_named("expected-likelihood").query(e)
    assert ours == pytest.approx(-math.log(overlap_on_the_sphere(dim, kappas, angle)), abs=1e-9)


def test_expected_likelihood_in_high_dimension() -> None:
    mpmath.mp.dps = 40
    d, a, b, cosine = 512, mpmath.mpf(700), mpmath.mpf(300), mpmath.mpf("0.25")

    def log_c(kappa: mpmath.mpf) -> mpmath.mpf:
        v = mpmath.mpf(d) / 2 - 1
        return (
            v * mpmath.log(kappa) - d * mpmath.log(2 * mpmath.pi) / 2 - mpmath.log(mpmath.besseli(v, kappa))
        )

    expected = log_c(mpmath.sqrt(a * a + b * b + 2 * a * b * cosine)) - log_c(a) - log_c(b)
    mpmath.mp.dps = 15
    z = np.zeros((1, d))
    e = evidence_of(
        Matches(np.array([[0]]), np.array([[0.25]], np.float32)),
        Embeddings(z, np.array([700.0])),
        Embeddings(z, np.array([300.0])),
    )
    assert score_named("expected-likelihood").query(e)[0] == pytest.approx(float(expected), rel=1e-10)


def test_expected_likelihood_of_queries_is_that_of_their_top_match() -> None:
    e = world()
    score = score_named("expected-likelihood")
    np.testing.assert_array_equal(score.query(e), score.match(e)[:, 0])


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=12))
def test_tld_readings(similarities: list[float]) -> None:
    s = sorted(similarities, reverse=True)
    e = listed(s)
    deviation, gap = statistics.pstdev(s[1:]), s[0] - statistics.fmean(s[1:])
    distribution = 1.0 if deviation + gap == 0 else deviation / (deviation + gap)
    ratio = 1.0 if s[0] == -1 else statistics.fmean((1 + x) / (1 + s[0]) for x in s[1:])
    assert score_named("tld-distribution").query(e)[0] == pytest.approx(distribution, abs=1e-6)
    assert score_named("tld-ratio-spread").query(e)[0] == pytest.approx(ratio, abs=1e-6)
    assert score_named("tld-statistical").query(e)[0] == pytest.approx(
        math.sqrt(max(distribution * ratio, 0)), abs=1e-3
    )


def test_tld_of_matches_that_point_away() -> None:
    e = listed([-0.5, -0.75, -1.0], [-1.0, -1.0, -1.0])
    np.testing.assert_allclose(score_named("tld-ratio-spread").query(e), [0.25, 1.0])  # 0.125/0.5
    spread, gap = 0.125, 0.375
    np.testing.assert_allclose(score_named("tld-distribution").query(e), [spread / (spread + gap), 1.0])
    np.testing.assert_allclose(score_named("tld-statistical").query(e), [0.25, 1.0])


def test_tld_ties_and_short_lists() -> None:
    for name in ("tld-distribution", "tld-ratio-spread", "tld-statistical"):
        assert score_named(name).query(listed([0.3] * 5, [-1.0] * 5)).tolist() == [1.0, 1.0]
    assert score_named("tld-ratio-spread").query(listed([0.5, 0.2]))[0] == pytest.approx(0.8)
    with pytest.raises(KappaPlaceError, match="at least 3 matches"):
        score_named("tld-statistical").query(listed([0.5, 0.2]))


def test_cosines_beyond_one_by_rounding_count_as_one() -> None:
    """Two equal directions with κ of 3 and 4 add up to 7, and opposite ones to 1."""
    unit = np.eye(8, dtype=np.float32)[:1]
    query, reference = (Embeddings(unit, np.array([kappa], np.float32)) for kappa in (3, 4))
    for cosine, resultant in ((1.01, 7), (-1.01, 1)):
        matches = Matches(np.array([[0]]), np.array([[cosine]], np.float32))
        assert score_named("kappaplace").query(evidence_of(matches, query, reference))[0] == pytest.approx(
            1 / resultant, rel=1e-6
        )
