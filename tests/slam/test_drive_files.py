from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kappaplace.data.poses import as_planar, as_spatial, pose_matrices
from kappaplace.data.readers.trajectory import TimedPoses, from_headings, read_poses
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.slam.drive_files import read_drive, write_g2o, write_json_lines, write_tum
from tests.slam.synthetic import closure

TURN = np.column_stack([np.arange(10.0), np.arange(10.0) ** 2 / 10, np.linspace(0, 1.5, 10)])


def _folder(where: Path, names: list[str]) -> Path:
    where.mkdir()
    for name in names:
        Image.new("RGB", (8, 8)).save(where / name)
    return where


def _tum(file: Path, poses: np.ndarray = TURN, start: float = 100.0) -> Path:
    write_tum(file, poses, start + np.arange(len(poses)))
    return file


def test_tum_comes_back_in_the_plane_and_in_space(tmp_path: Path) -> None:
    file = _tum(tmp_path / "a.tum")
    flat, full = read_poses(file, 2), read_poses(file, 3)
    assert np.allclose(flat.poses, TURN, atol=1e-6)
    assert np.allclose(pose_matrices(full.poses), pose_matrices(as_spatial(TURN)), atol=1e-6)
    assert flat.time[3] == 103.0


def test_kitti_looks_ahead_along_x(tmp_path: Path) -> None:
    # A camera that drives 5 m forward (its z) and then turns to the right, about its y, which points down.
    forward = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 5]])
    right = np.array([[0, 0, 1, 2], [0, 1, 0, 0], [-1, 0, 0, 5]])
    file = tmp_path / "00.txt"
    np.savetxt(file, np.stack([forward, right]).reshape(2, 12))
    found = read_poses(file)
    assert found.by_frame
    assert np.allclose(found.poses[0], [5, 0, 0])
    assert np.allclose(found.poses[1], [5, -2, -np.pi / 2])
    assert np.allclose(as_planar(read_poses(file, 3).poses), found.poses)


def test_poses_between_two_times_lie_between() -> None:
    path = TimedPoses(np.array([0.0, 1.0]), np.array([[0, 0, 3.0], [2, 0, -3.0]]))
    poses, inside = path.at(np.array([0.5, 2.0]))
    assert np.allclose(poses[0, :2], [1, 0])
    assert abs(poses[0, 2]) > 3.0  # the short way round
    assert inside.tolist() == [True, False]
    spatial = TimedPoses(np.array([0.0, 1.0]), as_spatial(path.poses))
    assert np.allclose(as_planar(spatial.at(np.array([0.5]))[0])[0, :2], [1, 0])


def test_headings_are_clockwise_from_north() -> None:
    poses = from_headings(np.zeros((4, 2)), np.array([np.nan, 0.0, 90.0, np.nan]))
    assert np.allclose(poses[:, 2], [np.pi / 2, np.pi / 2, 0, 0])


def test_images_named_by_time_meet_their_poses(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "frames", ["99.5.png", "100.5.png", "102.png", "109.png"])
    drive = read_drive(folder, _tum(tmp_path / "a.tum"), every=0)
    assert drive.names == ("100.5.png", "102.png", "109.png")
    assert drive.skipped == 1
    assert np.allclose(drive.odometry[1], TURN[2], atol=1e-6)


def test_nanoseconds_times_files_and_one_pose_an_image(tmp_path: Path) -> None:
    file = _tum(tmp_path / "a.tum", start=1.5e9)
    folder = _folder(tmp_path / "ns", ["1500000002000000000.png", "1500000004000000000.png"])
    assert np.allclose(read_drive(folder, file).odometry[1], TURN[4], atol=1e-5)
    listed = _folder(tmp_path / "listed", ["a.png", "b.png"])
    (listed / "times.txt").write_text("1500000001\n1500000003\n")
    assert np.allclose(read_drive(listed, file).odometry, TURN[[1, 3]], atol=1e-5)
    each = _folder(tmp_path / "each", [f"x{row}.png" for row in range(10)])
    assert np.allclose(read_drive(each, file, every=0).odometry, TURN, atol=1e-5)
    assert len(read_drive(each, file, every=4.0)) < 10


