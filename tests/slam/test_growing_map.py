from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kappaplace.errors import KappaPlaceError
from kappaplace.maps import PlaceMap
from kappaplace.maps.exchange import import_map
from kappaplace.models.place_model import PlaceModel
from kappaplace.retrieval.references import Queries
from kappaplace.slam.growing_map import FIRST, GrowingMap
from kappaplace.types import Embeddings


def _filled(count: int, dim: int = 32, kappa: bool = True) -> tuple[GrowingMap, np.ndarray]:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(count, dim))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    grown = GrowingMap(25.0, 10)
    for row, vector in enumerate(vectors):
        grown.append(
            vector, 100.0 + row if kappa else None, np.array([4.0 * row, 0.0, 0.0]), 4.0 * row, row, ""
        )
    return grown, vectors.astype(np.float32)


def test_it_grows_and_finds_what_is_most_similar() -> None:
    grown, vectors = _filled(FIRST * 2 + 5)
    assert len(grown) == FIRST * 2 + 5
    assert np.array_equal(grown.descriptors, vectors)
    assert grown.kappa[-1] == 100.0 + FIRST * 2 + 4
    first = 300
    evidence = grown.evidence(Queries(Embeddings(vectors[400:401], np.array([5.0]))), first, 3)
    order = np.argsort(-(vectors[:first] @ vectors[400]))[:3]
    assert evidence.matches.indices[0].tolist() == order.tolist()


def test_what_was_driven_one_after_the_other_is_near() -> None:
    grown, _ = _filled(50)
    near = grown.near
    assert near(np.array(0), np.array([0, 6, 7])).tolist() == [True, True, False]
    grown.poses[40] = grown.poses[0]  # a closure was accepted
    assert bool(near(np.array(40), np.array(1)))


@pytest.mark.parametrize(
    ("vector", "kappa", "pose"),
    [
        (np.ones(32) / np.sqrt(32), None, np.zeros(3)),
        (np.ones(32) / np.sqrt(32), 5.0, None),
        (np.ones(16) / 4, 5.0, np.zeros(3)),
        (np.ones(32), 5.0, np.zeros(3)),
        (np.ones(32) / np.sqrt(32), -1.0, np.zeros(3)),
    ],
)
def test_frames_of_another_kind_are_refused(
    vector: np.ndarray, kappa: float | None, pose: np.ndarray | None
) -> None:
    grown, _ = _filled(3)
    with pytest.raises(KappaPlaceError):
        grown.append(vector, kappa, pose, 12.0, 3.0, "")
    assert len(grown) == 3


def test_it_becomes_a_map_on_disk(tmp_path: Path, tiny: PlaceModel) -> None:
    grown, vectors = _filled(30)
    import_map(grown.export(tmp_path / "drive.npz"), tmp_path / "drive.map", tiny)
    made = PlaceMap.open(tmp_path / "drive.map", tiny)
    assert len(made) == 30
    assert np.allclose(made.store.descriptors[np.arange(30)], vectors)
    assert np.allclose(made.store.positions[7], [28.0, 0.0])
