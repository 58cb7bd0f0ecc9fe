"""Input of a model: the same whether images are resized while decoding or afterwards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from kappaplace.data.images import Preprocessing
from kappaplace.data.loader import ImageLoader
from kappaplace.models import embedding as prepare

SQUARE = Preprocessing(24, "exact")
WEIGHT = torch.zeros(1)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Eleven images; every third one has another size."""
    rng = np.random.default_rng(0)
    files = [tmp_path / f"{i}.png" for i in range(11)]
    for i, file in enumerate(files):
        shape = (24, 24, 3) if i == 6 else (50, 20, 3) if i % 3 == 2 else (30, 40, 3)
        Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(file)
    return files


def test_batches_are_whole_and_the_same(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(prepare.prepared(paths, SQUARE, 4, WEIGHT))

    def as_for_a_gpu(*args: object) -> ImageLoader:
        return ImageLoader(paths, SQUARE, 4, unresized=(30, 40))

    monkeypatch.setattr(prepare, "loader_for", as_for_a_gpu)
    after = list(prepare.prepared(paths, SQUARE, 4, WEIGHT))
    assert [len(batch) for batch in after] == [4, 4, 3]
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one, other)
        assert other.dtype == WEIGHT.dtype


def test_images_of_several_sizes_come_as_they_are(paths: list[Path]) -> None:
    shapes = [tuple(batch.shape[2:]) for batch in prepare.prepared(paths[:4], Preprocessing(), 4, WEIGHT)]
    assert shapes == [(30, 40), (50, 20), (30, 40)]


def test_only_a_gpu_resizes(paths: list[Path]) -> None:
    assert prepare.loader_for(paths, SQUARE, 4, torch.device("cpu")).unresized is None
    many = paths * 6
    assert prepare.loader_for(many, SQUARE, 4, torch.device("cuda")).unresized == (30, 40)
    assert prepare.loader_for(many, Preprocessing(), 4, torch.device("cuda")).unresized is None
    assert prepare.loader_for(paths, SQUARE, 4, torch.device("cuda")).unresized is None  # not worth it


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_given_what_the_processor_would_be(paths: list[Path]) -> None:
    before = torch.cat(list(prepare.prepared(paths * 6, SQUARE, 4, WEIGHT)))
    after = torch.cat(list(prepare.prepared(paths * 6, SQUARE, 4, WEIGHT.cuda())))
    assert torch.allclose(before, after.cpu(), atol=1e-6)
