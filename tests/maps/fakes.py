"""An embedder without a model, for fast tests of the files."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kappaplace.maps import PlaceMap
from kappaplace.types import Embeddings

_OLD = Path(__file__).parents[1] / "golden" / "v0.1.0" / "float32.map" / "manifest.json"
SOME_CALIBRATION = json.loads(_OLD.read_text(encoding="utf-8"))["calibration"]
"""Record of a calibration in a manifest."""


class Counting:
    """Embeds the content of files, and logs one line per image."""

    def __init__(self, log: Path, dim: int = 32, pause: float = 0.0) -> None:
        self.log, self.dim, self.pause = log, dim, pause

    def __call__(self, paths: Sequence[str]) -> Embeddings:
        time.sleep(self.pause)
        seeds = [
            int.from_bytes(hashlib.sha256(Path(path).read_bytes()).digest()[:4], "little") for path in paths
        ]
        rows = np.stack([np.random.default_rng(seed).normal(size=self.dim) for seed in seeds])
        made = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
        handle = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, "".join(f"{path}\n" for path in paths).encode())
        os.close(handle)
        return Embeddings(made, np.array([1.0 + seed % 100 for seed in seeds], np.float32))

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().split("\n")[:-1] if self.log.exists() else []


def contents(place_map: PlaceMap) -> dict[str, np.ndarray]:
    """Return all columns of the references, independent of the segments."""
    store = place_map.store
    columns = {column: np.array(store.whole(column)) for column in ("kappa", "poses", "routes", "stats")}
    return columns | {
        "names": np.array(list(store.names())),
        "descriptors": store.descriptors[:],
        "distinctiveness": store.distinctiveness,
        "sample": store.sample,
    }


def assert_same(one: PlaceMap, other: PlaceMap, apart_from: str = "") -> None:
    ours, theirs = contents(one), contents(other)
    for column in set(ours) - {apart_from}:
        np.testing.assert_array_equal(ours[column], theirs[column], err_msg=column)
