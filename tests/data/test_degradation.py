"""Degradations: identity at 0, a larger effect at higher levels, formulas by hand."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import special, stats
from torch.nn import functional as F

from kappaplace.data.degradation import DEGRADATIONS, degrade, discrete_gaussian, random_degradation
from kappaplace.data.randomness import item_key
from kappaplace.errors import KappaPlaceError

LEVELS = (0.0, 0.1, 0.25, 0.4, 0.6, 0.8, 1.0)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scenes(count: int = 2, height: int = 48, width: int = 64) -> torch.Tensor:
    """Return smooth images with edges and detail, in [0, 1]."""
    out = torch.zeros(count, 3, height, width)
    for cells, weight in ((3, 0.5), (12, 0.35), (40, 0.15)):
        layer = torch.rand(count, 3, cells, cells, generator=seeded(cells))
        out += weight * F.interpolate(layer, (height, width), mode="nearest")
    return out


def squared_error(images: torch.Tensor, kind: str, level: float, seed: int = 0) -> torch.Tensor:
    return (degrade(images, kind, level, seeded(seed)) - images).square().mean(dim=(1, 2, 3))


@pytest.mark.parametrize("kind", DEGRADATIONS)
def test_level_zero_is_the_identity_and_the_effect_grows(kind: str) -> None:
    images = scenes()
    assert torch.equal(degrade(images, kind, 0.0, seeded()), images)
    errors = torch.stack([squared_error(images, kind, level) for level in LEVELS])
    assert (errors.diff(dim=0) > 0).all()
    assert errors[1].max() < errors[-1].min()


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(DEGRADATIONS), st.floats(0.05, 0.8), st.integers(0, 2**31))
def test_the_effect_grows_for_every_seed(kind: str, level: float, seed: int) -> None:
    images = scenes(1)
    assert squared_error(images, kind, level, seed) < squared_error(images, kind, level + 0.2, seed)


@pytest.mark.parametrize("kind", DEGRADATIONS)
@pytest.mark.parametrize("shape", [(48, 64), (37, 29), (5, 3)])
def test_shape_type_and_range_are_preserved(kind: str, shape: tuple[int, int]) -> None:
    images = scenes(2, *shape)
    before = images.clone()
    out = degrade(images, kind, torch.tensor([0.3, 1.0]), seeded())
    assert out.shape == images.shape
    assert 0 <= out.min() <= out.max() <= 1
    assert torch.isfinite(out).all()
    assert torch.equal(images, before)
    assert degrade(images.half(), kind, 0.5, seeded()).dtype == torch.float16


def test_each_image_has_its_own_kind_and_level() -> None:
    images = scenes(1).repeat(4, 1, 1, 1)
    out = degrade(images, ["blur", "compression", "blur", "fog"], [0.5, 0.0, 1.0, 0.2], seeded())
    torch.testing.assert_close(out[:1], degrade(images[:1], "blur", 0.5))
    assert torch.equal(out[1], images[1])
    torch.testing.assert_close(out[2:3], degrade(images[:1], "blur", 1.0))
    by_index = degrade(images, torch.tensor([-1, 3, 3, 3]), 1.0)
    assert torch.equal(by_index[0], images[0])
    assert DEGRADATIONS[3] == "blur"
    torch.testing.assert_close(by_index[1], out[2])


@pytest.mark.parametrize("kind", DEGRADATIONS)
def test_seeds_repeat(kind: str) -> None:
    images = scenes()
    assert torch.equal(degrade(images, kind, 0.7, seeded(4)), degrade(images, kind, 0.7, seeded(4)))
    if kind not in ("blur", "compression"):
        assert not torch.equal(degrade(images, kind, 0.7, seeded(4)), degrade(images, kind, 0.7, seeded(5)))


def test_blur_is_a_gaussian() -> None:
    images = torch.zeros(1, 3, 101, 141)
    images[:, :, 50, 70] = 1.0
    out = degrade(images, "blur", 0.8)[0, 0].double()
    sigma = 0.025 * 101 * 0.8
    y, x = (out.sum(dim) for dim in (1, 0))
    assert float(out.sum()) == pytest.approx(1, abs=1e-4)
    for profile, center in ((y, 50), (x, 70)):
        offset = torch.arange(len(profile)) - center
        expected = torch.exp(-0.5 * (offset / sigma) ** 2)
        assert float((profile * offset**2).sum()) == pytest.approx(sigma**2, rel=0.02)
        torch.testing.assert_close(profile, (expected / expected.sum()).double(), atol=1e-2, rtol=0)


def test_discrete_gaussian_agrees_with_bessel_functions() -> None:
    variance = np.array([[1e-3], [0.09], [1.0], [16.0]])
    expected = special.ive(np.abs(np.arange(-14, 15)), variance)
    kernel = discrete_gaussian(torch.tensor(variance), 14).numpy()
    np.testing.assert_allclose(kernel, expected / expected.sum(axis=1, keepdims=True), atol=1e-6)


def test_noise_has_the_expected_deviation() -> None:
    gray = torch.full((1, 3, 200, 200), 0.5)
    out = degrade(gray, "noise", 0.25, seeded()) - 0.5
    assert float(out.std()) == pytest.approx(0.1, rel=0.02)
    assert float(out.mean()) == pytest.approx(0, abs=0.002)


@settings(deadline=None, max_examples=25)
@given(st.floats(0.05, 1.0), st.integers(0, 2**31))
def test_occlusion_covers_the_expected_area_and_nests(level: float, seed: int) -> None:
    images = torch.full((1, 3, 120, 160), 0.9)
    hidden, more = (
        (degrade(images, "occlusion", x, seeded(seed)) != 0.9).any(1) for x in (level * 0.8, level)
    )
    assert float(more.float().mean()) == pytest.approx(0.7 * level, abs=0.02)
    assert bool((more | ~hidden).all())


def test_night_darkens_and_fog_flattens() -> None:
    images = scenes()
    dark = degrade(images, "night", 1.0, seeded())
    assert (dark.mean(dim=(1, 2, 3)) < 0.3 * images.mean(dim=(1, 2, 3))).all()
    misty = degrade(images, "fog", 1.0, seeded())
    assert (misty.std(dim=(1, 2, 3)) < 0.5 * images.std(dim=(1, 2, 3))).all()
    assert (misty[:, :, :8].std() < misty[:, :, -8:].std()).all()


def test_compression_agrees_with_a_real_jpeg_encoder() -> None:
    # Level √(s/16) multiplies the standard tables by s; whole-number tables make both coders the same.
    image = scenes(1, 64, 80)
    scale = 2.0
    tables = [np.rint(np.array(t) * scale).astype(int).tolist() for t in standard_tables()]
    buffer = io.BytesIO()
    eight_bit = (image[0] * 255).round().byte().permute(1, 2, 0).numpy()
    Image.fromarray(eight_bit).save(buffer, "JPEG", qtables=tables, subsampling=0)
    real = np.asarray(Image.open(buffer)).astype(float) / 255
    ours = degrade(
        torch.from_numpy(eight_bit).permute(2, 0, 1)[None].float() / 255, "compression", (scale / 16) ** 0.5
    )
    difference = np.abs(ours[0].permute(1, 2, 0).numpy() - real)
    # A few coefficients lie between two steps and fall the other way after the coder's own rounding.
    assert np.median(difference) < 1 / 255
    assert difference.mean() < 0.15 * np.abs(eight_bit / 255 - real).mean()


def standard_tables() -> list[list[int]]:
    """The tables of the standard, as Pillow's own encoder writes them at quality 50."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "JPEG", quality=50)
    tables = Image.open(buffer).quantization  # type: ignore[attr-defined]
    return [list(tables[0]), list(tables[1])]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", DEGRADATIONS)
