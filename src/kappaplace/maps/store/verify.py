"""Verifying a map: sizes and checksums of its files, and ranges of their values."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.files import sha256_of
from kappaplace.maps.store.manifest import Extra, FileRecord, Manifest, read_manifest
from kappaplace.maps.store.segments import SEGMENTS, Segment, read_codebook
from kappaplace.progress import track

UNIT = 0.02
"""Largest deviation of the length of a descriptor from 1; int8 rounds by a few thousandths."""
CODED = 0.5
"""Largest deviation for codes, which are scaled so that their products are correct on average."""


def find_damage(folder: Path, manifest: Manifest) -> list[str]:
    """Return one message per problem; an empty list if the map is intact."""
    problems: list[str] = []
    extras, codes = manifest.extras, manifest.codebook
    codebook = None if codes is None else partial(read_codebook, folder, codes, manifest.model.dim)
    with track("Verifying", len(manifest.segments) + len(extras)) as bar:
        for record in manifest.segments:
            segment = Segment(folder, record, codebook)
            files = {segment.folder / name: file for name, file in record.files.items()}
            damaged = [message for path, file in files.items() if (message := _check_file(path, file))]
            problems += damaged or _check_values(segment, manifest)
            bar.advance()
        for extra in extras:
            message = _check_file(folder / extra.file, extra.record)
            problems += [message] if message else _check_extra(folder, extra, manifest)
            bar.advance()
    if len({record.name for record in manifest.segments}) != len(manifest.segments):
        problems.append(f"The manifest of {folder} lists a segment more than once.")
    return problems


def verified(folder: Path) -> tuple[Manifest, list[str]]:
    """Return the manifest and one message per problem. Files that another process deleted are no problem."""
    manifest = read_manifest(folder)
    while (problems := find_damage(folder, manifest)) and (now := read_manifest(folder)) != manifest:
        manifest = now
    return manifest, problems


def first_broken(folder: Path, manifest: Manifest) -> str:
    """Return a message about the first damaged file; empty if there is none.

    Files that can be computed again (distinctiveness, the sample) are not checked.

    Args:
        folder: Folder of the map.
        manifest: Its manifest.
    """
    files = {
        Segment(folder, record).folder / name: file
        for record in manifest.segments
        for name, file in record.files.items()
    }
    needed = [extra for extra in (manifest.removed, manifest.codebook) if extra is not None]
    files |= {folder / extra.file: extra.record for extra in needed}
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
    """Return messages about counts and values of a segment whose checksums are correct."""
    name = f"The segment {SEGMENTS}/{segment.record.name}"
    try:
        descriptors, poses = segment.descriptors(), segment.array("poses")
        names, kappa = segment.names, segment.array("kappa")
    except KappaPlaceError as error:
        return [str(error)]
    length = np.linalg.norm(descriptors, axis=1)
    problems = {
        f"{name} has {len(names):,} names for {len(segment):,} references.": len(names) != len(segment),
        f"{name} has descriptors of {descriptors.shape[1]} dimensions instead of {manifest.model.dim}.": (
            descriptors.shape[1] != manifest.model.dim
        ),
        f"{name} has descriptors that are NaN or infinite.": not np.isfinite(descriptors).all(),
        f"{name} has descriptors that are not of unit length.": bool(
            (np.abs(length - 1) > (CODED if manifest.storage == "pq" else UNIT)).any()
        ),
        f"{name} has positions with one coordinate only.": has_half_positions(poses),
        f"{name} has κ that is zero or below.": bool((kappa <= 0).any()),
    }
    return [message for message, is_wrong in problems.items() if is_wrong]


def has_half_positions(poses: NDArray[np.float64]) -> bool:
    """Return whether a position has only one of its two coordinates."""
    finite = np.isfinite(poses[:, :2])
    return bool((finite[:, 0] != finite[:, 1]).any())


def _check_extra(folder: Path, extra: Extra, manifest: Manifest) -> list[str]:
    values: NDArray[np.generic] = np.load(folder / extra.file, mmap_mode="r", allow_pickle=False)
    if extra in (manifest.removed, manifest.sample):
        outside = len(values) and (int(values.max()) >= manifest.rows or int(values.min()) < 0)
        return [f"{folder / extra.file} lists rows that the map does not have."] if outside else []
    return [f"{folder / extra.file} has too few values."] if len(values) < extra.rows else []
