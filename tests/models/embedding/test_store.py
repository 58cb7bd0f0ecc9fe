"""Embeddings are computed once, survive a kill, and are never used for another model or image."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.models.embedding import store as cache_module
from kappaplace.models.embedding.store import EmbeddingStore
from kappaplace.models.place_model import PlaceModel


@pytest.fixture
def images(tmp_path: Path) -> list[str]:
    rng = np.random.default_rng(0)
    paths = []
    for i in range(9):
        path = tmp_path / "images" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(path)
        paths.append(str(path))
    return paths


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Images that the model embedded, in order."""
    calls: list[str] = []
    real = cache_module.embed_images

    def counted(model, preprocessing, sources, **options):
        calls.extend(sources)
        return real(model, preprocessing, sources, **options)

    monkeypatch.setattr(cache_module, "embed_images", counted)
    return calls


def test_a_second_run_embeds_nothing(tiny, images, embedded, tmp_path):
    cache = EmbeddingStore.of(tiny, tmp_path / "cache")
    first = cache.embed(images)
    direct = tiny.embed(images, progress=False)
    np.testing.assert_allclose(first.descriptor, direct.descriptor, atol=1e-6)
    np.testing.assert_allclose(first.kappa, direct.kappa, rtol=1e-6)
    assert isinstance(first.descriptor, np.memmap)
    assert first.descriptor.dtype == np.float32
    assert first.kappa.shape == (9,)
    embedded.clear()
    again = EmbeddingStore.of(tiny, tmp_path / "cache").embed(images)
    assert embedded == []
    np.testing.assert_array_equal(first.descriptor, again.descriptor)


def test_only_what_is_new_is_embedded(tiny, images, embedded, tmp_path):
    cache = EmbeddingStore.of(tiny, tmp_path / "cache")
    cache.embed(images[:6])
    embedded.clear()
    both = cache.embed([*images[3:], images[0]])
    assert embedded == images[6:]
    np.testing.assert_allclose(
        both.descriptor, tiny.embed([*images[3:], images[0]], progress=False).descriptor, atol=1e-6
    )


def test_moved_folders_are_recognized_and_changed_files_noticed(tiny, images, embedded, tmp_path):
    cache = EmbeddingStore.of(tiny, tmp_path / "cache")
    cache.embed(images)
    (tmp_path / "images").rename(tmp_path / "elsewhere")
    moved = [path.replace("images", "elsewhere") for path in images]
    embedded.clear()
    cache.embed(moved)
    assert embedded == []
    Image.new("RGB", (20, 20), (255, 0, 0)).save(moved[4])
    cache.embed(moved)
    assert embedded == [moved[4]]


def test_other_models_and_sizes_have_a_cache_of_their_own(tiny, images, embedded, tmp_path):
    EmbeddingStore.of(tiny, tmp_path / "cache").embed(images)
    other = PlaceModel.create("resnet_tiny", dim=32, preprocessing=Preprocessing(64, "exact")).eval()
    assert other.fingerprint != tiny.fingerprint
    for cache in (
        EmbeddingStore.of(other, tmp_path / "cache"),
        EmbeddingStore.of(tiny, tmp_path / "cache", Preprocessing(32, "exact")),
    ):
        embedded.clear()
        cache.embed(images)
        assert embedded == images


def test_a_failing_image_keeps_the_blocks_before_it(tiny, images, embedded, tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "BLOCK", 2)
    good = Path(images[5]).read_bytes()
    Path(images[5]).write_bytes(b"not an image")
    cache = EmbeddingStore.of(tiny, tmp_path / "cache")
    with pytest.raises(KappaPlaceError, match=r"5\.png"):
        cache.embed(images)
    Path(images[5]).write_bytes(good)
    embedded.clear()
    cache.embed(images)
    assert embedded == images[4:]


def test_a_killed_process_leaves_its_finished_blocks(images, embedded, tmp_path):
    """SIGKILL in the middle of the third block; the next run embeds only the rest."""
    script = textwrap.dedent(
        """
        import os, signal, sys, torch
        from kappaplace.data.images import Preprocessing
        from kappaplace.models.embedding import store
        from kappaplace.models.place_model import PlaceModel
        store.BLOCK = 2
        torch.manual_seed(0)
        torch.set_num_threads(1)
        model = PlaceModel.create("resnet_tiny", dim=32, preprocessing=Preprocessing(64, "exact")).eval()
        real, calls = store.embed_images, []
        def dying(*arguments, **options):
            calls.append(1)
            if len(calls) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)
        store.embed_images = dying
        store.EmbeddingStore.of(model, sys.argv[1]).embed(sys.argv[2:])
        """
    )
    words = [sys.executable, "-c", script, str(tmp_path / "cache"), *images]
    killed = subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    import torch

    torch.manual_seed(0)
    model = PlaceModel.create("resnet_tiny", dim=32, preprocessing=Preprocessing(64, "exact")).eval()
    done = EmbeddingStore.of(model, tmp_path / "cache").embed(images)
    assert embedded == images[4:]
    np.testing.assert_allclose(done.descriptor, model.embed(images, progress=False).descriptor, atol=1e-6)


def test_a_missing_file_is_one_sentence(tiny, tmp_path):
    with pytest.raises(KappaPlaceError, match=r"No image file at .*nothing\.png"):
        EmbeddingStore.of(tiny, tmp_path / "cache").embed([str(tmp_path / "nothing.png")])


def test_the_default_folder_follows_the_environment(tiny, monkeypatch, tmp_path):
    monkeypatch.setenv("KAPPAPLACE_CACHE", str(tmp_path))
    assert EmbeddingStore.of(tiny).folder == tmp_path / "embeddings"