def test_gpu_agrees_with_cpu(kind: str) -> None:
    images = scenes(3)
    levels = torch.tensor([0.0, 0.4, 0.9])
    ours, theirs = (
        degrade(images, kind, levels, seeded()),
        degrade(images.cuda(), kind, levels.cuda(), seeded()),
    )
    assert theirs.is_cuda
    # Single coefficients or edge pixels may fall the other way; all else agrees closely.
    assert (ours - theirs.cpu()).abs().mean() < 1e-3


def test_random_degradation_returns_kinds_and_levels() -> None:
    images = scenes(1, 24, 24).repeat(600, 1, 1, 1)
    out = random_degradation(images, seeded(), p=0.6)
    clean = out.kind == -1
    assert torch.equal(out.images[clean], images[clean])
    assert (out.level[clean] == 0).all()
    assert (out.level[~clean] > 0).all()
    assert (out.level <= 1).all()
    assert float(clean.float().mean()) == pytest.approx(0.4, abs=0.06)
    shares = torch.bincount(out.kind[~clean], minlength=len(DEGRADATIONS)) / (~clean).sum()
    assert ((shares - 1 / len(DEGRADATIONS)).abs() < 0.06).all()
    changed = (out.images != images).flatten(1).any(dim=1)
    assert changed[~clean].float().mean() > 0.9  # a faint level may change no pixel of so small an image
    assert set(random_degradation(images, seeded(), p=1.0, kinds=["fog", "night"]).kind.tolist()) == {0, 1}
    assert torch.equal(random_degradation(images, seeded(), p=0.0).images, images)


