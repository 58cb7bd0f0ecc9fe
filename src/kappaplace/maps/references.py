"""A map as references for retrieval, and statistics of the whole map.

Apart from the search itself, the cost of a query does not grow with the map. Distinctiveness is stored, and
the z-score compares with a fixed sample. The margin is usually computed from the list of matches.

The distinctiveness of a reference is its highest similarity to a reference of another place. New references
are compared with all references, existing ones only with the new ones. Above `EXACT_LIMIT` references, the
comparison uses a fixed random sample, which gives a lower bound; the manifest records this.
"""

from __future__ import annotations

import os
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.data.near import Circle, Near
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.store import Indices, MapStore, Selection
from kappaplace.maps.store.manifest import Extra
from kappaplace.maps.store.writer import MapWriter
from kappaplace.progress import track
from kappaplace.retrieval import exact
from kappaplace.retrieval.columns import Columns
from kappaplace.retrieval.exact import best_outside, of_descriptors, row_moments
from kappaplace.retrieval.open import Search
from kappaplace.retrieval.patch_codes import LocalFeatures, PatchCodebook
from kappaplace.retrieval.references import SAMPLE as Z_SAMPLE
from kappaplace.retrieval.references import Floats, PatchMaps, draw
from kappaplace.types import Matches

REEMBED = "Run `kappaplace map reembed {} --patches compact` where the images are"


class _Kappa:
    """κ of the references, read on access."""

    def __init__(self, store: MapStore) -> None:
        self.store, self.shape = store, (len(store),)

    def __getitem__(self, rows: Selection) -> Floats:
        return self.store.gather("kappa", rows).astype(np.float64)


class MapReferences:
    """References of one version of a map. `kappaplace.retrieval.references` documents the methods.

    Args:
        store: The stored map.
        engine: Search engine of the map.
        patch_maps: Function that computes the patch maps of images.
        device: Device that compares patches.
    """

    def __init__(
        self, store: MapStore, engine: Search, patch_maps: PatchMaps, device: str | torch.device = "cpu"
    ) -> None:
        self.store, self.engine, self.patch_maps, self.device = store, engine, patch_maps, device
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
        """Return the stored distinctiveness. For references that were added later, compute it."""
        values = self.store.distinctiveness[rows].astype(np.float64)
        unknown = np.flatnonzero(np.isnan(values))
        if len(unknown):
            new = rows[unknown]
            similarities = of_descriptors(self.descriptors, self.descriptors)
            values[unknown] = best_outside(similarities, new, new, len(self), self.near)
        return values

    def sample(self) -> Indices:
        return self.store.sample

    def background(self, queries: NDArray[np.floating], rows: Indices | None = None) -> tuple[Floats, Floats]:
        columns = self._sample if rows is None else self.descriptors[rows]
        return row_moments(of_descriptors(queries, columns), len(queries), len(columns))

    def images(self, rows: Indices) -> list[str]:
        return [self.store.image_path(row) for row in rows.tolist()]

    def local(self, rows: Indices, kind: str = "patches") -> LocalFeatures:
        """Return the stored patches; compute them from the images for references that have none."""
        stored, book = self.store.has_patches(rows), self.store.patch_codebook
        if stored.all():
            return self._stored_patches(rows, book)
        parts, coded, missing = [], rows[stored], rows[~stored]
        if len(coded):
            parts.append(self._stored_patches(coded, book))
        if len(missing):
            maps = self.patch_maps(self._image_files(missing))
            parts.append(LocalFeatures.of(maps).within(None if book is None else book.basis(maps.device)))
        order = np.concatenate([np.flatnonzero(stored), np.flatnonzero(~stored)])
        return LocalFeatures.join(parts).take(np.argsort(order))

    def _stored_patches(self, rows: Indices, book: PatchCodebook | None) -> LocalFeatures:
        values = self.store.gather("patches", rows)
        if values.ndim == 4:
            return LocalFeatures.of(torch.from_numpy(values).to(self.device))
        if book is None or values.shape[1] != book.width:
            raise KappaPlaceError(
                f"The patches of the map {self.store.folder} do not fit its codebook. "
                f"{REEMBED.format(self.store.folder)}, or restore the map from a copy."
            )
        return book.decode(values, self.device)

    def _image_files(self, rows: Indices) -> list[str]:
        """Return the images of references without stored patches; raise an error if one does not exist."""
        files = self.images(rows)
        for row, file in zip(rows.tolist(), files, strict=True):
            if not os.path.isfile(file):
                raise KappaPlaceError(
                    f"The map has no patches of {self.store.name(row)!r}, and its image {file!r} does not "
                    f"exist. {REEMBED.format(self.store.folder)}, or pass rerank=0."
                )
        return files

    @cached_property
    def _sample(self) -> NDArray[np.float32]:
        return self.descriptors[self.sample()]