def test_tables_have_positions_of_their_own(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "frames", [f"{row}.png" for row in range(6)])
    where = np.column_stack([np.zeros(6), 3.0 * np.arange(6)])
    known = {"heading": np.zeros(6), "timestamp": np.arange(6.0), "frame": "local"}
    PlaceImages.create([f"{row}.png" for row in range(6)], where, root=folder, **known).save(
        tmp_path / "t.parquet"
    )
    drive = read_drive(tmp_path / "t.parquet")
    assert np.allclose(drive.odometry, np.column_stack([where, np.full(6, np.pi / 2)]))
    with pytest.raises(KappaPlaceError, match="ground only"):
        read_drive(tmp_path / "t.parquet", dimensions=3)


def test_a_table_in_no_order_is_refused_and_frame_numbers_order_it(tmp_path: Path) -> None:
    names = [f"{row}.png" for row in range(30)]
    folder, rng = _folder(tmp_path / "frames", names), np.random.default_rng(3)
    line = np.column_stack([5.0 * np.arange(30), np.zeros(30)])
    order = rng.permutation(30)
    table = tmp_path / "t.parquet"
    PlaceImages.create(names, line, root=folder).save(table)
    assert np.allclose(read_drive(table).odometry[:, :2], line)  # in order, as it is
    PlaceImages.create(names, line[order], root=folder).save(table)
    with pytest.raises(KappaPlaceError, match=r"not in the order of a drive.*timestamp or frame_number"):
        read_drive(table)
    PlaceImages.create(names, line[order], frame_number=order, root=folder).save(table)
    assert np.allclose(read_drive(table).odometry[:, :2], line)


@pytest.mark.parametrize("kind", ["ros1", "ros2", "mcap"])
def test_bags_are_unpacked_with_their_poses(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("rosbags")
    from tests.data.test_readers_film import write_bag

    bag = write_bag(tmp_path, kind, "odometry")
    drive = read_drive(bag, every=4.0, unpack=str(tmp_path / "unpacked"))
    assert np.allclose(drive.odometry, [[0, 4.0 * row, 0] for row in range(4)])  # turned as the bag says
    assert all(Path(path).is_file() for path in drive.paths)
    spatial = read_drive(bag, every=4.0, dimensions=3, unpack=str(tmp_path / "unpacked"))
    assert np.allclose(spatial.odometry, [[0, 4.0 * row, 0, 0, 0, 0, 1] for row in range(4)])
    # A trajectory of its own, for one that has images only.
    listed = _tum(tmp_path / "a.tum", TURN, start=1000.0)
    drive = read_drive(bag, listed, every=0.0, unpack=str(tmp_path / "unpacked"))
    assert np.allclose(drive.odometry[10], TURN[1], atol=1e-6)
    (tmp_path / "gps").mkdir()
    drive = read_drive(write_bag(tmp_path / "gps", kind, "gps"), every=4.0)
    assert np.allclose(drive.odometry[:, 2], np.pi / 2, atol=0.01)  # GPS: as it moves


def test_bags_without_images_or_poses_are_told(tmp_path: Path) -> None:
    pytest.importorskip("rosbags")
    from tests.data.test_readers_film import write_bag

    bag = write_bag(tmp_path, "mcap", "odometry")
    for match, topics in (
        (r"image_topic=.*The bag contains /camera .*, /pose", {"image_topic": "/none"}),
        (r"pose_topic=.*The bag contains /camera", {"pose_topic": "/none"}),
    ):
        with pytest.raises(KappaPlaceError, match=match):
            read_drive(bag, unpack=str(tmp_path / "unpacked"), **topics)
    with pytest.raises(KappaPlaceError, match="No image falls into"):
        read_drive(bag, _tum(tmp_path / "a.tum", start=5.0), unpack=str(tmp_path / "unpacked"))


def test_frames_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "frames", ["a.png", "b.png", "c.png"])
    (folder / "times.txt").write_text("107\nnan\n102\n")
    drive = read_drive(folder, _tum(tmp_path / "a.tum"), every=0)
    assert drive.names == ("c.png", "a.png")
    assert drive.skipped == 1
    assert np.allclose(drive.odometry, TURN[[2, 7]], atol=1e-6)


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "frames", ["a.png", "b.png"])
    file = _tum(tmp_path / "a.tum")
    for match, frames, odometry in (
        ("no frames", tmp_path / "nothing", file),
        ("has no poses", folder, None),
        ("times of the 2 images .* are unknown", folder, file),
        ("no trajectory", folder, tmp_path / "b.tum"),
        ("not a folder of images", file, file),
    ):
        with pytest.raises(KappaPlaceError, match=match):
            read_drive(frames, odometry)
    (tmp_path / "five.txt").write_text("1 2 3 4 5\n")
    with pytest.raises(KappaPlaceError, match="got 5"):
        read_poses(tmp_path / "five.txt")
    with pytest.raises(KappaPlaceError, match="between 2 and 3"):
        read_poses(file, 4)
    for match, numbers in (
        ("NaN or infinite", "100 nan 0 0 0 0 0 1\n101 1 0 0 0 0 0 1\n"),
        ("not finite numbers", "nan 0 0 0 0 0 0 1\n101 1 0 0 0 0 0 1\n"),
        ("length 0", "100 0 0 0 0 0 0 0\n101 1 0 0 0 0 0 1\n"),
        ("at least two poses", "100 0 0 0 0 0 0 1\n"),
        ("NaN or infinite", 2 * "1 0 0 nan 0 1 0 0 0 0 1 0\n"),
        ("not poses", 2 * "0 0 0 0 0 0 0 0 0 0 0 0\n"),
    ):
        (tmp_path / "odd.txt").write_text(numbers)
        with pytest.raises(KappaPlaceError, match=match):
            read_poses(tmp_path / "odd.txt")


