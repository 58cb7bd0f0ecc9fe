"""A map as references: searched by its engine, with what is known of its places stored beside it.

The cost of a query does not grow with the map beyond the search itself: distinctiveness is stored, the
z-score compares with a fixed sample, and the margin mostly finds its answer further down the list of matches.

How distinctive each place of a map is: the highest similarity of each reference to a far one.

Known from the map alone, it costs a query nothing. New references are compared with all, old ones only with
what is new, so that adding to a map costs what it must. From `EXACT_LIMIT` references on, the far ones are
looked for in a fixed random sample, which gives a lower bound; the manifest says so.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kappaplace.data.near import Circle, Near
from kappaplace.maps.store.manifest import Extra
from kappaplace.maps.store.reader import Indices, MapStore
from kappaplace.maps.store.writer import MapWriter
from kappaplace.progress import track
from kappaplace.retrieval import exact
from kappaplace.retrieval.columns import Columns
from kappaplace.retrieval.exact import best_outside, of_descriptors, row_moments
from kappaplace.retrieval.map_search import Search
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


EXACT_LIMIT = 100_000
SAMPLE = 1 << 15
"""References that stand for all of a large map."""
Z_SAMPLE = 4096
"""References that the z-score compares with: mean and deviation to two per cent."""
_STEP = 1024  # rows between two moves of the progress bar
_FEW = 32


def updated_distinctiveness(store: MapStore) -> tuple[NDArray[np.float32], str]:
    """Of every reference, and how it was found: ``exact`` or ``sampled 32768``."""
    count = len(store)
    known = store.distinctiveness.copy()
    new = np.flatnonzero(np.isnan(known))
    old = np.flatnonzero(~np.isnan(known))
    how, others, fresh = "exact", np.arange(count), new
    if count > EXACT_LIMIT:
        how = f"sampled {SAMPLE}"
        others = draw(count, SAMPLE)
        fresh = others[np.isnan(known[others])]
    near = store.near
    with track("Comparing places", len(new) + (len(old) if len(fresh) else 0)) as bar:
        known[new] = _best_far(store, new, others, near, bar)
        if len(fresh):
            known[old] = np.maximum(known[old], _best_far(store, old, fresh, near, bar))
    return known, how


def draw(count: int, sample: int) -> Indices:
    """A fixed random choice among so many, in order; all of them where they are no more."""
    if count <= sample:
        return np.arange(count, dtype=np.int64)
    drawn = np.random.default_rng(0).choice(count, sample, replace=False, shuffle=False)
    return np.sort(drawn).astype(np.int64)


def _best_far(store: MapStore, rows: Indices, others: Indices, near: Near, bar: track) -> NDArray[np.float32]:
    """Highest similarity of each of these to one of the others that is not near it; −inf if all are."""
    descriptors = store.descriptors
    # A part of the map is read once; the whole of it block by block.
    columns = descriptors if len(others) == len(store) else descriptors[others]
    similarities = of_descriptors(descriptors, columns)
    best = np.full(len(rows), -np.inf, np.float32)
    for start in range(0, len(rows), _STEP):
        part = rows[start : start + _STEP]
        # Mostly the first far one stands among the best few; only where it does not, all are asked.
        found = exact.search(descriptors[part], columns, min(_FEW, len(others)))
        far = ~near(part[:, None], others[found.indices])
        here = np.where(far, found.similarities, -np.inf).max(axis=1)
        left = np.flatnonzero(np.isneginf(here)) if len(others) > _FEW else np.empty(0, np.int64)
        if len(left):
            asked = part[left]
            here[left] = best_outside(
                similarities, asked, asked, len(others), lambda a, b: near(a, others[b])
            )
        best[start : start + _STEP] = here
        bar.advance(len(part))
    return best


def finish(writer: MapWriter) -> None:
    """Bring what is known of the whole map up to date, in one swap; nothing is done where it is already."""
    changes = whole_map_extras(writer)
    if changes:
        writer.commit(**changes)
        writer.clean()


def whole_map_extras(writer: MapWriter) -> dict[str, Extra | None]:
    """What must change in the manifest: distinctiveness, and the sample of the z-score."""
    store = writer.store
    if not len(store):
        return {}
    changes: dict[str, Extra | None] = {}
    if np.isnan(store.distinctiveness).any():
        changes["distinctiveness"] = _distinctiveness(writer, store)
    rows, sample = writer.manifest.rows, writer.manifest.sample
    # Kept while it lasts, so that a calibration keeps its meaning; drawn anew for a map of another size.
    if sample is None or rows > 2 * sample.rows or len(store.sample) < min(2, len(store)):
        changes["sample"] = _sample(writer, store)
    return changes


def _distinctiveness(writer: MapWriter, store: MapStore) -> Extra:
    known, how = updated_distinctiveness(store)
    rows = writer.manifest.rows
    values = np.full(rows, -np.inf, np.float32)
    values[slice(None) if store.live is None else store.live] = known
    return writer.extra("distinctiveness", values, rows, how)


def _sample(writer: MapWriter, store: MapStore) -> Extra:
    chosen = store.rows_of(draw(len(store), Z_SAMPLE))
    return writer.extra("sample", chosen, writer.manifest.rows, f"{len(chosen)} drawn")
