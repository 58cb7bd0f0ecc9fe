"""Every score over the whole registry: shapes, needs, and the sentence for what is missing."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from kappaplace.errors import KappaPlaceError
from kappaplace.types import Embeddings, Matches
from kappaplace.uncertainty import SCORES, VARIANTS, available, list_scores, score_named, sue
from kappaplace.uncertainty.base import Evidence
from tests.uncertainty.helpers import changed, evidence_of, world

FROM_THE_LIST = ["l2", "cosine", "pa", "tld-distribution", "tld-ratio-spread", "tld-statistical"]


def full(**rest: object) -> Evidence:
    rng = np.random.default_rng(0)
    images = list(rng.integers(0, 255, (15, 40, 40), dtype=np.uint8))
    return world(query_images=images[:6], reference_images=images[6:], patch_maps=cells, **rest)


def cells(images: Sequence[np.ndarray]) -> torch.Tensor:
    """A stand-in for an encoder's maps: grey values of 5×5 blocks."""
    pixels = np.stack(images).astype(np.float32).reshape(len(images), 5, 8, 5, 8)
    return torch.from_numpy(pixels.transpose(0, 2, 4, 1, 3).reshape(len(images), 64, 5, 5).copy())


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
def test_every_score_has_one_number_a_query_and_says_what_it_needs(score) -> None:
    e = full()
    assert score.query(e).shape == (6,)
    assert np.isfinite(score.query(e)).all()
    assert score.query(e).dtype == np.float64
    if score.match is not None:
        pairs = score.match(e)
        assert pairs.shape == (6, 4)
        np.testing.assert_array_equal(pairs[:, 0], score.query(e))
    bare = evidence_of(e.matches)
    if score.name in FROM_THE_LIST:
        assert score.reason(bare) is None
        assert np.isfinite(score.query(bare)).all()
        return
    reason = score.reason(bare)
    assert reason.endswith(".")
    assert ";" in reason or ". " in reason  # what, and what to do
    with pytest.raises(KappaPlaceError) as error:
        score.query(bare)
    assert str(error.value) == reason


def test_all_is_available_where_all_is_given() -> None:
    assert available(SCORES.values(), full()) == (list(SCORES.values()), {})


def test_what_is_missing_is_left_out_with_a_reason() -> None:
    e = full()
    usable, left_out = available(SCORES.values(), evidence_of(e.matches))
    assert [score.name for score in usable] == FROM_THE_LIST
    assert list(left_out) == [name for name in SCORES if name not in FROM_THE_LIST]
    assert "positions of the references" in left_out["sue"]
    assert "kappa head" in left_out["kappaplace"]
    assert "variance" in left_out["variance"]
    assert "places of the references" in left_out["margin"]
    assert "images" in left_out["geometric"]
    one = evidence_of(Matches(e.matches.indices[:, :1], e.matches.similarities[:, :1]))
    assert [score.name for score in available(SCORES.values(), one)[0]] == ["l2", "cosine"]


def test_kappa_of_the_references_is_asked_for_too() -> None:
    e = world()
    half = changed(e, reference=Embeddings(e.references.embeddings.descriptor))
    assert "κ of the references" in score_named("kappaplace").reason(half)
    assert score_named("inverse-kappa").reason(half) is None
    bare = changed(half, query=Embeddings(e.queries.embeddings.descriptor))
    assert [name for name, score in SCORES.items() if "κ" in (score.reason(bare) or "")] == [
        "inverse-kappa",
        "kappaplace",
        "expected-likelihood",
    ]


def test_a_similarity_matrix_gives_margin_and_z_score_but_not_aliasing() -> None:
    e = world()
    matrix = e.queries.embeddings.descriptor @ e.references.embeddings.descriptor.T
    bare = evidence_of(e.matches, similarity_matrix=matrix, near=lambda a, b: np.equal(a, b))
    usable, left_out = available([score_named(n) for n in ("margin", "aliasing", "z-score")], bare)
    assert [score.name for score in usable] == ["margin", "z-score"]
    assert "more than a similarity matrix" in left_out["aliasing"]


def test_without_opencv_geometric_verification_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    assert 'the extra "video"' in available(SCORES.values(), full())[1]["geometric"]


def test_an_unposed_match_leaves_sue_out() -> None:
    e = world()
    positions = e.references.positions.copy()
    positions[e.matches.indices[2, 1]] = np.nan
    assert "without one" in score_named("sue").reason(changed(e, reference_positions=positions))


