"""Sidecars, copies with EXIF and the journal: nothing is overwritten, and undo deletes what was written."""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from kappaplace.data.readers.photos import read_pose
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.geotag_files import (
    JOURNAL,
    Tag,
    sidecar_of,
    undo_geotags,
    with_position,
    write_copies,
    write_sidecars,
)

EXIF_NS = "{http://ns.adobe.com/exif/1.0/}"


def jpeg(exif: Image.Exif | bytes | None = None, seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (24, 32, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", **({} if exif is None else {"exif": exif}))
    return stream.getvalue()


def camera() -> Image.Exif:
    """EXIF of a camera without GPS, but with private notes, and the beginning of a GPS directory."""
    exif = Image.Exif()
    exif[271] = "A camera with a long name"
    details = exif.get_ifd(0x8769)
    details[36867], details[37500] = "2025:05:01 10:00:00", bytes(range(90))
    exif.get_ifd(0x8825)[29] = "2025:05:01"
    return exif


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "photos"
    (folder / "day 2").mkdir(parents=True)
    files = [folder / name for name in ("a.jpg", "day 2/b ü.jpg", "c.png")]
    files[0].write_bytes(jpeg(camera()))
    files[1].write_bytes(jpeg(seed=1))
    Image.new("RGB", (8, 8), "red").save(files[2])
    return files


def tag(photo: Path, latitude: float = 45.75, longitude: float = -21.25) -> Tag:
    return Tag(photo, latitude, longitude, 25.0, {"Probability": "0.97", "Reason": 'match "<x> & y"'})


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@given(st.floats(-84, 84), st.floats(-180, 180), st.booleans())
def test_a_position_in_exif_is_read_back(latitude: float, longitude: float, big_endian: bool) -> None:
    block = b"Exif\0\0" + struct.pack(
        ">2sHLHL" if big_endian else "<2sHLHL", b"MM" if big_endian else b"II", 42, 8, 0, 0
    )
    content = with_position(jpeg(block), tag(Path("x.jpg"), latitude, longitude))
    assert content is not None
    with Image.open(io.BytesIO(content)) as image:
        gps = image.getexif().get_ifd(0x8825)
    for part, side, negative, value in ((2, 1, "S", latitude), (4, 3, "W", longitude)):
        degrees = sum(float(number) / 60**power for power, number in enumerate(gps[part]))
        assert (-degrees if gps[side] == negative else degrees) == pytest.approx(value, abs=2e-8)
    assert float(gps[31]) == 25.0


def test_only_the_position_is_added(photos: list[Path]) -> None:
    before = photos[0].read_bytes()
    after = with_position(before, tag(photos[0]))
    assert after is not None
    with Image.open(io.BytesIO(before)) as old, Image.open(io.BytesIO(after)) as new:
        np.testing.assert_array_equal(np.asarray(old), np.asarray(new))
        one, other = old.getexif(), new.getexif()
        assert other.get_ifd(0x8769)[37500] == bytes(range(90))
        assert dict(other.get_ifd(0x8769)) == dict(one.get_ifd(0x8769))
        assert {k: v for k, v in other.items() if k != 0x8825} == {
            k: v for k, v in one.items() if k != 0x8825
        }
        assert other.get_ifd(0x8825)[29] == "2025:05:01"  # it was there before
    end = before.index(b"\xff\xdb")  # the first segment after the EXIF data
    assert after.endswith(before[end:])
    again = with_position(after, tag(photos[0], 10.0, 20.0))  # a second time
    assert again is not None
    photos[0].write_bytes(again)
    pose = read_pose(photos[0])
    assert (pose.latitude, pose.longitude, pose.accuracy) == pytest.approx((10.0, 20.0, 25.0))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xd8",
        b"GIF89a",
        jpeg()[:30],
        b"\xff\xd8\xff\xe1\x00\x0cExif\0\0MM\0*",
        b"\xff\xd8\xff\xe1\x00\x10Exif\0\0II*\0\xff\xff\xff\x7f",
    ],
)
def test_damaged_files_do_not_raise(content: bytes) -> None:
    result = with_position(content, tag(Path("x.jpg")))
    assert result is None or result.startswith(b"\xff\xd8")


def test_exif_data_without_room_gets_none(photos: list[Path]) -> None:
    exif = camera()
    exif.get_ifd(0x8769)[37500] = bytes(65_000)
    assert with_position(jpeg(exif), tag(photos[0])) is not None
    exif.get_ifd(0x8769)[37500] = bytes(65_250)
    assert with_position(jpeg(exif), tag(photos[0])) is None


def test_sidecars_are_xmp_with_the_position(photos: list[Path]) -> None:
    folder = photos[0].parent
    before = everything(folder)
    written = write_sidecars(folder, [tag(photo) for photo in photos])
    assert written == [sidecar_of(photo) for photo in photos]
    for file in written:
        root = ElementTree.fromstring(file.read_bytes())
        (found,) = root.iter("{http://www.w3.org/1999/02/22-rdf-syntax-ns#}Description")
        assert found.attrib[EXIF_NS + "GPSLatitude"] == "45,45.000000N"
        assert found.attrib[EXIF_NS + "GPSLongitude"] == "21,15.000000W"
        assert found.attrib["{urn:kappaplace:geotag:1}Reason"] == 'match "<x> & y"'
    assert {name: everything(folder)[name] for name in before} == before
    deleted, changed = undo_geotags(folder)
    assert (sorted(deleted), changed) == (sorted(written), [])
    assert everything(folder) == before


