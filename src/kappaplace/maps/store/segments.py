"""Segments: folders with a few thousand references as plain arrays, written once and then memory-mapped.

Names and thumbnails are stored as one file of bytes and one file of offsets. Both are memory-mapped, so
reading one name among ten million touches one page.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.files import BLOCK, DAMAGED_ARRAYS, file_sums, save_array, sync_path, why
from kappaplace.maps.store.manifest import Extra, FileRecord, Manifest, SegmentRecord
from kappaplace.maps.store.schema import Column, Guard, check_column, check_extra, wrong_file
from kappaplace.retrieval.codes import Codebook
from kappaplace.retrieval.columns import Coded, Quantized, decode, encode
from kappaplace.retrieval.columns import Rows as RowNumbers
from kappaplace.retrieval.columns import Segment as StoredDescriptors


def write_blobs(folder: Path, name: str, pieces: Sequence[bytes]) -> None:
    """Write byte strings to ``NAME.bin`` and ``NAME.starts.npy`` (N+1 offsets).

    Args:
        folder: Folder of the two files.
        name: Name of the column.
        pieces: One byte string per row.
    """
    starts = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum([len(piece) for piece in pieces], out=starts[1:])
    with open(folder / f"{name}.bin", "wb") as stream:
        stream.writelines(pieces)
    save_array(folder / f"{name}.starts.npy", starts)


class Blobs:
    """A column with one byte string per row.

    Args:
        starts: N+1 offsets.
        data: All bytes.
        check: Function that is called before bytes are read, with the first and the last one. Without
            arguments, it checks all bytes.
    """

    def __init__(
        self, starts: NDArray[np.int64], data: NDArray[np.uint8], check: Callable[..., None] = lambda *_: None
    ) -> None:
        self.starts, self.data, self.check = starts, data, check

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> bytes:
        start, end = int(self.starts[row]), int(self.starts[row + 1])
        if start < end:
            self.check(np.arange(start, end, BLOCK), np.array([end - 1]))
        return self.data[start:end].tobytes()

    def all(self) -> list[bytes]:
        """Return all byte strings, read in one pass."""
        self.check()
        data = self.data.tobytes()
        return [data[start:end] for start, end in pairwise(self.starts.tolist())]


def map_bytes(file: Path) -> NDArray[np.uint8]:
    """Memory-map a file as bytes. An empty file cannot be mapped and gives an empty array."""
    if file.stat().st_size == 0:
        return np.empty(0, np.uint8)
    return np.memmap(file, np.uint8, "r")


SEGMENTS = "segments"
POSE = ("x", "y", "heading", "time")
"""Columns of poses: metres to the east and north, degrees clockwise from north, seconds since 1970."""
LARGE = ("descriptors", "patches")
"""Columns that are read a few rows at a time."""
COLUMNS = ("descriptors", "kappa", "poses", "routes", "stats", "digests")


class StaleMap(KappaPlaceError):
    """A file of the map no longer exists because another process compacted it. Open the map again."""


@dataclass(frozen=True, eq=False)
class Rows:
    """References in memory."""

    names: Sequence[str]
    descriptors: NDArray[np.float32]
    kappa: NDArray[np.float32]
    """κ of each reference, N; NaN from a model without a kappa head."""
    poses: NDArray[np.float64]
    """N×4, see `POSE`; NaN where unknown."""
    routes: NDArray[np.int64]
    """N×2: hash of the route, and number of the frame."""
    stats: NDArray[np.int64]
    """Size and modification time of each image file, N×2; −1 without a file."""
    digests: NDArray[np.uint8]
    """Hash of the content of each image file, N×16; zeros without a file."""
    thumbnails: Sequence[bytes] | None = None
    codes: NDArray[np.uint8] | None = None
    """Descriptors as codes, from a map that stores codes, so that they are not rounded twice."""
    patches: Column | None = None
    """Stored patches: codes N×bytes or feature maps N×C×H×W. None if a reference has no patches."""

    def __len__(self) -> int:
        return len(self.names)

    def take(self, rows: NDArray[np.int64]) -> Rows:
        """Return the references at these positions, in this order."""
        small = self.thumbnails
        return Rows(
            [self.names[i] for i in rows.tolist()],
            **{column: getattr(self, column)[rows] for column in COLUMNS},
            thumbnails=None if small is None else [small[i] for i in rows.tolist()],
            codes=None if self.codes is None else self.codes[rows],
            patches=None if self.patches is None else self.patches[rows],
        )

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """Concatenate several lists of references."""
        small = [part.thumbnails for part in parts if part.thumbnails is not None]
        codes = [part.codes for part in parts if part.codes is not None]
        patches = [part.patches for part in parts if part.patches is not None]
        return cls(
            [name for part in parts for name in part.names],
            **{c: np.concatenate([getattr(part, c) for part in parts]) for c in COLUMNS},
            thumbnails=[piece for part in small for piece in part] if len(small) == len(parts) else None,
            codes=np.concatenate(codes) if codes and len(codes) == len(parts) else None,
            patches=np.concatenate(patches) if patches and len(patches) == len(parts) else None,
        )


def name_keys(names: Sequence[str]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each name, which is faster to search than text."""
    digest = hashlib.blake2b
    packed = b"".join(digest(_bytes(name), digest_size=8).digest() for name in names)
    return np.frombuffer(packed, "<u8").astype(np.uint64)


