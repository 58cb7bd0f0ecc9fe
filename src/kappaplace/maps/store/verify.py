"""Whether every file of a map is what the manifest says, and every number can be one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.files import sha256_of
from kappaplace.maps.store.manifest import Extra, FileRecord, Manifest, read_manifest
from kappaplace.maps.store.segments import SEGMENTS, Segment, read_codebook
from kappaplace.progress import track

UNIT = 0.02
"""How far the length of a descriptor may be from 1: int8 rounds by a few thousandths."""
CODED = 0.5
"""The same for codes, which are longer by as much as makes their products right on average."""


def find_damage(folder: Path, manifest: Manifest) -> list[str]:
    """One sentence for each thing that is broken; an empty list for a sound map."""
    found: list[str] = []
    extras = (manifest.removed, manifest.distinctiveness, manifest.sample, manifest.codebook)
    named = [extra for extra in extras if extra is not None]
    codebook = (
        None
        if manifest.codebook is None
        else partial(read_codebook, folder, manifest.codebook, manifest.model.dim)
    )
    with track("Verifying", len(manifest.segments) + len(named)) as bar:
        for record in manifest.segments:
            segment = Segment(folder, record, codebook)
            broken = [
                sentence
                for name, file in record.files.items()
                if (sentence := _broken_file(segment.folder / name, file))
            ]
            found += broken or _broken_values(segment, manifest)
            bar.advance()
        for extra in named:
            sentence = _broken_file(folder / extra.file, extra.record)
            found += [sentence] if sentence else _broken_extra(folder, extra, manifest)
            bar.advance()
    if len({record.name for record in manifest.segments}) != len(manifest.segments):
        found.append(f"The manifest of {folder} names a segment twice.")
    return found


def verified(folder: Path) -> tuple[Manifest, list[str]]:
    """The map as it is and what is broken in it; files that a writer took away meanwhile are not."""
    manifest = read_manifest(folder)
    while (found := find_damage(folder, manifest)) and (now := read_manifest(folder)) != manifest:
        manifest = now
    return manifest, found


def first_broken(folder: Path, manifest: Manifest) -> str:
    """The first file of the references that is not what was written, in a sentence; empty if all of them are.

    What a map can compute anew (distinctiveness, the sample) is left out.
    """
    files = {
        Segment(folder, record).folder / name: file
        for record in manifest.segments
        for name, file in record.files.items()
    }
    needed = [extra for extra in (manifest.removed, manifest.codebook) if extra is not None]
    files |= {folder / extra.file: extra.record for extra in needed}
    return next((broken for file, record in files.items() if (broken := _broken_file(file, record))), "")


def _broken_file(file: Path, record: FileRecord) -> str:
    try:
        size = file.stat().st_size
        if size != record.size:
            return f"{file} has {size:,} bytes instead of {record.size:,}."
        if sha256_of(file) != record.sha256:
            return f"{file} has another checksum than when it was written: some of its bytes are wrong."
    except (OSError, KappaPlaceError):
        return f"{file} is missing or cannot be read."
    return ""


def _broken_values(segment: Segment, manifest: Manifest) -> list[str]:
    """Counts and numbers of a segment whose bytes are as they were written."""
    where = f"The segment {SEGMENTS}/{segment.record.name}"
    try:
        descriptors, poses = segment.descriptors(), segment.array("poses")
        names, kappa = segment.names, segment.array("kappa")
    except KappaPlaceError as error:
        return [str(error)]
    length = np.linalg.norm(descriptors, axis=1)
    problems = {
        f"{where} has {len(names):,} names for {len(segment):,} references.": len(names) != len(segment),
        f"{where} has descriptors of {descriptors.shape[1]} dimensions instead of {manifest.model.dim}.": (
            descriptors.shape[1] != manifest.model.dim
        ),
        f"{where} holds descriptors that are NaN or infinite.": not np.isfinite(descriptors).all(),
        f"{where} holds descriptors that are not of unit length.": bool(
            (np.abs(length - 1) > (CODED if manifest.storage == "pq" else UNIT)).any()
        ),
        f"{where} holds positions with one coordinate only.": _half_known(poses),
        f"{where} holds κ that is zero or below.": bool((kappa <= 0).any()),
    }
    return [sentence for sentence, wrong in problems.items() if wrong]


def _half_known(poses: NDArray[np.float64]) -> bool:
    known = np.isfinite(poses[:, :2])
    return bool((known[:, 0] != known[:, 1]).any())


def _broken_extra(folder: Path, extra: Extra, manifest: Manifest) -> list[str]:
    values: Any = np.load(folder / extra.file, mmap_mode="r", allow_pickle=False)
    if extra in (manifest.removed, manifest.sample):
        wrong = len(values) and (int(values.max()) >= manifest.rows or int(values.min()) < 0)
        return [f"{folder / extra.file} names rows that the map does not have."] if wrong else []
    return [f"{folder / extra.file} is shorter than it says."] if len(values) < extra.rows else []
