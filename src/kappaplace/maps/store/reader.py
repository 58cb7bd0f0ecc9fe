"""Reading a map: the rows of all segments as if they were one array, less those removed.

Two ways to count: a *row* is a place in the files and never changes until the map is compacted; a *reference*
is what users see, counted from 0 among the rows that were not removed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.near import Near
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.store.manifest import Extra, Manifest
from kappaplace.maps.store.segments import (
    Rows,
    Segment,
    name_keys,
    read_codebook,
    read_extra,
    row_name,
)
from kappaplace.retrieval import Columns, MapSource
from kappaplace.retrieval.codes import Codebook

Indices = NDArray[np.int64]


class MapStore:
    """One version of a map on disk. Opening it costs one look at each segment; arrays are mapped on use."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        codebook = None if manifest.codebook is None else lambda: self.codebook
        self.segments = [Segment(folder, record, codebook) for record in manifest.segments]
        self.starts = np.concatenate([[0], np.cumsum([len(s) for s in self.segments])]).astype(np.int64)
        for segment in self.segments:
            segment.checked("descriptors.npy")  # cut short: told now, not in the middle of a drive

    def __len__(self) -> int:
        return self.manifest.count

    @cached_property
    def codebook(self) -> Codebook:
        """How the codes of a map of codes become descriptors."""
        assert self.manifest.codebook is not None
        return read_codebook(self.folder, self.manifest.codebook, self.manifest.model.dim)

    @cached_property
    def live(self) -> Indices | None:
        """Rows of the references; None where none was ever removed, so that no list of all is needed."""
        if self.manifest.removed is None:
            return None
        keep = np.ones(self.manifest.rows, bool)
        keep[self.extra(self.manifest.removed)] = False
        return np.flatnonzero(keep)

    def with_removed(self) -> MapStore:
        """All rows as references, those removed included: what an engine holds."""
        return MapStore(self.folder, replace(self.manifest, removed=None))

    def rows_of(self, references: Any) -> Indices:
        """Rows of some references, given as numbers or as a slice."""
        if self.live is not None:
            return self.live[references]
        if isinstance(references, slice):
            return np.arange(*references.indices(len(self)), dtype=np.int64)
        return np.asarray(references, np.int64)

    def gather(self, column: str, references: Any) -> NDArray[Any]:
        """One column of some references; only the pages that hold them are read."""
        rows = self.rows_of(references)
        flat = rows.reshape(-1)
        home = np.searchsorted(self.starts, flat, side="right") - 1
        first = self.segments[0].array(column)
        found = np.empty((len(flat), *first.shape[1:]), first.dtype)
        for number in np.unique(home).tolist():
            here = home == number
            found[here] = self.segments[number].array(column)[flat[here] - self.starts[number]]
        return found.reshape((*rows.shape, *first.shape[1:]))

    def whole(self, column: str) -> NDArray[Any]:
        """One column of every reference: the mapped file itself where there is only one."""
        if not self.segments:
            raise KappaPlaceError(f"The map {self.folder} is empty; add images to it first.")
        parts = [segment.array(column) for segment in self.segments]
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return joined if self.live is None else joined[self.live]

    @cached_property
    def positions(self) -> NDArray[np.float64]:
        """x and y of every reference, 16 bytes each."""
        parts = [segment.array("poses")[:, :2] for segment in self.segments]
        joined = np.concatenate(parts) if parts else np.empty((0, 2))
        return joined if self.live is None else joined[self.live]

    @cached_property
    def near(self) -> Near:
        """Which references show one place: the question that margin, aliasing and pose fusion ask."""
        return Near.of(self.manifest.near, lambda: self.positions, lambda: self.whole("routes").T[::-1])

    @cached_property
    def descriptors(self) -> Columns:
        """Descriptors of every reference, read block by block."""
        stored = [segment.stored() for segment in self.segments]
        return Columns(stored, self.live, dim=self.manifest.model.dim)

    def source(self) -> MapSource:
        """What search engines need of the map."""
        rows = self if self.live is None else self.with_removed()
        return MapSource(
            self.folder,
            self.manifest.name,
            self.descriptors,
            rows.positions,
            kappa=lambda: rows.whole("kappa"),
            names=rows.names,
            row_name=rows.name,
            fingerprint=self.fingerprint,
            state={"references": self._content, "rows": self.manifest.rows},
        )

    @property
    def fingerprint(self) -> str:
        """What tells these descriptors from others, by the manifest's checksums: no descriptor is read."""
        files = [record.files["descriptors.npy"].sha256 for record in self.manifest.segments]
        if self.manifest.codebook is not None:
            files.append(self.manifest.codebook.record.sha256)
        return hashlib.sha256("".join(files).encode()).hexdigest()

    @property
    def _content(self) -> str:
        """A digest of the bytes of all segments, rows that were removed included."""
        files = [[f.sha256 for f in segment.files.values()] for segment in self.manifest.segments]
        if self.manifest.codebook is not None:
            files.append([self.manifest.codebook.record.sha256])
        return hashlib.sha256(json.dumps(files).encode()).hexdigest()

    def values(self, extra: Extra | None) -> NDArray[np.float32]:
        """A number for every reference from a file beside the segments; NaN for those added since."""
        found = np.full(self.manifest.rows, np.nan, np.float32)
        if extra is not None:
            found[: extra.rows] = self.extra(extra)[: extra.rows]
        return found if self.live is None else found[self.live]

    @cached_property
    def distinctiveness(self) -> NDArray[np.float32]:
        """Highest similarity of each reference to a far one; −inf where there is none, NaN: not known yet."""
        return self.values(self.manifest.distinctiveness)

    @cached_property
    def sample(self) -> Indices:
        """References that the z-score compares with."""
        if self.manifest.sample is None:
            return np.arange(min(len(self), 2), dtype=np.int64)
        rows = np.asarray(self.extra(self.manifest.sample), np.int64)
        if self.live is None:
            return rows
        at = np.minimum(np.searchsorted(self.live, rows), max(len(self.live) - 1, 0))
        return at[self.live[at] == rows] if len(self.live) else at[:0]

    def extra(self, extra: Extra) -> NDArray[Any]:
        """An array beside the segments, of the size it was written with."""
        return read_extra(self.folder, extra)

    def place(self, reference: int) -> tuple[Segment, int]:
        """Segment of a reference and its row there."""
        row = int(self.rows_of(np.int64(reference)))
        number = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.segments[number], row - int(self.starts[number])

    def name(self, reference: int) -> str:
        """The name of a reference."""
        return row_name(*self.place(reference))

    def image_path(self, reference: int) -> str:
        """Where the image of a reference lay when it was embedded; empty where it never was a file."""
        segment, row = self.place(reference)
        if not segment.record.root:
            return ""
        name = row_name(segment, row)
        return str(Path(segment.record.root) / name.removeprefix(segment.record.prefix))

    def thumbnail(self, reference: int) -> bytes | None:
        """The small picture of a reference, where the map keeps them."""
        segment, row = self.place(reference)
        if segment.thumbnails is None:
            return None
        return segment.thumbnails[row] or None

    def names(self) -> Iterator[str]:
        """Names of all references in order, a segment at a time."""
        for segment, chosen in self.parts():
            pieces = segment.names.all()
            yield from (pieces[i].decode("utf-8", "surrogateescape") for i in chosen.tolist())

    def blocks(self) -> Iterator[tuple[Segment, Rows]]:
        """All references as memory, a segment at a time."""
        for segment, chosen in self.parts():
            rows = segment.rows()
            yield segment, rows if len(chosen) == len(rows) else rows.take(chosen)

    def parts(self) -> Iterator[tuple[Segment, Indices]]:
        """Each segment with those of its rows that were not removed."""
        for segment, start in zip(self.segments, self.starts[:-1].tolist(), strict=True):
            if self.live is None:
                yield segment, np.arange(len(segment), dtype=np.int64)
            else:
                low, high = np.searchsorted(self.live, [start, start + len(segment)])
                yield segment, self.live[low:high] - start

    def find(self, names: Sequence[str]) -> Indices:
        """References of these names, −1 where the map has none: by hash first, then by the name itself."""
        found = np.full(len(names), -1, np.int64)
        if not len(self) or not len(names):
            return found
        order, keys = self._by_key
        wanted = name_keys(names)
        low, high = (np.searchsorted(keys, wanted, side=s) for s in ("left", "right"))
        for i in np.flatnonzero(high > low).tolist():
            for at in range(int(low[i]), int(high[i])):
                if self.name(int(order[at])) == names[i]:
                    found[i] = order[at]
                    break
        return found

    @cached_property
    def _by_key(self) -> tuple[Indices, NDArray[np.uint64]]:
        keys = self.whole("keys")
        order = np.argsort(keys, kind="stable")
        return order, keys[order]
