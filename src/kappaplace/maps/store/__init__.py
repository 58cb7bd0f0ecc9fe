"""Files of a map: the rows of all segments as one array, without removed rows, and checks of all files.

A *row* is a position in the files; it stays the same until the map is compacted. Users see *references*,
which are the rows that are not removed, numbered from 0.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.calibration.calibration import Calibration
from kappaplace.data.identity import file_digest
from kappaplace.data.images import Preprocessing
from kappaplace.data.near import Near
from kappaplace.errors import KappaPlaceError
from kappaplace.files import BLOCK, path_inside, sha256_of
from kappaplace.maps.store.manifest import Extra, FileRecord, Manifest, read_manifest
from kappaplace.maps.store.schema import Column, columns_of
from kappaplace.maps.store.segments import (
    SEGMENTS,
    Rows,
    Segment,
    name_keys,
    read_codebook,
    read_extra,
    row_name,
)
from kappaplace.models.aggregation import Whitening
from kappaplace.progress import track
from kappaplace.retrieval import Columns, MapSource
from kappaplace.retrieval.codes import Codebook
from kappaplace.retrieval.patch_codes import PatchCodebook

Indices = NDArray[np.int64]
Selection: TypeAlias = "int | slice | NDArray[np.integer] | Sequence[int]"
"""References by number or as a slice."""


def parts(rows: Indices, size: int) -> Iterator[Indices]:
    """Yield consecutive parts of ``rows`` with at most ``size`` elements."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


