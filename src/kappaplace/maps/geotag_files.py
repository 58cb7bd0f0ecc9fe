"""Positions written next to photos: XMP sidecars, copies with EXIF, and a journal that undoes exactly this.

An original is never opened for writing, and no file that exists is replaced. Every file is listed in the
journal, with its checksum, before it appears. `undo_geotags` deletes listed files with an unchanged checksum.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from xml.sax.saxutils import quoteattr

from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, path_inside, printable, remove_debris, sha256_of, telling, why
from kappaplace.records import from_plain, to_plain
from kappaplace.version import package_version

JOURNAL = "kappaplace-geotag.jsonl"
"""Name of the journal, in the folder of the written files."""
SIDECAR = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="KappaPlace {version}">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about="" xmlns:exif="http://ns.adobe.com/exif/1.0/" xmlns:kp="urn:kappaplace:geotag:1"
   exif:GPSVersionID="2.3.0.0" exif:GPSMapDatum="WGS-84" exif:GPSProcessingMethod="KAPPAPLACE"
   exif:GPSLatitude="{latitude}" exif:GPSLongitude="{longitude}"
   exif:GPSHPositioningError="{accuracy}/10"{details}/>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""
EXIF, LONGEST = b"Exif\0\0", 65535 - 2
"""Start of the EXIF segment of a JPEG file, and the longest segment without its own length."""
EMPTY = struct.pack("<2sHLHL", b"II", 42, 8, 0, 0)
"""EXIF block without an entry."""
GPS_POINTER = 0x8825
BYTE, ASCII, LONG, RATIONAL, UNDEFINED = 1, 2, 4, 5, 7
Entries = dict[int, tuple[int, int, bytes]]
"""Tags of an EXIF directory: type, count, and value or offset (4 bytes)."""


@dataclass(frozen=True)
class Tag:
    """A position for one photo."""

    photo: Path
    latitude: float
    longitude: float
    accuracy: float
    """Metres."""
    details: Mapping[str, str]
    """Further facts for the sidecar, such as the probability."""


@dataclass(frozen=True)
class Written:
    """A file of the journal."""

    file: str
    """Path below the folder of the journal."""
    sha256: str
    photo: str


def sidecar_of(photo: Path) -> Path:
    """Return the path of a photo's sidecar: IMG.jpg has IMG.jpg.xmp, as in darktable, digiKam and Immich."""
    return photo.with_name(photo.name + ".xmp")


def has_sidecar(photo: Path) -> bool:
    """Return whether a photo has a sidecar, with either of the usual names."""
    return sidecar_of(photo).exists() or photo.with_suffix(".xmp").exists()


def write_sidecars(folder: Path, tags: list[Tag]) -> list[Path]:
    """Write one XMP sidecar next to each photo.

    Args:
        folder: Folder of the photos, for the journal.
        tags: Photos below this folder, with their positions.

    Returns:
        The written files. A photo that has a sidecar by now is skipped.

    Raises:
        KappaPlaceError: If a file cannot be written; the journal lists the files written until then.
    """
    todo = {sidecar_of(tag.photo): tag for tag in tags}
    with _journal(folder, todo) as add:
        return [
            file
            for file, tag in todo.items()
            if not has_sidecar(tag.photo) and add(file, _sidecar(tag), tag.photo)
        ]


def write_copies(folder: Path, root: Path, tags: list[Tag]) -> list[Path]:
    """Write copies of photos with the position in their EXIF data; the image data is copied unchanged.

    A photo that is not a JPEG file, or whose EXIF data has no room, gets a copy with an XMP sidecar.

    Args:
        folder: Folder of the copies.
        root: Folder of the photos; the copies have the same paths below it.
        tags: Photos with their positions.

    Returns:
        The written files. Copies that exist are skipped.

    Raises:
        KappaPlaceError: If a file cannot be read or written; the journal lists the files written until then.
    """
    if folder.resolve().is_relative_to(root.resolve()):
        raise KappaPlaceError(
            f"Copies must be outside of the photos in {root}, got the folder {folder}. Pass another one."
        )
    make_folder(folder)
    files: list[Path] = []
    targets = [folder / tag.photo.relative_to(root) for tag in tags]
    with _journal(folder, targets) as add:
        for target, tag in zip(targets, tags, strict=True):
            make_folder(target.parent)
            with telling(f"{tag.photo} cannot be copied"):
                content = tag.photo.read_bytes()
            tagged = with_position(content, tag)
            if add(target, tagged or content, tag.photo):
                files.append(target)
                if tagged is None and add(sidecar_of(target), _sidecar(tag), tag.photo):
                    files.append(sidecar_of(target))
    return files


