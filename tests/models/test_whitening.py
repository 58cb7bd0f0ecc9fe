"""Whitening, re-derived from the covariance of the descriptors, and as a part of a model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.models.aggregation import Whitening, learn_whitening
from kappaplace.models.frozen import FrozenEncoder
from kappaplace.models.place_model import PlaceModel


def units(count: int, dim: int, seed: int = 0) -> NDArray[np.float64]:
    """Unit vectors that vary far more in some directions than in others."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, dim)) * np.geomspace(3, 0.1, dim) + rng.normal(size=dim)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def by_hand(rows: NDArray[np.float64], others: NDArray[np.float64], dim: int, shrinkage: float) -> NDArray:
    """Return cosines of whitened rows and others, from the full decomposition in double precision."""
    center = sum(rows) / len(rows)
    covariance = np.zeros((rows.shape[1],) * 2)
    for row in rows:
        covariance += np.outer(row - center, row - center) / (len(rows) - 1)
    values, vectors = np.linalg.eigh(covariance)
    kept = values[::-1][:dim]
    spread = np.sqrt(kept + shrinkage * sum(kept) / dim)
    projected = []
    for each in (rows, others):
        z = (each - center) @ vectors[:, ::-1][:, :dim] / spread
        projected.append(z / np.linalg.norm(z, axis=1, keepdims=True))
    return projected[0] @ projected[1].T


@settings(max_examples=25, deadline=None)
@given(
    st.integers(12, 60),
    st.integers(9, 40),
    st.integers(2, 8),
    st.sampled_from([0.0, 0.5, 1.0, 1e6]),
    st.integers(0, 99),
)
def test_cosines_are_those_of_the_decomposition(
    count: int, dim: int, target: int, shrinkage: float, seed: int
) -> None:
    rows, others = units(count, dim, seed), units(7, dim, seed + 1000)
    whitening = learn_whitening(rows, target, shrinkage=shrinkage)
    ours = whitening.of(rows) @ whitening.of(others).T
    np.testing.assert_allclose(ours, by_hand(rows, others, target, shrinkage), atol=5e-3)
    np.testing.assert_allclose(np.linalg.norm(whitening.of(others), axis=1), 1, atol=1e-5)
    assert (whitening.inputs, whitening.dim) == (dim, target)


@pytest.mark.parametrize("shape", [(400, 24), (20, 24)])
def test_without_shrinkage_all_directions_get_the_same_spread(shape: tuple[int, int]) -> None:
    rows = units(*shape)
    weights = learn_whitening(rows, 6, shrinkage=0).to_array().astype(np.float64)
    spread = np.cov((rows @ weights[:-1] + weights[-1]).T)
    np.testing.assert_allclose(spread, np.eye(6), atol=2e-2)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 99))
def test_a_rotation_of_the_descriptors_changes_nothing(seed: int) -> None:
    rows = units(50, 12, seed)
    rotation = np.linalg.qr(np.random.default_rng(seed).normal(size=(12, 12)))[0]
    one, other = learn_whitening(rows, 5), learn_whitening(rows @ rotation, 5)
    np.testing.assert_allclose(
        one.of(rows) @ one.of(rows).T, other.of(rows @ rotation) @ other.of(rows @ rotation).T, atol=5e-3
    )


@pytest.mark.parametrize(
    ("count", "dim", "message"),
    [
        (50, 12, r"fewer dimensions than the model \(12\) and at least 2, got 12.*--dim"),
        (50, 1, "at least 2, got 1"),
        (6, 6, "needs more than 6 images, got 6. Pass a smaller --dim"),
    ],
)
def test_what_cannot_be_whitened_is_one_message(count: int, dim: int, message: str) -> None:
    with pytest.raises(KappaPlaceError, match=message):
        learn_whitening(units(count, 12), dim)


def test_copies_do_not_count_as_images() -> None:
    with pytest.raises(KappaPlaceError, match="vary in fewer than 6 directions"):
        learn_whitening(np.repeat(units(4, 12), 5, axis=0), 6)


@pytest.mark.parametrize("array", [torch.zeros(3), torch.zeros(4, 9), torch.full((9, 3), torch.nan)])
def test_another_array_is_not_a_whitening(array: torch.Tensor) -> None:
    with pytest.raises(KappaPlaceError, match="weights of a whitening must have shape"):
        Whitening(array)


def models() -> list[PlaceModel | FrozenEncoder]:
    torch.manual_seed(0)
    size = Preprocessing(64, "exact")
    encoder = nn.Sequential(nn.Conv2d(3, 16, 8, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return [
        PlaceModel.create("resnet_tiny", 32, preprocessing=size).eval(),
        FrozenEncoder(encoder, layer="0", preprocessing=size).eval(),
        FrozenEncoder(encoder, preprocessing=size, patch_layer="0").eval(),
    ]


@pytest.mark.parametrize("number", range(3))
def test_a_whitened_model_differs_only_in_its_descriptors(number: int, pictures: np.ndarray) -> None:
    plain = models()[number]
    expected = plain.embed(pictures, patches=True, progress=False)
    whitening = learn_whitening(expected.descriptor, 3)
    white = plain.with_whitening(whitening)
    assert (plain.dim, white.dim) != (3, 3)
    assert (plain.whitening, white.dim) == (None, 3)
    output = white.embed(pictures, patches=True, progress=False)
    np.testing.assert_allclose(output.descriptor, whitening.of(expected.descriptor), atol=1e-5)
    np.testing.assert_array_equal(output.kappa, expected.kappa)
    np.testing.assert_array_equal(output.patches, expected.patches)
    assert white.state_dict().keys() == plain.state_dict().keys()
    other = learn_whitening(expected.descriptor, 4)
    assert len({m.fingerprint for m in (plain, white, plain.with_whitening(other))}) == 3
    assert white.with_whitening(None).fingerprint == plain.fingerprint
    again = models()[number].with_whitening(Whitening(torch.from_numpy(whitening.to_array())))
    assert again.fingerprint == white.fingerprint
    batch = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(white.outputs(batch)[0], white(batch).descriptor)


def test_an_optimized_model_is_whitened_too(pictures: np.ndarray) -> None:
    plain = models()[0]
    assert isinstance(plain, PlaceModel)
    descriptors = plain.embed(pictures, progress=False).descriptor
    white = plain.with_whitening(learn_whitening(descriptors, 3))
    fast = white.optimize("cpu")
    assert fast.dim == 3
    for patches in (False, True):
        ours, theirs = (m.embed(pictures, progress=False, patches=patches) for m in (fast, white))
        assert (ours.descriptor * theirs.descriptor).sum(1).min() > 0.999
        np.testing.assert_allclose(ours.kappa, theirs.kappa, rtol=0.01)
