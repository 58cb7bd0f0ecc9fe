"""A map as references: searched by its engine, with what is known of its places stored beside it.

The cost of a query does not grow with the map beyond the search itself: distinctiveness is stored, the
z-score compares with a fixed sample, and the margin mostly finds its answer further down the list of matches.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kappaplace.data.near import Circle, Near
from kappaplace.maps.store import Indices, MapStore
from kappaplace.retrieval.choose import Search
from kappaplace.retrieval.columns import Columns
from kappaplace.retrieval.exact import best_outside, of_descriptors, row_moments
from kappaplace.retrieval.references import Floats, PatchMaps
from kappaplace.types import Matches


class _Kappa:
    """κ of references, read where it is asked for."""

    def __init__(self, store: MapStore) -> None:
        self.store, self.shape = store, (len(store),)

    def __getitem__(self, rows: Any) -> Floats:
        return self.store.gather("kappa", rows).astype(np.float64)


class MapReferences:
    """One version of a map."""

    def __init__(self, store: MapStore, engine: Search, patch_maps: PatchMaps) -> None:
        self.store, self.engine, self.patch_maps = store, engine, patch_maps
        self.kappa = _Kappa(store)

    def __len__(self) -> int:
        return len(self.store)

    @property
    def descriptors(self) -> Columns:
        return self.store.descriptors

    @property
    def positions(self) -> NDArray[np.float64]:
        return self.store.positions

    @property
    def near(self) -> Near:
        return self.store.near

    def search(self, queries: NDArray[np.floating], k: int, area: Circle | None = None) -> Matches:
        return self.engine.search(np.asarray(queries, np.float32), k, area)

    def within(self, area: Circle) -> Indices:
        """Return the references inside a circle."""
        return self.engine.within(area)

    def outside(self, queries: NDArray[np.floating], top: Indices, area: Circle | None = None) -> Floats:
        rows = np.arange(len(self)) if area is None else self.within(area)
        columns = self.descriptors if area is None else self.descriptors.only(rows)
        return best_outside(
            of_descriptors(*columns.beside(np.asarray(queries, np.float32))),
            np.arange(len(queries)),
            top,
            len(rows),
            lambda a, b: self.near(a, rows[b]),
        ).astype(np.float64)

    def aliases(self, rows: Indices) -> Floats:
        """Return the distinctiveness as stored; that of references added since is computed now."""
        found = self.store.distinctiveness[rows].astype(np.float64)
        unknown = np.flatnonzero(np.isnan(found))
        if len(unknown):
            new = rows[unknown]
            similarities = of_descriptors(self.descriptors, self.descriptors)
            found[unknown] = best_outside(similarities, new, new, len(self), self.near)
        return found

    def sample(self) -> Indices:
        return self.store.sample

    def background(self, queries: NDArray[np.floating], rows: Indices | None = None) -> tuple[Floats, Floats]:
        columns = self._sample if rows is None else self.descriptors[rows]
        return row_moments(of_descriptors(queries, columns), len(queries), len(columns))

    def images(self, rows: Indices) -> list[str]:
        return [self.store.image_path(row) for row in rows.tolist()]

    def local(self, rows: Indices, kind: str = "patches") -> Tensor:
        return self.patch_maps(self.images(rows))

    @cached_property
    def _sample(self) -> NDArray[np.float32]:
        return self.descriptors[self.sample()]
