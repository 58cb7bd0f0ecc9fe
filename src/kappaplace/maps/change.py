"""Changes of a whole map: removing references, compacting, and embedding with another model."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.build import FULL_ROWS, Report, extend, patch_mode
from kappaplace.maps.models import keep_model, loaded, record_of
from kappaplace.maps.options import AddOptions
from kappaplace.maps.references import finish, whole_map_extras
from kappaplace.maps.sources import stored_references
from kappaplace.maps.store.manifest import STORAGE, Manifest, SegmentRecord, read_manifest
from kappaplace.maps.store.segments import SEGMENTS, Rows, write_segment
from kappaplace.maps.store.verify import first_broken
from kappaplace.maps.store.writer import MapWriter, writer_of
from kappaplace.models.checkpoint import AnyModel
from kappaplace.retrieval.codes import learn_codebook
from kappaplace.retrieval.columns import COARSE

COMPACT_ROWS = 1 << 15
"""Largest number of references per segment after compacting."""
REEMBED = "reembed"
"""Folder inside a map with the new references, until all images are embedded."""


def remove_names(folder: Path, names: Sequence[str]) -> int:
    """Remove references by name, all of them or none, and return how many were removed by this call."""
    with writer_of(folder) as writer:
        unique = list(dict.fromkeys(names))
        references = writer.store.find(unique)
        # A killed command may have removed them before: their rows are on disk until the map is compacted.
        unknown = np.flatnonzero((references < 0) & (writer.store.with_removed().find(unique) < 0))
        if len(unknown):
            raise KappaPlaceError(
                f"The map {folder} has no reference {unique[unknown[0]]!r} ({len(unknown):,} of "
                f"{len(unique):,} names are unknown). Nothing was removed."
            )
        references = references[references >= 0]
        writer.remove(references)
        writer.clean()
        return len(references)


def compact_map(folder: Path, storage: str | None = None) -> None:
    """Write all references again, without the removed ones and in few large segments.

    Args:
        folder: Folder of the map.
        storage: New number format of the descriptors. Compression is lossy and cannot be undone. Default:
            unchanged.

    Raises:
        KappaPlaceError: If the format is unknown, or a file of the map is damaged.
    """
    if storage is not None and storage not in STORAGE:
        raise KappaPlaceError(f"Unknown storage {storage!r}. Choose from: {', '.join(STORAGE)}.")
    with writer_of(folder) as writer:
        # The new files get new checksums, so damage that is copied could not be detected later.
        if message := first_broken(folder, writer.manifest):
            raise KappaPlaceError(
                f"{message.rstrip('.')}, so nothing was changed. Restore the map from a copy, or rebuild it."
            )
        writer.clean(pending=True)
        rewrite(writer, storage)


def rewrite(writer: MapWriter, storage: str | None = None) -> None:
    """Write all references to new segments, then replace the manifest."""
    store, manifest = writer.store, writer.manifest
    storage = storage or manifest.storage
    changes: dict[str, Any] = {"storage": storage, "codebook": None}
    codebook = None
    if storage == "pq":
        # Existing codes keep their codebook, so that they are not rounded twice.
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
            root, prefix = source
            target = writer.folder / SEGMENTS / writer.next_name()
            joined = Rows.join(waiting)
            records.append(write_segment(target, joined, storage, codebook, root=root, prefix=prefix))
            waiting.clear()

    most = FULL_ROWS if manifest.patches == "full" else COMPACT_ROWS
    had_patches = False
    for segment, rows in store.blocks():
        own = (segment.record.root, segment.record.prefix)
        mixed = segment.has_patches != had_patches
        if mixed or own != source or sum(len(part) for part in waiting) + len(rows) > most:
            flush()
        source, had_patches = own, segment.has_patches
        if len(rows):
            waiting.append(rows)
    flush()
    changes |= {"segments": tuple(records), "removed": None, "distinctiveness": None, "sample": None}
    changes |= whole_map_extras(MapWriter(writer.folder, replace(manifest, **changes)))
    writer.commit(**changes)
    writer.clean()


def reembed_map(
    folder: Path, model: AnyModel | str | Path, options: AddOptions, patches: str | None = None
) -> Report:
    """Embed all images of a map again with another model.

    The new references are collected in a map inside this one, so that an interrupted run can resume. Until
    all of them are complete, the map does not change.

    Args:
        folder: Folder of the map.
        model: New model, or its folder, file or name.
        options: Options of the embedding.
        patches: What to store for patch matching. Default: unchanged, if the new model allows it.

    Returns:
        Numbers of embedded and skipped images.

    Raises:
        KappaPlaceError: If a reference has no image file, or an image cannot be read.
    """
    ready, source = loaded(model)
    with writer_of(folder) as writer:
        record = record_of(ready, source)
        preprocessing = Preprocessing.from_dict(record.preprocessing)
        if patches is None and writer.manifest.patches != "none":
            possible = patch_mode(ready, preprocessing, None) != "none"
            patches = writer.manifest.patches if possible else "none"
        draft = replace(
            writer.manifest,
            model=record,
            # Codes are learned from the new descriptors once all of them are complete.
            storage="float16" if writer.manifest.storage == "pq" else writer.manifest.storage,
            codebook=None,
            patches=patch_mode(ready, preprocessing, patches or "none"),
            patch_codebook=None,
            segments=(),
            removed=None,
            distinctiveness=None,
            sample=None,
            unposed=0,
            calibration=None,
            version=0,
        )
        inner, report = folder / REEMBED, Report()
        if inner.is_dir() and _other_draft(inner, draft):
            shutil.rmtree(inner)
        sources = stored_references(writer.store)
        with writer_of(inner, create=draft, resume=True) as fresh:
            for images in sources:
                part = extend(fresh, images, ready, options)
                report.added += part.added
                report.already += part.already
                report.unposed += part.unposed
                report.skipped += part.skipped
            _drop_others(fresh, {name for images in sources for name in images.names})
            finish(fresh)
            if fresh.manifest.removed is not None or fresh.manifest.storage != writer.manifest.storage:
                rewrite(fresh, writer.manifest.storage)
            keep_model(folder, record, ready)
            _take_over(writer, fresh)
        shutil.rmtree(inner, ignore_errors=True)
        return report


def _other_draft(inner: Path, draft: Manifest) -> bool:
    try:
        stored = read_manifest(inner)
        return (stored.model, stored.patches) != (draft.model, draft.patches)
    except KappaPlaceError:
        return True


def _drop_others(fresh: MapWriter, names: set[str]) -> None:
    """Remove references that were removed from the map while its re-embedding was interrupted."""
    others = [i for i, name in enumerate(fresh.store.names()) if name not in names]
    fresh.remove(np.array(others, np.int64))


def _take_over(writer: MapWriter, fresh: MapWriter) -> None:
    """Replace the segments of the map: link the new files first, then replace the manifest."""
    records = [writer.adopt(fresh.folder, record) for record in fresh.manifest.segments]
    new, changes = fresh.manifest, {}
    for name in ("distinctiveness", "sample", "codebook", "patch_codebook"):
        extra = getattr(new, name)
        changes[name] = extra and writer.extra(
            name.replace("_", "-"), fresh.store.extra(extra), extra.rows, extra.how
        )
    writer.commit(
        model=new.model,
        patches=new.patches,
        segments=tuple(records),
        removed=None,
        unposed=new.unposed,
        calibration=None,
        **changes,
    )
    writer.clean(pending=True)