class MapStore:
    """One version of a map on disk. Arrays are memory-mapped on first use.

    Args:
        folder: Folder of the map.
        manifest: Manifest of the version.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        codebook = None if manifest.codebook is None else lambda: self.codebook
        self.segments = [Segment(folder, record, manifest, codebook) for record in manifest.segments]
        self.starts = np.concatenate([[0], np.cumsum([len(s) for s in self.segments])]).astype(np.int64)

    def check(self) -> None:
        """Run the fast checks: file lists, sizes and the list of removed rows.

        Checksums and values of other files are checked when they are first read.

        Raises:
            KappaPlaceError: If a file is missing, truncated or damaged, or does not fit the manifest.
        """
        Preprocessing.from_dict(self.manifest.model.preprocessing)
        for segment in self.segments:
            segment.check_sizes()
        removed = self.manifest.removed
        if removed is not None and removed.record.size <= BLOCK:
            self.extra(removed)

    def __len__(self) -> int:
        return self.manifest.count

    @cached_property
    def codebook(self) -> Codebook:
        """Codebook of a map with codes."""
        return read_codebook(self.folder, self.manifest)

    @cached_property
    def patch_codebook(self) -> PatchCodebook | None:
        """Codebook of compact patches; None if the map has no compact patches."""
        extra = self.manifest.patch_codebook
        return None if extra is None else PatchCodebook.from_array(self.extra(extra))

    @cached_property
    def whitening(self) -> Whitening | None:
        """Projection of the descriptors of the model; None if the map does not whiten them."""
        extra = self.manifest.whitening
        if extra is None:
            return None
        whitening = Whitening(torch.from_numpy(np.array(self.extra(extra), np.float32)))
        if whitening.dim != self.manifest.model.dim:
            raise KappaPlaceError(
                f"The whitening of {self.folder} gives {whitening.dim} dimensions instead of "
                f"{self.manifest.model.dim}. Restore the map from a copy."
            )
        return whitening

    def has_patches(self, references: Selection) -> NDArray[np.bool_]:
        """Return which references have stored patches."""
        segment = np.searchsorted(self.starts, self.rows_of(references), side="right") - 1
        return np.array([segment.has_patches for segment in self.segments], bool)[segment]

    @cached_property
    def live(self) -> Indices | None:
        """Rows of the references; None if no row is removed."""
        if self.manifest.removed is None:
            return None
        keep = np.ones(self.manifest.rows, bool)
        keep[self.extra(self.manifest.removed)] = False
        return np.flatnonzero(keep)

    def with_removed(self) -> MapStore:
        """Return the map with removed rows as references, as search engines store it."""
        return MapStore(self.folder, replace(self.manifest, removed=None))

    def rows_of(self, references: Selection) -> Indices:
        """Return the rows of some references."""
        if self.live is not None:
            return self.live[references]
        if isinstance(references, slice):
            return np.arange(*references.indices(len(self)), dtype=np.int64)
        return np.asarray(references, np.int64)

    def gather(self, column: str, references: Selection) -> Column:
        """Return a column of some references. Only their pages are read."""
        rows = self.rows_of(references)
        flat = rows.reshape(-1)
        numbers = np.searchsorted(self.starts, flat, side="right") - 1
        first = self.segments[int(numbers[0]) if len(numbers) else 0].array(column)
        values = np.empty((len(flat), *first.shape[1:]), first.dtype)
        for number in np.unique(numbers).tolist():
            mask = numbers == number
            if column == "patches":
                self.segments[number].check(flat[mask] - self.starts[number], column)
            values[mask] = self.segments[number].array(column)[flat[mask] - self.starts[number]]
        return values.reshape((*rows.shape, *first.shape[1:]))

    def check_not_empty(self) -> None:
        """Raise an error if the map has no references."""
        if not len(self):
            raise KappaPlaceError(f"The map {self.folder} is empty. Add images to it first.")

    def whole(self, column: str) -> Column:
        """Return a column of all references. With a single segment, this is its memory-mapped file."""
        if not self.segments:
            self.check_not_empty()
        parts = [segment.array(column) for segment in self.segments]
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return joined if self.live is None else joined[self.live]

    @cached_property
    def positions(self) -> NDArray[np.float64]:
        """x and y of every reference, N×2 in metres; 16 bytes per reference."""
        parts = [segment.array("poses")[:, :2] for segment in self.segments]
        joined = np.concatenate(parts) if parts else np.empty((0, 2))
        return joined if self.live is None else joined[self.live]

    @cached_property
    def near(self) -> Near:
        """Rule that decides which references show the same place, for margin, aliasing and pose fusion."""
        return Near.of(self.manifest.near, lambda: self.positions, lambda: self.whole("routes").T[::-1])

    @cached_property
    def descriptors(self) -> Columns:
        """Descriptors of all references, read block by block."""
        stored = [segment.stored() for segment in self.segments]
        checks = [segment.check for segment in self.segments]
        return Columns(stored, self.live, dim=self.manifest.model.dim, checks=checks)

    def source(self) -> MapSource:
        """Return the data that search engines need."""
        rows = self if self.live is None else self.with_removed()
        return MapSource(
            self.folder,
            self.manifest.name,
            self.descriptors,
            rows.positions,
            kappa=lambda: rows.whole("kappa"),
            names=rows.names,
            row_name=rows.name,
            fingerprint=self.fingerprint,
            state={"references": self._content, "rows": self.manifest.rows},
        )

    @property
    def fingerprint(self) -> str:
        """Hash that identifies the descriptors, made of the checksums in the manifest."""
        files = [record.files["descriptors.npy"].sha256 for record in self.manifest.segments]
        if self.manifest.codebook is not None:
            files.append(self.manifest.codebook.record.sha256)
        return hashlib.sha256("".join(files).encode()).hexdigest()

    @property
    def _content(self) -> str:
        """Hash of all segments, including removed rows."""
        files = [  # patches are not searched
            [file.sha256 for name, file in segment.files.items() if name != "patches.npy"]
            for segment in self.manifest.segments
        ]
        if self.manifest.codebook is not None:
            files.append([self.manifest.codebook.record.sha256])
        return hashlib.sha256(json.dumps(files).encode()).hexdigest()

    def values(self, extra: Extra | None) -> NDArray[np.float32]:
        """Return a number for every reference; NaN for references that were added after the file."""
        values = np.full(self.manifest.rows, np.nan, np.float32)
        if extra is not None:
            values[: extra.rows] = self.extra(extra)[: extra.rows]
        return values if self.live is None else values[self.live]

    @cached_property
    def distinctiveness(self) -> NDArray[np.float32]:
        """Highest similarity of each reference to another place; −inf without one, NaN if unknown."""
        return self.values(self.manifest.distinctiveness)

    @cached_property
    def sample(self) -> Indices:
        """References that the z-score compares with."""
        if self.manifest.sample is None:
            return np.arange(min(len(self), 2), dtype=np.int64)
        rows = np.asarray(self.extra(self.manifest.sample), np.int64)
        if self.live is None:
            return rows
        positions = np.minimum(np.searchsorted(self.live, rows), max(len(self.live) - 1, 0))
        return positions[self.live[positions] == rows] if len(self.live) else positions[:0]

    def extra(self, extra: Extra) -> Column:
        """Read an array next to the segments."""
        return read_extra(self.folder, extra, self.manifest)

    def place(self, reference: int) -> tuple[Segment, int]:
        """Return the segment of a reference, and its row in the segment."""
        row = int(self.rows_of(np.int64(reference)))
        number = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.segments[number], row - int(self.starts[number])

    def name(self, reference: int) -> str:
        """Return the name of a reference."""
        return row_name(*self.place(reference))

    def image_path(self, reference: int) -> str:
        """Return the path of a reference's image; empty if there is no file inside its folder."""
        segment, row = self.place(reference)
        return path_inside(segment.record.root, row_name(segment, row).removeprefix(segment.record.prefix))

    def original(self, reference: int) -> str:
        """Return the path of a reference's image if it is the image that was embedded; otherwise empty."""
        path = self.image_path(reference)
        same = path and bool((file_digest(path) == self.gather("digests", np.array([reference]))[0]).all())
        return path if same else ""

    def thumbnail(self, reference: int) -> bytes | None:
        """Return the JPEG thumbnail of a reference; None if the map has none."""
        segment, row = self.place(reference)
        if segment.thumbnails is None:
            return None
        return segment.thumbnails[row] or None

    def names(self) -> Iterator[str]:
        """Yield the names of all references in order."""
        for segment, live in self.parts():
            pieces = segment.names.all()
            yield from (pieces[row].decode("utf-8", "surrogateescape") for row in live.tolist())

    def blocks(self) -> Iterator[tuple[Segment, Rows]]:
        """Yield each segment and its references in memory."""
        for segment, live in self.parts():
            rows = segment.rows()
            yield segment, rows if len(live) == len(rows) else rows.take(live)

    def parts(self) -> Iterator[tuple[Segment, Indices]]:
        """Yield each segment and its rows that are not removed."""
        for segment, start in zip(self.segments, self.starts[:-1].tolist(), strict=True):
            if self.live is None:
                yield segment, np.arange(len(segment), dtype=np.int64)
            else:
                low, high = np.searchsorted(self.live, [start, start + len(segment)])
                yield segment, self.live[low:high] - start

    def find(self, names: Sequence[str]) -> Indices:
        """Return the references with these names; −1 if the map has none."""
        references = np.full(len(names), -1, np.int64)
        if not len(self) or not len(names):
            return references
        order, keys = self._by_key
        hashes = name_keys(names)
        low, high = (np.searchsorted(keys, hashes, side=side) for side in ("left", "right"))
        for i in np.flatnonzero(high > low).tolist():
            for reference in order[low[i] : high[i]].tolist():  # several names can have the same hash
                if self.name(reference) == names[i]:
                    references[i] = reference
                    break
        return references

    @cached_property
    def _by_key(self) -> tuple[Indices, NDArray[np.uint64]]:
        keys = self.whole("keys")
        order = np.argsort(keys, kind="stable")
        return order, keys[order]


