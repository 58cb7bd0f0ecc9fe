"""A segment: some thousand references as a folder of plain arrays, written once and then only mapped.

Many small pieces of bytes in one file, and where each one starts in another: names, thumbnails.

Both files are memory-mapped, so that the name of one reference among ten million costs one page.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.files import DAMAGED_ARRAYS, save_array, sha256_of, why
from kappaplace.maps.store.manifest import Extra, FileRecord, SegmentRecord
from kappaplace.retrieval.codes import Codebook
from kappaplace.retrieval.columns import Coded, Quantized, decode, encode
from kappaplace.retrieval.columns import Segment as StoredDescriptors


def write_blobs(folder: Path, name: str, pieces: Sequence[bytes]) -> None:
    """Write ``NAME.bin`` and ``NAME.starts.npy`` (N+1 offsets)."""
    starts = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum([len(piece) for piece in pieces], out=starts[1:])
    with open(folder / f"{name}.bin", "wb") as stream:
        stream.writelines(pieces)
    save_array(folder / f"{name}.starts.npy", starts)


def blob_files(name: str) -> tuple[str, str]:
    """The two files of a column of blobs."""
    return f"{name}.bin", f"{name}.starts.npy"


class Blobs:
    """One piece of bytes a row."""

    def __init__(self, starts: NDArray[np.int64], data: NDArray[np.uint8]) -> None:
        self.starts, self.data = starts, data

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> bytes:
        return self.data[int(self.starts[row]) : int(self.starts[row + 1])].tobytes()

    def all(self) -> list[bytes]:
        """Every piece, for one pass over the whole file."""
        whole, ends = self.data.tobytes(), self.starts.tolist()
        return [whole[a:b] for a, b in pairwise(ends)]


def map_bytes(file: Path) -> NDArray[np.uint8]:
    """A file as bytes; an empty one cannot be mapped and need not be."""
    if file.stat().st_size == 0:
        return np.empty(0, np.uint8)
    return np.memmap(file, np.uint8, "r")


SEGMENTS = "segments"
POSE = ("x", "y", "heading", "time")
"""Columns of the poses: metres east and north, degrees clockwise from north, seconds since 1970."""
COLUMNS = ("descriptors", "kappa", "poses", "routes", "stats", "digests")


class StaleMap(KappaPlaceError):
    """A file is gone because another process compacted the map: what helps is to look at it anew."""


@dataclass(frozen=True, eq=False)
class Rows:
    """References in memory, on their way into a segment or out of one."""

    names: Sequence[str]
    descriptors: NDArray[np.float32]
    kappa: NDArray[np.float32]
    """NaN from a model without a kappa head."""
    poses: NDArray[np.float64]
    """N×4, see `POSE`; NaN where unknown."""
    routes: NDArray[np.int64]
    """N×2: which route, as a hash, and which frame of it."""
    stats: NDArray[np.int64]
    """N×2: size and time of change of the image file; −1 where there is none."""
    digests: NDArray[np.uint8]
    """N×16: hash of the image file's content; zeros where there is none."""
    thumbnails: Sequence[bytes] | None = None
    codes: NDArray[np.uint8] | None = None
    """The descriptors as codes, out of a map that stores them so: rounding is done once."""

    def __len__(self) -> int:
        return len(self.names)

    def take(self, chosen: NDArray[np.int64]) -> Rows:
        """Some of them, in this order."""
        small = self.thumbnails
        return Rows(
            [self.names[i] for i in chosen.tolist()],
            **{column: getattr(self, column)[chosen] for column in COLUMNS},
            thumbnails=None if small is None else [small[i] for i in chosen.tolist()],
            codes=None if self.codes is None else self.codes[chosen],
        )

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """Several as one."""
        small = [part.thumbnails for part in parts if part.thumbnails is not None]
        codes = [part.codes for part in parts if part.codes is not None]
        return cls(
            [name for part in parts for name in part.names],
            **{c: np.concatenate([getattr(part, c) for part in parts]) for c in COLUMNS},
            thumbnails=[piece for part in small for piece in part] if len(small) == len(parts) else None,
            codes=np.concatenate(codes) if codes and len(codes) == len(parts) else None,
        )


