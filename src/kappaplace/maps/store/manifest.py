"""The manifest: one JSON file that describes a map and lists all of its files.

It is the only file of a map that changes, and it is replaced in one step. A reader therefore never sees an
incomplete change. Readers ignore files that the manifest does not list.

It has the checksum of every file, block by block, and its own checksum, which is checked at every opening. It
also lists the features that a reader must support, so that an older version fails instead of ignoring them.
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
from kappaplace.files import BLOCK, SEAL, sealed, unsealed, write_file
from kappaplace.records import from_plain, optional, stored, to_plain
from kappaplace.version import package_version


def check_inside(*names: str) -> None:
    """Raise ValueError for a file name that leads out of its folder."""
    for name in names:
        paths = PurePosixPath(name), PureWindowsPath(name)
        leads_out = any(path.is_absolute() or path.drive or ".." in path.parts for path in paths)
        if leads_out or not paths[0].name or "\0" in name:
            raise ValueError(f"{name!r} is not a name of a file in the map"[:200])


def check_counts(least: int = 0, **values: int) -> None:
    """Raise ValueError for a count below ``least``."""
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name} is {value}")


MANIFEST = "manifest.json"
FORMAT = 3
"""Version of the file format. Newer maps raise an error, older ones are read. From format 3, the manifest has
a checksum and names its features."""
CODES, WHITENING = "codes", "whitening"
FEATURES = frozenset({CODES, WHITENING})
"""Features that a reader may need: ``codes`` with weights and gains, and ``whitening`` of the descriptors.
Unknown features raise an error."""
PROTOCOL = 1
"""Version of the scores that a calibration is fitted on. Newer maps raise an error, older ones are read
without their calibration."""
MODEL_FOLDER = re.compile(r"model-[0-9a-f]{12}")
"""Pattern of the name of a model folder inside a map, which contains the model's fingerprint."""
STORAGE = ("float32", "float16", "int8", "pq")
PATCHES = ("none", "compact", "full")


