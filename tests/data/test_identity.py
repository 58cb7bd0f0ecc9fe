"""Unchanged image files are recognized by size and time, or by content."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from kappaplace.data.identity import DIGEST, file_digest, file_stats, image_digests, same_file
from kappaplace.errors import KappaPlaceError


@pytest.fixture
def image(tmp_path: Path) -> Path:
    file = tmp_path / "image.jpg"
    file.write_bytes(b"some content")
    return file


def is_same(image: Path, then: np.ndarray, digest: np.ndarray) -> bool:
    return same_file(str(image), file_stats([str(image)])[0], then, digest)


def test_a_touched_file_is_the_same_and_a_replaced_one_is_not(image: Path) -> None:
    then, digest = file_stats([str(image)])[0], file_digest(str(image))
    assert is_same(image, then, digest)
    os.utime(image, ns=(1, 1))
    assert is_same(image, then, digest)
    image.write_bytes(b"more content")  # as many bytes
    os.utime(image, ns=(1, 1))
    assert not is_same(image, then, digest)
    image.write_bytes(b"longer content")
    assert not is_same(image, then, digest)


def test_a_missing_file_has_no_size_and_is_never_the_same(image: Path) -> None:
    then, digest = file_stats([str(image)])[0], file_digest(str(image))
    image.unlink()
    assert file_stats([str(image)]).tolist() == [[-1, -1]]
    assert not file_digest(str(image)).any()
    assert not is_same(image, then, digest)
    with pytest.raises(KappaPlaceError, match="No image file at"):
        image_digests([str(image)], image.parent / "files")


def test_both_functions_return_the_same_hash(image: Path) -> None:
    digests = image_digests([str(image)], image.parent / "files")
    assert digests.dtype == DIGEST
    assert digests.tobytes() == file_digest(str(image)).tobytes()
