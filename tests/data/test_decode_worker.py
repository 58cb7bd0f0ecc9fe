"""The worker, run in a thread of the test."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kappaplace.data import decode_pool, decode_worker
from kappaplace.data.decode_worker import READY, Pass, mapped, pixels_at, receive, send, shared_memory
from kappaplace.data.images import Preprocessing

pytestmark = pytest.mark.skipif(not decode_pool.available(), reason="needs unnamed memory")


@pytest.fixture
def photo(tmp_path: Path) -> str:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return str(tmp_path / "photo.png")


@contextmanager
def worker(preprocessing: Preprocessing, memory: list[int], parent: int) -> Iterator[socket.socket]:
    """Yield the socket to a worker that is ready, and check that it ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    thread = threading.Thread(target=decode_worker.main, args=[theirs.detach(), parent], daemon=True)
    thread.start()
    with ours:
        ours.settimeout(20)
        assert receive(ours) == (READY, [])
        send(ours, Pass(preprocessing).to_dict(), memory)
        yield ours
    thread.join(10)
    assert not thread.is_alive()


def answer_to(link: socket.socket, paths: list[str], place: int | None) -> tuple[Any, list[int]]:
    send(link, [paths, place])
    data, memory = receive(link)
    return json.loads(data), memory


def test_pixels_are_written_at_their_offset(photo: str) -> None:
    preprocessing = Preprocessing(4, "exact")
    memory = shared_memory(1000)
    with worker(preprocessing, [memory], os.getppid()) as link:
        assert answer_to(link, [photo, "missing.png", photo], 100) == ([[4, 4], None, [4, 4]], [])
    whole = mapped(memory)
    os.close(memory)
    batch = pixels_at(whole, 100, (3, 4, 4))
    expected = np.asarray(preprocessing.image(photo))
    assert np.array_equal(batch[0], expected)
    assert not batch[1].any()
    assert np.array_equal(batch[2], expected)
    assert not any(whole[:100])
    assert not any(whole[100 + batch.size :])


def test_images_of_different_sizes_use_separate_memory(photo: str) -> None:
    with worker(Preprocessing(), [], os.getppid()) as link:
        sizes, memory = answer_to(link, ["missing.png", photo], None)
        assert sizes == [None, [9, 7]]
        assert np.array_equal(pixels_at(mapped(memory[0]), 0, (9, 7)), np.asarray(Image.open(photo)))
        os.close(memory[0])
        assert answer_to(link, ["missing.png"], None) == ([None], [])


def test_a_worker_without_its_parent_ends(photo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_worker, "_PARENT_CHECK_S", 0.02)
    with worker(Preprocessing(), [], parent=-1) as link:
        link.settimeout(10)
        assert receive(link) == (b"", [])