EXACT_LIMIT = 100_000
"""Largest number of references for which every pair is compared."""
SAMPLE = 1 << 15
"""Number of references that represent a larger map."""
_STEP = 1024  # rows between two updates of the progress bar
_FEW = 32


def updated_distinctiveness(store: MapStore) -> tuple[NDArray[np.float32], str]:
    """Return the distinctiveness of all references, and its method: ``exact`` or ``sampled 32768``."""
    values = store.distinctiveness.copy()
    new, old = np.flatnonzero(np.isnan(values)), np.flatnonzero(~np.isnan(values))
    method, others, fresh = "exact", np.arange(len(store)), new
    if len(store) > EXACT_LIMIT:
        method, others = f"sampled {SAMPLE}", draw(len(store), SAMPLE)
        fresh = others[np.isnan(values[others])]
    with track("Comparing places", len(new) + (len(old) if len(fresh) else 0)) as bar:
        values[new] = _best_far(store, new, others, bar)
        if len(fresh):
            values[old] = np.maximum(values[old], _best_far(store, old, fresh, bar))
    return values, method


def _best_far(store: MapStore, rows: Indices, others: Indices, bar: track) -> NDArray[np.float32]:
    """Return the highest similarity of each row to another place among the others; −inf if none."""
    descriptors, near = store.descriptors, store.near
    # A sample is read at once, the whole map block by block.
    columns = descriptors if len(others) == len(store) else descriptors[others]
    similarities = of_descriptors(descriptors, columns)
    best = np.full(len(rows), -np.inf, np.float32)
    for start in range(0, len(rows), _STEP):
        part = rows[start : start + _STEP]
        # The few best matches usually include another place. If not, all references are compared.
        matches = exact.search(descriptors[part], columns, min(_FEW, len(others)))
        far = ~near(part[:, None], others[matches.indices])
        values = np.where(far, matches.similarities, -np.inf).max(axis=1)
        open_rows = np.flatnonzero(np.isneginf(values)) if len(others) > _FEW else np.empty(0, np.int64)
        if len(open_rows):
            centers = part[open_rows]
            values[open_rows] = best_outside(
                similarities, centers, centers, len(others), lambda a, b: near(a, others[b])
            )
        best[start : start + _STEP] = values
        bar.advance(len(part))
    return best


def finish(writer: MapWriter) -> None:
    """Update the statistics of the whole map, if they are out of date."""
    changes = whole_map_extras(writer)
    if changes:
        writer.commit(**changes)
        writer.clean()


def whole_map_extras(writer: MapWriter) -> dict[str, Extra | None]:
    """Return the changes of the manifest for distinctiveness and the sample of the z-score."""
    store, rows, sample = writer.store, writer.manifest.rows, writer.manifest.sample
    if not len(store):
        return {}
    changes: dict[str, Extra | None] = {}
    if np.isnan(store.distinctiveness).any():
        values = np.full(rows, -np.inf, np.float32)
        values[store.rows_of(slice(None))], method = updated_distinctiveness(store)
        changes["distinctiveness"] = writer.extra("distinctiveness", values, rows, method)
    # The sample stays the same as long as possible, because a calibration depends on it.
    if sample is None or rows > 2 * sample.rows or len(store.sample) < min(2, len(store)):
        drawn = store.rows_of(draw(len(store), Z_SAMPLE))
        changes["sample"] = writer.extra("sample", drawn, rows, f"{len(drawn)} drawn")
    return changes
