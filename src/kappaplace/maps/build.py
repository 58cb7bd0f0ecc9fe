"""Building a map and adding images to it.

Images are embedded in blocks and written in segments. An interrupted build resumes at the last block.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.identity import file_stats, same_file
from kappaplace.data.images import Preprocessing
from kappaplace.data.near import Neighborhood
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.embed import (
    BlockEmbedder,
    Pending,
    keep_model,
    load_named_model,
    record_of,
    whitened,
    with_fitted_kappa,
)
from kappaplace.maps.options import AddOptions, BuildOptions
from kappaplace.maps.references import finish
from kappaplace.maps.rewrite import FULL_ROWS, check_dimension, whiten
from kappaplace.maps.sources import (
    Images,
    ReferenceList,
    as_table,
    into_frame,
    reference_list,
)
from kappaplace.maps.store import MapStore, parts
from kappaplace.maps.store.manifest import Manifest, ModelRecord, read_manifest
from kappaplace.maps.store.segments import Rows
from kappaplace.maps.store.writer import PENDING, MapWriter, writer_of
from kappaplace.models.aggregation import Whitening
from kappaplace.models.checkpoint import AnyModel
from kappaplace.models.embedding import usable_device
from kappaplace.models.embedding.ray import Embedder, starter
from kappaplace.models.encoder import whitened_fingerprint
from kappaplace.progress import track
from kappaplace.retrieval.patch_codes import SAMPLE_IMAGES, PatchCodebook
from kappaplace.types import Embeddings

SEGMENT_ROWS = 2048
BLOCK = 64
"""Number of images per block. An interrupted process embeds at most one block again."""


@dataclass
class Report:
    """Numbers of added, unchanged, replaced and skipped images."""

    added: int = 0
    already: int = 0
    """Images that the map already had, unchanged."""
    replaced: int = 0
    unposed: int = 0
    """Added images without a position."""
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """Name of each skipped image, and the reason."""

    @property
    def sentence(self) -> str:
        """The numbers in words."""
        parts = [f"{self.added:,} images added"]
        parts += [f"{self.already:,} already in the map"] if self.already else []
        parts += [f"{self.replaced:,} replaced"] if self.replaced else []
        parts += [f"{self.unposed:,} have no position"] if self.unposed else []
        parts += [f"{len(self.skipped):,} skipped"] if self.skipped else []
        return ", ".join(parts) + "."


def extend(writer: MapWriter, images: ReferenceList, model: AnyModel, options: AddOptions) -> Report:
    """Embed the images that the map does not have, segment by segment. `finish` updates the statistics.

    Args:
        writer: Writer of the map.
        images: References that the map must have.
        model: Model of the map.
        options: Options of the addition.

    Returns:
        Numbers of added and skipped images.

    Raises:
        KappaPlaceError: If the map would be empty, or an image cannot be added.
    """
    report = Report()
    preprocessing = Preprocessing.from_dict(writer.manifest.model.preprocessing)
    stats = file_stats(images.paths)
    missing = _missing(writer, images, stats, options, report)
    if len(missing):
        mode, size = writer.manifest.patches, options.segment_rows
        waiting: list[Rows] = []
        append = partial(_append, writer, images, options, report)
        with (
            starter(
                model,
                preprocessing,
                batch_size=options.batch_size,
                device=options.device or None,
                images=len(missing),
                embedder=_with_whitening(options.embedder, writer.store.whitening),
                ray=options.ray,
                patches=mode != "none",
            ) as embedder,
            track("Embedding", len(missing)) as bar,
        ):
            blocks = BlockEmbedder(
                images,
                stats,
                embedder,
                preprocessing,
                options.on_error,
                writer.manifest.thumbnails,
                report.skipped,
                mode,
                writer.store.patch_codebook,
                partial(save_patch_codebook, writer),
            )
            if mode == "compact" and blocks.codebook is None and options.embedder is None:
                blocks.sample(evenly(missing, SAMPLE_IMAGES).tolist())
            manifest = writer.manifest
            key = [manifest.model.fingerprint, preprocessing.to_dict(), mode]
            key += [manifest.patch_codebook.record.sha256] if manifest.patch_codebook else []
            pending = blocks.pending = Pending(writer.folder / PENDING, json.dumps(key, sort_keys=True))
            if blocks.sampled:
                pending.keep(next(iter(blocks.sampled.values()))[0])
            if mode == "full":
                size = min(size, FULL_ROWS)
            for count, rows in blocks.rows(parts(missing, min(BLOCK, size))):
                if rows is not None:
                    waiting.append(rows)
                bar.advance(count)
                if sum(map(len, waiting)) >= size:
                    waiting = _write_full(append, waiting, size, pending)
        if waiting:
            append(Rows.join(waiting))
        report.added = blocks.added
        report.unposed = blocks.unposed
    writer.clean(pending=True)
    if not writer.manifest.count and report.skipped:
        name, reason = report.skipped[0]
        raise KappaPlaceError(
            f"None of the {len(report.skipped):,} images could be read, so the map is empty. The first is "
            f"{name}: {reason}"
        )
    return report


def save_patch_codebook(writer: MapWriter, codebook: PatchCodebook) -> None:
    """Store the codebook of a map, before the first patches are coded with it."""
    array = codebook.to_array()
    writer.commit(patch_codebook=writer.extra("patch-codebook", array, len(array)))


def evenly(rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return at most ``count`` of the rows, evenly spaced."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).round().astype(np.int64))]


def patch_mode(model: AnyModel, preprocessing: Preprocessing, patches: str | None) -> str:
    """Return the kind of patches that a map stores.

    Args:
        model: Model of the map.
        preprocessing: Preprocessing of the map.
        patches: Value that the user passed. None selects compact if model and preprocessing allow it.

    Returns:
        none, compact or full.

    Raises:
        KappaPlaceError: If the user requests patches and the model or the preprocessing does not allow them.
    """
    reason = "has no patch maps" if not getattr(model, "shows_patches", False) else ""
    if preprocessing.fixed_size is None:
        reason = reason or "has a preprocessing without a fixed size"
    if reason and patches not in (None, "none"):
        raise KappaPlaceError(
            f"The model {reason}, so the map cannot store patches, got patches={patches}. Use a ResNet "
            "or EfficientNet-Lite with images of equal size, or pass --patches none."
        )
    return patches or ("none" if reason else "compact")


def _missing(
    writer: MapWriter, images: ReferenceList, stats: NDArray[np.int64], options: AddOptions, report: Report
) -> NDArray[np.int64]:
    """Return the rows to embed: images that the map does not have, or has with different content."""
    store = writer.store
    references = store.find(images.names)
    present = np.flatnonzero(references >= 0)
    if not len(present):
        return np.arange(len(images))
    old_stats = store.gather("stats", references[present])
    digests = store.gather("digests", references[present])
    changed = [
        row
        for i, row in enumerate(present.tolist())
        if not same_file(images.paths[row], stats[row], old_stats[i], digests[i])
    ]
    report.already = len(present) - len(changed)
    _note_move(writer, store, references[np.setdiff1d(present, changed)], images)
    missing = references < 0
    if changed and options.duplicates == "error":
        raise KappaPlaceError(
            f"The map {writer.folder} has another image under the name {images.names[changed[0]]!r} "
            f"({len(changed):,} such names). Pass --duplicates replace or skip, or distinguish the sources "
            "with --prefix."
        )
    if options.duplicates == "replace" and changed:
        missing[changed] = True
    elif changed:
        report.skipped += [(images.names[row], "the map has another image of this name") for row in changed]
    return np.flatnonzero(missing)


def _note_move(
    writer: MapWriter, store: MapStore, unchanged: NDArray[np.int64], images: ReferenceList
) -> None:
    """Record the new folder of segments whose images are all unchanged in another folder."""
    segment = np.searchsorted(store.starts, store.rows_of(unchanged), side="right") - 1
    counts = np.bincount(segment, minlength=len(store.segments))
    live = [len(rows) for _, rows in store.parts()]
    records = tuple(
        replace(record, root=images.root)
        if 0 < live[i] == counts[i] and record.prefix == images.prefix
        else record
        for i, record in enumerate(writer.manifest.segments)
    )
    if records != writer.manifest.segments:
        writer.commit(segments=records)


def _append(
    writer: MapWriter, images: ReferenceList, options: AddOptions, report: Report, rows: Rows
) -> None:
    """Write a segment and remove the references that it replaces in one change, so that a name always has one
    image."""
    changes = {}
    if options.duplicates == "replace":
        references = writer.store.find(rows.names)
        replaced = references[references >= 0]
        report.replaced += len(replaced)
        changes = writer.removal(replaced) if len(replaced) else {}
    writer.append(rows, images.root, images.prefix, **changes)


def _write_full(
    append: Callable[[Rows], None], waiting: list[Rows], size: int, pending: Pending
) -> list[Rows]:
    """Write all full segments, and return the remaining rows, which stay pending."""
    rows = Rows.join(waiting)
    while len(rows) >= size:
        append(rows.take(np.arange(size)))
        rows = rows.take(np.arange(size, len(rows)))
    pending.clear()
    if not len(rows):
        return []
    pending.keep(rows)
    return [rows]


def new_manifest(table: PlaceImages, record: ModelRecord, name: str, options: BuildOptions) -> Manifest:
    """Return the manifest of an empty map.

    Args:
        table: Images of the map. Options without a value are taken from it.
        record: Model of the map.
        name: Name of the map if neither the options nor the table have one.
        options: Options of the build.

    Returns:
        The manifest.
    """
    table = table if options.radius is None else table.with_radius(options.radius)
    near = Neighborhood.parse(options.neighborhood) if options.neighborhood else table.neighborhood
    if not options.neighborhood and near.kind == "metres" and not table.references.posed.any():
        near = Neighborhood("self")  # without positions, each image is its own place
    return Manifest(
        record,
        frame=table.frame,
        radius=table.radius,
        neighborhood=str(near),
        storage=options.storage,
        thumbnails=options.thumbnails,
        name=options.name or name or table.name,
    )


def build_map(
    images: Images, out: Path, model: AnyModel | str | Path | None, options: BuildOptions
) -> tuple[Report, AnyModel]:
    """Build a map, or resume an interrupted build.

    Args:
        images: A folder, a table, or a list of image files.
        out: Folder of the map.
        model: Model, or its folder, file or name. None loads the pretrained model.
        options: Options of the build.

    Returns:
        Report of the build, and the model.

    Raises:
        KappaPlaceError: If no image can be read, or the folder has another map.
    """
    if options.device:
        usable_device(options.device)
    table = as_table(images, options.layout, skip_unreadable=options.on_error == "skip")
    ready, source = load_named_model(model)
    record = record_of(ready, source, options.preprocessing)
    kind = "none" if options.patches is None and options.embedder is not None else options.patches
    patches = patch_mode(ready, Preprocessing.from_dict(record.preprocessing), kind)
    manifest = replace(new_manifest(table, record, out.stem, options), patches=patches)
    references, fresh = reference_list(table, options.prefix), not out.exists()
    try:
        with writer_of(out, create=manifest, resume=True) as writer:
            check_dimension(writer, options.dim)
            _check_same(out, manifest, writer.store, options)
            ready = with_fitted_kappa(out, writer.manifest.model, ready, writer.store.whitening)
            keep_model(out, writer.manifest.model, ready)
            references = _in_frame(writer, table, options.prefix, references)
            report = extend(writer, references, ready, options)
            if options.dim is not None and writer.manifest.whitening is None:
                whiten(writer, options.dim)
            finish(writer)
            return report, whitened(ready, writer.manifest.model, writer.store.whitening)
    except KappaPlaceError:
        if fresh and not any((out / PENDING).glob("*")) and not read_manifest(out).count:
            shutil.rmtree(out)  # no empty map is left after a failure
        raise


def add_images(
    folder: Path, images: Images, model: AnyModel, fingerprint: str, options: AddOptions
) -> Report:
    """Add images to a map.

    Args:
        folder: Folder of the map.
        images: A folder, a table, or a list of image files.
        model: Model of the map.
        fingerprint: Fingerprint of the model.
        options: Options of the addition.

    Returns:
        Report of the addition.

    Raises:
        KappaPlaceError: If another process has changed the model of the map, or an image cannot be added.
    """
    table = as_table(images, options.layout, skip_unreadable=options.on_error == "skip")
    references = reference_list(table, options.prefix)
    with writer_of(folder, resume=True) as writer:
        if writer.manifest.model.fingerprint != fingerprint:
            raise KappaPlaceError(f"Another process changed the model of {folder}. Open the map again.")
        report = extend(writer, _in_frame(writer, table, options.prefix, references), model, options)
        finish(writer)
        return report


def _with_whitening(embedder: Embedder | None, whitening: Whitening | None) -> Embedder | None:
    """Return a function of the caller that embeds as the map: one that does not whiten is completed."""
    if embedder is None or whitening is None:
        return embedder

    def embed(paths: Sequence[str]) -> Embeddings:
        embeddings = embedder(paths)
        descriptors = np.asarray(embeddings.descriptor)
        is_whitened = descriptors.shape[1] != whitening.inputs
        return embeddings if is_whitened else embeddings._replace(descriptor=whitening.of(descriptors))

    return embed


def _check_same(out: Path, new: Manifest, store: MapStore, options: BuildOptions) -> None:
    """Raise an error unless a resumed build has the same options as the first one."""
    stored = store.manifest
    fingerprint = whitened_fingerprint(new.model.fingerprint, store.whitening)
    if fingerprint not in (stored.model.fingerprint, stored.model.base):
        raise KappaPlaceError(
            f"The map {out} was built with another model. Use that model, run `kappaplace map reembed`, or "
            "build into another folder."
        )
    if stored.model.preprocessing != new.model.preprocessing:
        raise KappaPlaceError(
            f"The map {out} was built with another preprocessing. Use the same one, or build into another "
            "folder."
        )
    patches = () if options.patches is None else ("patches",)
    for name in ("storage", "neighborhood", "radius", "thumbnails", *patches):
        old, value = getattr(stored, name), getattr(new, name)
        if old != value:
            raise KappaPlaceError(
                f"The map {out} already exists with {name} {old}, got {value}. Use the same value, build "
                "into another folder, or add images with `kappaplace map add`."
            )


def _in_frame(writer: MapWriter, table: PlaceImages, prefix: str, references: ReferenceList) -> ReferenceList:
    """Return the references in the frame of the map. A map without positions takes the frame of the table."""
    manifest = writer.manifest
    moved = into_frame(table, manifest.frame, empty=manifest.unposed == manifest.count)
    if moved.frame != manifest.frame and moved.posed.any():
        writer.commit(frame=moved.frame)
    return references if moved is table else reference_list(moved, prefix)
