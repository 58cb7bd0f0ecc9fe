"""Moving cameras: trajectories, a video with one, ROS bags."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kappaplace.data.readers import read_layout
from kappaplace.data.readers.trajectory import headings, read_trajectory, sample_by_distance
from kappaplace.errors import KappaPlaceError


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
    with pytest.raises(KappaPlaceError, match="numbers per line, got 3"):
        read_trajectory(tmp_path / "bad.txt")
    (tmp_path / "empty.txt").write_text("# nothing\n", encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KappaPlaceError, match=r"empty\.txt must have 8"):
            read_trajectory(tmp_path / "empty.txt")
    (tmp_path / "bomb.gpx").write_text('<!DOCTYPE a [<!ENTITY b "c">]><gpx/>', encoding="utf-8")
    with pytest.raises(KappaPlaceError, match="not allowed in GPX"):
        read_trajectory(tmp_path / "bomb.gpx")


def test_sampling_and_heading():
    way = np.array([[0.0, 0], [0, 1], [0, 2.5], [np.nan, np.nan], [0, 2.6], [0, 5.2]])
    assert sample_by_distance(way, 2.5).tolist() == [0, 2, 5]
    assert sample_by_distance(way, 0).tolist() == [0, 1, 2, 4, 5]
    assert headings(np.array([[0.0, 0], [0, 1], [0, 2]])).tolist() == [0, 0, 0]
    assert headings(np.array([[0.0, 0], [-1, 0]])).tolist() == [270, 270]


def write_film(file: Path, shade: int = 0, frames: int = 40) -> None:
    cv2 = pytest.importorskip("cv2")
    writer = cv2.VideoWriter(str(file), cv2.VideoWriter_fourcc(*"MJPG"), 10.0, (64, 48))
    for i in range(frames):
        writer.write(np.full((48, 64, 3), shade or 6 * i, dtype=np.uint8))
    writer.release()


def write_walk(file: Path) -> None:
    lines = "".join(f"{100 + i / 10} {i / 2} 0 0 0 0 0 1\n" for i in range(40))  # half a metre a frame
    file.write_text(lines, encoding="utf-8")


def brightness(file: Path) -> float:
    with Image.open(file) as image:
        return float(np.asarray(image).mean())


def test_video_with_trajectory(tmp_path):
    write_film(tmp_path / "drive.avi")
    write_walk(tmp_path / "path.txt")
    table = read_layout("video", tmp_path, every=2.0)
    assert table.frame_number.tolist() == list(range(0, 40, 4))
    np.testing.assert_allclose(table.positions[:, 0], np.arange(10) * 2.0, atol=1e-6)
    np.testing.assert_allclose(table.timestamp, 100 + np.arange(10) * 0.4, atol=1e-6)
    assert set(table.heading.tolist()) == {90.0}
    assert abs(brightness(table.image_path(5)) - 120) < 6
    changed = table.image_path(0).stat().st_mtime_ns
    assert read_layout("video", tmp_path, every=2.0).content_hash == table.content_hash
    assert table.image_path(0).stat().st_mtime_ns == changed  # frames already there are kept
    with pytest.raises(KappaPlaceError, match="offset"):
        read_layout("video", tmp_path, offset=500.0)
    for every in ("-1", "nan"):
        with pytest.raises(KappaPlaceError, match=f"every must be a distance in metres.*got {every}"):
            read_layout("video", tmp_path, every=every)


def test_a_new_film_of_the_same_name_gets_new_frames(tmp_path):
    write_film(tmp_path / "drive.avi", shade=40)
    write_walk(tmp_path / "path.txt")
    table = read_layout("video", tmp_path)
    assert abs(brightness(table.image_path(5)) - 40) < 6
    write_film(tmp_path / "drive.avi", shade=200)
    again = read_layout("video", tmp_path, every=4.0)
    assert abs(brightness(again.image_path(2)) - 200) < 6
    assert len(list(again.root.glob("*.jpg"))) == len(again)  # none of the old film is left between them


def test_frames_of_one_film_are_not_overwritten_by_another(tmp_path):
    write_film(tmp_path / "one.avi")
    write_film(tmp_path / "two.avi")
    write_walk(tmp_path / "path.txt")
    out = str(tmp_path / "out")
    read_layout("video", tmp_path, video="one.avi", frames=out)
    with pytest.raises(KappaPlaceError, match=r"contains images of one\.avi, not of two\.avi"):
        read_layout("video", tmp_path, video="two.avi", frames=out)
    own = tmp_path / "own"
    own.mkdir()
    (own / "0000001.jpg").write_bytes(b"a photo of mine")
    with pytest.raises(KappaPlaceError, match="contains images of another source"):
        read_layout("video", tmp_path, video="two.avi", frames=str(own))
    assert (own / "0000001.jpg").read_bytes() == b"a photo of mine"


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


def test_a_new_bag_of_the_same_name_gets_new_images(tmp_path):
    pytest.importorskip("rosbags")
    for blue in (250, 90):
        table = read_layout("rosbag", write_bag(tmp_path, "ros1", "odometry", blue=blue))
        with Image.open(table.image_path(1)) as image:
            assert image.convert("RGB").getpixel((0, 0)) == (0, 20, blue)
        (tmp_path / "walk.bag").unlink()


def write_bag(folder: Path, kind: str, source: str, blue: int = 250) -> Path:
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
        pixels = np.tile(np.array([blue, 20, 0], dtype=np.uint8), 12)
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
    with pytest.raises(KappaPlaceError, match=r"x\.bag cannot be read as a bag \(.+\)"):
        read_layout("rosbag", tmp_path / "x.bag")