def write_segment(
    folder: Path, rows: Rows, storage: str, codebook: Codebook | None = None, *, root: str, prefix: str
) -> SegmentRecord:
    """Write a segment under a temporary name, wait for the disk, and rename it, so that it is never partial.

    Args:
        folder: Folder of the segment.
        rows: The references.
        storage: Number format of the descriptors.
        codebook: Codebook of a map with codes.
        root: Folder of the images.
        prefix: Text before each name that is not part of the path.

    Returns:
        Record of the segment.

    Raises:
        KappaPlaceError: If the disk cannot be written to.
    """
    part = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        _write(part, rows, storage, codebook)
        files = {}
        for file in sorted(part.iterdir()):
            sync_path(file)
            files[file.name] = file_record(file)
        os.rename(part, folder)
        sync_path(folder.parent)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise unwritable(folder, error) from None
    return SegmentRecord(folder.name, len(rows), root, prefix, files)


def file_record(file: Path) -> FileRecord:
    """Return size and checksums of a file."""
    digest, sums = file_sums(file)
    return FileRecord(file.stat().st_size, digest, tuple(sums))


def unwritable(folder: Path, error: OSError) -> KappaPlaceError:
    """Return the error for a segment that cannot be written."""
    return KappaPlaceError(
        f"Cannot write the segment {folder}: {why(error)}. The map is unchanged; run the command again to "
        "resume."
    )


def _write(part: Path, rows: Rows, storage: str, codebook: Codebook | None) -> None:
    stored = encode(rows.descriptors, storage, codebook)
    if isinstance(stored, Quantized):
        save_array(part / "scale.npy", stored.scale)
    if isinstance(stored, Coded) and rows.codes is not None:
        stored = Coded(rows.codes, stored.codebook)
    plain = stored.codes if isinstance(stored, Quantized | Coded) else stored
    save_array(part / "descriptors.npy", plain)
    for column in COLUMNS[1:]:
        save_array(part / f"{column}.npy", getattr(rows, column))
    if rows.patches is not None:
        save_array(part / "patches.npy", rows.patches)
    save_array(part / "keys.npy", name_keys(rows.names))
    write_blobs(part, "names", [_bytes(name) for name in rows.names])
    if rows.thumbnails is not None:
        write_blobs(part, "thumbnails", rows.thumbnails)