def name_keys(names: Sequence[str]) -> NDArray[np.uint64]:
    """A 64-bit hash of each name: what is searched instead of text."""
    digest = hashlib.blake2b
    packed = b"".join(digest(_bytes(name), digest_size=8).digest() for name in names)
    return np.frombuffer(packed, "<u8").astype(np.uint64)


def write_segment(
    folder: Path,
    name: str,
    rows: Rows,
    storage: str,
    root: str,
    prefix: str,
    codebook: Codebook | None = None,
) -> SegmentRecord:
    """Write all files under another name, wait for the disk, then rename: half a segment is never found."""
    part, final = folder / SEGMENTS / f".{name}.part", folder / SEGMENTS / name
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        _write(part, rows, storage, codebook)
        files = {}
        for file in sorted(part.iterdir()):
            _sync(file)
            files[file.name] = FileRecord(file.stat().st_size, sha256_of(file))
        os.rename(part, final)
        _sync(final.parent)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise KappaPlaceError(
            f"Cannot write the segment {final}: {why(error)}; the map is as it was before, "
            "and the same command goes on from there."
        ) from None
    return SegmentRecord(name, len(rows), root, prefix, files)


def _write(part: Path, rows: Rows, storage: str, codebook: Codebook | None) -> None:
    stored = encode(rows.descriptors, storage, codebook)
    if isinstance(stored, Quantized):
        save_array(part / "scale.npy", stored.scale)
    if isinstance(stored, Coded) and rows.codes is not None:
        stored = Coded(rows.codes, stored.codebook)
    plain = stored.codes if isinstance(stored, Quantized | Coded) else stored
    save_array(part / "descriptors.npy", plain)
    columns: dict[str, Any] = {c: getattr(rows, c) for c in COLUMNS if c != "descriptors"}
    for column, values in (columns | {"keys": name_keys(rows.names)}).items():
        save_array(part / f"{column}.npy", values)
    write_blobs(part, "names", [_bytes(name) for name in rows.names])
    if rows.thumbnails is not None:
        write_blobs(part, "thumbnails", rows.thumbnails)


