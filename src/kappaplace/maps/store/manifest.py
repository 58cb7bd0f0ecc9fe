"""The manifest: one JSON file that says all there is to know of a map before any of its arrays is touched.

It is the only file of a map that ever changes, and it changes by being swapped: whoever reads it sees the map
before a change or after it, never in between. Files that it does not name do not exist for a reader.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from kappaplace.data.geodesy import LOCAL_FRAME, frame_codes
from kappaplace.data.near import FARTHEST, Neighborhood
from kappaplace.errors import KappaPlaceError
from kappaplace.files import replace_file
from kappaplace.records import from_plain, stored, to_plain


def check_inside(*names: str) -> None:
    """Raise a ValueError for a name that does not stay below the folder it is joined to."""
    for name in names:
        paths = PurePosixPath(name), PureWindowsPath(name)
        leads_out = any(path.is_absolute() or path.drive or ".." in path.parts for path in paths)
        if leads_out or not paths[0].name or "\0" in name:
            raise ValueError(f"{name!r} is not a name of a file in the map"[:200])


def check_counts(**values: int) -> None:
    """Raise a ValueError for a number that counts something and is negative."""
    for name, value in values.items():
        if value < 0:
            raise ValueError(f"{name} is {value}")


MANIFEST = "manifest.json"
FORMAT = 2
"""Raised when the files mean something else; a newer map is refused, an older one is read. 2: codes may have
weights and gains; a map without codes is still written as 1."""
PROTOCOL = 1
"""Raised when the signals of the same files would be other numbers: what a calibration was fitted for. A
newer map is refused, an older one is read without its calibration."""
MODEL_FOLDER = re.compile(r"model-[0-9a-f]{12}")
"""Name of a folder inside a map that keeps a model of the map's own, after its fingerprint."""
STORAGE = ("float32", "float16", "int8", "pq")


@dataclass(frozen=True)
class FileRecord:
    """Size and checksum of one file."""

    size: int
    sha256: str

    def __post_init__(self) -> None:
        check_counts(size=self.size)


@dataclass(frozen=True)
class SegmentRecord:
    """One folder of references, never changed once it is named here."""

    name: str
    count: int
    root: str
    """Where its images lay when they were embedded; their names are relative to it."""
    prefix: str
    """What was put before each name to keep two sources apart; not part of the path."""
    files: Mapping[str, FileRecord]

    def __post_init__(self) -> None:
        check_counts(count=self.count)
        check_inside(self.name, *self.files)


@dataclass(frozen=True)
class ModelRecord:
    """Which model made the descriptors, and how to get it again."""

    fingerprint: str
    source: str
    """A name, a weights file or a folder for `load_model`; a folder inside the map is written ``./name``;
    empty for a model that must be given."""
    dim: int
    kappa: bool
    preprocessing: dict[str, Any]
    base: str = ""
    """Fingerprint of the model before its κ was fitted for this map; empty where that was not done. The
    encoder is the same, so whoever brings the model of then gets the map's κ with it."""

    def __post_init__(self) -> None:
        check_counts(dim=self.dim)
        if self.source.startswith("./"):
            check_inside(self.source)


@dataclass(frozen=True)
class Extra:
    """A file beside the segments that holds a number for each reference, or a list of them."""

    file: str
    record: FileRecord
    rows: int
    """How many references it speaks of: those added since are not in it yet."""
    how: str = "exact"

    def __post_init__(self) -> None:
        check_counts(rows=self.rows)
        check_inside(self.file)