UNIT = 0.02
"""Largest deviation of the length of a descriptor from 1; int8 rounds by a few thousandths."""
CODED = 0.5
"""Largest deviation of the length for codes, which are scaled so that their products are correct on
average."""


def find_damage(folder: Path, manifest: Manifest) -> list[str]:
    """Return one message per problem; an empty list if the map is intact."""
    problems: list[str] = []
    store = MapStore(folder, manifest)
    with track("Verifying", len(manifest.segments) + len(manifest.extras)) as bar:
        for segment in store.segments:
            files = {segment.folder / name: file for name, file in segment.record.files.items()}
            damaged = [message for path, file in files.items() if (message := _check_file(path, file))]
            problems += damaged or _check_values(segment, manifest)
            bar.advance()
        for extra in manifest.extras:
            message = _check_file(folder / extra.file, extra.record)
            problems += [message] if message else _messages(partial(store.extra, extra))
            bar.advance()
    if not problems:
        problems += _messages(store.check) + _messages(lambda: (store.patch_codebook, store.whitening))
        problems += _check_calibration(manifest) + _check_references(store)
    return problems


def verify_folder(folder: Path) -> tuple[Manifest, list[str]]:
    """Return the manifest and one message per problem. Files deleted by another process are not reported."""
    manifest = read_manifest(folder)
    while (problems := find_damage(folder, manifest)) and (now := read_manifest(folder)) != manifest:
        manifest = now
    return manifest, problems


