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
from kappaplace.retrieval.patches import patch_agreement
from kappaplace.types import Matches
from kappaplace.uncertainty.base import Evidence
from kappaplace.uncertainty.scores import PATCH_MARGIN, PATCHES
from tests.uncertainty.helpers import evidence_of


def by_hand(a: np.ndarray, b: np.ndarray, tolerance: int) -> float:
    """One pair of C×H×W maps, cell by cell."""
    channels, height, width = a.shape

    def cells(x: np.ndarray) -> np.ndarray:
        flat = x.reshape(channels, -1).T.astype(np.float64)
        flat = flat - flat.mean(0)
        return flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)

    similarity = cells(a) @ cells(b).T
    shifts = []
    for i in range(height * width):
        j = int(similarity[i].argmax())
        if int(similarity[:, j].argmax()) == i:
            shifts.append((j // width - i // width, j % width - i % width))
    best = 0
    for down in range(-height + 1, height):
        for right in range(-width + 1, width):
            best = max(
                best, sum(abs(y - down) <= tolerance and abs(x - right) <= tolerance for y, x in shifts)
            )
    return best / (height * width)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(2, 6), st.integers(0, 2))
def test_agreement_is_that_of_loops(seed: int, height: int, width: int, tolerance: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, 3, 5, height, width)).astype(np.float32)
    found = patch_agreement(torch.from_numpy(a), torch.from_numpy(b), tolerance)
    wanted = [by_hand(x, y, tolerance) for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_a_shifted_view_agrees_where_it_overlaps() -> None:
    torch.manual_seed(0)
    wide = torch.randn(1, 16, 8, 12)
    left, right = wide[..., :8], wide[..., 3:11]
    assert float(patch_agreement(left, right)) >= 5 * 8 / 64
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
        [by_hand(made[q].numpy(), made[queries + r].numpy(), 2) for r in indices[q]] for q in range(queries)
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
    assert wanted[0, 10] == 1.0 > wanted[0, 1:10].max()  # it would have won
