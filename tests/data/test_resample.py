"""Resizing in torch is bit-identical to Pillow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from kappaplace.data.images import Preprocessing, Resize
from kappaplace.data.resample import COLUMNS, MOST_TIMES, ROWS, axes_like_pillow, resized, size_to_leave

SIDES = st.integers(4, 80)
FILTERS = st.sampled_from(["bilinear", "bicubic", "lanczos"])
MODES = st.sampled_from(["exact", "crop", "shorter", "longer"])


@settings(deadline=None)  # the first of each size asks Pillow
@given(SIDES, SIDES, SIDES, FILTERS, MODES, st.integers(0, 2**32 - 1), st.booleans())
def test_every_pixel_equals_pillow(
    height: int, width: int, side: int, interpolation: str, mode: str, seed: int, harsh: bool
) -> None:
    rng = np.random.default_rng(seed)
    # Black and white only: overshoot, which has to be cut off, is where it hurts most.
    values = (
        rng.integers(0, 2, (2, height, width, 3)) * 255
        if harsh
        else rng.integers(0, 256, (2, height, width, 3))
    )
    pixels = values.astype(np.uint8)
    preprocessing = Preprocessing(side, mode, interpolation)  # type: ignore[arg-type]
    got = resized(torch.from_numpy(pixels).permute(0, 3, 1, 2), preprocessing)
    for one, other in zip(pixels, got, strict=True):
        np.testing.assert_array_equal(other.permute(1, 2, 0), np.asarray(preprocessing.image(one)))


@settings(deadline=None)
@given(SIDES, SIDES, st.tuples(SIDES, SIDES), FILTERS)
def test_one_of_the_orders_equals_pillow(height: int, width: int, after: tuple[int, int], name: str) -> None:
    how = Resize((height, width), after, name)  # type: ignore[arg-type]
    assert sorted(axes_like_pillow(how) or ()) == sorted((ROWS, COLUMNS))


def test_nearest_is_not_resized_on_the_device() -> None:
    assert axes_like_pillow(Resize((9, 7), (4, 4), "nearest")) is None


def test_a_different_pillow_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Image.Image.resize

    def brighter(self: Image.Image, *args: object, **kwargs: object) -> Image.Image:
        return true(self, *args, **kwargs).point(lambda value: min(value + 1, 255))  # type: ignore[arg-type]

    axes_like_pillow.cache_clear()
    monkeypatch.setattr(Image.Image, "resize", brighter)
    try:
        assert axes_like_pillow(Resize((30, 40), (16, 16), "bilinear")) is None
    finally:
        axes_like_pillow.cache_clear()


@pytest.mark.parametrize(
    ("mode", "size", "image", "left"),
    [
        ("exact", 32, (40, 50), (40, 50)),
        ("crop", 32, (40, 50), (40, 50)),
        ("exact", 32, (32, 32), None),  # nothing to do
        ("shorter", 32, (40, 50), None),  # sizes may differ
        ("none", None, (40, 50), None),
        ("exact", 32, (32 * MOST_TIMES, 33), None),  # too large to carry about
    ],
)
def test_size_that_remains_unresized(
    tmp_path: Path, mode: str, size: int | None, image: tuple[int, int], left: tuple[int, int] | None
) -> None:
    file = tmp_path / "one.png"
    Image.new("RGB", image[::-1]).save(file)
    assert size_to_leave([file], Preprocessing(size, mode)) == left  # type: ignore[arg-type]


def test_an_unreadable_first_image_is_reported_later(tmp_path: Path) -> None:
    assert size_to_leave([tmp_path / "missing.png"], Preprocessing(32, "exact")) is None
    assert size_to_leave([], Preprocessing(32, "exact")) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
def test_a_gpu_gives_the_same_pixels(interpolation: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 480, 640, 3), np.uint8)
    preprocessing = Preprocessing(512, "crop", interpolation)  # type: ignore[arg-type]
    got = resized(torch.from_numpy(pixels).permute(0, 3, 1, 2).cuda(), preprocessing).cpu()
    for one, other in zip(pixels, got, strict=True):
        np.testing.assert_array_equal(other.permute(1, 2, 0), np.asarray(preprocessing.image(one)))
