from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kappaplace.calibration.options import CalibrateOptions
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import PlaceMap
from kappaplace.maps.tune.self_calibrate import self_calibrate_map
from kappaplace.models.place_model import PlaceModel
from kappaplace.slam import ClosingSettings, LoopCloser
from kappaplace.types import Embeddings
from tests.examples import ros
from tests.maps.conftest import town_table
from tests.slam.synthetic import calibration


def _load() -> ModuleType:
    file = Path(__file__).parents[2] / "examples" / "ros2_node.py"
    spec = importlib.util.spec_from_file_location("ros2_node", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NODE = _load()
ROUND = 30
"""Frames of one round of a small circle, a metre apart."""


def _embed(images: Any) -> Embeddings:
    """Each image is a number: the place on the circle."""
    vectors = np.random.default_rng(0).normal(size=(ROUND, 16))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Embeddings(vectors[[int(image) % ROUND for image in images]].astype(np.float32), np.array([200.0]))


def _circle(row: float) -> np.ndarray:
    angle = 2 * np.pi * row / ROUND
    return np.array(
        [ROUND / (2 * np.pi) * np.cos(angle), ROUND / (2 * np.pi) * np.sin(angle), angle + np.pi / 2]
    )


def _stream(**options: Any) -> Any:
    settings = ClosingSettings(recent=10.0, radius=3.0, fewest=2, tolerance=2.0, max_risk=0.5)
    return NODE.ClosureStream(LoopCloser(calibration(), settings, embed=_embed), every=0.5, **options)


def test_messages_have_the_times_of_both_frames() -> None:
    sent: list[dict[str, Any]] = []
    stream = _stream(send=sent.append)
    for row in range(2 * ROUND):
        stream.on_odometry(row, _circle(row))
        stream.on_image(row + 0.5, row)  # waits for the next pose
    again = [message for message in sent if message["query_time"] > ROUND + 1]
    assert len(stream.times) == 2 * ROUND - 1
    assert again
    assert all(message["query_time"] - message["match_time"] == ROUND for message in again)
    assert any(message["accepted"] for message in again)
    assert json.loads(json.dumps(again[0]))["support"] >= 0


def test_a_standing_camera_adds_nothing() -> None:
    stream = _stream()
    for row in range(20):
        stream.on_odometry(row, _circle(0))
        stream.on_image(row, row)
    assert len(stream.times) == 1


def test_images_without_odometry_are_dropped_not_kept_for_ever() -> None:
    stream = _stream()
    for row in range(NODE.WAITING + 5):
        assert stream.on_image(row, row) == []
    assert stream.dropped == 5
    with pytest.raises(KappaPlaceError, match="in order"):
        stream.on_image(0, 0)
    assert stream.on_odometry(10, _circle(0)) == []
    assert stream.on_odometry(9, _circle(0)) == []  # late


def test_the_ros_node_works_without_ros(tmp_path: Path, tiny: PlaceModel) -> None:
    from kappaplace.calibration.sources import save_calibration
    from kappaplace.models.checkpoint import save_model

    save_model(tiny, tmp_path / "model")
    save_calibration(calibration(), tmp_path / "closures.json")
    stream = NODE.make_stream(str(tmp_path / "model"), str(tmp_path / "closures.json"))
    rng = np.random.default_rng(0)
    texts: list[str] = []
    for row in range(90):
        header = SimpleNamespace(stamp=SimpleNamespace(sec=row, nanosec=500_000_000))
        pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        image = SimpleNamespace(
            header=header, height=8, width=8, step=24, encoding="rgb8", data=pixels.tobytes()
        )
        at = SimpleNamespace(x=2.0 * row, y=0.0, z=0.0)
        turned = SimpleNamespace(x=0.0, y=0.0, z=0.0, w=1.0)
        pose = SimpleNamespace(pose=SimpleNamespace(position=at, orientation=turned))
        texts += NODE.on_odometry(stream, SimpleNamespace(header=header, pose=pose))
        texts += NODE.on_image(stream, image)
    assert len(stream.times) == 90
    assert stream.dropped == 0
    assert texts
    assert {"query_time", "match_time", "probability", "accepted", "sigma"} <= set(json.loads(texts[0]))


def _header(find: Any, time: float) -> Any:
    stamp = find("builtin_interfaces/msg/Time")(sec=int(time), nanosec=int(time % 1 * 1e9))
    return find("std_msgs/msg/Header")(stamp=stamp, frame_id="camera")


def _picture(find: Any, time: float, file: str) -> Any:
    pixels = np.asarray(Image.open(file).convert("RGB"))
    size = {"height": pixels.shape[0], "width": pixels.shape[1], "step": 3 * pixels.shape[1]}
    return find("sensor_msgs/msg/Image")(
        header=_header(find, time), encoding="rgb8", data=pixels.tobytes(), **size
    )


def test_the_node_publishes_positions_and_reasons(
    tmp_path: Path, tiny: PlaceModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = town_table(tmp_path / "town", queries=4)
    town = PlaceMap.build(table, tmp_path / "town.map", tiny)
    self_calibrate_map(town, CalibrateOptions(max_risk=0.4, confidence=0.6))
    find = ros.install(monkeypatch, map=str(tmp_path / "town.map"), every=0.5)
    own = sorted(table.image_paths(table.reference_rows))[:6]  # images of the map itself: surely found
    for row, file in enumerate(own):
        ros.QUEUE.append(("image", _picture(find, 100 + row, file)))
        ros.QUEUE.append(("image", _picture(find, 100.2 + row, file)))  # too early: ignored
    NODE.main()
    (node,) = ros.RUNNING
    assert node.destroyed
    diagnostics = [message for topic, message in node.published if topic == "/diagnostics"]
    assert [each.header.stamp.sec for each in diagnostics] == [100, 101, 102, 103, 104, 105]
    fixes = [message for topic, message in node.published if topic == "/kappaplace/fix"]
    accepted = [each.status[0].level == b"\x00" for each in diagnostics]
    assert len(fixes) == sum(accepted)
    for each, good in zip(diagnostics, accepted, strict=True):
        assert each.status[0].message.startswith("accept") == good
        assert {"decision", "probability", "match"} <= {pair.key for pair in each.status[0].values}
    follower = town.follow()
    answers = [town.localize_sequence([Image.open(file)], follower=follower)[0] for file in own]
    assert [answer.decision == "accept" for answer in answers] == accepted
    for fix, answer in zip(fixes, [each for each in answers if each.decision == "accept"], strict=True):
        assert (fix.latitude, fix.longitude) == pytest.approx((answer.latitude, answer.longitude))


def test_the_node_publishes_closures(
    tmp_path: Path, tiny: PlaceModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kappaplace.calibration.sources import save_calibration
    from kappaplace.models.checkpoint import save_model

    save_model(tiny, tmp_path / "model")
    save_calibration(calibration(), tmp_path / "closures.json")
    parameters = {"model": str(tmp_path / "model"), "calibration": str(tmp_path / "closures.json")}
    find = ros.install(monkeypatch, **parameters)
    rng = np.random.default_rng(0)
    for row in range(90):
        header = _header(find, row + 0.5)
        point, pose = find("geometry_msgs/msg/Point")(x=2.0 * row), find("geometry_msgs/msg/Pose")
        turn = find("geometry_msgs/msg/Quaternion")(w=1.0)
        placed = find("geometry_msgs/msg/PoseWithCovariance")(pose=pose(position=point, orientation=turn))
        ros.QUEUE.append(("odometry", find("nav_msgs/msg/Odometry")(header=header, pose=placed)))
        pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8).tobytes()
        image = find("sensor_msgs/msg/Image")
        picture = image(header=header, height=8, width=8, step=24, encoding="rgb8", data=pixels)
        ros.QUEUE.append(("image", picture))
    NODE.main()
    texts = [json.loads(message.data) for topic, message in ros.RUNNING[0].published if topic == "closures"]
    assert texts
    assert {"query_time", "match_time", "probability", "accepted"} <= set(texts[0])
