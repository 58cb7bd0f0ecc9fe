"""Images for the network: in the requested order, and each view depends only on its key."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from kappaplace.data.images import Preprocessing
from kappaplace.training.images import ImageSource, Views
from kappaplace.training.settings import AugmentSettings

CPU, SIDE = torch.device("cpu"), 24
INPUT = Preprocessing(SIDE, "exact")
PLAIN = AugmentSettings(brightness=0, contrast=0, saturation=0, hue=0, scale=1)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randint(0, 256, (7, 3, SIDE, SIDE), dtype=torch.uint8)


def test_files_and_memory_give_the_same_images_in_the_requested_order(
    images: torch.Tensor, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    rows = np.array([5, 0, 0, 6, 2])
    for source in (ImageSource(images, INPUT, CPU), ImageSource(paths, INPUT, CPU, workers=1)):
        assert len(source) == 7
        batches = [(part.tolist(), pixels.clone()) for part, pixels in source.batches(rows, 2)]
        assert [part for part, _ in batches] == [[5, 0], [0, 6], [2]]
        torch.testing.assert_close(torch.cat([pixels for _, pixels in batches]), images[rows], rtol=0, atol=0)


@pytest.mark.parametrize("damage", [0.0, 1.0])
def test_a_view_depends_on_its_image_and_key_only(images: torch.Tensor, damage: float) -> None:
    views = Views.create(AugmentSettings(damage=damage), SIDE, INPUT)
    keys = np.arange(7, dtype=np.uint64) + np.uint64(11)
    together = views(images, keys)
    assert together.shape == (7, 3, SIDE, SIDE)
    assert together.dtype == torch.float32
    order = np.array([4, 1, 6])
    torch.testing.assert_close(views(images[order], keys[order]), together[order], rtol=0, atol=0)
    other = views(images, keys + np.uint64(100))
    assert all(not torch.equal(one, two) for one, two in zip(together, other, strict=True))


def test_views_without_any_augmentation_are_the_clean_images(images: torch.Tensor) -> None:
    views = Views.create(PLAIN, SIDE, INPUT)
    keys = np.arange(7, dtype=np.uint64)
    expected = INPUT.normalize(images)
    torch.testing.assert_close(views.clean(images), expected, rtol=0, atol=0)
    torch.testing.assert_close(views(images, keys), expected, rtol=1e-4, atol=1e-4)


def test_damage_degrades_its_fraction_of_the_views() -> None:
    images = torch.randint(0, 256, (200, 3, 8, 8), dtype=torch.uint8)
    keys = np.arange(200, dtype=np.uint64)
    untouched = Views.create(PLAIN, 8, INPUT)(images, keys)
    for share in (0.3, 1.0):
        views = Views.create(AugmentSettings(0, 0, 0, 0, 1, damage=share), 8, INPUT)(images, keys)
        struck = (views - untouched).abs().amax(dim=(1, 2, 3)) > 0
        assert struck.float().mean().item() == pytest.approx(share, abs=0.13)  # four deviations of 200 draws
