"""A ROS 1 bag, a ROS 2 bag or an MCAP file with images and GPS or odometry; no ROS installation needed."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kappaplace.data.geodesy import project
from kappaplace.data.readers.layout import Reader
from kappaplace.data.readers.trajectory import Trajectory, headings, sample_by_distance
from kappaplace.data.readers.video import frames_folder
from kappaplace.data.table import DEFAULT_RADIUS, PlaceImages
from kappaplace.errors import KappaPlaceError, MissingExtra
from kappaplace.files import reason, replace_file
from kappaplace.progress import track

_IMAGES = ("sensor_msgs/msg/CompressedImage", "sensor_msgs/msg/Image")
_POSES = (
    "sensor_msgs/msg/NavSatFix",
    "nav_msgs/msg/Odometry",
    "geometry_msgs/msg/PoseStamped",
    "geometry_msgs/msg/PoseWithCovarianceStamped",
)
# Encoding of a raw image → bytes a pixel, and the order of its channels in RGB(A) or grey.
_ENCODINGS: dict[str, tuple[int, tuple[int, ...]]] = {
    "rgb8": (3, (0, 1, 2)),
    "bgr8": (3, (2, 1, 0)),
    "rgba8": (4, (0, 1, 2)),
    "bgra8": (4, (2, 1, 0)),
    "8UC3": (3, (2, 1, 0)),
    "mono8": (1, (0,)),
    "8UC1": (1, (0,)),
}


def read_bag(
    folder: str | Path,
    *,
    image_topic: str = "",
    pose_topic: str = "",
    every: float = 2.0,
    frames: str = "",
    radius: float = DEFAULT_RADIUS,
) -> PlaceImages:
    """``folder`` is the bag (a ROS 2 folder, .bag or .mcap). One image is kept every ``every`` metres."""
    bag = Path(folder)
    if not bag.exists():
        raise KappaPlaceError(f"There is no bag {bag}.")
    with _opened(bag) as reader:
        images = _connections(reader, image_topic, _IMAGES, "image_topic")
        poses = _connections(reader, pose_topic, _POSES, "pose_topic")
        path = _trajectory(reader, poses)
        stamps = np.array([_stamp(m, t) for m, t in _messages(reader, images, "Reading image times")])
        positions = path.at(stamps)
        rows = sample_by_distance(positions, every)
        if not len(rows):
            raise KappaPlaceError(f"{bag}: no image falls into the time of {poses[0].topic}.")
        place = Path(frames) if frames else bag.parent / f"{bag.stem}_frames"
        out = frames_folder(place, bag, images[0].topic)
        names = _write_images(reader, images, set(rows.tolist()), out)
    accuracy = path.accuracy_at(stamps[rows])
    return PlaceImages.create(
        names,
        positions[rows],
        heading=headings(positions[rows]),
        timestamp=stamps[rows],
        condition=[bag.stem] * len(rows),
        frame_number=rows,
        accuracy=accuracy,
        root=out,
        frame=path.frame,
        name=bag.stem,
        radius=radius,
    )


def unpack_images(bag: Path, folder: Path, image_topic: str = "") -> tuple[list[str], NDArray[np.float64]]:
    """All images of a bag as files: their names and times; for poses that come from elsewhere."""
    with _opened(bag) as reader:
        images = _connections(reader, image_topic, _IMAGES, "image_topic")
        stamps = np.array([_stamp(m, t) for m, t in _messages(reader, images, "Reading image times")])
        out = frames_folder(folder, bag, images[0].topic)
        return _write_images(reader, images, set(range(len(stamps))), out), stamps


def whole_poses(bag: Path, pose_topic: str = "") -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Times, and x, y, z, qx, qy, qz, qw, of odometry or poses; None where only GPS, or no direction, is
    known.
    """
    with _opened(bag) as reader:
        topics = {c.topic for c in reader.connections if c.msgtype in _POSES[1:]}
        if pose_topic not in topics if pose_topic else not topics:
            return None
        poses = _connections(reader, pose_topic, _POSES[1:], "pose_topic")
        times, rows = [], []
        for message, moment in _messages(reader, poses, "Reading poses"):
            pose = message.pose.pose if hasattr(message.pose, "pose") else message.pose
            at, turned = pose.position, pose.orientation
            rows.append((at.x, at.y, at.z, turned.x, turned.y, turned.z, turned.w))
            times.append(_stamp(message, moment))
    found = np.array(rows, np.float64).reshape(-1, 7)
    return None if not found[:, 3:].any() else (np.array(times), found)


@contextmanager
def _opened(bag: Path) -> Iterator[Any]:
    """The reader of a bag; whatever is wrong with it is one sentence."""
    open_bag = _rosbags()
    try:
        with open_bag([bag]) as reader:
            yield reader
    except KappaPlaceError:
        raise
    except Exception as error:  # damaged bags raise what SQLite, YAML, MCAP, zstd and the decoders raise
        raise KappaPlaceError(f"{bag} cannot be read as a bag ({reason(error)}).") from error