@dataclass(frozen=True)
class Manifest:
    """What a map is made of."""

    model: ModelRecord
    frame: str = LOCAL_FRAME
    radius: float = 25.0
    neighborhood: str = field(default="metres:25", metadata=stored("neighbourhood"))
    storage: str = "float32"
    thumbnails: bool = False
    name: str = ""
    version: int = 0
    """Counts the swaps."""
    segments: tuple[SegmentRecord, ...] = ()
    removed: Extra | None = None
    """Rows that are no longer part of the map, sorted."""
    distinctiveness: Extra | None = None
    sample: Extra | None = None
    """Rows that the z-score compares with, sorted."""
    codebook: Extra | None = None
    """How codes (storage pq) become descriptors."""
    unposed: int = 0
    calibration: dict[str, Any] | None = None
    kappaplace: str = ""
    format: int = FORMAT
    protocol: int = PROTOCOL

    def __post_init__(self) -> None:
        check_counts(version=self.version, unposed=self.unposed, format=self.format, protocol=self.protocol)
        if self.calibration is not None:
            from_plain(_Calibrated, self.calibration, "calibration", newer=True)
        frame_codes(self.frame)
        Neighborhood.parse(self.neighborhood)
        if self.storage not in STORAGE:
            raise KappaPlaceError(
                f"Descriptors are stored as one of {', '.join(STORAGE)}, not {self.storage!r}."
            )
        if self.storage == "pq" and self.codebook is None:
            raise KappaPlaceError(
                "Codes (pq) are learnt from a map's own descriptors: build it as float16, then run "
                "`kappaplace map compact MAP --storage pq`."
            )
        if not 0 < self.radius <= FARTHEST:
            raise KappaPlaceError(f"The radius of a place must be above 0 m and finite, not {self.radius}.")

    @property
    def rows(self) -> int:
        """References ever written, those removed since included."""
        return sum(segment.count for segment in self.segments)

    @property
    def count(self) -> int:
        """References of the map."""
        return self.rows - (self.removed.rows if self.removed else 0)

    @property
    def near(self) -> Neighborhood:
        """Which references show one place."""
        return Neighborhood.parse(self.neighborhood)


@dataclass(frozen=True)
class _Calibrated:
    """What `Manifest.calibration` always holds."""

    origin: str
    references: int
    calibration: dict[str, Any]

    def __post_init__(self) -> None:
        check_counts(references=self.references)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Swap the manifest for another, in this version's way whatever it was read from."""
    understood = replace(manifest, format=FORMAT if manifest.codebook else 1, protocol=PROTOCOL)
    text = json.dumps(to_plain(understood), indent=1, ensure_ascii=False) + "\n"
    replace_file(folder / MANIFEST, lambda part: part.write_text(text, encoding="utf-8"))


def read_manifest(folder: str | Path) -> Manifest:
    """The manifest of a map, whole or refused."""
    file = Path(folder) / MANIFEST
    try:
        text = file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise KappaPlaceError(
            f"No map at {folder}: there is no {MANIFEST}; make one with `kappaplace map build`."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise KappaPlaceError(f"The manifest {file} cannot be read ({error}).") from None
    try:
        values = json.loads(text)
        if values["format"] > FORMAT:
            raise _newer(folder, values.get("kappaplace"), "format", values["format"], FORMAT)
        return as_understood(from_plain(Manifest, values, newer=True), folder)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise KappaPlaceError(
            f"The manifest {file} is damaged ({type(error).__name__} {error}); restore it from a copy."
        ) from None


def as_understood(manifest: Manifest, where: str | Path) -> Manifest:
    """A map of another protocol: a newer one is refused, an older one loses its calibration."""
    if manifest.protocol > PROTOCOL:
        raise _newer(where, manifest.kappaplace, "protocol", manifest.protocol, PROTOCOL)
    return replace(manifest, calibration=None) if manifest.protocol < PROTOCOL else manifest


def _newer(where: str | Path, writer: str | None, what: str, number: int, known: int) -> KappaPlaceError:
    made_by = f"kappaplace {writer}" if writer else "a kappaplace"
    return KappaPlaceError(
        f"The map {where} was written by {made_by}, which is newer: its {what} is {number}, this "
        f"version knows {known}; upgrade kappaplace."
    )
