"""Agreement of feature cells, against loops; and the two scores made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval import agreement
from kappaplace.retrieval.patch_codes import LocalFeatures
from kappaplace.retrieval.patches import patch_agreement, patch_matches
from kappaplace.types import Matches
from kappaplace.uncertainty.base import Evidence
from kappaplace.uncertainty.scores import PATCH_MARGIN, PATCHES
from tests.uncertainty.helpers import evidence_of


def by_hand(a: np.ndarray, b: np.ndarray) -> float:
    """One pair of C×H×W maps, cell by cell."""
    channels, height, width = a.shape
    inside = {(y, x) for y in range(height) for x in range(width)}

    def cells(x: np.ndarray) -> np.ndarray:
        flat = x.reshape(channels, -1).T.astype(np.float64)
        flat = flat - flat.mean(0)
        return flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)

    cosine = (cells(a) @ cells(b).T).reshape(height, width, height, width)

    def together(p: tuple[int, int], q: tuple[int, int]) -> float:
        steps = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
        ends = [((p[0] + d, p[1] + r), (q[0] + d, q[1] + r)) for d, r in steps]
        return sum(float(cosine[u + v]) for u, v in ends if u in inside and v in inside)

    similar = {(p, q): together(p, q) for p in inside for q in inside}
    forth = {p: max(inside, key=lambda q, p=p: similar[p, q]) for p in inside}
    back = {q: max(inside, key=lambda p, q=q: similar[p, q]) for q in inside}
    votes = [(q[0] - p[0], q[1] - p[1], max(similar[p, q], 0)) for p, q in forth.items() if back[q] == p]
    weight = {0: 1.0, 1: 2 / 3, 2: 1 / 3}
    best = 0.0
    for down in range(-height + 1, height):
        for right in range(-width + 1, width):
            near = (weight.get(abs(y - down), 0) * weight.get(abs(x - right), 0) * s for y, x, s in votes)
            best = max(best, sum(near))
    neighbors = sum((p[0] + d, p[1] + r) in inside for p in inside for d in (-1, 0, 1) for r in (-1, 0, 1))
    return best / neighbors


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(1, 5))
def test_agreement_is_that_of_loops(seed: int, height: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, 3, 5, height, width)).astype(np.float32)
    found = patch_agreement(torch.from_numpy(a), torch.from_numpy(b))
    wanted = [by_hand(x, y) for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_a_gpu_finds_the_same_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code for a GPU runs on any device."""
    torch.manual_seed(0)
    a, b = torch.randn(2, 3, 7, 5, 6)
    one, other = LocalFeatures.of(a), LocalFeatures.of(b)
    wanted = agreement.corresponding_cells(one.cells, other.cells, (5, 6))
    monkeypatch.setattr(agreement, "_match_on_cpu", agreement._match_on_gpu)
    found = agreement.corresponding_cells(one.cells, other.cells, (5, 6))
    np.testing.assert_array_equal(found.partner[found.weight > 0], wanted.partner[wanted.weight > 0])
    np.testing.assert_allclose(found.weight, wanted.weight, atol=1e-6)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 6), st.integers(2, 6))
def test_an_image_agrees_fully_with_itself(height: int, width: int) -> None:
    torch.manual_seed(height)
    image = torch.randn(1, 64, height, width)
    assert float(patch_agreement(image, image)) == pytest.approx(1, abs=1e-5)


def test_a_shifted_view_agrees_where_it_overlaps() -> None:
    torch.manual_seed(0)
    wide = torch.randn(1, 16, 8, 12)
    left, right = wide[..., :8], wide[..., 3:11]
    assert float(patch_agreement(left, right)) > 0.97 * 13 * 22 / 22**2  # the means of both views differ
    assert float(patch_agreement(left, torch.randn(1, 16, 8, 8))) < 0.3  # chance


def evidence(maps: dict[str, torch.Tensor], **changes: Any) -> Evidence:
    """Two queries, three references of which the first two are one place."""
    indices = np.array([[0, 1, 2], [2, 1, 0]])
    asked: list[Sequence[Any]] = []

    def make(images: Sequence[Any]) -> torch.Tensor:
        asked.append(images)
        return torch.stack([maps[image] for image in images])

    given = {
        "query_images": ["q0", "q1"],
        "reference_images": ["r0", "r1", "r2"],
        "near": lambda a, b: np.array([0, 0, 1])[a] == np.array([0, 0, 1])[b],
        "patch_maps": make,
    }
    return evidence_of(Matches(indices, np.array([[0.9, 0.8, 0.7]] * 2)), **(given | changes))


@pytest.fixture
def maps() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    made = {name: torch.randn(8, 6, 6) for name in ("r0", "r1", "r2")}
    return made | {"q0": made["r0"] + 0.1 * torch.randn(8, 6, 6), "q1": torch.randn(8, 6, 6)}


def test_patches_of_query_and_matches(maps: dict[str, torch.Tensor]) -> None:
    found = PATCHES.match(evidence(maps))  # type: ignore[misc]
    for query, row in enumerate([[0, 1, 2], [2, 1, 0]]):
        for rank, reference in enumerate(row):
            pair = maps[f"q{query}"][None], maps[f"r{reference}"][None]
            assert found[query, rank] == pytest.approx(1 - float(patch_agreement(*pair)))
    np.testing.assert_allclose(PATCHES.query(evidence(maps)), found[:, 0])
    assert found[0, 0] < 0.2 < found[1, 0]


