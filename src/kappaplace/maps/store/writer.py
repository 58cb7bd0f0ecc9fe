"""Changing a map: the process that has the lock appends segments and replaces the manifest.

A process can be killed at any line. It then leaves files that no manifest names. Readers ignore such files,
and the next writer deletes them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, remove_debris, remove_path, replace_file, save_array, writing
from kappaplace.maps.store import MapStore
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
from kappaplace.maps.store.schema import Column
from kappaplace.maps.store.segments import SEGMENTS, Rows, file_record, unwritable, write_segment
from kappaplace.retrieval.open import INDEX
from kappaplace.version import package_version

PENDING = "pending"
"""Folder of the embeddings that do not fill a segment yet."""
EXTRAS = "extras"


class MapWriter:
    """Writer of a map, for the process that has the lock. Create it with `writer_of`."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self._store: MapStore | None = None

    @property
    def store(self) -> MapStore:
        """The current version of the map."""
        if self._store is None or self._store.manifest is not self.manifest:
            self._store = MapStore(self.folder, self.manifest)
        return self._store

    def append(self, rows: Rows, root: str = "", prefix: str = "", **changes: Any) -> None:
        """Add references as a new segment.

        Args:
            rows: The references.
            root: Folder of their images.
            prefix: Text before each name that is not part of the path.
            changes: Further changes of the manifest to make at the same time.
        """
        if not len(rows):
            return
        codebook = self.store.codebook if self.manifest.codebook is not None else None
        target = self.folder / SEGMENTS / self.next_name()
        record = write_segment(target, rows, self.manifest.storage, codebook, root=root, prefix=prefix)
        unposed = int(np.isnan(rows.poses[:, 0]).sum())
        changes["unposed"] = changes.get("unposed", self.manifest.unposed) + unposed
        self.commit(segments=(*self.manifest.segments, record), **changes)

    def commit(self, **changes: Any) -> None:
        """Replace the manifest by one with these changes."""
        version = self.manifest.version + 1
        changed = replace(self.manifest, version=version, kappaplace=package_version(), **changes)
        write_manifest(self.folder, changed)
        self.manifest = changed

    def adopt(
        self, source: Path, record: SegmentRecord, changed: Mapping[str, Column] | None = None
    ) -> SegmentRecord:
        """Link the files of an existing segment as a new segment of this map.

        Args:
            source: Folder of the map that has the segment; this one, or another one.
            record: Record of the segment.
            changed: Columns that get other values.

        Returns:
            Record of the new segment.
        """
        name = self.next_name()
        old, new, files = source / SEGMENTS / record.name, self.folder / SEGMENTS / name, dict(record.files)
        fresh = {f"{column}.npy": values for column, values in (changed or {}).items()}
        try:
            new.mkdir(parents=True)
            for file in set(files) - set(fresh):
                try:
                    (new / file).hardlink_to(old / file)
                except OSError:  # not all file systems support links
                    shutil.copyfile(old / file, new / file)
        except OSError as error:
            raise unwritable(new, error) from None
        for file, values in fresh.items():
            files[file] = _write_array(new / file, values)
        return replace(record, name=name, files=files)

    def extra(self, kind: str, values: Column, rows: int, how: str = "exact") -> Extra:
        """Write an array next to the segments. It becomes part of the map with the next commit.

        Args:
            kind: Kind of the array, for its file name.
            values: The array.
            rows: Number of references that it covers.
            how: How the values were computed.

        Returns:
            Record of the file.
        """
        make_folder(self.folder / EXTRAS)
        name = f"{EXTRAS}/{kind}-{self.manifest.version + 1:06d}.npy"
        return Extra(name, _write_array(self.folder / name, values), rows, how)

    def removal(self, references: NDArray[np.int64]) -> dict[str, Any]:
        """Return the changes of the manifest that mark references as removed."""
        store, before = self.store, self.manifest.removed
        old = np.empty(0, np.int64) if before is None else np.asarray(store.extra(before), np.int64)
        rows = np.union1d(old, store.rows_of(references))
        unposed = int(np.isnan(store.gather("poses", references)[:, 0]).sum())
        removed = self.extra("removed", rows, len(rows))
        return {"removed": removed, "unposed": max(self.manifest.unposed - unposed, 0)}

    def remove(self, references: NDArray[np.int64]) -> None:
        """Mark references as removed. Their rows stay on disk until the map is compacted."""
        if len(references):
            self.commit(**self.removal(references))

    def clean(self, pending: bool = False) -> None:
        """Delete the files that the manifest does not name.

        Args:
            pending: Whether to delete the embeddings that do not fill a segment yet, too.
        """
        for folder in (self.folder, self.folder / INDEX):
            remove_debris(folder)
        _remove_others(self.folder / SEGMENTS, {record.name for record in self.manifest.segments})
        _remove_others(self.folder / EXTRAS, {Path(extra.file).name for extra in self.manifest.extras})
        for model in self.folder.glob("model-*"):
            if MODEL_FOLDER.fullmatch(model.name) and not self._uses(model):
                shutil.rmtree(model, ignore_errors=True)
        if pending:
            remove_path(self.folder / PENDING)

    def _uses(self, model: Path) -> bool:
        """Return whether the map uses the model in this folder, even if the map was moved."""
        used = self.manifest.model
        return model.name in (Path(used.source).name, f"model-{used.fingerprint[:12]}")

    def next_name(self) -> str:
        """Return the name of the next segment, which no existing folder has."""
        numbers = [int(record.name) for record in self.manifest.segments]
        folder = self.folder / SEGMENTS
        numbers += [int(f.name) for f in folder.glob("[0-9]*") if f.name.isdigit()] if folder.is_dir() else []
        return f"{max(numbers, default=-1) + 1:06d}"


@contextmanager
def writer_of(folder: Path, create: Manifest | None = None, *, resume: bool = False) -> Iterator[MapWriter]:
    """Lock a map for writing, and clean up after an interrupted writer.

    Args:
        folder: Folder of the map.
        create: Manifest of a new map, if there is no map yet.
        resume: Keep embeddings that do not fill a segment yet, because this writer adds images.

    Yields:
        The writer.

    Raises:
        KappaPlaceError: If there is no map, the folder has other files, or another process has the lock.
    """
    if create is not None:
        _check_folder(folder)
        make_folder(folder)
    elif not (folder / MANIFEST).is_file():
        read_manifest(folder)  # raises the error that there is no map
    with writing(folder):
        if create is not None and not (folder / MANIFEST).is_file():
            write_manifest(folder, replace(create, kappaplace=package_version()))
        writer = MapWriter(folder, read_manifest(folder))
        writer.store.check()
        writer.clean(pending=not resume)
        yield writer


def _write_array(file: Path, values: Column) -> FileRecord:
    replace_file(file, lambda part: save_array(part, values))
    return file_record(file)


def _check_folder(folder: Path) -> None:
    """Raise an error if a folder for a new map has other files."""
    if not folder.exists() or (folder / MANIFEST).is_file():
        return
    if not folder.is_dir():
        raise KappaPlaceError(f"{folder} is a file. Choose another name for the map.")
    own = (".", MANIFEST, "writer.lock", "model-")  # another process may have started to build the map
    others = [file.name for file in folder.iterdir() if not file.name.startswith(own)]
    if others:
        raise KappaPlaceError(
            f"{folder} is not a map and has other files ({others[0]}). Choose an empty or a new folder."
        )


def _remove_others(folder: Path, keep: set[str]) -> None:
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if path.name not in keep:
            remove_path(path)