@pytest.mark.parametrize("axis", [0, 1])
def test_half_a_position_is_none(axis: int) -> None:
    e = world()
    positions = e.references.positions.copy()
    lost = e.matches.indices[2, 1]
    positions[lost, axis] = np.nan
    affected = sum(lost in row for row in e.matches.indices.tolist())
    with pytest.raises(KappaPlaceError, match=f"all matches, but {affected} queries have"):
        _ = changed(e, reference_positions=positions).match_positions
    unseen = np.append(positions, [[np.nan, np.nan]], axis=0)
    unseen[lost] = 0.0
    assert changed(e, reference_positions=unseen).match_positions.shape == (
        6,
        4,
        2,
    )  # never retrieved: no harm


def test_one_sided_scores_are_those_with_one_tail() -> None:
    """Distances, spreads and shares of disagreement start at zero; ECE clamps their upper tail only."""
    one_sided = {name for name, score in SCORES.items() if score.one_sided}
    assert one_sided == {"l2", "cosine", "pa", "sue", "log-sue", "patches", "geometric"}


def test_evidence_needs_exactly_what_the_matches_speak_of() -> None:
    matches = Matches(np.array([[0, 4], [2, 1]]), np.zeros((2, 2)))
    for what in ("reference_images", "reference_positions"):
        evidence_of(matches, **{what: np.zeros((5, 2))})
        evidence_of(matches, **{what: np.zeros((6, 2))})
        with pytest.raises(KappaPlaceError, match="4 references but matches up to row 4"):
            evidence_of(matches, **{what: np.zeros((4, 2))})
    evidence_of(matches, query_images=["a", "b"])
    for images in (["a"], ["a", "b", "c"]):
        with pytest.raises(KappaPlaceError, match="query images but matches for 2 queries"):
            evidence_of(matches, query_images=images)
    evidence_of(matches, similarity_matrix=np.zeros((2, 5)))
    for shape in ((2, 4), (1, 5), (3, 5)):
        with pytest.raises(KappaPlaceError, match="with matches up to row 4"):
            evidence_of(matches, similarity_matrix=np.zeros(shape))


def test_no_matches_speak_of_no_reference() -> None:
    evidence_of(Matches(np.zeros((0, 3), int), np.zeros((0, 3))), similarity_matrix=np.zeros((0, 0)))


def test_the_length_of_descriptors_comes_from_either_side() -> None:
    z = np.zeros((2, 5), np.float32)
    matches = Matches(np.zeros((2, 1), int), np.zeros((2, 1)))
    assert evidence_of(matches, query=Embeddings(z)).dim == 5
    assert evidence_of(matches, query=Embeddings(None, np.ones(2)), reference=Embeddings(z)).dim == 5


def test_similarities_beyond_one_are_rounding_and_no_distance() -> None:
    e = evidence_of(Matches(np.array([[0, 1]]), np.array([[1.0 + 1e-6, 0.5]])))
    assert e.distances[0].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"reference_positions": np.zeros((9, 3))}, "must be R×2"),
        ({"reference_positions": np.zeros((0, 2))}, "0 references but"),
        ({"query_images": ["a.jpg"]}, "query images"),
        ({"reference_images": []}, "0 references but"),
        ({"similarity_matrix": np.zeros((5, 9))}, "does not fit"),
        ({"similarity_matrix": np.zeros((6, 1))}, "does not fit"),
    ],
)
def test_evidence_that_does_not_fit_the_matches_is_refused(wrong: dict, sentence: str) -> None:
    with pytest.raises(KappaPlaceError, match=sentence):
        changed(world(), **wrong)


def test_unknown_score_names_the_known_ones() -> None:
    with pytest.raises(KappaPlaceError, match=r"Choose from: l2, cosine, pa, .*kappaplace"):
        score_named("suee")


def test_no_queries_give_no_scores() -> None:
    e = world(queries=0)
    for name in (
        *FROM_THE_LIST,
        "sue",
        "log-sue",
        "kappaplace",
        "expected-likelihood",
        "margin",
        "aliasing",
        "z-score",
    ):
        assert score_named(name).query(e).shape == (0,)


def test_scores_of_other_projects_are_used_only_on_request() -> None:
    e = full()
    assert not set(VARIANTS) & set(list_scores())
    for name, expected in (
        ("sue-one-sided", sue(cap="one-sided")),
        ("log-sue-one-sided", sue(cap="one-sided", log=True)),
        ("sue-squared", sue(distance="squared")),
        ("variance-upper", SCORES["variance"]),
    ):
        assert score_named(name).name == name
        np.testing.assert_array_equal(score_named(name).query(e), expected.query(e))
        assert score_named(name).one_sided
    assert not SCORES["variance"].one_sided
    with pytest.raises(KappaPlaceError, match="Variants of other projects are sue-one-sided, "):
        score_named("sue-both-sided")