@pytest.mark.parametrize("kind", DEGRADATIONS)
@pytest.mark.parametrize("shape", [(64, 64), (37, 29), (224, 150)])
def test_with_keys_the_batch_does_not_matter(kind: str, shape: tuple[int, int]) -> None:
    images, keys, levels = scenes(7, *shape), item_key(3, np.arange(7)), torch.linspace(0.1, 1, 7)
    whole = degrade(images, kind, levels, keys=keys)
    parts = [degrade(images[a:b], kind, levels[a:b], keys=keys[a:b]) for a, b in ((0, 1), (1, 3), (3, 7))]
    assert torch.equal(torch.cat(parts), whole)
    back = degrade(images.flip(0), kind, levels.flip(0), keys=keys[::-1])
    assert torch.equal(back.flip(0), whole)
    if kind not in ("blur", "compression"):
        assert not torch.equal(degrade(images, kind, levels, keys=keys + np.uint64(1)), whole)


@pytest.mark.parametrize("kind", DEGRADATIONS)
def test_the_effect_grows_for_one_key(kind: str) -> None:
    images, keys = scenes(), np.arange(2)
    outs = torch.stack([degrade(images, kind, level, keys=keys) for level in LEVELS])
    assert ((outs - images).square().mean(dim=(2, 3, 4)).diff(dim=0) > 0).all()


def test_random_degradation_by_key() -> None:
    images, keys = scenes(1, 24, 24).repeat(600, 1, 1, 1), item_key(0, np.arange(600))
    out = random_degradation(images, p=0.6, keys=keys)
    clean = out.kind == -1
    assert torch.equal(out.images[clean], images[clean])
    assert float(clean.float().mean()) == pytest.approx(0.4, abs=0.06)
    shares = torch.bincount(out.kind[~clean], minlength=len(DEGRADATIONS)) / (~clean).sum()
    assert ((shares - 1 / len(DEGRADATIONS)).abs() < 0.06).all()
    assert stats.kstest(out.level[~clean].numpy(), "uniform").pvalue > 1e-3
    for part in (slice(0, 200), slice(200, 600)):
        again = random_degradation(images[part], p=0.6, keys=keys[part])
        assert torch.equal(again.images, out.images[part])
        assert torch.equal(again.kind, out.kind[part])
        assert torch.equal(again.level, out.level[part])
    noisy = random_degradation(images, p=1.0, kinds=["noise"], keys=keys)
    assert len(torch.unique(noisy.images.flatten(1), dim=0)) == 600


@pytest.mark.parametrize("source", [{"generator": seeded()}, {"keys": np.arange(2000)}])
def test_highest_level(source: dict[str, Any]) -> None:
    level = random_degradation(
        torch.zeros(2000, 3, 4, 4), p=1.0, kinds=["fog"], max_level=0.4, **source
    ).level
    assert 0 < level.min() < 0.01
    assert 0.39 < level.max() <= 0.4
    assert float(level.mean()) == pytest.approx(0.2, abs=0.01)
    with pytest.raises(KappaPlaceError, match="max_level must be above 0"):
        random_degradation(torch.zeros(1, 3, 4, 4), max_level=1.5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_keys_choose_the_same_kind_and_level_on_a_gpu() -> None:
    images, keys = scenes(40), np.arange(40)
    ours, theirs = random_degradation(images, keys=keys), random_degradation(images.cuda(), keys=keys)
    assert torch.equal(ours.kind, theirs.kind.cpu())
    assert torch.equal(ours.level, theirs.level.cpu())
    part = random_degradation(images[7:20].cuda(), keys=keys[7:20])
    torch.testing.assert_close(part.images, theirs.images[7:20], atol=1e-3, rtol=0)


def test_bad_keys_raise() -> None:
    images = torch.zeros(2, 3, 8, 8)
    with pytest.raises(KappaPlaceError, match="one key for each of the 2 images"):
        degrade(images, "fog", 0.5, keys=np.arange(3))
    with pytest.raises(KappaPlaceError, match="A generator and keys cannot be combined"):
        degrade(images, "fog", 0.5, seeded(), keys=np.arange(2))


@pytest.mark.parametrize(
    ("images", "kinds", "levels"),
    [
        (torch.zeros(2, 3, 8, 8), "snow", 0.5),
        (torch.zeros(2, 3, 8, 8), ["fog"], 0.5),
        (torch.zeros(2, 3, 8, 8), torch.tensor([0, 99]), 0.5),
        (torch.zeros(2, 3, 8, 8), "fog", 1.5),
        (torch.zeros(2, 3, 8, 8), "fog", float("nan")),
        (torch.zeros(2, 1, 8, 8), "fog", 0.5),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "fog", 0.5),
    ],
)
def test_bad_input_raises(images: torch.Tensor, kinds: str, levels: float) -> None:
    with pytest.raises(KappaPlaceError):
        degrade(images, kinds, levels)
