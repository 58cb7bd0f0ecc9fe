"""A process can be killed at any time: the map stays valid, and the same command resumes."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kappaplace.data.table import PlaceImages
from kappaplace.maps import BuildOptions, PlaceMap
from kappaplace.maps import build as extend
from tests.maps.fakes import Counting, assert_same

IMAGES, BLOCK, SEGMENT = 60, 4, 12
FORK = multiprocessing.get_context("fork")  # a fresh interpreter would take seconds to import torch


@pytest.fixture
def images(tmp_path: Path) -> PlaceImages:
    folder, rng = tmp_path / "images", np.random.default_rng(0)
    folder.mkdir()
    paths = [f"{i:03d}.png" for i in range(IMAGES)]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)).save(folder / path)
    return PlaceImages.create(paths, rng.uniform(0, 500, (IMAGES, 2)), root=folder, name="images")


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extend, "BLOCK", BLOCK)


def killed_until_done(work: Callable[[], object], check: Callable[[], None], longest: float) -> int:
    """Run ``work`` in a process and kill it until it completes. Return the number of kills.

    The time it is given grows from nothing to ``longest``, so that every stage is hit.
    """
    rng, kills = random.Random(0), 0
    while True:
        process = FORK.Process(target=work)
        process.start()
        process.join(rng.uniform(0, 0.04) + longest * kills / 40)
        if process.exitcode is not None:
            assert process.exitcode == 0
            return kills
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        kills += 1
        check()


def sound(folder: Path) -> None:
    if (folder / "manifest.json").exists():
        opened = PlaceMap.open(folder)
        assert opened.verify() == []
        assert len(list(opened.store.names())) == len(opened)


def test_build_and_add_survive_kills(images, tiny, tmp_path):
    half, out, log = IMAGES // 2, tmp_path / "killed.map", tmp_path / "log"
    embedder = Counting(log, pause=0.006)
    options = BuildOptions(segment_rows=SEGMENT, embedder=embedder)
    first, second = images.select(np.arange(half)), images.select(np.arange(half, IMAGES))
    PlaceMap.build(first, out, tiny, options).remove(["003.png"])
    assert len(embedder.calls) == half
    calm = PlaceMap.build(images, tmp_path / "calm.map", tiny, options)

    rebuilt = tmp_path / "rebuilt.map"
    log.unlink()
    kills = killed_until_done(
        lambda: PlaceMap.build(images, rebuilt, tiny, options), lambda: sound(rebuilt), 0.5
    )
    assert kills >= 3
    assert_same(PlaceMap.open(rebuilt), calm)
    assert IMAGES <= len(embedder.calls) <= IMAGES + kills * BLOCK  # a kill loses the current block

    def add() -> None:
        PlaceMap.open(out, tiny).add(second, options)

    log.unlink()
    kills = killed_until_done(add, lambda: sound(out), 0.4)
    assert kills >= 2
    assert len(embedder.calls) <= half + kills * BLOCK
    grown = PlaceMap.open(out)
    assert len(grown) == IMAGES - 1
    assert not (out / "pending").exists()
    kills = killed_until_done(lambda: PlaceMap.open(out).compact(), lambda: sound(out), 0.3)
    whole = PlaceMap.open(out)
    assert sorted(os.listdir(out / "segments")) == [s.name for s in whole.manifest.segments]
    expected = PlaceMap.build(
        images.select(np.delete(np.arange(IMAGES), 3)), tmp_path / "less.map", tiny, options
    )
    assert set(whole.store.names()) == set(expected.store.names())
    order = whole.store.find(list(expected.store.names()))
    np.testing.assert_array_equal(whole.store.descriptors[order], expected.store.descriptors[:])
    np.testing.assert_allclose(
        whole.store.distinctiveness[order], expected.store.distinctiveness, rtol=0, atol=1e-6
    )


def test_a_finished_build_embeds_nothing_again(images, tiny, tmp_path):
    embedder = Counting(tmp_path / "log")
    options = BuildOptions(segment_rows=SEGMENT, embedder=embedder)
    made = PlaceMap.build(images, tmp_path / "a.map", tiny, options)
    assert len(embedder.calls) == IMAGES
    again = PlaceMap.build(images, tmp_path / "a.map", tiny, options)
    assert len(embedder.calls) == IMAGES
    assert again.report.already == IMAGES
    assert again.manifest.version == made.manifest.version
    # A copied file has a new date but the same content; a replaced file has not.
    file = images.image_path(5)
    os.utime(file, ns=(time.time_ns(), time.time_ns()))
    assert made.add(images, options).already == IMAGES
    assert len(embedder.calls) == IMAGES


def test_a_dead_writer_leaves_no_lock(images, tiny, tmp_path):
    slow = Counting(tmp_path / "log", pause=5.0)
    out = tmp_path / "a.map"
    process = FORK.Process(
        target=lambda: PlaceMap.build(images, out, tiny, options=BuildOptions(embedder=slow))
    )
    process.start()
    while not (out / "writer.lock").exists() or not (out / "writer.lock").read_text():
        time.sleep(0.01)
    with pytest.raises(Exception, match=f"being written by process {process.pid} on .*one writer"):
        PlaceMap.build(images, out, tiny, options=BuildOptions(embedder=Counting(tmp_path / "log")))
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert (
        len(PlaceMap.build(images, out, tiny, options=BuildOptions(embedder=Counting(tmp_path / "log"))))
        == IMAGES
    )


def test_readers_keep_working_while_a_writer_appends(images, tiny, tmp_path):
    options = BuildOptions(segment_rows=SEGMENT, embedder=Counting(tmp_path / "log", pause=0.01))
    out = tmp_path / "a.map"
    PlaceMap.build(images.select(np.arange(20)), out, tiny, options)
    reader, queries = PlaceMap.open(out, tiny), images.image_paths([0, 1])
    made = reader.embed(queries)
    before = [m.name for a in reader.localize_embeddings(made, queries) for m in a.matches]
    process = FORK.Process(target=lambda: PlaceMap.open(out, tiny).add(images, options))
    process.start()
    sizes = set()
    while process.is_alive():
        assert [m.name for a in reader.localize_embeddings(made, queries) for m in a.matches] == before
        other = PlaceMap.open(out, tiny)
        assert len(other.localize_embeddings(made, queries)) == 2
        sizes.add(len(other))
    process.join()
    assert process.exitcode == 0
    assert len(reader) == 20
    assert reader.refresh()
    assert len(reader) == IMAGES
    assert len(sizes) > 1  # the map grew in several steps
    # A reader that has not read all files of a map before compacting reads the map again.
    late = PlaceMap.open(out, tiny)
    PlaceMap.open(out, tiny).compact()
    assert len(late.localize_embeddings(made, queries)) == 2
