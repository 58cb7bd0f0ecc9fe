"""The one seam to search engines: a map asks here for the best references, whoever finds them.

References are counted as the map counts them, those removed left out; engines count rows.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.maps.database import open_database
from kappaplace.maps.segments import Segment
from kappaplace.maps.store import Descriptors, Indices, MapStore
from kappaplace.retrieval import exact
from kappaplace.retrieval.engines import Circle, Coded, Engine, Quantized, open_engine
from kappaplace.retrieval.engines.base import checked_circle
from kappaplace.retrieval.engines.choose import EXACT_UP_TO
from kappaplace.retrieval.engines.exact import search_codes
from kappaplace.retrieval.engines.nearby import Nearby
from kappaplace.types import Matches

INDEX = "index"
"""Where an engine that keeps an index keeps it, inside the map."""


class Search:
    """Exact search over the segments where they lie."""

    def __init__(self, store: MapStore, device: str | None = None) -> None:
        self.store, self.device = store, device or "cpu"
        self.why = f"exact: every one of {len(store):,} references is compared"

    def search(self, queries: NDArray[np.float32], k: int, near: Circle | None = None) -> Matches:
        """The k best references of each query, fewer where there are fewer, best first, ties by number."""
        if near is None:
            return self._best(queries, self.store.descriptors, k)
        chosen = self.within(near)
        found = self._best(queries, self.store.descriptors.only(chosen), k)
        return Matches(chosen[found.indices], found.similarities)

    def within(self, near: Circle) -> Indices:
        """References inside a circle, its rim included, ascending; those without a position are in none."""
        return self._nearby.rows(checked_circle(near))

    def close(self) -> None:
        """Let go of what the engine holds; the connection to a database ends."""

    @cached_property
    def _nearby(self) -> Nearby:
        return Nearby(self.store.positions, len(self.store))

    def _best(self, queries: NDArray[np.float32], references: Descriptors, k: int) -> Matches:
        k = min(k, len(references))
        if k == 0:
            return _nothing(len(queries))
        queries, references = references.beside(queries)
        if references.turned:
            products = references.products if references.references is None else None
            return search_codes(queries, references, k, self.device, products)
        # Read by slices only, which is all that `exact.search` asks of an array.
        return exact.search(queries, cast(Any, references), k, device=self.device)


class EngineSearch(Search):
    """Search by an engine that holds all rows, those removed included."""

    def __init__(self, store: MapStore, engine: Engine) -> None:
        super().__init__(store)
        self.engine, self.why = engine, engine.why

    def close(self) -> None:
        self.engine.close()

    def search(self, queries: NDArray[np.float32], k: int, near: Circle | None = None) -> Matches:
        live = self.store.live
        if near is not None:
            k = min(k, len(self.within(near)))
        k = min(k, len(self.store))
        if k == 0:
            return _nothing(len(queries))
        if live is None:
            return self.engine.search(queries, k, near=near)
        asked = k
        while True:  # more, until k of them are still in the map
            asked = min(2 * asked + 16, len(self.engine))
            found = self.engine.search(queries, asked, near=near)
            at = np.minimum(np.searchsorted(live, found.indices), len(live) - 1)
            kept = live[at] == found.indices
            if found.indices.shape[1] < asked or asked == len(self.engine) or kept.sum(axis=1).min() >= k:
                return _first_kept(Matches(at, found.similarities), kept, k)


def _nothing(queries: int) -> Matches:
    return Matches(np.empty((queries, 0), np.int64), np.empty((queries, 0), np.float32))


def _first_kept(found: Matches, kept: NDArray[np.bool_], k: int) -> Matches:
    order = np.argsort(~kept, axis=1, kind="stable")[:, :k]
    return Matches(
        np.take_along_axis(found.indices, order, 1), np.take_along_axis(found.similarities, order, 1)
    )


def open_search(
    store: MapStore, device: str | None = None, kind: str = "auto", options: Mapping[str, Any] | None = None
) -> Search:
    """The engine of a map: exact up to some hundred thousand references, else what fits, or what is asked."""
    if kind not in ("milvus", "postgres") and {"uri", "collection"} & set(options or ()):
        raise KappaPlaceError(
            f"An address (uri) or a collection belongs to a database, not to the engine {kind!r}; ask for "
            "milvus or postgres."
        )
    if kind == "exact" or (kind == "auto" and len(store) <= EXACT_UP_TO):
        return Search(store, device)
    arrays = [_stored(store, segment) for segment in store.segments]
    index: Path | None = store.folder / INDEX
    if kind in ("milvus", "postgres"):
        return EngineSearch(store, open_database(store, arrays, kind, store.folder / INDEX, options or {}))
    if not (store.folder / INDEX).is_dir() and not os.access(store.folder, os.W_OK):
        index = None  # a read-only map without an index: minutes of building must not end in an error
    # The index is the map's own: when the map has changed it is built anew without being asked.
    settings = {"fingerprint": _fingerprint(store), "rebuild": "if stale", **(options or {})}
    engine = open_engine(arrays, store.with_removed().positions, kind, index, **settings)
    if engine.name == "exact":
        engine.close()
        plain = Search(store, device)
        plain.why = engine.why
        return plain
    return EngineSearch(store, engine)


def _stored(store: MapStore, segment: Segment) -> NDArray[Any] | Quantized | Coded:
    """Descriptors as they lie on disk."""
    array = segment.array("descriptors")
    if store.manifest.storage == "int8":
        return Quantized(array, segment.array("scale"))
    return Coded(array, store.codebook) if store.manifest.storage == "pq" else array


def _fingerprint(store: MapStore) -> str:
    """What tells these descriptors from others, out of the manifest's checksums: no descriptor is read."""
    files = [record.files["descriptors.npy"].sha256 for record in store.manifest.segments]
    if store.manifest.codebook is not None:
        files.append(store.manifest.codebook.record.sha256)
    return hashlib.sha256("".join(files).encode()).hexdigest()