def undo_geotags(folder: Path) -> tuple[list[Path], list[Path]]:
    """Delete the files that the journal of a folder lists, and then the journal.

    Args:
        folder: Folder of the photos, or of the copies.

    Returns:
        The deleted files, and those that have been changed by another program and therefore stay.

    Raises:
        KappaPlaceError: If the folder has no journal, or it is damaged.
    """
    journal = folder / JOURNAL
    if not journal.is_file():
        raise KappaPlaceError(f"There is nothing to undo: {journal} does not exist. Check the folder.")
    deleted, changed = [], []
    with _locked(journal):
        for entry in {each.file: each for each in _entries(journal)}.values():  # the last entry of a file
            file = folder / entry.file
            if not file.is_file():
                continue
            if sha256_of(file) != entry.sha256:
                changed.append(file)
                continue
            with _writing(file):
                file.unlink()
            deleted.append(file)
            for parent in file.relative_to(folder).parents[:-1]:
                with suppress(OSError):  # a folder with other files stays
                    (folder / parent).rmdir()
        if not changed:
            journal.unlink()
    return deleted, changed


def with_position(jpeg: bytes, tag: Tag) -> bytes | None:
    """Return a JPEG file with a position in its EXIF data; every other byte is unchanged.

    The new directories are appended to the EXIF block, so that offsets in it, also those of the camera's
    private notes, remain valid.

    Args:
        jpeg: Content of the file.
        tag: The position.

    Returns:
        The new content; None if it is not a JPEG file or there is no room.
    """
    if jpeg[:2] != b"\xff\xd8":
        return None
    start = end = 2
    block = EMPTY
    at = 2
    while jpeg[at : at + 1] == b"\xff" and jpeg[at + 1] not in (0xDA, 0xD9):
        size = 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
        if jpeg[at + 1] == 0xE1 and jpeg[at + 4 : at + 10] == EXIF:
            start, end, block = at, at + size, jpeg[at + 10 : at + size]
            break
        if jpeg[at + 1] == 0xE0 and at == 2:  # JFIF comes first
            start = end = at + size
        at += size
    try:
        payload = EXIF + _placed(block, tag)
    except (struct.error, ValueError):  # a damaged block
        return None
    if len(payload) > LONGEST:
        return None
    segment = b"\xff\xe1" + (len(payload) + 2).to_bytes(2, "big") + payload
    return jpeg[:start] + segment + jpeg[end:]


def _placed(block: bytes, tag: Tag) -> bytes:
    """Return an EXIF block (TIFF) with a position, by appending directories."""
    if block[:4] not in (b"II*\0", b"MM\0*"):
        raise ValueError
    order = "<" if block[:2] == b"II" else ">"
    (first,) = struct.unpack_from(order + "L", block, 4)
    main, following = _directory(block, first, order)
    gps: Entries = {}
    if GPS_POINTER in main:
        (at,) = struct.unpack(order + "L", main[GPS_POINTER][2])
        gps, _ = _directory(block, at, order)
    block += b"\0" * (len(block) % 2)
    values: dict[int, tuple[int, bytes]] = {
        0: (BYTE, b"\2\3\0\0"),
        1: (ASCII, b"N\0" if tag.latitude >= 0 else b"S\0"),
        2: (RATIONAL, _degrees(tag.latitude, order)),
        3: (ASCII, b"E\0" if tag.longitude >= 0 else b"W\0"),
        4: (RATIONAL, _degrees(tag.longitude, order)),
        18: (ASCII, b"WGS-84\0"),
        27: (UNDEFINED, b"ASCII\0\0\0KAPPAPLACE"),
        31: (RATIONAL, struct.pack(order + "2L", round(10 * tag.accuracy), 10)),
    }
    for number, (kind, data) in values.items():
        count = len(data) // (8 if kind == RATIONAL else 1)
        if len(data) > 4:
            gps[number] = kind, count, struct.pack(order + "L", len(block))
            block += data + b"\0" * (len(data) % 2)
        else:
            gps[number] = kind, count, data.ljust(4, b"\0")
    main[GPS_POINTER] = LONG, 1, struct.pack(order + "L", len(block))
    block += _packed(gps, 0, order)
    header = block[:4] + struct.pack(order + "L", len(block))
    return header + block[8:] + _packed(main, following, order)


