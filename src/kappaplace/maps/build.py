"""Building a map, adding images to it, and embedding its images again with another model.

Images are embedded in blocks and written in segments. A build that was killed resumes at the last block; a
map that is embedded again remains usable until all of its images are done.
"""

from __future__ import annotations

import json
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.identity import DIGEST, file_digest, file_stats, same_file
from kappaplace.data.images import Preprocessing
from kappaplace.data.near import Neighborhood
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.change import removal, remove_references, rewrite
from kappaplace.maps.models import as_fitted, keep_model, loaded, record_of
from kappaplace.maps.options import AddOptions, BuildOptions, OnError
from kappaplace.maps.references import finish
from kappaplace.maps.sources import Images, Wanted, as_table, into_frame, wanted_again, wanted_images
from kappaplace.maps.store.manifest import Manifest, ModelRecord, read_manifest
from kappaplace.maps.store.pending import Pending, picked
from kappaplace.maps.store.reader import MapStore
from kappaplace.maps.store.segments import Rows
from kappaplace.maps.store.writer import PENDING, MapWriter, writer_of
from kappaplace.models.checkpoint import AnyModel
from kappaplace.models.embedding import usable_device
from kappaplace.models.embedding.ray import Started, Starter, starter
from kappaplace.progress import track
from kappaplace.types import Embeddings

SEGMENT_ROWS = 2048
BLOCK = 64
"""Images embedded between two savings: what a killed process may have to embed again."""


@dataclass
class Report:
    """What was done with the images."""

    added: int = 0
    already: int = 0
    """Were in the map, unchanged."""
    replaced: int = 0
    unposed: int = 0
    """Added without a position."""
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """Name and reason of each image left out."""

    @property
    def sentence(self) -> str:
        """What happened, in words."""
        said = [f"{self.added:,} images added"]
        said += [f"{self.already:,} were there already"] if self.already else []
        said += [f"{self.replaced:,} replaced"] if self.replaced else []
        said += [f"{self.unposed:,} have no position"] if self.unposed else []
        said += [f"{len(self.skipped):,} left out"] if self.skipped else []
        return ", ".join(said) + "."


def extend(writer: MapWriter, wanted: Wanted, model: AnyModel, options: AddOptions) -> Report:
    """Embed what the map does not have yet, segment by segment, then bring its statistics up to date."""
    report = Report()
    preprocessing = Preprocessing.from_dict(writer.manifest.model.preprocessing)
    stats = file_stats(wanted.paths)
    todo = _missing(writer, wanted, stats, options, report)
    if len(todo):
        key = json.dumps([writer.manifest.model.fingerprint, preprocessing.to_dict()], sort_keys=True)
        pending = Pending(writer.folder / PENDING, key)
        machine = {"batch_size": options.batch_size, "device": options.device or None, "images": len(todo)}
        by = {"embedder": options.embedder, "ray": options.ray}
        waiting: list[Rows] = []
        append = partial(_append, writer, wanted, options, report)
        with (
            starter(model, preprocessing, **machine, **by) as started,  # type: ignore[arg-type]
            track("Embedding", len(todo)) as bar,
        ):
            keep = writer.manifest.thumbnails
            blocks = _Blocks(wanted, stats, started, preprocessing, options.on_error, keep, report)
            for count, rows in blocks.made(_parts(todo, min(BLOCK, options.segment_rows)), pending):
                if rows is not None:
                    waiting.append(rows)
                bar.advance(count)
                if sum(map(len, waiting)) >= options.segment_rows:
                    waiting = _write_full(append, waiting, options.segment_rows, pending)
        if waiting:
            append(Rows.join(waiting))
        pending.clear()
        report.added = blocks.added
        report.unposed = blocks.unposed
    if not writer.manifest.count and report.skipped:
        name, reason = report.skipped[0]
        raise KappaPlaceError(
            f"None of the {len(report.skipped):,} images could be read, so the map is empty; the first, "
            f"{name}: {reason}"
        )
    finish(writer)
    return report