WAY = np.column_stack([np.arange(6.0), np.zeros(6), np.linspace(0, 1, 6)])


def test_tum_holds_every_pose(tmp_path: Path) -> None:
    write_tum(tmp_path / "a.tum", WAY, np.full(6, np.nan))
    read = read_poses(tmp_path / "a.tum")
    assert np.allclose(read.poses, WAY, atol=1e-8)
    assert read.time.tolist() == [0, 1, 2, 3, 4, 5]


def test_only_accepted_closures_enter_the_graph(tmp_path: Path) -> None:
    closures = [closure(0, 4), closure(1, 5, accepted=False, reason="probability")]
    write_g2o(tmp_path / "a.g2o", WAY, WAY, closures)
    lines = (tmp_path / "a.g2o").read_text().splitlines()
    assert sum(line.startswith("VERTEX_SE2") for line in lines) == 6
    edges = [line.split() for line in lines if line.startswith("EDGE_SE2")]
    assert [edge[1:3] for edge in edges] == [
        ["0", "1"],
        ["1", "2"],
        ["2", "3"],
        ["3", "4"],
        ["4", "5"],
        ["0", "4"],
    ]
    assert [float(number) for number in edges[-1][6:]] == pytest.approx([100, 0, 0, 100, 0, 100])


@pytest.mark.parametrize("spatial", [False, True])
def test_gtsam_reads_what_we_write(tmp_path: Path, spatial: bool) -> None:
    gtsam = pytest.importorskip("gtsam")
    way = as_spatial(WAY) if spatial else WAY
    write_g2o(tmp_path / "a.g2o", way, way, [closure(0, 4, 7 if spatial else 3)])
    graph, values = gtsam.readG2o(str(tmp_path / "a.g2o"), spatial)
    assert graph.size() == 6
    pose = values.atPose3(3) if spatial else values.atPose2(3)
    assert pose.x() == pytest.approx(3.0)


def test_json_lines_hold_every_proposal(tmp_path: Path) -> None:
    closures = [
        closure(0, 4),
        closure(1, 5, accepted=False, reason="probability", concentration=float("nan")),
    ]
    write_json_lines(tmp_path / "c.jsonl", closures, [f"{row}.jpg" for row in range(6)])
    first, second = (json.loads(line) for line in (tmp_path / "c.jsonl").read_text().splitlines())
    assert first["query_name"] == "4.jpg"
    assert first["accepted"]
    assert second["concentration"] is None
    assert second["reason"] == "probability"
    assert first["relative"] == [0.0, 0.0, 0.0]