def _directory(block: bytes, at: int, order: str) -> tuple[Entries, int]:
    """Return the entries of an EXIF directory, and the offset of the next one."""
    (count,) = struct.unpack_from(order + "H", block, at)
    entries: Entries = {}
    for number in range(count):
        tag, kind, size, value = struct.unpack_from(order + "HHL4s", block, at + 2 + 12 * number)
        entries[tag] = kind, size, value
    (following,) = struct.unpack_from(order + "L", block, at + 2 + 12 * count)
    return entries, following


def _packed(entries: Entries, following: int, order: str) -> bytes:
    rows = [struct.pack(order + "HHL4s", tag, *entry) for tag, entry in sorted(entries.items())]
    return struct.pack(order + "H", len(rows)) + b"".join(rows) + struct.pack(order + "L", following)


def _degrees(value: float, order: str) -> bytes:
    """Return degrees, minutes and seconds to a ten-thousandth of a second (3 mm)."""
    units = round(abs(value) * 36_000_000)
    minutes, seconds = divmod(units, 600_000)
    return struct.pack(order + "6L", minutes // 60, 1, minutes % 60, 1, seconds, 10_000)


def _sidecar(tag: Tag) -> bytes:
    text = SIDECAR.format(
        version=package_version(),
        latitude=_minutes(tag.latitude, "NS"),
        longitude=_minutes(tag.longitude, "EW"),
        accuracy=round(10 * tag.accuracy),
        details="".join(f"\n   kp:{name}={_quoted(text)}" for name, text in tag.details.items()),
    )
    return text.encode()


def _quoted(text: str) -> str:
    """Return the value of an XML attribute, without characters that XML does not allow."""
    return quoteattr("".join(each for each in printable(text) if each.isprintable()))


def _minutes(value: float, sides: str) -> str:
    """Return degrees, decimal minutes and the side as text for XMP, as in 45,45.060600N."""
    units = round(abs(value) * 60_000_000)
    return f"{units // 60_000_000},{units % 60_000_000 / 1e6:.6f}{sides[value < 0]}"


class _Journal:
    """Writes files that did not exist, each one listed before it appears."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, target: Path, content: bytes, photo: Path) -> bool:
        """Write one file; return False if it exists."""
        if target.exists():
            return False
        name = target.relative_to(self.file.parent).as_posix()
        entry = Written(name, sha256(content).hexdigest(), photo.name)
        with _writing(self.file), self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(to_plain(entry)) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        with _writing(target):
            try:
                part.write_bytes(content)
                try:
                    os.link(part, target)  # unlike a replacement, it fails if the file exists
                except FileExistsError:
                    return False
                except OSError:  # a file system without links, as on memory cards
                    with target.open("xb") as stream:
                        stream.write(content)
            finally:
                part.unlink(missing_ok=True)
        return True


@contextmanager
def _journal(folder: Path, files: Iterable[Path]) -> Iterator[_Journal]:
    for parent in {file.parent for file in files}:
        remove_debris(parent)
    journal = folder / JOURNAL
    with _writing(journal):
        journal.touch()
    try:
        with _locked(journal):
            yield _Journal(journal)
    finally:
        with suppress(OSError):
            if not journal.stat().st_size:
                journal.unlink()


@contextmanager
def _locked(journal: Path) -> Iterator[None]:
    """Lock the journal against a second process, where the system can."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with journal.open("rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise KappaPlaceError(
                f"Another process is writing to {journal.parent}. Wait until it has finished."
            ) from None
        yield


def _entries(journal: Path) -> list[Written]:
    with telling(f"{journal} cannot be read"):
        lines = journal.read_text(encoding="utf-8").splitlines()
        whole = lines if journal.read_bytes().endswith(b"\n") else lines[:-1]  # a killed process
        entries = [from_plain(Written, json.loads(line)) for line in whole]
    for entry in entries:
        if not path_inside(str(journal.parent), entry.file):
            raise KappaPlaceError(
                f"{journal} lists {entry.file}, which is outside of its folder. Remove this line."
            )
    return entries


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KappaPlaceError(f"Cannot write {file} ({why(error)}). Check the folder and the disk.") from None
