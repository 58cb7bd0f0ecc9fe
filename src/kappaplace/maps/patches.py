"""Storing patches in a map that was built without them, or with another kind of patches."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.data.identity import file_stats, same_file
from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.build import BLOCK, Report, evenly, patch_mode, save_patch_codebook
from kappaplace.maps.options import AddOptions
from kappaplace.maps.store.reader import Indices, parts
from kappaplace.maps.store.schema import Column
from kappaplace.maps.store.writer import MapWriter, writer_of
from kappaplace.models.checkpoint import AnyModel
from kappaplace.models.embedding import usable_device
from kappaplace.models.embedding.ray import Starter, starter
from kappaplace.progress import track
from kappaplace.retrieval.patch_codes import SAMPLE_IMAGES, PatchCodebook
from kappaplace.retrieval.patches import learn_codes


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
    """Delete all patches, and record in the manifest what the map stores for patch matching."""
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