def first_broken(folder: Path, manifest: Manifest) -> str:
    """Return a message about the first damaged file; empty if there is none.

    Files that can be computed again (distinctiveness, the sample) are not checked.

    Args:
        folder: Folder of the map.
        manifest: Manifest of the map.

    Returns:
        The message.
    """
    files = {
        folder / SEGMENTS / record.name / name: file
        for record in manifest.segments
        for name, file in record.files.items()
    }
    files |= {folder / extra.file: extra.record for extra in manifest.needed}
    return next((message for file, record in files.items() if (message := _check_file(file, record))), "")


def _check_file(file: Path, record: FileRecord) -> str:
    try:
        size = file.stat().st_size
        if size != record.size:
            return f"{file} has {size:,} bytes instead of {record.size:,}."
        if sha256_of(file) != record.sha256:
            return f"{file} has a wrong checksum: some of its bytes have changed."
    except (OSError, KappaPlaceError):
        return f"{file} is missing or cannot be read."
    return ""


def _check_values(segment: Segment, manifest: Manifest) -> list[str]:
    """Return messages about a segment whose checksums are correct, by the schema and by slow checks."""
    problems = _messages(segment.check_sizes) or [
        message
        for column in columns_of(segment.record)
        for message in _messages(partial(segment.array, column))
    ]
    if problems:
        return problems
    name = f"The segment {SEGMENTS}/{segment.record.name}"
    problems = _messages(segment.descriptors)
    if problems:
        return problems
    descriptors = segment.descriptors()
    length = np.linalg.norm(descriptors, axis=1)
    texts = [row_name(segment, row) for row in range(len(segment))]
    checks = {
        f"{name} has descriptors of {descriptors.shape[1]} dimensions instead of {manifest.model.dim}.": (
            descriptors.shape[1] != manifest.model.dim
        ),
        f"{name} has descriptors that are NaN or infinite.": not np.isfinite(descriptors).all(),
        f"{name} has descriptors that are not of unit length.": bool(
            (np.abs(length - 1) > (CODED if manifest.storage == "pq" else UNIT)).any()
        ),
        f"{name} has hashes of other names.": bool((name_keys(texts) != segment.array("keys")).any()),
    }
    return [message for message, is_wrong in checks.items() if is_wrong]


def _check_calibration(manifest: Manifest) -> list[str]:
    record = manifest.calibration
    return [] if record is None else _messages(lambda: Calibration.from_dict(record["calibration"]))


def _check_references(store: MapStore) -> list[str]:
    """Return messages about all references together."""
    names, unposed = list(store.names()), int(np.isnan(store.positions[:, 0]).sum())
    checks = {
        f"The map {store.folder} has several references of the same name.": len(set(names)) != len(names),
        f"The map {store.folder} has {unposed:,} references without a position, not "
        f"{store.manifest.unposed:,}.": unposed != store.manifest.unposed,
    }
    return [message for message, is_wrong in checks.items() if is_wrong]


def _messages(check: Callable[[], object]) -> list[str]:
    """Return the message of an error that a check raises."""
    try:
        check()
    except KappaPlaceError as error:
        return [str(error)]
    return []
