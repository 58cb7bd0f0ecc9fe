"""CosPlace augmentation against colorsys and plain loops."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.nn import functional as F

from kappaplace.data import augment
from kappaplace.data.augment import (
    CosPlaceAugmentation,
    Jitter,
    _enlarge,
    color_jitter,
    crop_resize,
    sample_crops,
    sample_jitter,
    shift_hue,
)
from kappaplace.data.randomness import item_key
from kappaplace.errors import KappaPlaceError


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(count: int = 4, height: int = 9, width: int = 11, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, 3, height, width, generator=seeded(seed))


def test_hue_agrees_with_colorsys() -> None:
    images = batch()
    images[0] = images[0, :1]  # grey
    images[1, 0] = images[1, 1]  # ties of two channels
    turns = torch.tensor([-0.5, -0.21, 0.0, 0.37]).view(-1, 1, 1, 1)
    out = shift_hue(images, turns)
    for i, image in enumerate(images):
        for pixel, shifted in zip(image.flatten(1).T.tolist(), out[i].flatten(1).T.tolist(), strict=True):
            h, s, v = colorsys.rgb_to_hsv(*pixel)
            assert shifted == pytest.approx(colorsys.hsv_to_rgb((h + float(turns[i])) % 1.0, s, v), abs=1e-5)


def by_hand(image: np.ndarray, amount: np.ndarray, order: list[int]) -> np.ndarray:
    for op in order:
        gray = np.tensordot([0.299, 0.587, 0.114], image, 1)
        f = amount[op]
        if op == 0:
            image = np.clip(f * image, 0, 1)
        elif op == 1:
            image = np.clip(f * image + (1 - f) * gray.mean(), 0, 1)
        elif op == 2:
            image = np.clip(f * image + (1 - f) * gray, 0, 1)
        else:
            flat = [colorsys.rgb_to_hsv(*p) for p in image.reshape(3, -1).T]
            turned = [colorsys.hsv_to_rgb((h + f) % 1.0, s, v) for h, s, v in flat]
            image = np.array(turned).T.reshape(image.shape)
    return image


def test_jitter_applies_the_operations_of_each_image_in_its_order() -> None:
    images = batch(16)
    jitter = sample_jitter(16, generator=seeded(1))
    assert len({tuple(o) for o in jitter.order.tolist()}) > 5
    expected = [
        by_hand(i.numpy().astype(float), a.numpy(), o.tolist())
        for i, a, o in zip(images, jitter.amount, jitter.order, strict=True)
    ]
    np.testing.assert_allclose(color_jitter(images, jitter).numpy(), np.stack(expected), atol=2e-5)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_compiled_jitter_equals_sorted_jitter(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    images, jitter = torch.rand(7, 3, 9, 11, generator=generator), sample_jitter(7, generator=generator)
    at_once = augment._jitter_at_once(images, jitter.amount, jitter.order)  # what ``compiled`` compiles
    torch.testing.assert_close(at_once, color_jitter(images, jitter), rtol=0, atol=1e-6)


def test_no_jitter_is_the_identity() -> None:
    still = Jitter(torch.tensor([[1.0, 1.0, 1.0, 0.0]]).repeat(4, 1), torch.arange(4).repeat(4, 1))
    torch.testing.assert_close(color_jitter(batch(), still), batch())


@pytest.mark.parametrize("source", [{"generator": seeded()}, {"keys": np.arange(4000)}])
def test_jitter_ranges(source: dict[str, Any]) -> None:
    amount, order = sample_jitter(4000, **source)
    assert amount.dtype == torch.float32
    np.testing.assert_allclose(amount.mean(0), [1, 1, 1, 0], atol=0.03)
    np.testing.assert_allclose(amount.std(0), np.array([1.4, 1.4, 1.4, 1.0]) / math.sqrt(12), atol=0.02)
    orders = np.unique(order.numpy(), axis=0, return_counts=True)[1]
    assert len(orders) == 24
    assert stats.chisquare(orders).pvalue > 1e-3
    assert amount[:, :3].min() == pytest.approx(0.3, abs=0.01)
    assert amount[:, :3].max() == pytest.approx(1.7, abs=0.01)
    assert amount[:, 3].min() == pytest.approx(-0.5, abs=0.01)
    assert amount[:, 3].max() == pytest.approx(0.5, abs=0.01)
    assert torch.equal(order.sort(1).values, torch.arange(4).repeat(4000, 1))
    assert sample_jitter(500, brightness=2.0).amount[:, 0].min() >= 0


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 2**31))
def test_crops_are_inside_with_the_requested_area_and_aspect(height: int, width: int, seed: int) -> None:
    boxes = sample_crops(20, height, width, generator=seeded(seed))
    top, left, h, w = boxes.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (h > 0).all()
    assert (w > 0).all()
    assert (top + h <= height).all()
    assert (left + w <= width).all()
    if 3 / 4 <= width / height <= 4 / 3 and min(height, width) > 20:
        slack = 1.0 / min(height, width)
        assert ((h * w) / (height * width) >= 0.5 - 2 * slack).all()
        assert ((w / h) <= 4 / 3 + 4 * slack).all()
        assert ((w / h) >= 3 / 4 - 4 * slack).all()


@pytest.mark.parametrize("source", [{"generator": seeded()}, {"keys": np.arange(20_000)}])
def test_crop_statistics_are_uniform_in_area_and_position(source: dict[str, Any]) -> None:
    boxes = sample_crops(20_000, 1000, 1000, scale=(0.1, 0.3), **source).double()
    share = boxes[:, 2] * boxes[:, 3] / 1e6
    assert stats.kstest((share - 0.1) / 0.2, "uniform").statistic < 0.02
    assert float(share.mean()) == pytest.approx(0.2, abs=0.002)
    assert float(torch.log(boxes[:, 3] / boxes[:, 2]).abs().max()) == pytest.approx(math.log(4 / 3), abs=0.01)
    assert float((boxes[:, 0] / (1000 - boxes[:, 2])).mean()) == pytest.approx(0.5, abs=0.01)


def test_panorama_falls_back_to_the_center() -> None:
    boxes = sample_crops(3, 10, 100, scale=(0.9, 1.0), generator=seeded())
    assert boxes.tolist() == [[0, 43, 10, 13]] * 3


def test_crops_are_resized_with_antialiasing() -> None:
    images = batch(3, 40, 50)
    boxes = torch.tensor([[0, 0, 40, 50], [5, 7, 30, 20], [10, 10, 8, 9]])
    out = crop_resize(images, boxes, (12, 16))
    for image, result, (t, x, h, w) in zip(images, out, boxes.tolist(), strict=True):
        cut = image[:, t : t + h, x : x + w].numpy()
        expected = triangle(h, 12) @ cut @ triangle(w, 16).T
        np.testing.assert_allclose(result.numpy(), expected, atol=1e-5)


@settings(deadline=None, max_examples=30)
@given(st.integers(8, 60), st.integers(8, 60), st.integers(0, 2**31))
def test_enlarging_in_one_call_equals_one_call_per_box(height: int, width: int, seed: int) -> None:
    # Not from one column: torch's antialiased resize then repeats the first row.
    # The one call is the GPU's way; it needs no GPU to be checked.
    images, boxes = batch(5, height, width, seed), sample_crops(5, height, width, generator=seeded(seed))
    size = (height + seed % 40, width + seed % 7)
    torch.testing.assert_close(
        _enlarge(images, boxes, size), crop_resize(images, boxes, size), atol=2e-5, rtol=0
    )


def triangle(old: int, new: int) -> np.ndarray:
    """Weights of antialiased linear interpolation: a triangle that reaches one output (or input) pixel."""
    scale = old / new
    support = max(scale, 1.0)
    weights = np.zeros((new, old))
    for i in range(new):
        center = (i + 0.5) * scale
        for j in range(max(0, int(center - support + 0.5)), min(old, int(center + support + 0.5))):
            weights[i, j] = max(0.0, 1 - abs(j + 0.5 - center) / support)
    return weights / weights.sum(axis=1, keepdims=True)


def test_whole_augmentation_is_seeded_and_in_range() -> None:
    images = (batch(6, 64, 48) * 255).to(torch.uint8)
    augment = CosPlaceAugmentation(size=32)
    one, same, other = (augment(images, seeded(s)) for s in (1, 1, 2))
    assert one.shape == (6, 3, 32, 32)
    assert one.dtype == torch.float32
    assert 0 <= one.min() <= one.max() <= 1
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert not torch.equal(
        augment(images[:1].repeat(2, 1, 1, 1), seeded()).diff(dim=0), torch.zeros(1, 3, 32, 32)
    )
    with pytest.raises(KappaPlaceError, match="N×3×H×W"):
        augment(images[0])


def test_nothing_to_do_is_a_plain_resize() -> None:
    images = batch(2, 30, 40)
    still = CosPlaceAugmentation((15, 20), 0.0, 0.0, 0.0, 0.0, scale=(1.0, 1.0), ratio=(4 / 3, 4 / 3))
    expected = F.interpolate(images, (15, 20), mode="bilinear", antialias=True)
    torch.testing.assert_close(still(images, seeded()), expected)


@pytest.mark.parametrize("shape", [(64, 64), (37, 29), (5, 3)])
def test_with_keys_the_batch_does_not_matter(shape: tuple[int, int]) -> None:
    images, keys = batch(24, *shape), item_key(3, np.arange(24))
    augment = CosPlaceAugmentation(size=40)
    whole = augment(images, keys=keys)
    parts = torch.cat([augment(images[a:b], keys=keys[a:b]) for a, b in ((0, 1), (1, 8), (8, 24))])
    assert torch.equal(parts, whole)
    shuffled = np.random.default_rng(0).permutation(24)
    assert torch.equal(augment(images[shuffled], keys=keys[shuffled]), whole[shuffled])
    assert torch.equal(augment(images, keys=keys), whole)


def test_keys_differ_and_are_checked() -> None:
    images = batch(1, 32, 32).repeat(50, 1, 1, 1)
    out = CosPlaceAugmentation(size=16)(images, keys=np.arange(50))
    assert len(torch.unique(out.flatten(1), dim=0)) == 50
    with pytest.raises(KappaPlaceError, match="one key for each of the 50 images"):
        CosPlaceAugmentation(size=16)(images, keys=np.arange(49))
    with pytest.raises(KappaPlaceError, match="A generator and keys cannot be combined"):
        CosPlaceAugmentation(size=16)(images, seeded(), keys=np.arange(50))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("size", [32, 80])
@pytest.mark.parametrize("source", [lambda: {"generator": seeded()}, lambda: {"keys": np.arange(8)}])
def test_gpu_agrees_with_cpu(size: int, source: Callable[[], dict[str, Any]]) -> None:
    images = batch(8, 64, 48)
    augment = CosPlaceAugmentation(size=size)
    torch.testing.assert_close(
        augment(images.cuda(), **source()).cpu(), augment(images, **source()), atol=1e-4, rtol=0
    )
