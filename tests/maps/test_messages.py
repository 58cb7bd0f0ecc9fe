"""Answers as ROS messages: read back from an MCAP file."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kappaplace.data import unproject
from kappaplace.data.readers.rosbag import whole_poses
from kappaplace.maps import reason_of, write_mcap
from kappaplace.maps.answer import Localization, Match, Pose
from kappaplace.maps.messages import DIAGNOSTICS, FIX, POSE, UNKNOWN

FRAME = "EPSG:32610"


def answer(number: int, decision: str = "accept", **changes: object) -> Localization:
    match = Match(
        1, f"{number}.jpg", 10.0 * number, 5.0, 90.0, math.nan, 0.9, 50.0, 0.1, 0.95, decision, number, ""
    )
    pose = Pose(10.0 * number, 5.0, 90.0 if number else math.nan, 0.0, 1)
    made = Localization(f"q{number}", 50.0, 0.1, 0.95, 0.9, decision, True, pose, (match,), {}, frame="local")
    return replace(made, **changes)  # type: ignore[arg-type]


def read_back(file: Path) -> list[tuple[str, float, object]]:
    highlevel = pytest.importorskip("rosbags.highlevel")
    with highlevel.AnyReader([file]) as reader:
        return [
            (connection.msgtype, stamp * 1e-9, reader.deserialize(raw, connection.msgtype))
            for connection, stamp, raw in reader.messages()
        ]


def test_poses_of_a_local_map(tmp_path: Path) -> None:
    file = tmp_path / "poses.mcap"
    answers = [answer(0), answer(1), answer(2, "doubtful"), answer(3, radius=12.0, radius_level=0.95)]
    answers = [replace(each, time=100 + row / 2) for row, each in enumerate(answers)]
    write_mcap(answers, file, 25.0)
    read = read_back(file)
    poses = [(time, message) for kind, time, message in read if kind == POSE]
    assert [time for time, _ in poses] == pytest.approx([100.0, 100.5, 101.5])
    first, second, last = (message for _, message in poses)
    assert second.header.frame_id == "map"
    assert (second.header.stamp.sec, second.header.stamp.nanosec) == (100, 500_000_000)
    assert (second.pose.pose.position.x, second.pose.pose.position.y) == (10.0, 5.0)
    assert second.pose.pose.orientation.w == pytest.approx(1.0)  # a heading of 90° is east, a yaw of 0
    covariance = np.reshape(second.pose.covariance, (6, 6))
    assert covariance[0, 0] == covariance[1, 1] == 12.5**2
    assert first.pose.covariance[35] == UNKNOWN  # heading unknown
    inside = np.random.default_rng(0).normal(0, math.sqrt(last.pose.covariance[0]), (100_000, 2))
    assert (np.hypot(*inside.T) <= 12.0).mean() == pytest.approx(0.95, abs=0.005)
    levels = [message.status[0].level for kind, _, message in read if kind == DIAGNOSTICS]
    assert levels == [0, 0, 1, 0]
    times, array = whole_poses(file) or (None, np.empty(0))  # the package's own reader
    assert times == pytest.approx([100.0, 100.5, 101.5])
    assert array[:, 0] == pytest.approx([0.0, 10.0, 30.0])


def test_fixes_of_a_map_on_earth(tmp_path: Path) -> None:
    x, y = 550700.0, 4180050.0
    latitude, longitude = (float(value[0]) for value in unproject(np.array([[x, y]]), FRAME))
    turned = ((4.0, 1.0, 0.1), (1.0, 9.0, 0.2), (0.1, 0.2, 0.05))
    made = answer(1, frame=FRAME, latitude=latitude, longitude=longitude, covariance=turned)
    write_mcap([made], tmp_path / "fix.mcap", 25.0)
    (fix,) = [message for kind, _, message in read_back(tmp_path / "fix.mcap") if kind == FIX]
    assert (fix.latitude, fix.longitude) == (latitude, longitude)
    assert np.reshape(fix.position_covariance, (3, 3))[:2, :2].tolist() == [[4.0, 1.0], [1.0, 9.0]]
    assert fix.status.status == 0
    assert math.isnan(fix.altitude)


def test_the_reason_for_no() -> None:
    assert reason_of(answer(1)) == "accept: probability 0.95"
    assert reason_of(answer(1, "doubtful", probability=0.42)) == "doubtful: probability 0.42"
    outside = answer(1, "reject", in_map=False, inside=0.03)
    assert reason_of(outside) == "probably outside the map: probability 0.03 of being on it"
    unlike = answer(1, "doubtful", probability=None, notes=("No probability, and not accepted: too dark.",))
    assert reason_of(unlike) == "No probability, and not accepted: too dark"
    assert reason_of(answer(1, "doubtful", probability=None)) == "no calibrated probability"
    assert "no reference" in reason_of(answer(1, matches=()))
    assert "unknown" in reason_of(answer(1, pose=None))
