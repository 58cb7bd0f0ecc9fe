"""Codes of patch maps: what they preserve, their size, and how they are stored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.patch_codes import LocalFeatures, PatchCodebook, learn_patch_codebook
from kappaplace.retrieval.patches import cell_agreement, learn_codes, patch_agreement


def maps_of(count: int, shape: tuple[int, int, int], seed: int = 0) -> torch.Tensor:
    """Smooth random maps with strong and weak channels, like those of an encoder."""
    channels, height, width = shape
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, channels, height // 2 + 2, width // 2 + 2, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    return (smooth * torch.linspace(2, 0.2, channels).view(1, -1, 1, 1)).half()


def by_hand(one: np.ndarray) -> np.ndarray:
    """Cells of a map C×H×W, minus their mean, one by one."""
    cells = [one[:, y, x].astype(np.float64) for y in range(one.shape[1]) for x in range(one.shape[2])]
    mean = np.mean(cells, axis=0)
    return np.array([(cell - mean) / np.linalg.norm(cell - mean) for cell in cells])


@settings(deadline=None, max_examples=12)
@given(st.integers(2, 20), st.integers(1, 9), st.integers(1, 9), st.integers(1, 5))
@example(16, 3, 7, 1)  # some coefficients of its two blocks are nearly equal
def test_few_images_are_coded_without_loss(channels, height, width, count):
    noise = torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(1))
    maps = maps_of(count, (channels, height, width)) + noise.half()
    book = learn_patch_codebook(maps)
    codes = book.encode(maps)
    decoded = book.decode(codes)
    assert codes.shape == (count, book.width)
    assert book.width <= 4096
    basis = book.directions.astype(np.float64)
    for number, one in enumerate(maps.numpy()):
        if height * width > 1:
            cells = decoded.cells[number].numpy() @ basis.T
            np.testing.assert_allclose(cells, by_hand(one), atol=0.02)


def test_a_code_agrees_like_the_map_it_codes():
    maps = maps_of(60, (24, 12, 12))
    book = learn_codes(maps)
    shifted = torch.roll(maps, 1, dims=3) + 0.3 * maps_of(60, (24, 12, 12), seed=1)
    exact = patch_agreement(shifted, maps).numpy()
    features = book.decode(book.encode(maps))
    own = LocalFeatures.of(shifted).within(features.basis)
    coded = features.scaled(cell_agreement(own.cells, features.cells, features.size)).numpy()
    assert exact.mean() > 0.3
    assert abs(coded.mean() - exact.mean()) < 0.05
    assert np.corrcoef(coded, exact)[0, 1] > 0.8
    others = features.take(np.roll(np.arange(60), 7))
    assert float(cell_agreement(own.cells, others.cells, others.size).mean()) < 0.6 * coded.mean()


@pytest.mark.parametrize(("shape", "width"), [((112, 20, 20), 4000), ((8, 32, 32), 4096), ((4, 2, 3), 64)])
def test_bytes_per_image(shape, width):
    book = learn_patch_codebook(maps_of(3, shape))
    assert book.width == width  # 25 blocks of 160 bytes; 64 of 64; one of no more bytes than numbers


def test_the_codebook_is_stored_as_one_array():
    maps = maps_of(20, (12, 10, 7))
    book = learn_codes(maps)
    array = book.to_array()
    again = PatchCodebook.from_array(array)
    assert array.dtype == np.float32
    codes = book.encode(maps)
    np.testing.assert_array_equal(again.encode(maps), codes)
    assert torch.equal(again.decode(codes).cells, book.decode(codes).cells)
    assert again.gain == pytest.approx(book.gain, rel=1e-6)
    for broken in (array[:-1], array[:3], np.full_like(array, np.nan), np.zeros(0), -array):
        with pytest.raises(KappaPlaceError, match="is not a codebook of patches"):
            PatchCodebook.from_array(broken)


def test_decoding_takes_the_values_of_the_codebook():
    """One block by hand: the inverse transform of the looked-up coefficients, and unit length."""
    maps = maps_of(2, (3, 4, 4))
    book = learn_patch_codebook(maps)
    codes = book.encode(maps)
    values = book.values.astype(np.float64)
    coefficients = np.zeros(16 * 3)
    column = 0
    for byte, size in enumerate(book.sizes):
        coefficients[book.order[column : column + size]] = values[codes[0, byte], column : column + size]
        column += size
    n = np.arange(4)
    rows = [np.cos(np.pi * k * (2 * n + 1) / 8) * np.sqrt((1 if k == 0 else 2) / 4) for k in range(4)]
    cells = np.zeros((4, 4, 3))
    for k, u in enumerate(rows):
        for m, v in enumerate(rows):
            cells += np.outer(u, v)[..., None] * coefficients.reshape(4, 4, 3)[k, m]
    cells = cells.reshape(16, 3)
    cells /= np.linalg.norm(cells, axis=1, keepdims=True)
    np.testing.assert_allclose(book.decode(codes).cells[0].numpy(), cells, atol=1e-5)


def test_too_many_cells_for_a_code():
    with pytest.raises(KappaPlaceError, match=r"do not fit into codes of 3 bytes.*--patches full"):
        learn_patch_codebook(maps_of(1, (4, 8, 8)), code_bytes=3)


def test_the_gain_makes_agreements_of_codes_as_large_as_exact_ones():
    """Pair by pair over the first 32 images: each with the image one and two places before it."""
    maps = maps_of(80, (12, 6, 6), seed=3)
    book = learn_codes(maps, code_bytes=36)
    plain, some = replace(book, gain=1.0), maps[:32]
    exact, decoded = LocalFeatures.of(some), plain.decode(plain.encode(some))
    turned = exact.within(decoded.basis).cells
    sums = np.zeros(2)
    for one in range(32):
        for other in (one - 1, one - 2):
            other %= 32
            sums[0] += float(patch_agreement(some[one : one + 1].float(), some[other : other + 1].float()))
            codes = decoded.cells[other : other + 1]
            sums[1] += float(cell_agreement(turned[one : one + 1], codes, exact.size))
    assert abs(sums[1] / sums[0] - 1) > 0.01  # these short codes agree differently
    assert book.gain == pytest.approx(sums[0] / sums[1], rel=1e-5)
