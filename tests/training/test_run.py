"""One run per folder: a second one fails with a message."""

from __future__ import annotations

import multiprocessing
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from kappaplace.errors import KappaPlaceError
from kappaplace.files import writing
from kappaplace.training.run import train
from tests.training.tiny import City, tiny_settings


def hold(folder: Path, held: Event, enough: Event) -> None:
    with writing(folder, "run"):
        held.set()
        enough.wait(60)


def test_a_second_run_in_the_same_folder_fails_and_writes_nothing(tmp_path: Path, city: City) -> None:
    context = multiprocessing.get_context("spawn")
    held, enough = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path, held, enough))
    other.start()
    try:
        assert held.wait(60)
        with pytest.raises(KappaPlaceError, match=f"run .* is being written by process {other.pid}"):
            train(tiny_settings("retrieval"), city.data, tmp_path)
    finally:
        enough.set()
        other.join(60)
    assert [file.name for file in tmp_path.iterdir()] == ["writer.lock"]