class Segment:
    """A segment of a map. Each file is memory-mapped and checked on first use.

    Args:
        folder: Folder of the map.
        record: Record of the segment.
        manifest: Manifest of the map.
        codebook: Function that reads the codebook of a map with codes. It is called on first use.
    """

    def __init__(
        self,
        folder: Path,
        record: SegmentRecord,
        manifest: Manifest,
        codebook: Callable[[], Codebook] | None = None,
    ) -> None:
        self.folder, self.record, self._codebook = folder / SEGMENTS / record.name, record, codebook
        self.manifest = manifest
        self._arrays: dict[str, Column] = {}
        self._guards: dict[str, Guard] = {}

    def __len__(self) -> int:
        return self.record.count

    def check_sizes(self) -> None:
        """Check that all files exist and have the size that the references need."""
        if message := wrong_file(self.record, self.manifest):
            raise KappaPlaceError(f"{self.folder}: {message}. {_HELP}")
        for name in self.record.files:
            self.checked(name)

    def array(self, column: str) -> Column:
        """Return a numeric column, memory-mapped. `check` compares `LARGE` ones with their checksums."""
        if column not in self._arrays:
            name = f"{column}.npy"
            data_size = self.record.files[f"{column[:-6]}bin"].size if column.endswith("starts") else 0
            with self._reading(name) as file:
                self._guard(name).check(*((_FIRST, _FIRST) if column in LARGE else ()))
                array = np.load(file, mmap_mode="c", allow_pickle=False)  # torch warns about read-only memory
                check_column(column, array, self.manifest, len(self), data_size)
            self._arrays[column] = array
        return self._arrays[column]

    def check(self, rows: RowNumbers = slice(None), column: str = "descriptors") -> None:
        """Compare rows of a large column with their checksums, unless they were compared before."""
        name = f"{column}.npy"
        guard, array = self._guard(name), self.array(column)
        if not guard.is_done:
            header = self.record.files[name].size - array.nbytes
            first = header + np.arange(len(array))[rows] * array.strides[0]
            with self._reading(name):
                guard.check(first, first + array.strides[0] - 1)

    def stored(self) -> StoredDescriptors:
        """Return the descriptors as stored, memory-mapped."""
        if "scale.npy" in self.record.files:
            return Quantized(self.array("descriptors"), self.array("scale"))
        array = self.array("descriptors")
        if self._codebook is None:
            return array
        codebook = self._codebook()
        if array.shape[1] != codebook.width:
            raise KappaPlaceError(f"{self.folder / 'descriptors.npy'} does not fit its codebook. {_HELP}")
        return Coded(array, codebook)

    def descriptors(self) -> NDArray[np.float32]:
        """Return all descriptors as float32."""
        self.check()
        return decode(self.stored())

    @cached_property
    def names(self) -> Blobs:
        """Names as UTF-8."""
        return self._blobs("names")

    @cached_property
    def thumbnails(self) -> Blobs | None:
        """JPEG thumbnails; None if the map has none."""
        return self._blobs("thumbnails") if "thumbnails.bin" in self.record.files else None

    @property
    def has_patches(self) -> bool:
        """Whether the references have stored patches."""
        return "patches.npy" in self.record.files

    def patches(self, rows: RowNumbers) -> Column:
        """Return the stored patches of some rows."""
        self.check(rows, "patches")
        return np.array(self.array("patches")[rows])

    def rows(self) -> Rows:
        """Return all references in memory."""
        small, descriptors = self.thumbnails, self.descriptors()
        if self._codebook is not None:  # decoded descriptors get unit length like all descriptors
            descriptors /= np.maximum(np.linalg.norm(descriptors, axis=1, keepdims=True), 1e-6)
        mapped = {column: np.array(self.array(column)) for column in COLUMNS[1:]}
        return Rows(
            [_text(piece) for piece in self.names.all()],
            descriptors=descriptors,
            **mapped,
            thumbnails=None if small is None else small.all(),
            codes=None if self._codebook is None else np.array(self.array("descriptors")),
            patches=self.patches(slice(None)) if self.has_patches else None,
        )

    def checked(self, name: str) -> Path:
        """Return the path of a file after checking its size, so that truncated files are detected."""
        file, record = self.folder / name, self.record.files.get(name)
        if record is None:
            raise KappaPlaceError(f"The segment {self.folder} has no {name}. {_HELP}")
        try:
            size = file.stat().st_size
        except OSError:
            raise _gone(file) from None
        if size != record.size:
            raise KappaPlaceError(f"{file} has {size:,} bytes instead of {record.size:,}. {_HELP}")
        return file

    def _blobs(self, name: str) -> Blobs:
        guard, starts = self._guard(f"{name}.bin"), self.array(f"{name}.starts")

        def check(*ends: NDArray[np.int64]) -> None:
            if not guard.is_done:
                with self._reading(f"{name}.bin"):
                    guard.check(*ends)

        return Blobs(starts, guard.data, check)

    def _guard(self, name: str) -> Guard:
        if name not in self._guards:
            with self._reading(name) as file:
                self._guards[name] = Guard(map_bytes(file), self.record.files[name])
        return self._guards[name]

    @contextmanager
    def _reading(self, name: str) -> Iterator[Path]:
        """Check the size of a file, and convert the errors of damaged files to a message."""
        file = self.checked(name)
        try:
            yield file
        except FileNotFoundError:  # deleted after its size was checked
            raise _gone(file) from None
        except DAMAGED_ARRAYS as error:
            raise KappaPlaceError(f"{file} cannot be read ({error}). {_HELP}") from None


