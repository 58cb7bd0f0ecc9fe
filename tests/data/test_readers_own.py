"""Your own images: photos with EXIF, a folder with a CSV, a video with a trajectory, a ROS bag."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kappaplace.data.geodesy import project
from kappaplace.data.readers.csv_folder import guess_columns
from kappaplace.data.readers.registry import read_layout
from kappaplace.data.readers.trajectory import headings, read_trajectory, sample_by_distance
from kappaplace.errors import KappaPlaceError


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


def test_photos_heic(tmp_path):
    heif = pytest.importorskip("pillow_heif")
    heif.register_heif_opener()
    photo(tmp_path / "a.heic", lat=10.0, lon=20.0)
    table = read_layout("photos", tmp_path)
    assert table.posed.all()
    np.testing.assert_allclose(table.positions, project([10.0], [20.0])[0], atol=0.05)


def test_photos_that_are_broken(tmp_path):
    with pytest.raises(KappaPlaceError, match="holds no image"):
        read_layout("photos", tmp_path)
    (tmp_path / "a.jpg").write_bytes(b"no image")
    with pytest.raises(KappaPlaceError, match=r"a\.jpg cannot be read"):
        read_layout("photos", tmp_path)


def images(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6)).save(root / name)


def test_csv_guesses_columns_and_asks(tmp_path):
    images(tmp_path, "one/a.jpg", "b.jpg")
    text = "File Name;Latitude;Longitude;Yaw;Date;Building Name;Condition;role\n"
    text += "a.jpg;45.75;21.22;10;2020-01-02;Opera;DAY;database\nb.jpg;45.7501;21.22;;;Opera;NIGHT;query\n"
    (tmp_path / "poses.csv").write_text(text, encoding="utf-8-sig")
    asked: list[str] = []
    table = read_layout("csv", tmp_path, ask=lambda words: not asked.append(words))
    assert "lat = 'Latitude'" in asked[0]
    assert "latitude and longitude" in asked[0]
    assert table.paths.tolist() == ["one/a.jpg", "b.jpg"]
    assert table.place.tolist() == [0, 0]
    assert table.condition.tolist() == ["DAY", "NIGHT"]
    assert table.is_query.tolist() == [False, True]
    assert table.positives().counts.tolist() == [1]
    assert table.heading[0] == 10
    with pytest.raises(KappaPlaceError, match="declined"):
        read_layout("csv", tmp_path, ask=lambda words: False)


def test_csv_utm_local_pair_and_unposed(tmp_path):
    images(tmp_path, "a.jpg")
    file = tmp_path / "poses.csv"
    file.write_text("image,easting,northing\na.jpg,551000,4180000\n", encoding="utf-8")
    with pytest.raises(KappaPlaceError, match="need their zone"):
        read_layout("csv", tmp_path)
    assert read_layout("csv", tmp_path, frame="EPSG:32610").positions.tolist() == [[551000, 4180000]]
    file.write_text("image,x,y\na.jpg,-1.5,2\n", encoding="utf-8")
    assert read_layout("csv", tmp_path).positions.tolist() == [[-1.5, 2]]
    file.write_text('image,coordinates\na.jpg,"45.75; 21.22"\n', encoding="utf-8")
    assert read_layout("csv", tmp_path).frame == "EPSG:32634"
    file.write_text("image\na.jpg\n", encoding="utf-8")
    assert not read_layout("csv", tmp_path).posed.any()


def test_csv_named_columns_and_errors(tmp_path):
    images(tmp_path, "a.jpg", "x/b.jpg", "y/b.jpg")
    file = tmp_path / "poses.csv"
    file.write_text("f,lat,lon,B\na.jpg,1,2,3\n", encoding="utf-8")
    with pytest.raises(KappaPlaceError, match="no column of file names"):
        read_layout("csv", tmp_path)
    assert read_layout("csv", tmp_path, columns="path=f,heading=B").heading[0] == 3
    with pytest.raises(KappaPlaceError, match="meanings are path"):
        read_layout("csv", tmp_path, columns="path=g")
    for name in ("b.jpg", "none.jpg"):  # twice below the folder, or nowhere
        file.write_text(f"file,lat,lon\n{name},1,2\n", encoding="utf-8")
        with pytest.raises(KappaPlaceError, match="no single image"):
            read_layout("csv", tmp_path)
    file.write_text("file,lat,lon\na.jpg,one,2\n", encoding="utf-8")
    with pytest.raises(KappaPlaceError, match="'one' is not a number"):
        read_layout("csv", tmp_path)


def test_csv_rows_that_repeat_an_image_are_left_out(tmp_path):
    images(tmp_path, "a.jpg")
    (tmp_path / "p.csv").write_text("file,x,y\na.jpg,1,2\na.jpg,3,4\n", encoding="utf-8")
    asked: list[str] = []
    table = read_layout("csv", tmp_path, ask=lambda words: not asked.append(words))
    assert table.positions.tolist() == [[1, 2]]
    assert "1 rows repeat an image" in asked[0]


def test_best_name_wins():
    assert guess_columns(["lon", "name", "path", "LAT"])["path"] == "path"


def test_trajectories(tmp_path):
    (tmp_path / "t.txt").write_text("# t x y z q\n2 0 5 9 0 0 0 1\n1 0 0 9 0 0 0 1\n", encoding="utf-8")
    tum = read_trajectory(tmp_path / "t.txt")
    assert tum.at(np.array([0.0, 1.5, 3.0])).tolist()[1] == [0.0, 2.5]
    assert np.isnan(tum.at(np.array([0.0, 3.0]))).all()
    pose = "1 0 0 {x} 0 1 0 0 0 0 1 {z}\n"
    (tmp_path / "k.txt").write_text(pose.format(x=1, z=0) + pose.format(x=1, z=4), encoding="utf-8")
    kitti = read_trajectory(tmp_path / "k.txt")
    assert kitti.by_frame
    assert kitti.positions.tolist() == [[1, 0], [1, 4]]
    points = "".join(
        f'<trkpt lat="{50 + i * 1e-4}" lon="8.0"><time>2024-01-01T00:00:0{i}Z</time></trkpt>'
        for i in range(3)
    )
    gpx = f'<?xml version="1.0"?><gpx xmlns="http://www.topografix.com/GPX/1/1"><trk><trkseg>{points}</trkseg></trk></gpx>'
    (tmp_path / "g.gpx").write_text(gpx, encoding="utf-8")
    track = read_trajectory(tmp_path / "g.gpx")
    assert track.frame == "EPSG:32632"
    assert np.hypot(*np.diff(track.positions, axis=0)[0]) == pytest.approx(11.12, abs=0.05)
    (tmp_path / "bad.txt").write_text("1 2 3\n4 5 6\n", encoding="utf-8")
    with pytest.raises(KappaPlaceError, match="3 numbers a line"):
        read_trajectory(tmp_path / "bad.txt")
    (tmp_path / "bomb.gpx").write_text('<!DOCTYPE a [<!ENTITY b "c">]><gpx/>', encoding="utf-8")
    with pytest.raises(KappaPlaceError, match="refused"):
        read_trajectory(tmp_path / "bomb.gpx")


def test_sampling_and_heading():
    way = np.array([[0.0, 0], [0, 1], [0, 2.5], [np.nan, np.nan], [0, 2.6], [0, 5.2]])
    assert sample_by_distance(way, 2.5).tolist() == [0, 2, 5]
    assert sample_by_distance(way, 0).tolist() == [0, 1, 2, 4, 5]
    assert headings(np.array([[0.0, 0], [0, 1], [0, 2]])).tolist() == [0, 0, 0]
    assert headings(np.array([[0.0, 0], [-1, 0]])).tolist() == [270, 270]


def test_video_with_trajectory(tmp_path):
    cv2 = pytest.importorskip("cv2")
    writer = cv2.VideoWriter(str(tmp_path / "drive.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 10.0, (64, 48))
    for i in range(40):
        writer.write(np.full((48, 64, 3), 6 * i, dtype=np.uint8))
    writer.release()
    lines = "".join(f"{100 + i / 10} {i / 2} 0 0 0 0 0 1\n" for i in range(40))  # half a metre a frame
    (tmp_path / "path.txt").write_text(lines, encoding="utf-8")
    table = read_layout("video", tmp_path, every=2.0)
    assert table.frame_number.tolist() == list(range(0, 40, 4))
    np.testing.assert_allclose(table.positions[:, 0], np.arange(10) * 2.0, atol=1e-6)
    np.testing.assert_allclose(table.timestamp, 100 + np.arange(10) * 0.4, atol=1e-6)
    assert set(table.heading.tolist()) == {90.0}
    with Image.open(table.image_path(5)) as image:
        assert abs(float(np.asarray(image).mean()) - 120) < 6
    changed = table.image_path(0).stat().st_mtime_ns
    assert read_layout("video", tmp_path, every=2.0).content_hash == table.content_hash
    assert table.image_path(0).stat().st_mtime_ns == changed  # frames already there are kept
    with pytest.raises(KappaPlaceError, match="offset"):
        read_layout("video", tmp_path, offset=500.0)


@pytest.mark.parametrize("kind", ["ros1", "ros2", "mcap"])
@pytest.mark.parametrize("source", ["gps", "odometry"])
def test_rosbag(tmp_path, kind, source):
    pytest.importorskip("rosbags")
    bag = write_bag(tmp_path, kind, source)
    table = read_layout("rosbag", bag, every=5.0, frames=str(tmp_path / "frames"))
    assert len(table) == 4
    assert table.frame == ("EPSG:32632" if source == "gps" else "local")
    steps = np.hypot(*np.diff(table.positions, axis=0).T)
    np.testing.assert_allclose(steps, 5.0, atol=0.05)
    assert all(Path(p).is_file() for p in table.image_paths())
    with Image.open(table.image_path(1)) as image:
        assert image.size == (4, 3)
        assert image.convert("RGB").getpixel((0, 0)) == (0, 20, 250)  # blue-green-red in the bag
    if source == "gps":
        np.testing.assert_allclose(table.accuracy, 2.0)
    with pytest.raises(KappaPlaceError, match="Name the topic with image_topic"):
        read_layout("rosbag", bag, image_topic="/none")


def write_bag(folder: Path, kind: str, source: str) -> Path:
    """Sixteen images and poses, a metre and a tenth of a second apart."""
    from rosbags.rosbag1 import Writer as Writer1
    from rosbags.rosbag2 import StoragePlugin
    from rosbags.rosbag2 import Writer as Writer2
    from rosbags.typesys import Stores, get_typestore

    one = kind == "ros1"
    store = get_typestore(Stores.ROS1_NOETIC if one else Stores.ROS2_HUMBLE)
    kinds = store.types
    header_kind, time_kind = kinds["std_msgs/msg/Header"], kinds["builtin_interfaces/msg/Time"]

    def header(i: int):
        stamp = time_kind(sec=1000 + i // 10, nanosec=i % 10 * 100_000_000)
        return (
            header_kind(seq=i, stamp=stamp, frame_id="x") if one else header_kind(stamp=stamp, frame_id="x")
        )

    def image(i: int):
        pixels = np.tile(np.array([250, 20, 0], dtype=np.uint8), 12)
        return kinds["sensor_msgs/msg/Image"](
            header=header(i), height=3, width=4, encoding="bgr8", is_bigendian=0, step=12, data=pixels
        )

    def pose(i: int):
        if source == "gps":
            status = kinds["sensor_msgs/msg/NavSatStatus"](status=0, service=1)
            return kinds["sensor_msgs/msg/NavSatFix"](
                header=header(i), status=status, latitude=50.0 + i / 111_150.0, longitude=9.0, altitude=0.0,
                position_covariance=np.diag([4.0, 1.0, 9.0]).ravel(), position_covariance_type=2,
            )  # fmt: skip
        point = kinds["geometry_msgs/msg/Point"](x=0.0, y=float(i), z=0.0)
        turn = kinds["geometry_msgs/msg/Quaternion"](x=0.0, y=0.0, z=0.0, w=1.0)
        return kinds["geometry_msgs/msg/PoseStamped"](
            header=header(i), pose=kinds["geometry_msgs/msg/Pose"](position=point, orientation=turn)
        )

    pose_kind = "sensor_msgs/msg/NavSatFix" if source == "gps" else "geometry_msgs/msg/PoseStamped"
    file = folder / ("walk.bag" if one else "walk")
    plugin = StoragePlugin.MCAP if kind == "mcap" else StoragePlugin.SQLITE3
    writer = Writer1(file) if one else Writer2(file, version=8, storage_plugin=plugin)
    pack = store.serialize_ros1 if one else store.serialize_cdr
    with writer:
        links = {
            "sensor_msgs/msg/Image": writer.add_connection(
                "/camera", "sensor_msgs/msg/Image", typestore=store
            ),
            pose_kind: writer.add_connection("/pose", pose_kind, typestore=store),
        }
        for i in range(16):
            for name, message in ((pose_kind, pose(i)), ("sensor_msgs/msg/Image", image(i))):
                writer.write(links[name], 1000 * 10**9 + i * 10**8, pack(message, name))
    return next(file.glob("*.mcap")) if kind == "mcap" else file


def test_rosbag_that_is_none(tmp_path):
    pytest.importorskip("rosbags")
    (tmp_path / "x.bag").write_bytes(b"nothing")
    with pytest.raises(KappaPlaceError):
        read_layout("rosbag", tmp_path / "x.bag")
