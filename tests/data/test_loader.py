"""The loader: order, sizes, errors, endless rows and early stops."""

from __future__ import annotations

import itertools
import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from kappaplace.data.images import Preprocessing
from kappaplace.data.loader import ImageLoader, Workers
from kappaplace.errors import KappaPlaceError

NATIVE = Preprocessing()
SQUARE = Preprocessing(size=8, mode="exact")


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Write twenty images whose grey value is their row; every third one is in portrait format."""
    files = []
    for row in range(20):
        files.append(tmp_path / f"{row}.png")
        Image.new("L", (10, 12) if row % 3 == 0 else (12, 10), row).save(files[-1])
    return files


def loaded_rows(loader: ImageLoader) -> list[int]:
    rows = []
    for batch in loader:
        assert batch.rows.dtype == np.int64
        assert (batch.images == torch.from_numpy(batch.rows).view(-1, 1, 1, 1)).all()
        rows += batch.rows.tolist()
    return rows


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("batch_size", [1, 7, 20, 50])
def test_every_image_once_in_order(paths: list[Path], workers: int, batch_size: int) -> None:
    loader = ImageLoader(paths, SQUARE, batch_size, workers=workers)
    assert loaded_rows(loader) == list(range(20))
    assert loaded_rows(loader) == list(range(20))
    sizes = [len(batch.rows) for batch in loader]
    assert set(sizes[:-1]) <= {batch_size}


def test_native_sizes_share_a_batch_only_when_equal(paths: list[Path]) -> None:
    loader = ImageLoader(paths, NATIVE, 4, workers=2)
    assert loaded_rows(loader) == list(range(20))
    assert [len(batch.rows) for batch in loader][:4] == [1, 2, 1, 2]


def test_float_batches_are_normalized(paths: list[Path]) -> None:
    loader = ImageLoader(paths, SQUARE, 8, normalize=True, workers=1)
    expected = torch.stack([SQUARE(path) for path in paths[:8]])
    torch.testing.assert_close(next(iter(loader)).images, expected)


def test_uint8_batches_are_channels_last(paths: list[Path]) -> None:
    images = next(iter(ImageLoader(paths, SQUARE, 8, workers=1))).images
    assert images.dtype == torch.uint8
    assert images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_images_are_skipped_and_reported_once(
    paths: list[Path], workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    paths[3].write_bytes(b"rubbish")
    paths[7].unlink()
    loader = ImageLoader(paths, SQUARE, 6, workers=workers, on_error="skip", rows=[*range(20), 3, 3])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert loaded_rows(loader) == [r for r in range(20) if r not in (3, 7)]
    assert [(s.row, s.source) for s in loader.skipped] == [(3, str(paths[3])), (7, str(paths[7]))]
    assert "not an image" in loader.skipped[0].reason
    assert len(caplog.records) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_images_raise_on_request(paths: list[Path], workers: int) -> None:
    paths[13].unlink()
    loader = ImageLoader(paths, SQUARE, 5, workers=workers)
    with pytest.raises(KappaPlaceError, match=r"13\.png"):
        loaded_rows(loader)


def test_endless_rows_are_read_only_as_far_as_the_window(paths: list[Path]) -> None:
    consumed = []

    def rows() -> Any:
        for row in itertools.cycle(range(20)):
            consumed.append(row)
            yield row

    def decoding() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith("decode")]

    before = decoding()
    batches = iter(
        ImageLoader(paths, SQUARE, 4, rows=rows(), workers=Workers(2, prefetch=2, processes=False))
    )
    got = [next(batches).rows.tolist() for _ in range(6)]
    assert list(itertools.chain(*got)) == [r % 20 for r in range(24)]
    assert len(consumed) <= 24 + 2 * 4 + 8
    batches.close()  # type: ignore[attr-defined]
    assert decoding() == before


def test_images_in_memory_and_no_images() -> None:
    arrays = [np.full((4, 4, 3), row, np.uint8) for row in range(5)]
    assert loaded_rows(ImageLoader(arrays, SQUARE, 2, workers=2)) == list(range(5))
    assert loaded_rows(ImageLoader([], SQUARE, 2)) == []


@pytest.mark.parametrize(
    "wrong", [{"batch_size": 0}, {"workers": -1}, {"workers": Workers(prefetch=0)}, {"on_error": "ignore"}]
)
def test_bad_settings_raise(wrong: dict[str, Any]) -> None:
    with pytest.raises(KappaPlaceError, match=r"must be . or more|on_error"):
        ImageLoader([], SQUARE, **wrong)


def test_batches_contain_exactly_the_pixels_of_preprocessing(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sources: list[Any] = []
    for row, (width, height) in enumerate([(8, 8), (300, 200), (8, 8), (31, 47)]):
        array = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        sources += [array, Image.fromarray(array), tmp_path / f"{row}.jpg"]
        Image.fromarray(array).save(sources[-1], quality=95)
    for size in (8, (200, 300)):
        preprocessing = Preprocessing(size=size, mode="exact")
        expected = torch.stack([preprocessing.to_uint8(source) for source in sources])
        images = torch.cat([batch.images for batch in ImageLoader(sources, preprocessing, 5, workers=2)])
        assert torch.equal(images, expected)


def test_memory_is_reused_only_if_nothing_refers_to_it(paths: list[Path]) -> None:
    loader = ImageLoader(paths, SQUARE, 1, workers=2)
    assert len({batch.images.data_ptr() for batch in loader}) <= loader.workers.prefetch + 2
    views = [batch.images[:, :1] for batch in loader]  # views hold the memory, too
    assert [int(view.max()) for view in views] == list(range(20))
    assert [int(view.min()) for view in views] == list(range(20))


def test_a_batch_of_unreadable_images_is_skipped(paths: list[Path]) -> None:
    for row in (4, 5):
        paths[row].unlink()
    for preprocessing in (SQUARE, NATIVE):
        loader = ImageLoader(paths, preprocessing, 2, workers=1, on_error="skip")
        for _ in range(2):
            sizes = [len(batch.rows) for batch in loader]
            assert 0 not in sizes
            assert sum(sizes) == 18