def _rosbags() -> Any:
    """The reader of any bag."""
    try:
        from rosbags.highlevel import AnyReader
        from rosbags.typesys import Stores, get_typestore
    except ImportError:
        raise MissingExtra("Reading ROS bags", "rosbag") from None
    # Bags of ROS 2 Foxy and older carry no message definitions; the common ones have not changed since.
    types = get_typestore(Stores.ROS2_HUMBLE)
    return partial(AnyReader, default_typestore=types)


def _connections(reader: Any, topic: str, kinds: tuple[str, ...], option: str) -> list[Any]:
    """Connections of the topic named, or of the only topic of the best kind present."""
    usable = [c for c in reader.connections if c.msgtype in kinds]
    if topic:
        usable = [c for c in usable if c.topic == topic]
    else:
        best = min((kinds.index(c.msgtype) for c in usable), default=0)
        usable = [c for c in usable if c.msgtype == kinds[best]]
    topics = sorted({c.topic for c in usable})
    if len(topics) != 1:
        there = ", ".join(sorted(f"{c.topic} ({c.msgtype})" for c in reader.connections)) or "no topic"
        raise KappaPlaceError(f"Name the topic with {option}=…; the bag holds {there}.")
    return usable


def _messages(reader: Any, connections: list[Any], what: str) -> Any:
    total = sum(connection.msgcount for connection in connections)
    with track(what, total) as bar:
        for connection, moment, raw in reader.messages(connections=connections):
            yield reader.deserialize(raw, connection.msgtype), moment
            bar.advance()


def _stamp(message: Any, recorded: int) -> float:
    """The header's time, or the time of recording where a driver left it empty."""
    stamp = message.header.stamp
    seconds = stamp.sec + stamp.nanosec * 1e-9
    return float(seconds if seconds > 0 else recorded * 1e-9)


def _trajectory(reader: Any, connections: list[Any]) -> Trajectory:
    satellite = connections[0].msgtype == "sensor_msgs/msg/NavSatFix"
    times, points, spread = [], [], []
    for message, moment in _messages(reader, connections, "Reading poses"):
        if satellite:
            if message.status.status < 0:  # no fix
                continue
            points.append((message.latitude, message.longitude))
            known = message.position_covariance_type != 0
            spread.append(float(np.sqrt(max(message.position_covariance[[0, 4]]))) if known else np.nan)
        else:
            pose = message.pose.pose if hasattr(message.pose, "pose") else message.pose
            points.append((pose.position.x, pose.position.y))
        times.append(_stamp(message, moment))
    if len(points) < 2:
        raise KappaPlaceError(f"{connections[0].topic} holds fewer than two poses.")
    array = np.array(points, dtype=np.float64)
    if not satellite:
        return Trajectory(np.array(times), array)
    positions, frame = project(array[:, 0], array[:, 1])
    accuracy = np.array(spread)
    return Trajectory(
        np.array(times), positions, frame, accuracy=accuracy if np.isfinite(accuracy).all() else None
    )


def _write_images(reader: Any, connections: list[Any], wanted: set[int], out: Path) -> list[str]:
    names = []
    for row, (message, _) in enumerate(_messages(reader, connections, "Writing images")):
        if row not in wanted:
            continue
        data, suffix = _encoded(message)
        name = f"{row:07d}{suffix}"
        if not (out / name).is_file():
            replace_file(out / name, lambda part, data=data: part.write_bytes(data))  # type: ignore[misc]
        names.append(name)
    return names


def image_of_message(message: Any) -> Image.Image:
    """A sensor_msgs Image or CompressedImage as a picture."""
    if hasattr(message, "format"):
        return Image.open(io.BytesIO(bytes(message.data)))
    return Image.fromarray(_pixels(message))


def _encoded(message: Any) -> tuple[bytes, str]:
    """The image as bytes of a file; what the camera compressed stays as it is."""
    if hasattr(message, "format"):
        data = bytes(message.data)
        return data, ".png" if data.startswith(b"\x89PNG") else ".jpg"
    buffer = io.BytesIO()
    image_of_message(message).save(buffer, format="PNG")
    return buffer.getvalue(), ".png"


def _pixels(message: Any) -> NDArray[np.uint8]:
    if message.encoding not in _ENCODINGS:
        known = ", ".join(_ENCODINGS)
        raise KappaPlaceError(
            f"Raw images of encoding {message.encoding} are not supported; known are {known}."
        )
    depth, order = _ENCODINGS[message.encoding]
    rows = np.frombuffer(bytes(message.data), dtype=np.uint8).reshape(message.height, message.step)
    pixels = rows[:, : message.width * depth].reshape(message.height, message.width, depth)[:, :, order]
    return np.ascontiguousarray(pixels[:, :, 0] if len(order) == 1 else pixels)


READER = Reader(
    "rosbag",
    "a ROS 1 bag, ROS 2 bag or MCAP file with images and GPS or odometry",
    read_bag,
    {
        "image_topic": "topic of the images (default: the only one)",
        "pose_topic": "topic of NavSatFix, Odometry or PoseStamped (default: the only one; GPS first)",
        "every": "metres between images (2)",
        "frames": "where images are written (beside the bag)",
        "radius": "metres within which a reference is a positive (25)",
    },
    extra="rosbag",
)