def _gone(file: Path) -> StaleMap:
    return StaleMap(
        f"{file} no longer exists: another process compacted the map or deleted the file. Open the map "
        "again, or restore the file from a copy."
    )


def read_extra(folder: Path, extra: Extra, manifest: Manifest) -> Column:
    """Read an array next to the segments, after checking its size, its checksum and its values."""
    file = folder / extra.file
    try:
        if file.stat().st_size != extra.record.size:
            raise ValueError(f"{file.stat().st_size:,} bytes instead of {extra.record.size:,}")
        Guard(map_bytes(file), extra.record).check()
        array = np.load(file, mmap_mode="r", allow_pickle=False)
        for kind in ("removed", "sample", "distinctiveness"):
            if extra is getattr(manifest, kind):
                check_extra(kind, array, manifest)
        return array
    except FileNotFoundError:
        raise StaleMap(
            f"{file} no longer exists: another process changed the map. Open the map again, or run "
            "`kappaplace map compact`."
        ) from None
    except DAMAGED_ARRAYS as error:
        advice = "" if extra in manifest.needed else ", or run `kappaplace map compact`"
        raise KappaPlaceError(f"{file} is damaged ({error}). Restore the map from a copy{advice}.") from None


def read_codebook(folder: Path, manifest: Manifest) -> Codebook:
    """Read the codebook of a map with codes.

    Args:
        folder: Folder of the map.
        manifest: Manifest of the map.

    Returns:
        The codebook.

    Raises:
        KappaPlaceError: If the file is damaged.
    """
    extra = manifest.codebook
    assert extra is not None
    try:
        return Codebook.from_array(read_extra(folder, extra, manifest), manifest.model.dim)
    except StaleMap:
        raise
    except (KappaPlaceError, *DAMAGED_ARRAYS):
        raise KappaPlaceError(
            f"The codebook {folder / extra.file} is damaged, so the descriptors cannot be read. Restore it "
            "from a copy, or run `kappaplace map reembed`."
        ) from None


_FIRST = np.zeros(1, np.int64)
"""Offset of the block with the header of an .npy file."""
_HELP = "`kappaplace map verify` lists all damaged files; restore the map from a copy, or rebuild it."


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")  # file names need not be UTF-8


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "surrogateescape")


def row_name(segment: Segment, row: int) -> str:
    """Return the name of one row of a segment."""
    return _text(segment.names[row])
