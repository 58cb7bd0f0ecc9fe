"""Scores against their formulas, written out pair by pair."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.exact import search
from kappaplace.types import Embeddings, Matches
from kappaplace.uncertainty.base import Evidence
from kappaplace.uncertainty.registry import SCORES, score_named


def evidence(seed: int = 0, queries: int = 6, references: int = 9, k: int = 4) -> Evidence:
    rng = np.random.default_rng(seed)

    def embeddings(rows: int) -> Embeddings:
        z = rng.standard_normal((rows, 8)).astype(np.float32)
        z /= np.linalg.norm(z, axis=1, keepdims=True)
        return Embeddings(z, rng.lognormal(2, 2, rows).astype(np.float32))

    q, r = embeddings(queries), embeddings(references)
    return Evidence(search(q.descriptor, r.descriptor, k), q, r)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_kappaplace_is_the_inverse_resultant(seed: int) -> None:
    e = evidence(seed)
    ours = score_named("kappaplace").match(e)
    for i, row in enumerate(e.matches.indices):
        for j, r in enumerate(row):
            resultant = float(e.query.kappa[i]) * e.query.descriptor[i].astype(float) + float(
                e.reference.kappa[r]
            ) * e.reference.descriptor[r].astype(float)
            assert ours[i, j] == pytest.approx(1 / np.linalg.norm(resultant), rel=1e-4)
    np.testing.assert_array_equal(score_named("kappaplace").query(e), ours[:, 0])


def test_more_evidence_means_less_uncertainty_at_equal_similarity() -> None:
    matches = Matches(np.array([[0], [1]]), np.full((2, 1), 0.8, np.float32))
    z = np.eye(2, dtype=np.float32)
    e = Evidence(matches, Embeddings(z, np.array([5.0, 50.0])), Embeddings(z, np.array([5.0, 50.0])))
    unsure, sure = score_named("kappaplace").query(e)
    assert sure < unsure / 9


def test_l2_is_the_distance() -> None:
    e = evidence()
    ours = score_named("l2").match(e)
    for i, row in enumerate(e.matches.indices):
        for j, r in enumerate(row):
            assert ours[i, j] == pytest.approx(
                math.dist(e.query.descriptor[i], e.reference.descriptor[r]), abs=1e-6
            )


def test_pa_is_the_ratio_of_two_distances_and_one_where_both_vanish() -> None:
    e = evidence()
    distances = score_named("l2").match(e)
    np.testing.assert_allclose(score_named("pa").query(e), distances[:, 0] / distances[:, 1])
    same = Evidence(Matches(np.array([[0, 1]]), np.ones((1, 2), np.float32)))
    assert score_named("pa").query(same).tolist() == [1.0]
    with pytest.raises(KappaPlaceError, match="at least two"):
        score_named("pa").query(Evidence(Matches(np.array([[0]]), np.ones((1, 1), np.float32))))


def test_inverse_kappa_is_floored_at_one() -> None:
    e = Evidence(Matches(np.zeros((2, 1), int), np.ones((2, 1))), Embeddings(None, np.array([0.2, 4.0])))
    assert score_named("inverse-kappa").query(e).tolist() == [1.0, 0.25]


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
def test_every_score_has_one_number_a_query_and_says_what_it_needs(score) -> None:
    e = evidence()
    assert score.query(e).shape == (6,)
    if score.match is not None:
        assert score.match(e).shape == (6, 4)
    bare = Evidence(e.matches)
    if score.needs_kappa:
        with pytest.raises(KappaPlaceError, match="use a model with a kappa head"):
            score.query(bare)
    else:
        assert np.isfinite(score.query(bare)).all()


def test_unknown_score_names_the_known_ones() -> None:
    with pytest.raises(KappaPlaceError, match="l2, pa, inverse-kappa, kappaplace"):
        score_named("sue")