def test_margin_asks_the_best_match_of_another_place(maps: dict[str, torch.Tensor]) -> None:
    agreement = 1 - PATCHES.match(evidence(maps))  # type: ignore[misc]
    # r0 and r1 are one place, r2 is another: by hand, query by query.
    wanted = [agreement[0, 2] - agreement[0, 0], max(agreement[1, 1], agreement[1, 2]) - agreement[1, 0]]
    np.testing.assert_allclose(PATCH_MARGIN.query(evidence(maps)), wanted)


def test_what_is_missing_is_told(maps: dict[str, torch.Tensor]) -> None:
    with pytest.raises(KappaPlaceError, match="needs feature maps"):
        PATCHES.query(evidence(maps, patch_maps=None))
    with pytest.raises(KappaPlaceError, match="needs the images"):
        PATCHES.query(evidence(maps, query_images=None))


def crowd(queries: int = 20, references: int = 14, k: int = 12) -> tuple[Evidence, list[int], np.ndarray]:
    """More queries than are taken at a time and more matches than compete, how many maps were asked for."""
    rng = np.random.default_rng(4)
    made = torch.from_numpy(rng.normal(size=(queries + references, 6, 4, 5)).astype(np.float32))
    indices = np.stack([rng.permutation(references)[:k] for _ in range(queries)])
    made[queries + indices[0, 10]] = made[0]  # the eleventh match of the first query is the query itself
    asked: list[int] = []

    def make(images: Sequence[Any]) -> torch.Tensor:
        asked.append(len(images))
        return made[list(images)]

    e = evidence_of(
        Matches(indices, np.zeros((queries, k))),
        query_images=list(range(queries)),
        reference_images=list(range(queries, queries + references)),
        near=lambda a, b: np.equal(a, b),
        patch_maps=make,
    )
    wanted = [
        [by_hand(made[q].numpy(), made[queries + r].numpy()) for r in indices[q]] for q in range(queries)
    ]
    return e, asked, np.array(wanted)


def test_many_queries_are_compared_in_blocks_and_once() -> None:
    e, asked, wanted = crowd()
    np.testing.assert_allclose(PATCHES.match(e), 1 - wanted, atol=1e-6)  # type: ignore[misc]
    maps = sum(asked)
    np.testing.assert_allclose(PATCHES.query(e), 1 - wanted[:, 0], atol=1e-6)
    assert sum(asked) == maps  # known by then
    assert maps < 20 + 2 * 14  # two blocks of queries share the maps of their matches


def test_a_short_list_is_compared_once() -> None:
    e, asked, wanted = crowd(k=11)
    short = evidence_of(
        Matches(e.matches.indices[:, :3], e.matches.similarities[:, :3]),
        query_images=e.queries.images,
        reference_images=e.references.paths,
        near=e.references.near,
        patch_maps=e.queries.patch_maps,
    )
    np.testing.assert_allclose(PATCHES.query(short), 1 - wanted[:, 0], atol=1e-6)
    maps = sum(asked)
    for _ in range(2):
        np.testing.assert_allclose(
            PATCH_MARGIN.query(short), wanted[:, 1:3].max(axis=1) - wanted[:, 0], atol=1e-6
        )
        np.testing.assert_allclose(PATCHES.query(short), 1 - wanted[:, 0], atol=1e-6)
    assert sum(asked) == maps


def test_only_the_first_ten_matches_compete() -> None:
    e, _, wanted = crowd()
    np.testing.assert_allclose(PATCH_MARGIN.query(e), wanted[:, 1:10].max(axis=1) - wanted[:, 0], atol=1e-6)
    assert wanted[0, 10] > 0.999 > wanted[0, 1:10].max()  # it would have won


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(2, 6))
def test_the_matches_behind_an_agreement_add_up_to_it(seed: int, height: int, width: int) -> None:
    torch.manual_seed(seed)
    a = torch.randn(1, 5, height, width)
    b = torch.roll(a, 1, dims=3) + 0.5 * torch.randn(1, 5, height, width)
    matches = patch_matches(LocalFeatures.of(a), LocalFeatures.of(b))
    assert matches.weights.sum() == pytest.approx(float(patch_agreement(a, b)), abs=1e-6)
    assert matches.query.shape == matches.reference.shape == (len(matches.weights), 2)


def test_matches_of_a_shifted_view_connect_the_same_objects() -> None:
    torch.manual_seed(0)
    wide = torch.randn(1, 16, 8, 12)
    matches = patch_matches(LocalFeatures.of(wide[..., :8]), LocalFeatures.of(wide[..., 3:11]))
    inside = matches.query[:, 0] > 3 / 8
    assert inside.sum() == 40
    shift = matches.query - matches.reference
    np.testing.assert_allclose(shift[inside], np.tile([3 / 8, 0], (40, 1)), atol=1e-12)
    assert matches.weights[inside].sum() > 0.9 * matches.weights.sum()
    assert matches.query.min() >= 1 / 16
    assert matches.query.max() <= 15 / 16


def test_matches_of_several_images_are_an_error() -> None:
    two = LocalFeatures.of(torch.randn(2, 4, 3, 3))
    with pytest.raises(KappaPlaceError, match="one query and one reference"):
        patch_matches(two, two)
