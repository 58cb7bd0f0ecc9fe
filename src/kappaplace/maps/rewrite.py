"""Writing all references of a map again: in fewer segments, in another format, or whitened."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kappaplace.errors import KappaPlaceError
from kappaplace.maps.embed import whitened_record
from kappaplace.maps.references import whole_map_extras
from kappaplace.maps.store.manifest import SegmentRecord
from kappaplace.maps.store.segments import SEGMENTS, Rows, write_segment
from kappaplace.maps.store.writer import MapWriter
from kappaplace.models.aggregation import SAMPLE_BYTES, Whitening, learn_whitening
from kappaplace.retrieval.codes import learn_codebook
from kappaplace.retrieval.columns import COARSE
from kappaplace.retrieval.references import draw

COMPACT_ROWS = 1 << 15
"""Largest number of references per segment after compacting."""
FULL_ROWS = 256
"""Largest segment with whole feature maps, which are written at once."""


def rewrite(writer: MapWriter, storage: str | None = None, whitening: Whitening | None = None) -> None:
    """Write all references to new segments, then replace the manifest.

    Args:
        writer: Writer of the map.
        storage: New number format of the descriptors. Default: unchanged.
        whitening: Projection of all descriptors; not together with ``pq``.
    """
    store, manifest = writer.store, writer.manifest
    storage = storage or manifest.storage
    changes: dict[str, Any] = {"storage": storage, "codebook": None}
    codebook = None
    if whitening is not None:
        array = whitening.to_array()
        changes |= {
            "whitening": writer.extra("whitening", array, len(array)),
            "model": whitened_record(manifest.model, whitening),
            "calibration": None,
        }
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
        if whitening is not None:
            rows = replace(rows, descriptors=whitening.of(rows.descriptors), codes=None)
        if len(rows):
            waiting.append(rows)
    flush()
    changes |= {"segments": tuple(records), "removed": None, "distinctiveness": None, "sample": None}
    changes |= whole_map_extras(MapWriter(writer.folder, replace(manifest, **changes)))
    writer.commit(**changes)
    writer.clean()


def whiten(writer: MapWriter, dim: int, storage: str | None = None) -> None:
    """Whiten all descriptors of a map to fewer dimensions, fitted on these descriptors.

    The whitening becomes part of the model of the map: images and queries are whitened from now on. The
    calibration is removed, because scores change.

    Args:
        writer: Writer of the map.
        dim: Dimension of the whitened descriptors.
        storage: New number format of the descriptors. Default: unchanged.

    Raises:
        KappaPlaceError: If the map has too few references, or is whitened to another dimension.
    """
    store, model = writer.store, writer.manifest.model
    check_dimension(writer, dim)
    if writer.manifest.whitening is not None:
        rewrite(writer, storage)
        return
    rows = draw(len(store), max(dim + 1, SAMPLE_BYTES // (4 * model.dim)))
    whitening = learn_whitening(store.descriptors[rows], dim)
    target = storage or writer.manifest.storage
    rewrite(writer, "float16" if target == "pq" else target, whitening)
    if target == "pq":  # codes are learned from the whitened descriptors
        rewrite(writer, target)


def check_dimension(writer: MapWriter, dim: int | None) -> None:
    """Raise an error if a map is already whitened to another dimension."""
    manifest = writer.manifest
    if dim is not None and manifest.whitening is not None and manifest.model.dim != dim:
        raise KappaPlaceError(
            f"The map {writer.folder} is whitened to {manifest.model.dim} dimensions, got {dim}. Omit --dim, "
            "or build another map."
        )
