"""One tiny city and one trained encoder for all tests of training."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappaplace.training.run import train
from tests.training.tiny import City, build_city, tiny_settings


@pytest.fixture(scope="session")
def city() -> City:
    return build_city()


@pytest.fixture(scope="session")
def retrieval(city: City, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished retrieval run without validation."""
    folder = tmp_path_factory.mktemp("runs") / "retrieval"
    train(tiny_settings("retrieval"), city.data, folder, device="cpu")
    return folder
