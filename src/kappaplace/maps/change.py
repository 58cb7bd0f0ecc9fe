"""Taking references out of a map, and writing what is left anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.maps.references import whole_map_extras
from kappaplace.maps.store.manifest import STORAGE, SegmentRecord
from kappaplace.maps.store.segments import Rows, write_segment
from kappaplace.maps.store.verify import first_broken
from kappaplace.maps.store.writer import MapWriter, writer_of
from kappaplace.retrieval.codes import learn_codebook
from kappaplace.retrieval.columns import COARSE

COMPACT_ROWS = 1 << 15


def removal(writer: MapWriter, references: NDArray[np.int64]) -> dict[str, Any]:
    """The change of the manifest that marks references as removed, alone or together with others."""
    store = writer.store
    rows = store.rows_of(references)
    old = np.empty(0, np.int64)
    if writer.manifest.removed is not None:
        old = np.asarray(store.extra(writer.manifest.removed), np.int64)
    gone = np.union1d(old, rows)
    unposed = int(np.isnan(store.gather("poses", references)[:, 0]).sum())
    removed = writer.extra("removed", gone, len(gone))
    return {"removed": removed, "unposed": writer.manifest.unposed - unposed}


def remove_references(writer: MapWriter, references: NDArray[np.int64]) -> None:
    """Mark references as removed; their rows stay on disk until the map is compacted."""
    writer.commit(**removal(writer, references))


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


def compact_map(folder: Path, storage: str | None = None) -> None:
    """Write the references anew without those removed, in few large segments, and compare all places anew.

    ``storage`` keeps descriptors otherwise than before. What was rounded once stays so: codes become float32
    numbers, but not those of the model.
    """
    if storage is not None and storage not in STORAGE:
        raise KappaPlaceError(f"Descriptors are stored as one of {', '.join(STORAGE)}, not {storage!r}.")
    with writer_of(folder) as writer:
        # New files have new checksums: damage that is copied can never be told again.
        if broken := first_broken(folder, writer.manifest):
            raise KappaPlaceError(
                f"{broken.rstrip('.')}; nothing was changed: restore the map from a copy, or build it again."
            )
        writer.clean(pending=True)
        rewrite(writer, storage)


def rewrite(writer: MapWriter, storage: str | None = None) -> None:
    """All references into new segments, then one swap."""
    store, manifest = writer.store, writer.manifest
    storage = storage or manifest.storage
    changes: dict[str, Any] = {"storage": storage, "codebook": None}
    codebook = None
    if storage == "pq":
        # Learnt once: codes that are codes already keep their codebook.
        codebook = store.codebook if manifest.codebook is not None else learn_codebook(store.descriptors)
        changes["codebook"] = manifest.codebook
        if manifest.codebook is None:
            array = codebook.to_array()
            changes["codebook"] = writer.extra("codebook", array, len(array))
    if storage != manifest.storage and storage in COARSE:
        changes["calibration"] = None
    records: list[SegmentRecord] = []
    waiting: list[Rows] = []
    source = ("", "")

    def flush() -> None:
        if waiting:
            rows, name = Rows.join(waiting), writer.next_name()
            records.append(write_segment(writer.folder, name, rows, storage, *source, codebook))
            waiting.clear()

    for segment, rows in store.blocks():
        here = (segment.record.root, segment.record.prefix)
        if here != source or sum(len(part) for part in waiting) + len(rows) > COMPACT_ROWS:
            flush()
        source = here
        if len(rows):
            waiting.append(rows)
    flush()
    changes |= {"segments": tuple(records), "removed": None, "distinctiveness": None, "sample": None}
    changes |= whole_map_extras(MapWriter(writer.folder, replace(manifest, **changes)))
    writer.commit(**changes)
    writer.clean()
