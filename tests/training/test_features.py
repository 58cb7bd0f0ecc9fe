"""Stored features: the output of the encoder in half precision, each computed once."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.models.place_model import PlaceModel
from kappaplace.training import features
from kappaplace.training.batches import view_key
from kappaplace.training.features import (
    CLEAN,
    FeatureEncoder,
    FeatureStore,
    Share,
    ViewSource,
    extract_features,
    frozen_features,
)
from kappaplace.training.images import ImageSource, Views
from kappaplace.training.settings import AugmentSettings

SIDE, SEED = 12, 4
INPUT = Preprocessing(SIDE, "exact")
VIEWS = Views.create(AugmentSettings(), SIDE, INPUT)
ROWS = np.array([1, 2, 5, 6, 8])
NUMBERS = (CLEAN, 0, 1)


@pytest.fixture
def images() -> Tensor:
    return torch.randint(0, 256, (9, 3, SIDE, SIDE), dtype=torch.uint8)


class Encoder:
    """Means of colour and of rows; counts images, and can fail after some of them."""

    def __init__(self, limit: int = 10_000) -> None:
        self.limit, self.seen = limit, 0

    def __call__(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        if self.seen + len(pixels) > self.limit:
            raise KeyboardInterrupt
        self.seen += len(pixels)
        return pixels.mean((2, 3)), torch.nn.functional.normalize(pixels.mean((1, 3)), dim=1)


def extract(folder: Path, images: Tensor, encoder: Any, **options: Any) -> FeatureStore:
    source = ViewSource(ImageSource(images, INPUT, torch.device("cpu")), VIEWS, ROWS, NUMBERS, SEED)
    key, share = options.pop("key", "first"), options.pop("share", None)
    return extract_features(folder, key, source, FeatureEncoder(encoder, 2, **options), share)


def by_hand(images: Tensor) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """One image at a time, view after view."""
    encoder, reduced, descriptors = Encoder(), [], []
    for view in NUMBERS:
        for row in ROWS:
            image = images[row : row + 1]
            key = view_key(SEED, np.array([row]), np.array([view]))
            pixels = VIEWS.clean(image) if view == CLEAN else VIEWS(image, key)
            for values, expected in zip(encoder(pixels), (reduced, descriptors), strict=True):
                expected.append(values[0].numpy())
    return reduced, descriptors


def test_store_contains_every_view_of_every_row_in_half_precision(images: Tensor, tmp_path: Path) -> None:
    store = extract(tmp_path / "f", images, Encoder())
    reduced, descriptors = by_hand(images)
    assert store.reduced.dtype == store.descriptor.dtype == np.float16
    np.testing.assert_allclose(store.reduced, np.stack(reduced), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(store.descriptor, np.stack(descriptors), rtol=1e-3, atol=1e-3)
    rows, views = np.array([8, 1, 5]), np.array([1, CLEAN, 0])
    np.testing.assert_allclose(
        store.reduced[store.index(rows, views)],
        [reduced[2 * 5 + 4], reduced[0], reduced[5 + 2]],
        rtol=1e-3,
        atol=1e-3,
    )


def test_descriptors_of_a_view_come_in_blocks_at_unit_length(
    images: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = extract(tmp_path / "f", images, Encoder())
    monkeypatch.setattr(features, "FLUSH_EVERY", 2)
    for number, view in enumerate(NUMBERS):
        parts = list(store.descriptors_of(view))
        assert [(part.start, part.stop) for part, _ in parts] == [(0, 2), (2, 4), (4, 5)]
        vectors = torch.cat([block for _, block in parts])
        np.testing.assert_allclose(vectors.norm(dim=1), 1, rtol=1e-6)
        np.testing.assert_allclose(vectors, store.descriptor[number * 5 : number * 5 + 5], atol=1e-3)


def test_extraction_resumes_where_it_was_interrupted(
    images: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "FLUSH_EVERY", 4)
    with pytest.raises(KeyboardInterrupt):
        extract(tmp_path / "f", images, Encoder(limit=1 + 9))  # one image is the probe of the shapes
    again = Encoder()
    store = extract(tmp_path / "f", images, again)
    assert 15 - 9 <= again.seen <= 15 - 9 + 4 + 2  # the batch in hand is lost too
    np.testing.assert_array_equal(store.reduced, extract(tmp_path / "g", images, Encoder()).reduced)
    finished = Encoder()
    extract(tmp_path / "f", images, finished)
    assert finished.seen == 0


def test_another_key_recomputes_the_store(images: Tensor, tmp_path: Path) -> None:
    extract(tmp_path / "f", images, Encoder())
    encoder = Encoder()
    store = extract(tmp_path / "f", 255 - images, encoder, key="second")
    assert encoder.seen == 16
    np.testing.assert_array_equal(store.reduced, extract(tmp_path / "g", 255 - images, Encoder()).reduced)


@pytest.mark.parametrize("name", ["features.json", "reduced.npy", "descriptor.npy"])
def test_a_damaged_store_is_recomputed(images: Tensor, tmp_path: Path, name: str) -> None:
    whole = np.array(extract(tmp_path / "f", images, Encoder()).reduced)
    (tmp_path / "f" / name).write_bytes(b"not this")
    encoder = Encoder()
    np.testing.assert_array_equal(extract(tmp_path / "f", images, encoder).reduced, whole)
    assert encoder.seen == 16


def test_processes_share_the_work(images: Tensor, tmp_path: Path) -> None:
    encoders = [Encoder(), Encoder(), Encoder()]
    for rank, encoder in enumerate(encoders):
        store = extract(tmp_path / "f", images, encoder, share=Share(rank, 3))
    assert [encoder.seen for encoder in encoders] == [1 + 5, 5, 5]
    np.testing.assert_array_equal(store.reduced, extract(tmp_path / "g", images, Encoder()).reduced)


@given(total=st.integers(0, 1000), processes=st.integers(1, 9))
def test_shares_cover_all_without_overlap(total: int, processes: int) -> None:
    parts = [Share(rank, processes).part(total) for rank in range(processes)]
    assert parts[0][0] == 0
    assert parts[-1][1] == total
    assert all(first[1] == second[0] for first, second in pairwise(parts))
    sizes = [stop - start for start, stop in parts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("value", [float("nan"), 1e6])
def test_features_that_half_precision_cannot_represent_are_reported(
    images: Tensor, tmp_path: Path, value: float
) -> None:
    def broken(pixels: Tensor) -> tuple[Tensor, Tensor]:
        return torch.full((len(pixels), 3), value), torch.ones(len(pixels), 2)

    with pytest.raises(KappaPlaceError, match="NaN or infinite"):
        extract(tmp_path / "f", images, broken)


@pytest.mark.parametrize("head", ["mirrored", "mirrored-tied", "linear"])
def test_frozen_features_lead_to_the_models_own_output(head: str) -> None:
    model = PlaceModel.create("resnet_tiny", 16, head).eval()  # type: ignore[arg-type]
    pixels = torch.randn(3, 3, 32, 32)
    reduced, descriptor = frozen_features(model, pixels)
    expected = model(pixels)
    torch.testing.assert_close(descriptor, expected.descriptor)
    torch.testing.assert_close(model.head.from_reduced(reduced), expected.kappa)
