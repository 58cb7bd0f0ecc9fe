"""Taking references out of a map, and writing what is left anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.maps.distinctiveness import whole_map_extras
from kappaplace.maps.manifest import SegmentRecord
from kappaplace.maps.segments import Rows, write_segment
from kappaplace.maps.writer import MapWriter, writer_of

COMPACT_ROWS = 1 << 15


def remove_references(writer: MapWriter, references: NDArray[np.int64]) -> None:
    """Mark references as removed; their rows stay on disk until the map is compacted."""
    store = writer.store
    rows = store.rows_of(references)
    old = np.empty(0, np.int64)
    if writer.manifest.removed is not None:
        old = np.asarray(store.extra(writer.manifest.removed), np.int64)
    gone = np.union1d(old, rows)
    unposed = int(np.isnan(store.gather("poses", references)[:, 0]).sum())
    writer.commit(removed=writer.extra("removed", gone, len(gone)), unposed=writer.manifest.unposed - unposed)


def remove_names(folder: Path, names: Sequence[str]) -> int:
    """Take references out of a map by their names; an unknown name refuses all of them."""
    with writer_of(folder) as writer:
        unique = list(dict.fromkeys(names))
        found = writer.store.find(unique)
        if (found < 0).any():
            missing = unique[int(np.argmax(found < 0))]
            raise KappaPlaceError(
                f"The map {folder} has no reference {missing!r} ({int((found < 0).sum()):,} of the "
                f"{len(unique):,} names are unknown); nothing was removed."
            )
        if len(found):
            remove_references(writer, found)
        writer.clean()
        return len(found)


def compact_map(folder: Path) -> None:
    """Write the references anew without those removed, in few large segments, and compare all places anew."""
    with writer_of(folder) as writer:
        writer.clean(pending=True)
        rewrite(writer)


def rewrite(writer: MapWriter) -> None:
    """All references into new segments, then one swap."""
    records: list[SegmentRecord] = []
    waiting: list[Rows] = []
    source = ("", "")

    def flush() -> None:
        if waiting:
            rows, name = Rows.join(waiting), writer.next_name()
            records.append(write_segment(writer.folder, name, rows, writer.manifest.storage, *source))
            waiting.clear()

    for segment, rows in writer.store.blocks():
        here = (segment.record.root, segment.record.prefix)
        if here != source or sum(len(part) for part in waiting) + len(rows) > COMPACT_ROWS:
            flush()
        source = here
        if len(rows):
            waiting.append(rows)
    flush()
    written = tuple(records)
    bare = replace(writer.manifest, segments=written, removed=None, distinctiveness=None, sample=None)
    extras = {"distinctiveness": None, "sample": None} | whole_map_extras(MapWriter(writer.folder, bare))
    writer.commit(segments=written, removed=None, **extras)
    writer.clean()