@pytest.mark.parametrize("name", ["a.jpg.xmp", "a.xmp"])
def test_a_sidecar_of_another_program_stays(photos: list[Path], name: str) -> None:
    folder = photos[0].parent
    (folder / name).write_text("stars: 5")
    written = write_sidecars(folder, [tag(photo) for photo in photos])
    assert len(written) == 2
    assert (folder / name).read_text() == "stars: 5"
    assert write_sidecars(folder, [tag(photo) for photo in photos]) == []  # a second run adds nothing
    undo_geotags(folder)
    assert (folder / name).read_text() == "stars: 5"


def test_undo_keeps_what_has_changed_since(photos: list[Path]) -> None:
    folder = photos[0].parent
    written = write_sidecars(folder, [tag(photo) for photo in photos])
    written[1].write_text("edited by hand")
    written[2].unlink()
    assert undo_geotags(folder) == ([written[0]], [written[1]])
    assert written[1].read_text() == "edited by hand"
    assert (folder / JOURNAL).exists()
    written[1].unlink()
    assert write_sidecars(folder, [tag(photo, 1.0) for photo in photos]) == written  # another position
    assert undo_geotags(folder) == (written, [])
    with pytest.raises(KappaPlaceError, match="nothing to undo"):
        undo_geotags(folder)


def test_copies_have_exif_or_a_sidecar(photos: list[Path], tmp_path: Path) -> None:
    before = everything(photos[0].parent)
    out = tmp_path / "out"
    written = write_copies(out, photos[0].parent, [tag(photo) for photo in photos])
    assert {str(file.relative_to(out)) for file in written} == {
        "a.jpg",
        "day 2/b ü.jpg",
        "c.png",
        "c.png.xmp",
    }
    for name in ("a.jpg", "day 2/b ü.jpg"):
        assert read_pose(out / name)[:2] == pytest.approx((45.75, -21.25))
    assert (out / "c.png").read_bytes() == photos[2].read_bytes()
    assert everything(photos[0].parent) == before
    (out / "mine.txt").write_text("mine")
    undo_geotags(out)
    assert everything(out) == {"mine.txt": b"mine"}
    assert not (out / "day 2").exists()


def test_copies_are_not_mixed_with_the_photos(photos: list[Path]) -> None:
    folder = photos[0].parent
    for out in (folder, folder / "tagged"):
        with pytest.raises(KappaPlaceError, match="outside of the photos"):
            write_copies(out, folder, [tag(photos[0])])
    assert not (folder / "tagged").exists()


def test_a_copy_that_exists_stays(photos: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "a.jpg").write_bytes(b"another photo")
    written = write_copies(out, photos[0].parent, [tag(photos[0])])
    assert written == []
    assert (out / "a.jpg").read_bytes() == b"another photo"


def test_a_folder_without_permission_is_one_message(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    folder = photos[0].parent
    before = everything(folder)
    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(KappaPlaceError, match=r"Cannot write .*a\.jpg\.xmp \(No space left on device\)"):
        write_sidecars(folder, [tag(photos[0])])
    monkeypatch.undo()
    undo_geotags(folder)
    assert everything(folder) == before


def test_a_file_system_without_links(photos: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    folder = photos[0].parent
    written = write_sidecars(folder, [tag(photo) for photo in photos])
    assert [file.exists() for file in written] == [True] * 3
    assert undo_geotags(folder) == (written, [])


def test_a_damaged_journal_is_one_message(photos: list[Path]) -> None:
    folder = photos[0].parent
    write_sidecars(folder, [tag(photos[0])])
    journal = folder / JOURNAL
    whole = journal.read_text()
    journal.write_text(whole + '{"file": "b')  # of a killed process: ignored
    assert undo_geotags(folder)[0] == [sidecar_of(photos[0])]
    journal.write_text("nonsense\n")
    with pytest.raises(KappaPlaceError, match="cannot be read"):
        undo_geotags(folder)


@pytest.mark.parametrize("outside", ["../a.jpg", "/etc/hostname", "a/../../a.jpg"])
def test_a_journal_cannot_delete_outside_of_its_folder(photos: list[Path], outside: str) -> None:
    folder = photos[0].parent
    victim = folder.parent / "a.jpg"
    victim.write_bytes(b"x")
    (folder / JOURNAL).write_text(json.dumps({"file": outside, "sha256": "0" * 64, "photo": "a"}) + "\n")
    with pytest.raises(KappaPlaceError, match="outside"):
        undo_geotags(folder)
    assert victim.exists()


SCRIPT = """
import sys
from pathlib import Path
from kappaplace.maps.geotag_files import Tag, write_sidecars
folder = Path(sys.argv[1])
tags = [Tag(file, 1.0, 2.0, 25.0, {}) for file in sorted(folder.glob("*.jpg"))]
print("ready", flush=True)
write_sidecars(folder, tags)
print("done", flush=True)
"""


@pytest.mark.parametrize(
    "delay", [0.03, pytest.param(0.0, marks=pytest.mark.slow), pytest.param(0.1, marks=pytest.mark.slow)]
)
def test_a_killed_process_leaves_nothing_that_undo_does_not_delete(tmp_path: Path, delay: float) -> None:
    for number in range(400):
        (tmp_path / f"{number:04d}.jpg").write_bytes(b"photo")
    before = everything(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, tmp_path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.wait()
    tags = [Tag(file, 1.0, 2.0, 25.0, {}) for file in sorted(tmp_path.glob("*.jpg"))]
    write_sidecars(tmp_path, tags)  # resumes
    assert all(sidecar_of(each.photo).exists() for each in tags)
    undo_geotags(tmp_path)
    assert everything(tmp_path) == before
