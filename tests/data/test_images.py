"""Decoding of every kind of image, and preprocessing against formulas in NumPy."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from kappaplace.data.decoding import BACKGROUND, decode
from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError


def photo(height: int = 48, width: int = 64, seed: int = 0) -> np.ndarray:
    """Return a smooth random image, so that lossy compression changes it little."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def pixels(image: Image.Image) -> np.ndarray:
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP"])
def test_lossless_files_keep_every_pixel(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"photo.{kind.lower()}"
    Image.fromarray(photo()).save(path, kind)
    for source in (path, str(path), path.read_bytes(), Image.open(path), photo()):
        np.testing.assert_array_equal(pixels(decode(source)), photo())


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_turns_the_image_upright(orientation: int) -> None:
    upright = photo()
    # What the sensor stored for each orientation: the inverse of the turn that viewers apply.
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright, 1),
        7: np.rot90(upright, 2).transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(np.ascontiguousarray(stored)), "PNG", exif=exif)
    np.testing.assert_array_equal(pixels(decode(data)), upright)


def test_sixteen_bit_gray_uses_the_full_range(tmp_path: Path) -> None:
    values = np.array([[0, 257, 128 * 257, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    expected = np.repeat(np.array([[0, 1, 128, 255]], np.uint8)[..., None], 3, axis=2)
    np.testing.assert_array_equal(pixels(decode(tmp_path / "deep.png")), expected)
    np.testing.assert_array_equal(pixels(decode(values)), expected)
    np.testing.assert_array_equal(pixels(decode(Image.fromarray(values.astype(np.int32)))), expected)
    np.testing.assert_array_equal(pixels(decode(Image.fromarray(values.astype(np.float32)))), expected)


def test_float_image_in_unit_range() -> None:
    image = Image.fromarray(np.array([[0.0, 0.5, 1.0]], np.float32))
    np.testing.assert_array_equal(pixels(decode(image))[0, :, 0], [0, 128, 255])


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_impossible_pixel_values_raise(value: float) -> None:
    with pytest.raises(KappaPlaceError, match="pixel values"):
        decode(Image.fromarray(np.array([[0.0, value]], np.float32)))


def test_gray_one_bit_and_palette() -> None:
    gray = photo()[..., 0]
    np.testing.assert_array_equal(pixels(decode(Image.fromarray(gray)))[..., 2], gray)
    palette = Image.fromarray(photo()).quantize(16)
    np.testing.assert_array_equal(pixels(decode(encoded(palette, "PNG"))), np.asarray(palette.convert("RGB")))
    assert set(np.unique(pixels(decode(Image.fromarray(gray > 128))))) == {0, 255}


def test_alpha_is_composited_on_gray() -> None:
    rgba = np.dstack([photo(), np.full((48, 64), 255, np.uint8)])
    np.testing.assert_array_equal(pixels(decode(rgba)), photo())
    rgba[:10, :, 3] = 0
    rgba[10:20, :, 3] = 128
    for source in (rgba, encoded(Image.fromarray(rgba), "PNG")):
        out = pixels(decode(source))
        assert (out[:10] == BACKGROUND).all()
        np.testing.assert_array_equal(out[20:], photo()[20:])
        blend = (128 * rgba[10:20, :, :3].astype(float) + 127 * np.array(BACKGROUND)) / 255
        assert np.abs(out[10:20] - blend).max() <= 1
    gray_alpha = Image.fromarray(rgba).convert("LA")
    assert (pixels(decode(gray_alpha))[:10] == BACKGROUND).all()


def test_transparent_palette_color() -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 250, 10, 20])
    image.putpixel((0, 0), 0)
    out = pixels(decode(encoded(image, "PNG", transparency=0)))
    assert tuple(out[0, 0]) == BACKGROUND
    assert tuple(out[1, 1]) == (250, 10, 20)


def test_cmyk_jpeg() -> None:
    out = pixels(decode(encoded(Image.fromarray(photo()).convert("CMYK"), "JPEG", quality=100)))
    assert np.abs(out.astype(int) - photo()).mean() < 3


@pytest.mark.parametrize(
    ("shape", "ok"),
    [
        *(((4, 5, *channels), True) for channels in ((), (1,), (3,), (4,))),
        *((shape, False) for shape in ((4, 5, 2), (3, 4, 5), (5,), (1, 4, 5, 3), (0, 5, 3))),
    ],
)
def test_array_shapes(shape: tuple[int, ...], ok: bool) -> None:
    array = np.full(shape, 255, np.uint8)
    if ok:
        assert decode(array).size == (5, 4)
        np.testing.assert_array_equal(pixels(decode(array.astype(np.float32) / 255)), 255)
    else:
        with pytest.raises(KappaPlaceError, match="array of shape"):
            decode(array)


def test_ambiguous_array_types_raise() -> None:
    for array in (photo().astype(np.float32), photo().astype(np.int64), np.full((2, 2), np.nan)):
        with pytest.raises(KappaPlaceError, match=r"\[0, 1\]"):
            decode(array)
    with pytest.raises(KappaPlaceError, match="Cannot decode a Tensor"):
        decode(torch.zeros(3, 4, 4))  # type: ignore[arg-type]


def test_missing_corrupt_and_truncated_files(tmp_path: Path) -> None:
    with pytest.raises(KappaPlaceError, match="No image file"):
        decode(tmp_path / "missing.jpg")
    (tmp_path / "text.jpg").write_text("not an image")
    with pytest.raises(KappaPlaceError, match="not an image"):
        decode(tmp_path / "text.jpg")
    with pytest.raises(KappaPlaceError, match="Cannot decode"):
        decode(tmp_path)
    for kind in ("JPEG", "PNG", "WEBP", "TIFF"):
        data = encoded(Image.fromarray(photo(400, 400)), kind)
        path = tmp_path / f"cut.{kind.lower()}"
        path.write_bytes(data[: len(data) // 2])
        with pytest.raises(KappaPlaceError, match=f"cut.{kind.lower()}"):
            decode(path)


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow on odd metadata
@settings(deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 40))
def test_damaged_bytes_never_escape_as_another_error(seed: int, flips: int) -> None:
    rng = np.random.default_rng(seed)
    data = bytearray(encoded(Image.fromarray(photo()), ["JPEG", "PNG", "TIFF", "GIF"][seed % 4]))
    for at in rng.integers(0, len(data), flips):
        data[at] = rng.integers(256)
    with contextlib.suppress(KappaPlaceError):
        assert decode(bytes(data), max_pixels=10**6).mode == "RGB"


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_decompression_bombs_raise_before_decoding() -> None:
    for side in (10_000, 60_000):  # Pillow itself warns of the first and refuses the second
        with pytest.raises(KappaPlaceError, match="is too large"):
            decode(f"P5 {side} {side} 255\n".encode() + bytes(10))
    for source in (encoded(Image.new("L", (300, 300)), "PNG"), np.zeros((300, 300), np.uint8)):
        decode(source)
        with pytest.raises(KappaPlaceError, match="is too large"):
            decode(source, max_pixels=80_000)


def test_only_accepted_formats_are_tried() -> None:
    files = {}
    for kind in ("PNG", "GIF"):
        buffer = io.BytesIO()
        Image.new("RGB", (4, 4)).save(buffer, kind)
        files[kind] = buffer.getvalue()
    assert decode(files["PNG"], formats=("JPEG", "PNG")).size == (4, 4)
    with pytest.raises(KappaPlaceError, match="JPEG, PNG"):
        decode(files["GIF"], formats=("JPEG", "PNG"))


def test_heic_is_read_only_if_accepted() -> None:
    heif = pytest.importorskip("pillow_heif")
    buffer = io.BytesIO()
    heif.from_pillow(Image.new("RGB", (64, 64), (9, 9, 9))).save(buffer)
    assert decode(buffer.getvalue(), formats=("JPEG", "HEIF")).size == (64, 64)
    with pytest.raises(KappaPlaceError, match="JPEG"):
        decode(buffer.getvalue(), formats=("JPEG", "PNG"))


def test_draft_decoding_is_used_for_much_smaller_targets_and_stays_close() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(Image.fromarray(photo(800, 1600)), "JPEG", quality=95, exif=exif)
    assert decode(data).size == (800, 1600)
    assert decode(data, target=(200, 100)).size == (200, 400)  # 1600×800 upright; twice the target
    assert decode(data, target=(900, 500)).size == (800, 1600)
    small = Preprocessing(size=(200, 100), mode="exact")
    exact = decode(data).resize((100, 200), Image.Resampling.BILINEAR)
    assert np.abs(pixels(small.image(data)).astype(int) - np.asarray(exact)).mean() < 1


def test_reduced_decoding_can_be_avoided() -> None:
    """Other code decodes every JPEG at its full size."""
    data = encoded(Image.fromarray(photo(800, 1600)), "JPEG", quality=95)
    full = Preprocessing(100, "exact", reduced_jpeg=False)
    assert full.decoded(data).size == (1600, 800)
    assert Preprocessing(100, "exact").decoded(data).size == (400, 200)
    resized = Image.open(io.BytesIO(data)).resize((100, 100), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(pixels(full.image(data)), np.asarray(resized))
    assert Preprocessing.from_dict(full.to_dict()) == full
    assert "reduced_jpeg" not in Preprocessing(100, "exact").to_dict()  # fingerprints stay the same


def test_opened_image_of_the_caller_is_not_shrunk() -> None:
    image = Image.open(io.BytesIO(encoded(Image.fromarray(photo(400, 400)), "JPEG")))
    Preprocessing(size=50, mode="exact").image(image)
    assert image.size == (400, 400)


@pytest.mark.parametrize(
    ("options", "native", "expected"),
    [
        ({}, (48, 64), (48, 64)),
        ({"multiple": 14}, (48, 64), (42, 70)),
        ({"multiple": 14}, (3, 64), (14, 70)),
        ({"size": (20, 30), "mode": "exact"}, (48, 64), (20, 30)),
        ({"size": 24, "mode": "exact"}, (48, 64), (24, 24)),
        ({"size": 24, "mode": "shorter"}, (48, 64), (24, 32)),
        ({"size": 24, "mode": "shorter"}, (64, 48), (32, 24)),
        ({"size": 32, "mode": "longer"}, (48, 64), (24, 32)),
        ({"size": (20, 30), "mode": "crop"}, (64, 48), (20, 30)),
    ],
)
def test_output_sizes(options: dict[str, Any], native: tuple[int, int], expected: tuple[int, int]) -> None:
    preprocessing = Preprocessing(**options)
    assert preprocessing.output_size(*native) == expected
    assert tuple(preprocessing.to_uint8(photo(*native)).shape) == (3, *expected)
    assert preprocessing.fixed_size == (expected if options.get("mode") in ("exact", "crop") else None)


def test_crop_preserves_the_center_and_the_aspect() -> None:
    image = np.zeros((40, 100, 3), np.uint8)
    image[:, 30:70] = 200
    out = Preprocessing(size=20, mode="crop").to_uint8(image)
    assert (out == 200).float().mean() > 0.85  # only the resampling at the edges sees the black sides


def test_normalization_formula_of_float_and_uint8() -> None:
    preprocessing = Preprocessing(mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    tensor = preprocessing(photo())
    expected = (photo() / 255.0 - np.array([0.1, 0.2, 0.3])) / np.array([0.5, 0.6, 0.7])
    assert tensor.dtype == torch.float32
    assert tensor.is_contiguous()
    np.testing.assert_allclose(tensor.numpy(), expected.transpose(2, 0, 1), atol=1e-5)
    batch = torch.stack([preprocessing.to_uint8(photo(seed=s)) for s in range(3)])
    assert batch.dtype == torch.uint8
    one_by_one = torch.stack([preprocessing(photo(seed=s)) for s in range(3)])
    torch.testing.assert_close(preprocessing.normalize(batch), one_by_one)
    torch.testing.assert_close(preprocessing.normalize(batch / 255), one_by_one, atol=1e-5, rtol=1e-5)


@settings(deadline=None)
@given(
    size=st.one_of(st.integers(1, 999), st.tuples(st.integers(1, 999), st.integers(1, 999))),
    mode=st.sampled_from(["exact", "crop"]),
    interpolation=st.sampled_from(["bilinear", "bicubic", "lanczos", "nearest"]),
)
def test_settings_survive_json(size: Any, mode: Any, interpolation: Any) -> None:
    preprocessing = Preprocessing(size, mode, interpolation, multiple=7)
    again = Preprocessing.from_dict(json.loads(json.dumps(preprocessing.to_dict())))
    assert again == preprocessing
    assert hash(again) == hash(preprocessing)


@pytest.mark.parametrize(
    "options",
    [
        {"size": 10},
        {"mode": "exact"},
        {"size": 0, "mode": "exact"},
        {"size": (1, 2, 3), "mode": "exact"},
        {"size": (10, 10), "mode": "shorter"},
        {"mode": "stretch"},
        {"interpolation": "cubic"},
        {"std": (1.0, 0.0, 1.0)},
        {"mean": (0.5,)},
        {"multiple": 0},
        {"colour": "bgr"},
    ],
)
def test_bad_settings_raise(options: dict[str, Any]) -> None:
    with pytest.raises(KappaPlaceError, match=r"Invalid|Unknown (preprocessing|mode|interpolation)"):
        Preprocessing.from_dict(options)