class Segment:
    """A segment of a map; each file is mapped when it is first asked for."""

    def __init__(
        self, folder: Path, record: SegmentRecord, codebook: Callable[[], Codebook] | None = None
    ) -> None:
        """``codebook`` reads that of a map of codes, when the first of them is asked for."""
        self.folder, self.record, self._codebook = folder / SEGMENTS / record.name, record, codebook
        self._arrays: dict[str, NDArray[Any]] = {}

    def __len__(self) -> int:
        return self.record.count

    def array(self, column: str) -> NDArray[Any]:
        """One of the plain columns, memory-mapped."""
        if column not in self._arrays:
            file = self.checked(f"{column}.npy")
            try:
                array = np.load(file, mmap_mode="c", allow_pickle=False)  # torch warns of read-only memory
            except FileNotFoundError:  # after the look at its size
                raise _gone(file) from None
            except DAMAGED_ARRAYS as error:
                raise KappaPlaceError(f"{file} cannot be read ({error}); {_HELP}") from None
            if len(array) != len(self):
                raise KappaPlaceError(
                    f"{file} holds {len(array)} rows where its manifest says {len(self)}; {_HELP}"
                )
            if array.dtype.kind not in "fiu":
                raise KappaPlaceError(f"{file} holds no numbers; {_HELP}")
            self._arrays[column] = array
        return self._arrays[column]

    def stored(self) -> StoredDescriptors:
        """The descriptors as they are on disk, mapped."""
        if "scale.npy" in self.record.files:
            return Quantized(self.array("descriptors"), self.array("scale"))
        array = self.array("descriptors")
        return array if self._codebook is None else Coded(array, self._codebook())

    def descriptors(self) -> NDArray[np.float32]:
        """All descriptors as float32."""
        return decode(self.stored())

    @cached_property
    def names(self) -> Blobs:
        """Names as UTF-8."""
        return self._blobs("names")

    @cached_property
    def thumbnails(self) -> Blobs | None:
        """Small JPEG pictures, where they were asked for."""
        return self._blobs("thumbnails") if "thumbnails.bin" in self.record.files else None

    def rows(self) -> Rows:
        """All of it, in memory."""
        small, descriptors = self.thumbnails, self.descriptors()
        if self._codebook is not None:  # what is no longer a code has unit length, as all descriptors
            descriptors /= np.maximum(np.linalg.norm(descriptors, axis=1, keepdims=True), 1e-6)
        mapped = {column: np.array(self.array(column)) for column in COLUMNS if column != "descriptors"}
        return Rows(
            [_text(piece) for piece in self.names.all()],
            descriptors=descriptors,
            **mapped,
            thumbnails=None if small is None else small.all(),
            codes=None if self._codebook is None else np.array(self.array("descriptors")),
        )

    def checked(self, name: str) -> Path:
        """A file that has the size it was written with; that it was cut short must not pass for an answer."""
        file, record = self.folder / name, self.record.files.get(name)
        if record is None:
            raise KappaPlaceError(f"The segment {self.folder} has no {name}; {_HELP}")
        try:
            size = file.stat().st_size
        except OSError:
            raise _gone(file) from None
        if size != record.size:
            raise KappaPlaceError(f"{file} has {size:,} bytes instead of {record.size:,}; {_HELP}")
        return file

    def _blobs(self, name: str) -> Blobs:
        data, starts = (self.checked(file) for file in blob_files(name))
        try:
            return Blobs(np.load(starts, mmap_mode="r", allow_pickle=False), map_bytes(data))
        except FileNotFoundError:
            raise _gone(data) from None
        except DAMAGED_ARRAYS as error:
            raise KappaPlaceError(f"{data} cannot be read ({error}); {_HELP}") from None


def _gone(file: Path) -> StaleMap:
    return StaleMap(
        f"{file} is gone: another process compacted the map or removed the file; open the map again, and if "
        "that does not help restore the file from a copy."
    )


def read_extra(folder: Path, extra: Extra) -> NDArray[Any]:
    """An array beside the segments, of the size it was written with."""
    file = folder / extra.file
    try:
        if file.stat().st_size != extra.record.size:
            raise ValueError(f"{file.stat().st_size:,} bytes instead of {extra.record.size:,}")
        return np.load(file, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise StaleMap(
            f"{file} is gone: another process changed the map; open the map again, and if that does not "
            "help run `kappaplace map compact`."
        ) from None
    except DAMAGED_ARRAYS as error:
        raise KappaPlaceError(
            f"{file} is damaged ({error}); restore the map from a copy, or run `kappaplace map compact`."
        ) from None


def read_codebook(folder: Path, extra: Extra, dim: int) -> Codebook:
    """That of a map of codes, without which they mean nothing."""
    try:
        return Codebook.from_array(read_extra(folder, extra), dim)
    except StaleMap:
        raise
    except KappaPlaceError:
        raise KappaPlaceError(
            f"{folder / extra.file} is damaged, and without it no descriptor of this map can be read; "
            "restore it from a copy, or run `kappaplace map reembed`."
        ) from None


_HELP = "restore the map from a copy or build it again; `kappaplace map verify` lists all that is broken."


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")  # file names need not be UTF-8


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "surrogateescape")


def row_name(segment: Segment, row: int) -> str:
    """The name of one row of a segment."""
    return _text(segment.names[row])


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