def _missing(
    writer: MapWriter, wanted: Wanted, stats: NDArray[np.int64], options: AddOptions, report: Report
) -> NDArray[np.int64]:
    """Rows that must be embedded: not in the map, or there with another content and to be replaced."""
    store = writer.store
    found = store.find(wanted.names)
    present = np.flatnonzero(found >= 0)
    if not len(present):
        return np.arange(len(wanted))
    there, digests = store.gather("stats", found[present]), store.gather("digests", found[present])
    changed = [
        row
        for i, row in enumerate(present.tolist())
        if not same_file(wanted.paths[row], stats[row], there[i], digests[i])
    ]
    report.already = len(present) - len(changed)
    _note_move(writer, store, found[np.setdiff1d(present, changed)], wanted)
    todo = found < 0
    if changed and options.duplicates == "error":
        raise KappaPlaceError(
            f"The map {writer.folder} has another image under the name {wanted.names[changed[0]]!r} "
            f"({len(changed):,} such names); replace it (--duplicates replace), leave the new one out "
            "(skip), or tell the sources apart with --prefix."
        )
    if options.duplicates == "replace" and changed:
        todo[changed] = True
    elif changed:
        report.skipped += [(wanted.names[row], "the map has another image of this name") for row in changed]
    return np.flatnonzero(todo)


def _note_move(writer: MapWriter, store: MapStore, same: NDArray[np.int64], wanted: Wanted) -> None:
    """Segments whose images are all found unchanged below another folder lie there from now on."""
    home = np.searchsorted(store.starts, store.rows_of(same), side="right") - 1
    found = np.bincount(home, minlength=len(store.segments))
    live = [len(chosen) for _, chosen in store.parts()]
    records = tuple(
        replace(record, root=wanted.root)
        if 0 < live[i] == found[i] and record.prefix == wanted.prefix
        else record
        for i, record in enumerate(writer.manifest.segments)
    )
    if records != writer.manifest.segments:
        writer.commit(segments=records)