@dataclass(frozen=True)
class FileRecord:
    """Size and checksum of one file."""

    size: int
    sha256: str
    blocks: tuple[int, ...] = field(default=(), metadata=optional())
    """CRC-32 of every block of the file, compared when the block is first read; empty in maps of format 2."""

    def __post_init__(self) -> None:
        check_counts(size=self.size)
        if self.blocks and len(self.blocks) != -(-self.size // BLOCK):
            raise ValueError(f"{self.size} bytes have {len(self.blocks)} checksums")


@dataclass(frozen=True)
class SegmentRecord:
    """A folder of references, which does not change once the manifest lists it."""

    name: str
    count: int
    root: str
    """Folder of the images when they were embedded. Names are relative to it."""
    prefix: str
    """Text before each name that distinguishes two sources and is not part of the path."""
    files: Mapping[str, FileRecord]

    def __post_init__(self) -> None:
        check_counts(1, count=self.count)
        check_inside(self.name, *self.files)
        if not self.name.isascii() or not self.name.isdigit():
            raise ValueError(f"{self.name!r} is not a name of a segment"[:200])


@dataclass(frozen=True)
class ModelRecord:
    """The model of the descriptors, and how to load it."""

    fingerprint: str
    """Checksum of the model, with its whitening if the map has one."""
    source: str
    """Name of a published model, or a folder inside the map, which starts with ``./``. Empty, or any other
    path in maps of earlier versions: the user must pass the model."""
    dim: int
    kappa: bool
    preprocessing: dict[str, Any]
    base: str = ""
    """Fingerprint of the model before κ was fitted for this map; empty without a fit. The encoder is the
    same, so a user who passes the earlier model gets the κ of the map."""

    def __post_init__(self) -> None:
        check_counts(1, dim=self.dim)

    @property
    def inside(self) -> str:
        """Name of the folder inside the map with the model; empty if the model is not in the map."""
        name = self.source.removeprefix("./")
        return name if self.source.startswith("./") and MODEL_FOLDER.fullmatch(name) else ""


@dataclass(frozen=True)
class Extra:
    """An array next to the segments: a number for each reference, or a list of references."""

    file: str
    record: FileRecord
    rows: int
    """Number of references that it covers, without those that were added later."""
    how: str = "exact"

    def __post_init__(self) -> None:
        check_counts(rows=self.rows)
        check_inside(self.file)


@dataclass(frozen=True)
class Manifest:
    """Description of a map and its files."""

    model: ModelRecord
    frame: str = LOCAL_FRAME
    radius: float = 25.0
    neighborhood: str = field(default="metres:25", metadata=stored("neighbourhood"))
    storage: str = "float32"
    thumbnails: bool = False
    name: str = ""
    version: int = 0
    """Number of changes."""
    segments: tuple[SegmentRecord, ...] = ()
    removed: Extra | None = None
    """Rows of removed references, sorted."""
    distinctiveness: Extra | None = None
    sample: Extra | None = None
    """Rows that the z-score compares with, sorted."""
    codebook: Extra | None = None
    """Codebook that decodes the descriptors of storage pq."""
    whitening: Extra | None = field(default=None, metadata=optional())
    """Projection of the descriptors of the model to those of the map."""
    patches: str = "none"
    """Kind of patches stored for new references: none, compact (codes) or full (feature maps)."""
    patch_codebook: Extra | None = None
    """Codebook that decodes compact patches."""
    unposed: int = 0
    calibration: dict[str, Any] | None = None
    kappaplace: str = ""
    format: int = FORMAT
    protocol: int = PROTOCOL
    features: tuple[str, ...] = ()
    """Features that a reader must support, see `FEATURES`."""

    def __post_init__(self) -> None:
        check_counts(version=self.version, unposed=self.unposed, format=self.format, protocol=self.protocol)
        if self.calibration is not None:
            from_plain(_Calibrated, self.calibration, "calibration", newer=True)
        frame_codes(self.frame)
        Neighborhood.parse(self.neighborhood)
        if self.storage not in STORAGE:
            raise KappaPlaceError(f"Unknown storage {self.storage!r}. Choose from: {', '.join(STORAGE)}.")
        if self.patches not in PATCHES:
            raise KappaPlaceError(f"Unknown patches {self.patches!r}. Choose from: {', '.join(PATCHES)}.")
        if self.storage == "pq" and self.codebook is None:
            raise KappaPlaceError(
                "The storage pq is learned from the descriptors of a map. Build it as float16, then run "
                "`kappaplace map compact MAP --storage pq`."
            )
        if not 0 < self.radius <= FARTHEST:
            raise KappaPlaceError(f"radius must be above 0 m and finite, got {self.radius}.")
        if len({segment.name for segment in self.segments}) != len(self.segments):
            raise ValueError("it lists a segment more than once")
        for extra in (self.removed, self.distinctiveness, self.sample):
            if extra is not None and extra.rows > self.rows:
                raise ValueError(f"{extra.file} is for {extra.rows} of {self.rows} references")

    @property
    def rows(self) -> int:
        """Number of references including removed ones."""
        return sum(segment.count for segment in self.segments)

    @property
    def count(self) -> int:
        """Number of references."""
        return self.rows - (self.removed.rows if self.removed else 0)

    @property
    def near(self) -> Neighborhood:
        """Rule that decides which references show the same place."""
        return Neighborhood.parse(self.neighborhood)

    @property
    def needed(self) -> list[Extra]:
        """Arrays next to the segments that cannot be computed again."""
        extras = (self.removed, self.codebook, self.whitening, self.patch_codebook)
        return [extra for extra in extras if extra is not None]

    @property
    def extras(self) -> list[Extra]:
        """All arrays next to the segments."""
        computed = [extra for extra in (self.distinctiveness, self.sample) if extra is not None]
        return [*self.needed, *computed]


@dataclass(frozen=True)
class _Calibrated:
    """Required fields of `Manifest.calibration`."""

    origin: str
    references: int
    calibration: dict[str, Any]

    def __post_init__(self) -> None:
        check_counts(references=self.references)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest of a map, in the format of this version."""
    features = ((CODES,) if manifest.codebook else ()) + ((WHITENING,) if manifest.whitening else ())
    current = replace(manifest, format=FORMAT, protocol=PROTOCOL, features=features)
    text = json.dumps(sealed(to_plain(current)), indent=1, ensure_ascii=False)
    write_file(folder / MANIFEST, text + "\n")


def read_manifest(folder: str | Path) -> Manifest:
    """Read the manifest of a map.

    Args:
        folder: Folder of the map.

    Returns:
        The manifest.

    Raises:
        KappaPlaceError: If there is no map, or its manifest is damaged or newer than this version supports.
    """
    file = Path(folder) / MANIFEST
    try:
        text = file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise KappaPlaceError(
            f"No map at {folder}: {MANIFEST} does not exist. Build a map with `kappaplace map build`."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise KappaPlaceError(f"The manifest {file} cannot be read ({error}). Check the file.") from None
    try:
        values = json.loads(text)
        if values["format"] > FORMAT:
            raise _newer(folder, values.get("kappaplace"), "format", values["format"], FORMAT)
        if values["format"] == FORMAT and SEAL not in values:
            raise ValueError("it has no checksum")
        values = unsealed(values)
        features = values.get("features", [])
        unknown = set(map(str, features)) - FEATURES if isinstance(features, list) else ()
        if unknown:
            raise KappaPlaceError(
                f"The map {folder} needs {', '.join(map(repr, sorted(unknown)))}, which this version of "
                f"kappaplace ({package_version()}) does not support. Please upgrade kappaplace."
            )
        return of_this_protocol(from_plain(Manifest, values, newer=True), folder)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise KappaPlaceError(
            f"The manifest {file} is damaged ({type(error).__name__} {error}). Restore it from a copy."
        ) from None


def of_this_protocol(manifest: Manifest, path: str | Path) -> Manifest:
    """Return the manifest without its calibration if its protocol is older; a newer one raises an error."""
    if manifest.protocol > PROTOCOL:
        raise _newer(path, manifest.kappaplace, "protocol", manifest.protocol, PROTOCOL)
    return replace(manifest, calibration=None) if manifest.protocol < PROTOCOL else manifest


def _newer(path: str | Path, writer: str | None, field: str, number: int, newest: int) -> KappaPlaceError:
    version = f"kappaplace {writer}" if writer else "a version of kappaplace"
    return KappaPlaceError(
        f"The map {path} was written by {version}, which is newer: its {field} is {number}, and this version "
        f"supports {newest}. Please upgrade kappaplace."
    )
