"""Changes of a whole map: remove references, compact, embed with another model, store patches."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.data.identity import file_stats, same_file
from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.build import BLOCK, Report, evenly, extend, patch_mode, save_patch_codebook
from kappaplace.maps.embed import keep_model, load_named_model, record_of, whitened, whitened_record
from kappaplace.maps.options import AddOptions
from kappaplace.maps.references import finish
from kappaplace.maps.rewrite import rewrite, whiten
from kappaplace.maps.sources import stored_references
from kappaplace.maps.store import Indices, MapStore, first_broken, parts
from kappaplace.maps.store.manifest import STORAGE, Manifest, read_manifest
from kappaplace.maps.store.schema import Column
from kappaplace.maps.store.writer import MapWriter, writer_of
from kappaplace.models.checkpoint import AnyModel
from kappaplace.models.embedding import usable_device
from kappaplace.models.embedding.ray import Starter, starter
from kappaplace.progress import track
from kappaplace.retrieval.patch_codes import SAMPLE_IMAGES, PatchCodebook
from kappaplace.retrieval.patches import learn_codes

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


def compact_map(folder: Path, storage: str | None = None, dim: int | None = None) -> None:
    """Write all references again, without the removed ones and in few large segments.

    Args:
        folder: Folder of the map.
        storage: New number format of the descriptors. Compression is lossy and cannot be undone. Default:
            unchanged.
        dim: Dimension to whiten the descriptors to. Default: unchanged.

    Raises:
        KappaPlaceError: If the format is unknown, a file of the map is damaged, or the map has too few images
            to be whitened.
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
        if dim is None:
            rewrite(writer, storage)
        else:
            whiten(writer, dim, storage)


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
        patches: Data to store for patch matching. Default: unchanged, if the new model allows it.

    Returns:
        Numbers of embedded and skipped images.

    Raises:
        KappaPlaceError: If a reference has no image file, or an image cannot be read.
    """
    ready, source = load_named_model(model)
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
            whitening=None,
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
        dim = writer.manifest.model.dim if writer.manifest.whitening is not None else record.dim
        with writer_of(inner, create=draft, resume=True) as fresh:
            embedding = whitened(ready, fresh.manifest.model, fresh.store.whitening)
            for images in sources:
                part = extend(fresh, images, embedding, options)
                report.added += part.added
                report.already += part.already
                report.unposed += part.unposed
                report.skipped += part.skipped
            _drop_others(fresh, {name for images in sources for name in images.names})
            if dim < fresh.manifest.model.dim:
                whiten(fresh, dim)
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
        whitening = MapStore(inner, stored).whitening
        model = draft.model if whitening is None else whitened_record(draft.model, whitening)
        return (stored.model, stored.patches) != (model, draft.patches)
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
    for name in ("distinctiveness", "sample", "codebook", "whitening", "patch_codebook"):
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


def store_patches(folder: Path, model: AnyModel, patches: str, options: AddOptions) -> Report:
    """Store the patches of all references, or delete them. Descriptors and calibration do not change.

    The map is complete after every segment, so an interrupted run resumes.

    Args:
        folder: Folder of the map.
        model: Model of the map.
        patches: Kind of patches to store: none, compact or full.
        options: Options of the embedding.

    Returns:
        Number of references whose patches were stored or existed, and skipped images.

    Raises:
        KappaPlaceError: If the model has no patch maps, or an image is missing, unreadable or has changed.
    """
    if options.device:
        usable_device(options.device)
    report = Report()
    with writer_of(folder) as writer:
        preprocessing = Preprocessing.from_dict(writer.manifest.model.preprocessing)
        patches = patch_mode(model, preprocessing, patches)
        if patches != writer.manifest.patches:
            _drop(writer, patches)
        missing = writer.manifest.count - int(writer.store.has_patches(slice(None)).sum())
        report.already = writer.manifest.count - missing
        if patches == "none" or not missing:
            return report
        with (
            starter(
                model,
                preprocessing,
                batch_size=options.batch_size,
                device=options.device or None,
                images=missing,
                embedder=options.embedder,
                ray=options.ray,
                patches=True,
            ) as embedder,
            track("Embedding", missing) as bar,
        ):
            if patches == "compact" and writer.manifest.patch_codebook is None:
                sample = evenly(np.arange(writer.manifest.count), SAMPLE_IMAGES)
                save_patch_codebook(writer, learn_codes(torch.from_numpy(_maps(writer, sample, embedder))))
            book = writer.store.patch_codebook
            for number in range(len(writer.manifest.segments)):
                try:
                    report.added += _store(writer, number, embedder, book, bar)
                except KappaPlaceError as error:
                    if options.on_error == "stop":
                        raise
                    report.skipped.append((f"segment {number}", str(error)))
        writer.clean()
    return report


def _drop(writer: MapWriter, patches: str) -> None:
    """Delete all patches, and record the kind of patches that the map stores in the manifest."""
    records = []
    for record in writer.manifest.segments:
        files = {name: file for name, file in record.files.items() if name != "patches.npy"}
        same = len(files) == len(record.files)
        records.append(record if same else writer.adopt(writer.folder, replace(record, files=files)))
    writer.commit(segments=tuple(records), patches=patches, patch_codebook=None)


def _store(writer: MapWriter, number: int, embedder: Starter, book: PatchCodebook | None, bar: track) -> int:
    """Store the patches of one segment, and return the number of its references."""
    store, records = writer.store, list(writer.manifest.segments)
    if store.segments[number].has_patches:
        return 0
    start, live = int(store.starts[number]), store.rows_of(slice(None))
    references = np.flatnonzero((live >= start) & (live < store.starts[number + 1]))
    values: Column | None = None
    for part in parts(references, BLOCK):
        maps = _maps(writer, part, embedder)
        codes = maps if book is None else book.encode(torch.from_numpy(maps))
        if values is None:  # removed references keep zeros
            values = np.zeros((len(store.segments[number]), *codes.shape[1:]), codes.dtype)
        values[live[part] - start] = codes
        bar.advance(len(part))
    if values is None:
        return 0
    records[number] = writer.adopt(writer.folder, records[number], {"patches": values})
    writer.commit(segments=tuple(records))
    return len(references)


def _maps(writer: MapWriter, references: Indices, embedder: Starter) -> NDArray[np.float16]:
    """Compute the patch maps of references from their images, which must not have changed."""
    store = writer.store
    paths = [store.image_path(reference) for reference in references.tolist()]
    for path, reference in zip(paths, references.tolist(), strict=True):
        if not os.path.isfile(path):
            raise KappaPlaceError(
                f"The image {path!r} of {store.name(reference)!r} does not exist, so its patches cannot be "
                "stored. Run the command where the images are, or `kappaplace map add` with their new folder."
            )
    stats, digests = store.gather("stats", references), store.gather("digests", references)
    for path, now, then, digest in zip(paths, file_stats(paths), stats, digests, strict=True):
        if not same_file(path, now, then, digest):
            raise KappaPlaceError(
                f"The image {path!r} has changed since it was embedded. Run `kappaplace map add` with "
                "--duplicates replace."
            )
    maps = embedder.begin(paths)().patches
    if maps is None:
        raise KappaPlaceError("The embedder returned no patches. Pass another embedder, or omit it.")
    return np.asarray(maps, np.float16)