def _parts(rows: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _append(writer: MapWriter, wanted: Wanted, options: AddOptions, report: Report, rows: Rows) -> None:
    """Write a segment; what it replaces goes in the same swap, so that a name never has no image or two."""
    changes = {}
    if options.duplicates == "replace":
        found = writer.store.find(rows.names)
        gone = found[found >= 0]
        report.replaced += len(gone)
        changes = removal(writer, gone) if len(gone) else {}
    writer.append(rows, wanted.root, wanted.prefix, **changes)


def _write_full(
    append: Callable[[Rows], None], waiting: list[Rows], size: int, pending: Pending
) -> list[Rows]:
    """Write all full segments; what is left waits on, on disk too."""
    rows = Rows.join(waiting)
    while len(rows) >= size:
        append(rows.take(np.arange(size)))
        rows = rows.take(np.arange(size, len(rows)))
    pending.clear()
    if not len(rows):
        return []
    pending.keep(rows)
    return [rows]


class _Blocks:
    """Makes rows of images: found among those pending, or embedded."""

    def __init__(
        self,
        wanted: Wanted,
        stats: NDArray[np.int64],
        embedder: Starter,
        preprocessing: Preprocessing,
        on_error: OnError,
        thumbnails: bool,
        report: Report,
    ) -> None:
        self.wanted, self.stats, self.thumbnails, self.report = wanted, stats, thumbnails, report
        self.embedder, self.preprocessing, self.on_error = embedder, preprocessing, on_error
        self.added = self.unposed = 0

    def made(self, parts: Iterable[NDArray[np.int64]], pending: Pending) -> Iterator[tuple[int, Rows | None]]:
        """Size and rows of each block, in order, while the embedder works on those that follow."""
        begun: deque[tuple[int, Callable[[], Rows | None]]] = deque()
        for block in parts:
            begun.append((len(block), self._begun(block, pending)))
            while len(begun) > self.embedder.ahead:
                count, rows = begun.popleft()
                yield count, rows()
        for count, rows in begun:
            yield count, rows()

    def _begun(self, block: NDArray[np.int64], pending: Pending) -> Callable[[], Rows | None]:
        waited = {row: found for row in block.tolist() if (found := self._waiting(row, pending)) is not None}
        fresh = [row for row in block.tolist() if row not in waited]
        return partial(self._finished, waited, fresh, self._begin(fresh) if fresh else None, pending)

    def _begin(self, rows: list[int]) -> Started:
        return self.embedder.begin([self.wanted.paths[row] for row in rows])

    def _finished(
        self, waited: dict[int, tuple[Rows, int]], fresh: list[int], begun: Started | None, pending: Pending
    ) -> Rows | None:
        """The rows of a block, without those that cannot be read; None where none is left."""
        made = None if begun is None else self._embedded(fresh, begun)
        if made is not None:
            rows, new = made
            pending.keep(new)
            waited |= {row: (new, i) for i, row in enumerate(rows)}
        if not waited:
            return None
        chosen = sorted(waited)
        joined = picked([waited[row] for row in chosen])
        # Poses are the table's of today: only what the model said is worth keeping from an earlier run.
        at = np.array(chosen, np.int64)
        joined = replace(joined, poses=self.wanted.poses[at], routes=self.wanted.routes[at])
        self.added += len(joined)
        self.unposed += int(np.isnan(joined.poses[:, 0]).sum())
        return joined

    def _waiting(self, row: int, pending: Pending) -> tuple[Rows, int] | None:
        found = pending.find(self.wanted.names[row])
        if found is None or (found[0].thumbnails is None) == self.thumbnails:
            return None
        rows, i = found
        same = same_file(self.wanted.paths[row], self.stats[row], rows.stats[i], rows.digests[i])
        return found if same else None

    def _embedded(self, rows: list[int], begun: Started) -> tuple[list[int], Rows] | None:
        try:
            made = begun()
        except KappaPlaceError:
            if self.on_error == "stop":
                raise
            kept = self._readable(rows)
            if len(kept) == len(rows):  # it was not the images
                raise
            return self._embedded(kept, self._begin(kept)) if kept else None
        self._check(made, rows)
        return rows, self._rows(rows, made)

    def _readable(self, rows: list[int]) -> list[int]:
        kept = []
        for row in rows:
            try:
                self.preprocessing.image(self.wanted.paths[row])
            except KappaPlaceError as error:
                self.report.skipped.append((self.wanted.names[row], str(error)))
            else:
                kept.append(row)
        return kept

    def _check(self, made: Embeddings, rows: list[int]) -> None:
        descriptors = np.asarray(made.descriptor)
        finite = np.isfinite(descriptors).all(axis=1)
        if len(descriptors) != len(rows):
            raise KappaPlaceError(f"{len(rows)} images gave {len(descriptors)} descriptors; check the model.")
        if not finite.all():
            name = self.wanted.names[rows[int(np.argmin(finite))]]
            raise KappaPlaceError(
                f"The descriptor of {name} is NaN or infinite; check the model and the image."
            )

    def _rows(self, rows: list[int], made: Embeddings) -> Rows:
        at, paths = np.array(rows, np.int64), [self.wanted.paths[row] for row in rows]
        unknown = np.full(len(rows), np.nan, np.float32)
        return Rows(
            [self.wanted.names[row] for row in rows],
            np.asarray(made.descriptor, np.float32),
            unknown if made.kappa is None else np.asarray(made.kappa, np.float32),
            self.wanted.poses[at],
            self.wanted.routes[at],
            self.stats[at],
            np.stack([file_digest(path) for path in paths]).reshape(-1, DIGEST.itemsize),
            [_thumbnail(path) for path in paths] if self.thumbnails else None,
        )


def _thumbnail(path: str) -> bytes:
    from kappaplace.data.thumbnails import thumbnail

    small = thumbnail(path)
    return b"" if small is None else small.jpeg


def new_manifest(table: PlaceImages, record: ModelRecord, name: str, options: BuildOptions) -> Manifest:
    """Return the manifest of a map that is still empty; what is not stated is the table's."""
    table = table if options.radius is None else table.with_radius(options.radius)
    stated = options.neighborhood
    near = Neighborhood.parse(stated) if stated else table.neighborhood
    if not stated and near.kind == "metres" and not table.references.posed.any():
        near = Neighborhood("self")  # nothing is known of where anything lies
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
    """Build a map, or continue one that was not finished; return what was done, and the model."""
    if options.device:
        usable_device(options.device)
    table = as_table(images, options.layout, skip_unreadable=options.on_error == "skip")
    ready, source = loaded(model)
    manifest = new_manifest(table, record_of(ready, source, options.preprocessing), out.stem, options)
    wanted, fresh = wanted_images(table, options.prefix), not out.exists()
    try:
        with writer_of(out, create=manifest) as writer:
            ready = as_fitted(out, writer.manifest.model, ready)
            _refuse_another(out, manifest, writer.manifest)
            keep_model(out, writer.manifest.model, ready)
            return extend(writer, _in_frame(writer, table, options.prefix, wanted), ready, options), ready
    except KappaPlaceError:
        if fresh and not any((out / PENDING).glob("*")) and not read_manifest(out).count:
            shutil.rmtree(out)  # an empty map is of no use
        raise


def add_images(
    folder: Path, images: Images, model: AnyModel, fingerprint: str, options: AddOptions
) -> Report:
    """Add images to a map; ``fingerprint`` is that of the model."""
    table = as_table(images, options.layout, skip_unreadable=options.on_error == "skip")
    wanted = wanted_images(table, options.prefix)
    with writer_of(folder) as writer:
        if writer.manifest.model.fingerprint != fingerprint:
            raise KappaPlaceError(
                f"The map {folder} was embedded with another model meanwhile; open it again."
            )
        return extend(writer, _in_frame(writer, table, options.prefix, wanted), model, options)


def _refuse_another(out: Path, asked: Manifest, found: Manifest) -> None:
    """A second `build` goes on with the first one, so it must ask for the same."""
    if asked.model.fingerprint not in (found.model.fingerprint, found.model.base):
        raise KappaPlaceError(
            f"The map {out} was made with another model; use that one, run `kappaplace map reembed`, or "
            "build into another folder."
        )
    if found.model.preprocessing != asked.model.preprocessing:
        raise KappaPlaceError(
            f"The map {out} was made with other preprocessing of the images; keep it, or build another map."
        )
    for what in ("storage", "neighborhood", "radius", "thumbnails"):
        there, wanted = getattr(found, what), getattr(asked, what)
        if there != wanted:
            raise KappaPlaceError(
                f"The map {out} is there already with {what} {there}, not {wanted}; use `kappaplace map "
                "add`, state the same, or build into another folder."
            )


def _in_frame(writer: MapWriter, table: PlaceImages, prefix: str, wanted: Wanted) -> Wanted:
    """The images in the map's frame; a map that knows no position yet takes over theirs."""
    manifest = writer.manifest
    nowhere = manifest.unposed == manifest.count
    moved = into_frame(table, manifest.frame, nowhere)
    if moved.frame != manifest.frame and moved.posed.any():
        writer.commit(frame=moved.frame)
    return wanted if moved is table else wanted_images(moved, prefix)


REEMBED = "reembed"


def reembed_map(folder: Path, model: AnyModel | str | Path, options: AddOptions) -> Report:
    """Embed all images of a map again with another model; until that is done the map stays as it is.

    The new references grow in a map of their own inside this one, so that a killed run goes on where it was.
    """
    ready, source = loaded(model)
    with writer_of(folder) as writer:
        record = record_of(ready, source)
        draft = replace(
            writer.manifest,
            model=record,
            # Codes are learnt from the new descriptors when all of them are there.
            storage="float16" if writer.manifest.storage == "pq" else writer.manifest.storage,
            codebook=None,
            segments=(),
            removed=None,
            distinctiveness=None,
            sample=None,
            unposed=0,
            calibration=None,
            version=0,
        )
        inner, report = folder / REEMBED, Report()
        if inner.is_dir() and _other_model(inner, record):
            shutil.rmtree(inner)
        sources = wanted_again(writer.store)
        with writer_of(inner, create=draft) as fresh:
            for wanted in sources:
                part = extend(fresh, wanted, ready, options)
                report.added += part.added
                report.already += part.already
                report.unposed += part.unposed
                report.skipped += part.skipped
            _drop_others(fresh, {name for wanted in sources for name in wanted.names})
            finish(fresh)
            if fresh.manifest.removed is not None or fresh.manifest.storage != writer.manifest.storage:
                rewrite(fresh, writer.manifest.storage)
            keep_model(folder, record, ready)
            _take_over(writer, fresh)
        shutil.rmtree(inner, ignore_errors=True)
        return report


def _other_model(inner: Path, record: ModelRecord) -> bool:
    try:
        return read_manifest(inner).model != record
    except KappaPlaceError:
        return True


def _drop_others(fresh: MapWriter, names: set[str]) -> None:
    """References that left the map while its re-embedding lay still."""
    store = fresh.store
    gone = [i for i, name in enumerate(store.names()) if name not in names]
    if gone:
        remove_references(fresh, np.array(gone, np.int64))


def _take_over(writer: MapWriter, fresh: MapWriter) -> None:
    """Put the new segments in the place of the old ones: links first, then one swap."""
    records = [writer.adopt(fresh.folder, record) for record in fresh.manifest.segments]
    new = fresh.manifest
    changes = {}
    for what, extra in (
        ("distinctiveness", new.distinctiveness),
        ("sample", new.sample),
        ("codebook", new.codebook),
    ):
        changes[what] = (
            None if extra is None else writer.extra(what, fresh.store.extra(extra), extra.rows, extra.how)
        )
    writer.commit(
        model=new.model,
        segments=tuple(records),
        removed=None,
        unposed=new.unposed,
        calibration=None,
        **changes,
    )
    writer.clean(pending=True)
