"""Changing a map: whoever holds its lock appends segments and swaps the manifest; nothing else is touched.

A process may die between any two lines here. What it leaves are files that no manifest names: readers never
look at them, and the next writer removes them.

"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file, save_array, sha256_of, why, writing
from kappaplace.maps.store.manifest import (
    MANIFEST,
    MODEL_FOLDER,
    Extra,
    FileRecord,
    Manifest,
    SegmentRecord,
    read_manifest,
    write_manifest,
)
from kappaplace.maps.store.reader import MapStore
from kappaplace.maps.store.segments import SEGMENTS, Rows, write_segment
from kappaplace.version import package_version

PENDING = "pending"
"""Where embeddings wait until they fill a segment."""
EXTRAS = "extras"


class MapWriter:
    """The one process that may change a map, while it holds the lock; get it from `writer_of`."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest

    @property
    def store(self) -> MapStore:
        """The map as it is now."""
        return MapStore(self.folder, self.manifest)

    def append(self, rows: Rows, root: str = "", prefix: str = "", **changes: Any) -> None:
        """Add references as one more segment, with further changes in the same swap."""
        if not len(rows):
            return
        name = self.next_name()
        codebook = self.store.codebook if self.manifest.codebook is not None else None
        record = write_segment(self.folder, name, rows, self.manifest.storage, root, prefix, codebook)
        unposed = int(np.isnan(rows.poses[:, 0]).sum())
        changes["unposed"] = changes.get("unposed", self.manifest.unposed) + unposed
        self.commit(segments=(*self.manifest.segments, record), **changes)

    def commit(self, **changes: Any) -> None:
        """Swap the manifest for one with these changes."""
        version = self.manifest.version + 1
        changed = replace(self.manifest, version=version, kappaplace=package_version(), **changes)
        write_manifest(self.folder, changed)
        self.manifest = changed

    def adopt(
        self, source: Path, record: SegmentRecord, changed: Mapping[str, NDArray[Any]] | None = None
    ) -> SegmentRecord:
        """A segment of another map, or of this one with other columns, as one more: its files are linked."""
        name = self.next_name()
        old, new, files = source / SEGMENTS / record.name, self.folder / SEGMENTS / name, dict(record.files)
        fresh = {f"{column}.npy": values for column, values in (changed or {}).items()}
        try:
            new.mkdir(parents=True)
            for file in set(files) - set(fresh):
                try:
                    (new / file).hardlink_to(old / file)
                except OSError:  # not all file systems have links
                    shutil.copyfile(old / file, new / file)
        except OSError as error:
            raise KappaPlaceError(
                f"Cannot write the segment {new}: {why(error)}; the map is as it was before, and the same "
                "command goes on from there."
            ) from None
        for file, values in fresh.items():
            replace_file(new / file, partial(_save, values))
            files[file] = FileRecord((new / file).stat().st_size, sha256_of(new / file))
        return replace(record, name=name, files=files)

    def extra(self, what: str, values: NDArray[Any], rows: int, how: str = "exact") -> Extra:
        """Write an array beside the segments, under a name of its own; a commit makes it count."""
        make_folder(self.folder / EXTRAS)
        name = f"{EXTRAS}/{what}-{self.manifest.version + 1:06d}.npy"
        replace_file(self.folder / name, lambda part: save_array(part, values))
        file = self.folder / name
        return Extra(name, FileRecord(file.stat().st_size, sha256_of(file)), rows, how)

    def clean(self, pending: bool = False) -> None:
        """Remove what no manifest names; ``pending``: also the embeddings that wait for a segment."""
        named = {record.name for record in self.manifest.segments}
        _remove_others(self.folder / SEGMENTS, named)
        m = self.manifest
        parts = (m.removed, m.distinctiveness, m.sample, m.codebook)
        _remove_others(self.folder / EXTRAS, {Path(e.file).name for e in parts if e is not None})
        for kept in self.folder.glob("model-*"):
            if MODEL_FOLDER.fullmatch(kept.name) and not self._uses(kept):
                shutil.rmtree(kept, ignore_errors=True)
        if pending:
            shutil.rmtree(self.folder / PENDING, ignore_errors=True)

    def _uses(self, model: Path) -> bool:
        """Whether the map's model lies in this folder, by whatever way the manifest names it, also after the
        map was moved."""
        used = self.manifest.model
        return model.name in (Path(used.source).name, f"model-{used.fingerprint[:12]}")

    def next_name(self) -> str:
        """A number that no folder bears: one of a dead writer must not be taken for ours."""
        numbers = [int(record.name) for record in self.manifest.segments]
        folder = self.folder / SEGMENTS
        numbers += [int(f.name) for f in folder.glob("[0-9]*") if f.name.isdigit()] if folder.is_dir() else []
        return f"{max(numbers, default=-1) + 1:06d}"


@contextmanager
def writer_of(folder: Path, create: Manifest | None = None) -> Iterator[MapWriter]:
    """Take the lock, clean up after a writer that died, and write; ``create`` makes a map where none is."""
    if create is not None:
        _refuse_strangers(folder)
        make_folder(folder)
    elif not (folder / MANIFEST).is_file():
        read_manifest(folder)  # says that there is no map
    with writing(folder):
        if create is not None and not (folder / MANIFEST).is_file():
            write_manifest(folder, replace(create, kappaplace=package_version()))
        writer = MapWriter(folder, read_manifest(folder))
        writer.clean()
        yield writer


def _save(values: NDArray[Any], part: Path) -> None:
    save_array(part, values)


def _refuse_strangers(folder: Path) -> None:
    """A map is never built into a folder that holds something else."""
    if not folder.exists() or (folder / MANIFEST).is_file():
        return
    if not folder.is_dir():
        raise KappaPlaceError(f"{folder} is a file; choose another name for the map.")
    known = (".", MANIFEST, "writer.lock", "model-")  # another process may have begun the map since
    strangers = [f.name for f in folder.iterdir() if not f.name.startswith(known)]
    if strangers:
        raise KappaPlaceError(
            f"{folder} holds other things ({strangers[0]}) and is no map; choose an empty or a new folder."
        )


def _remove_others(folder: Path, keep: set[str]) -> None:
    if not folder.is_dir():
        return
    for found in folder.iterdir():
        if found.name not in keep:
            if found.is_dir() and not found.is_symlink():
                shutil.rmtree(found, ignore_errors=True)
            else:
                with suppress(OSError):  # leaving it costs space, nothing else
                    found.unlink()
