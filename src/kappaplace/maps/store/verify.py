"""Verifying a map: sizes and checksums of its files, and ranges of their values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from kappaplace.calibration.calibration import Calibration
from kappaplace.errors import KappaPlaceError
from kappaplace.files import sha256_of
from kappaplace.maps.store.manifest import FileRecord, Manifest, read_manifest
from kappaplace.maps.store.reader import MapStore
from kappaplace.maps.store.schema import columns_of
from kappaplace.maps.store.segments import SEGMENTS, Segment, name_keys, row_name
from kappaplace.progress import track

UNIT = 0.02
"""Largest deviation of the length of a descriptor from 1; int8 rounds by a few thousandths."""
CODED = 0.5
"""Largest deviation for codes, which are scaled so that their products are correct on average."""


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
        problems += _messages(store.check) + _messages(lambda: store.patch_codebook)
        problems += _check_calibration(manifest) + _check_references(store)
    return problems


def verified(folder: Path) -> tuple[Manifest, list[str]]:
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
