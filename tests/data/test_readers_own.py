"""Your own photos, with EXIF and with a CSV that places them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.TiffImagePlugin import IFDRational

from kappaplace.data.geodesy import project
from kappaplace.data.images import decode
from kappaplace.data.readers import READERS, read_layout
from kappaplace.data.readers.photos import read_pose
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import BuildOptions, PlaceMap


def exif(
    lat: float | None = None, lon: float = 0.0, heading: float | None = None, accuracy: float | None = None
):
    data = Image.Exif()
    data[271] = "camera"  # Pillow saves no EXIF into PNG when the main directory is empty
    details = data.get_ifd(0x8769)
    details[36867], details[36881] = "2024:05:31 12:00:00", "+02:00"
    if lat is not None:
        gps = data.get_ifd(0x8825)

        def dms(value: float) -> tuple[float, float, float]:
            value = abs(value)
            minutes = value % 1 * 60
            return float(int(value)), float(int(minutes)), minutes % 1 * 60

        gps[1], gps[2] = "N" if lat >= 0 else "S", dms(lat)
        gps[3], gps[4] = "E" if lon >= 0 else "W", dms(lon)
        if heading is not None:
            gps[16], gps[17] = "T", heading
        if accuracy is not None:
            gps[31] = accuracy
    return data


def photo(file: Path, **facts: float) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6)).save(file, exif=exif(**facts))


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
def test_photos_with_gps(tmp_path, suffix):
    photo(tmp_path / f"a.{suffix}", lat=-33.8568, lon=151.2153, heading=123.5, accuracy=8.0)
    photo(tmp_path / f"later/b.{suffix}", lat=-33.8570, lon=151.2150)
    photo(tmp_path / f"later/indoors.{suffix}")
    photo(tmp_path / f"later/vague.{suffix}", lat=-33.8570, lon=151.2150, accuracy=3000.0)
    table = read_layout("photos", tmp_path, queries="later")
    expected, frame = project([-33.8568], [151.2153])
    np.testing.assert_allclose(table.positions[0], expected[0], atol=0.05)
    assert table.frame == frame == "EPSG:32756"
    assert table.heading[0] == pytest.approx(123.5, abs=0.01)
    assert table.timestamp[0] == 1717149600.0  # 10:00 UTC
    assert table.posed.tolist() == [True, True, False, False]
    assert table.is_query.tolist() == [False, True, True, True]
    assert table.accuracy[0] == 8.0
    assert table.positives().counts.tolist() == [0, 0, 0]  # 35 m away, 25 + 8 m allowed
    wide = read_layout("photos", tmp_path, queries="later", radius=30.0)
    assert wide.positives().counts.tolist() == [1, 0, 0]


def test_photos_placed_by_a_csv(tmp_path):
    photo(tmp_path / "out.jpg", lat=48.85, lon=2.35)
    photo(tmp_path / "in.jpg")
    (tmp_path / "poses.csv").write_text("file,lat,lon,heading\nin.jpg,48.8501,2.35,90\n", encoding="utf-8")
    table = read_layout("photos", tmp_path, csv="poses.csv")
    assert table.posed.all()
    assert table.heading[0] == 90
    assert np.hypot(*(table.positions[0] - table.positions[1])) == pytest.approx(11.1, abs=0.2)
    (tmp_path / "poses.csv").write_text("file,x,y\nin.jpg,3,4\n", encoding="utf-8")
    with pytest.raises(KappaPlaceError, match="frame local"):
        read_layout("photos", tmp_path, csv="poses.csv")
    (tmp_path / "out.jpg").unlink()
    indoors = read_layout("photos", tmp_path, csv="poses.csv")
    assert indoors.frame == "local"
    assert indoors.positions.tolist() == [[3.0, 4.0]]


@pytest.fixture
def without_heif(monkeypatch):
    """Pillow as a new process has it, whatever other tests registered."""
    Image.init()  # all other formats come first: what is registered meanwhile goes with the patch
    monkeypatch.setattr(Image, "ID", [kind for kind in Image.ID if kind != "HEIF"])
    monkeypatch.setattr(Image, "OPEN", {k: v for k, v in Image.OPEN.items() if k != "HEIF"})


def heic_photo(file: Path, **facts: float) -> None:
    heif = pytest.importorskip("pillow_heif")
    picture = heif.from_pillow(Image.new("RGB", (64, 48), (200, 30, 30)))
    picture.save(file, exif=exif(**facts).tobytes(), quality=90)


@pytest.mark.parametrize("name", ["a.heic", "renamed.jpg"])
def test_photos_heic(tmp_path, without_heif, name):
    heic_photo(tmp_path / name, lat=10.0, lon=20.0)
    for source in (tmp_path / name, (tmp_path / name).read_bytes()):  # decoding comes first: it may be alone
        picture = decode(source)
        assert picture.size == (64, 48)
        assert abs(picture.getpixel((30, 20))[0] - 200) < 12
    table = read_layout("photos", tmp_path)
    assert table.posed.all()
    np.testing.assert_allclose(table.positions, project([10.0], [20.0])[0], atol=0.05)


def test_photos_heic_without_the_extra(tmp_path, without_heif, monkeypatch):
    heic_photo(tmp_path / "a.heic", lat=10.0, lon=20.0)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    for use in (lambda: decode(tmp_path / "a.heic"), lambda: read_layout("photos", tmp_path)):
        with pytest.raises(KappaPlaceError, match='the extra "heic"'):
            use()
    (tmp_path / "a.heic").write_bytes(b"no photo at all")
    with pytest.raises(KappaPlaceError, match="not an image in any format"):
        decode(tmp_path / "a.heic")


def test_the_listing_asks_for_no_extra_that_jpegs_do_not_need():
    reader = READERS["photos"]
    assert reader.extra == ""
    assert "extra heic for HEIC files" in reader.summary


@pytest.mark.parametrize("written", ["walk2", "./walk2", "walk2/", "walk1/../walk2", "FULL"])
def test_photos_queries_however_the_folder_is_written(tmp_path, monkeypatch, written):
    for name in ("walk1/a.jpg", "walk2/b.jpg", "walk22/c.jpg"):
        photo(tmp_path / name)
    full = str(tmp_path / "walk2")
    table = read_layout("photos", tmp_path, queries=full if written == "FULL" else written)
    assert table.is_query.tolist() == [False, True, False]
    monkeypatch.chdir(tmp_path)
    assert read_layout("photos", ".", queries=full).is_query.tolist() == [False, True, False]


def test_photos_queries_that_match_nothing(tmp_path):
    photo(tmp_path / "walk1/a.jpg")
    (tmp_path / "empty").mkdir()
    with pytest.raises(KappaPlaceError, match="contains no photo of"):
        read_layout("photos", tmp_path, queries="empty")
    with pytest.raises(KappaPlaceError, match="no subfolder 'walk9'"):
        read_layout("photos", tmp_path, queries="walk9")


def test_photos_take_all_that_the_csv_says(tmp_path):
    for name in ("a.jpg", "b.jpg", "c.jpg", "q/d.jpg"):
        photo(tmp_path / name, lat=48.85, lon=2.35, heading=10.0, accuracy=4.0)
    text = "file,lat,lon,time,accuracy,place,condition,role\n"
    text += "a.jpg,48.8501,2.35,1700000000,7,Opera,night,query\nb.jpg,48.8502,2.35,,,Opera,,\n"
    (tmp_path / "poses.csv").write_text(text + "q/d.jpg,,,,9,,,reference\n", encoding="utf-8")
    table = read_layout("photos", tmp_path, csv="poses.csv", queries="q")
    np.testing.assert_allclose(table.accuracy, [7, np.nan, 4, 9])  # a GPS accuracy goes with its GPS fix
    assert table.timestamp.tolist() == [1.7e9] + [1717149600.0] * 3
    assert table.place.tolist() == [0, 0, -1, -1]
    assert table.condition.tolist() == ["night", "", "", "q"]
    assert table.is_query.tolist() == [True, False, False, False]
    asked: list[str] = []
    read_layout("photos", tmp_path, csv="poses.csv", ask=lambda words: not asked.append(words))
    assert "accuracy = 'accuracy'" in asked[0]
    (tmp_path / "poses.csv").write_text("file,east,north\na.jpg,452000,5411000\n", encoding="utf-8")
    utm = read_layout("photos", tmp_path, csv="poses.csv", frame="EPSG:32631")
    assert utm.positions[0].tolist() == [452000, 5411000]


def test_photos_that_are_broken(tmp_path):
    with pytest.raises(KappaPlaceError, match="contains no images"):
        read_layout("photos", tmp_path)
    (tmp_path / "a.jpg").write_bytes(b"no image")
    with pytest.raises(KappaPlaceError, match=r"a\.jpg cannot be read"):
        read_layout("photos", tmp_path)


ODD = {
    "GPS time of one value": {7: (12.0,), 29: "2024:05:31"},
    "GPS time of a number": {7: 12.0, 29: "2024:05:31"},
    "latitude of 200 values": {2: (48.0,) * 200},
    "latitude of one number": {2: 48.0},
    "no denominator": {2: (IFDRational(1, 0),) * 3, 17: IFDRational(0, 0)},
}


def odd(file: Path, tags: dict[int, object]) -> Path:
    data = exif(48.1, 11.6, 90.0, 5.0)
    data.get_ifd(0x8825).update(tags)
    del data.get_ifd(0x8769)[36881]  # so that the GPS time counts
    Image.new("RGB", (8, 6)).save(file, exif=data)
    return file


@pytest.mark.parametrize("case", ODD)
def test_odd_exif_data_is_read_as_far_as_it_makes_sense(tmp_path, case):
    pose = read_pose(odd(tmp_path / "a.jpg", ODD[case]))
    assert all(np.isfinite(value) or np.isnan(value) for value in pose)
    assert np.isfinite(pose.latitude) == ("time" in case or "one number" in case)


@pytest.mark.parametrize("tags", [{2: (999.0, 0.0, 0.0)}, {4: (181.0, 0.0, 0.0)}])
def test_a_position_that_is_not_on_earth_names_the_file(tmp_path, tags):
    odd(tmp_path / "bad.jpg", tags)
    odd(tmp_path / "good.jpg", {})
    with pytest.raises(KappaPlaceError, match=r"bad.jpg has the EXIF position .* outside UTM"):
        read_layout("photos", tmp_path)


def test_one_photo_with_odd_exif_data_does_not_end_a_build(tiny, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    cases = {**ODD, "far": {2: (999.0, 0.0, 0.0)}, "fine": {}}
    for i, tags in enumerate(cases.values()):
        odd(photos / f"{i}.jpg", tags)
    built = PlaceMap.build(photos, tmp_path / "m", tiny)
    assert (len(built), built.report.skipped) == (len(cases), [])
    with pytest.raises(KappaPlaceError, match="outside UTM"):
        PlaceMap.build(photos, tmp_path / "strict", tiny, BuildOptions(on_error="stop"))
