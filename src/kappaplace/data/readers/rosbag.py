"""ROS 1 bags, ROS 2 bags and MCAP files with images and GPS or odometry; ROS is not required."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kappaplace.data.geodesy import project
from kappaplace.data.readers.layout import Reader
from kappaplace.data.readers.trajectory import Trajectory, sample_by_distance
from kappaplace.data.readers.video import frames_folder, frames_table
from kappaplace.data.table import DEFAULT_RADIUS, PlaceImages
from kappaplace.errors import KappaPlaceError, import_extra
from kappaplace.files import reason, write_file
from kappaplace.progress import track

if TYPE_CHECKING:
    from rosbags.highlevel import AnyReader
    from rosbags.interfaces import Connection
    from rosbags.typesys.stores.ros2_humble import sensor_msgs__msg__CompressedImage as CompressedImage
    from rosbags.typesys.stores.ros2_humble import sensor_msgs__msg__Image as RawImage

_IMAGES = ("sensor_msgs/msg/CompressedImage", "sensor_msgs/msg/Image")
_POSES = (
    "sensor_msgs/msg/NavSatFix",
    "nav_msgs/msg/Odometry",
    "geometry_msgs/msg/PoseStamped",
    "geometry_msgs/msg/PoseWithCovarianceStamped",
)
# Encoding of a raw image → bytes per pixel, and the order of its channels in RGB(A) or grey.
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
    """Read images and positions of a bag.

    Args:
        folder: The bag: a ROS 2 folder, or a .bag or .mcap file.
        image_topic: Topic of the images. Default: the only one.
        pose_topic: Topic of NavSatFix, Odometry or PoseStamped. Default: the only one, GPS first.
        every: Distance between images in metres. Default: 2.
        frames: Folder for the images. Default: BAG_frames next to the bag.
        radius: Distance in metres within which a reference is a positive. Default: 25.

    Returns:
        The table.

    Raises:
        KappaPlaceError: If the bag cannot be read or has no suitable topics.
    """
    bag = Path(folder)
    if not bag.exists():
        raise KappaPlaceError(f"There is no bag {bag}. Check the path.")
    with _open_bag(bag) as reader:
        images = _connections(reader, image_topic, _IMAGES, "image_topic")
        poses = _connections(reader, pose_topic, _POSES, "pose_topic")
        path = _trajectory(reader, poses)
        stamps = np.array([time for _, time in _messages(reader, images, "Reading image times")])
        rows = sample_by_distance(path.at(stamps), every)
        if not len(rows):
            raise KappaPlaceError(f"{bag} has no image in the time of {poses[0].topic}. Set pose_topic=….")
        folder = Path(frames) if frames else bag.parent / f"{bag.stem}_frames"
        out = frames_folder(folder, bag, images[0].topic)
        files = _write_images(reader, images, set(rows.tolist()), out)
    return frames_table(files, path, stamps, rows, bag, radius)


def unpack_images(bag: Path, folder: Path, image_topic: str = "") -> tuple[list[str], NDArray[np.float64]]:
    """Write all images of a bag to files, for poses from another source.

    Args:
        bag: The bag.
        folder: Folder for the images.
        image_topic: Topic of the images. Default: the only one.

    Returns:
        Names and times of the images.
    """
    with _open_bag(bag) as reader:
        images = _connections(reader, image_topic, _IMAGES, "image_topic")
        stamps = np.array([time for _, time in _messages(reader, images, "Reading image times")])
        out = frames_folder(folder, bag, images[0].topic)
        files = _write_images(reader, images, set(range(len(stamps))), out)
    return [file.name for file in files], stamps


def bag_images(bag: Path, image_topic: str = "") -> Iterator[tuple[float, Callable[[], Image.Image]]]:
    """Read the images of a bag in order.

    Args:
        bag: The bag.
        image_topic: Topic of the images. Default: the only one.

    Yields:
        Time in seconds, and a function that decodes the image.
    """
    with _open_bag(bag) as reader:
        images = _connections(reader, image_topic, _IMAGES, "image_topic")
        for message, time in _messages(reader, images, "Reading images"):
            yield time, partial(image_of_message, message)


def whole_poses(bag: Path, pose_topic: str = "") -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Read the poses of a bag.

    Args:
        bag: The bag.
        pose_topic: Topic of odometry or poses. Default: the only one.

    Returns:
        Times and poses (x, y, z, qx, qy, qz, qw); None if the bag contains only GPS, or no directions.
    """
    with _open_bag(bag) as reader:
        topics = {c.topic for c in reader.connections if c.msgtype in _POSES[1:]}
        if pose_topic not in topics if pose_topic else not topics:
            return None
        poses = _connections(reader, pose_topic, _POSES[1:], "pose_topic")
        rows = [(time, *_pose(message)) for message, time in _messages(reader, poses, "Reading poses")]
    array = np.array(rows, np.float64).reshape(-1, 8)
    return (array[:, 0], array[:, 1:]) if array[:, 4:].any() else None


@contextmanager
def _open_bag(bag: Path) -> Iterator[AnyReader]:
    """Open a bag; every error becomes one message."""
    extra = ("Reading ROS bags", "rosbag")
    highlevel, typesys = (import_extra(f"rosbags.{name}", *extra) for name in ("highlevel", "typesys"))
    # Bags of ROS 2 Foxy and older contain no message definitions; the common ones have not changed since.
    types = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)
    try:
        with highlevel.AnyReader([bag], default_typestore=types) as reader:
            yield reader
    except KappaPlaceError:
        raise
    except Exception as error:  # damaged bags raise errors of SQLite, YAML, MCAP, zstd and the decoders
        raise KappaPlaceError(f"{bag} cannot be read as a bag ({reason(error)}). Check the file.") from error


def _connections(reader: AnyReader, topic: str, kinds: tuple[str, ...], option: str) -> list[Connection]:
    """Return the connections of a topic, or of the only topic of the best kind."""
    usable = [c for c in reader.connections if c.msgtype in kinds]
    if topic:
        usable = [c for c in usable if c.topic == topic]
    else:
        best = min((kinds.index(c.msgtype) for c in usable), default=0)
        usable = [c for c in usable if c.msgtype == kinds[best]]
    topics = sorted({c.topic for c in usable})
    if len(topics) != 1:
        contents = ", ".join(sorted(f"{c.topic} ({c.msgtype})" for c in reader.connections)) or "no topic"
        raise KappaPlaceError(f"Name the topic with {option}=…. The bag contains {contents}.")
    return usable


def _messages(reader: AnyReader, connections: list[Connection], task: str) -> Iterator[tuple[Any, float]]:
    """Yield messages with the time of their header, or of the recording if the header has no time."""
    total = sum(connection.msgcount for connection in connections)
    with track(task, total) as bar:
        for connection, recorded, raw in reader.messages(connections=connections):
            message: Any = reader.deserialize(raw, connection.msgtype)
            seconds = message.header.stamp.sec + message.header.stamp.nanosec * 1e-9
            yield message, float(seconds if seconds > 0 else recorded * 1e-9)
            bar.advance()


def _pose(message: Any) -> tuple[float, ...]:
    """Return x, y, z, qx, qy, qz, qw of odometry or a pose, with or without covariance."""
    pose = message.pose.pose if hasattr(message.pose, "pose") else message.pose
    at, rotation = pose.position, pose.orientation
    return at.x, at.y, at.z, rotation.x, rotation.y, rotation.z, rotation.w


def _trajectory(reader: AnyReader, connections: list[Connection]) -> Trajectory:
    satellite = connections[0].msgtype == "sensor_msgs/msg/NavSatFix"
    points: list[tuple[float, ...]] = []
    times, spread = [], []
    for message, time in _messages(reader, connections, "Reading poses"):
        if satellite:
            if message.status.status < 0:  # no fix
                continue
            points.append((message.latitude, message.longitude))
            has_spread = message.position_covariance_type != 0
            spread.append(float(np.sqrt(max(message.position_covariance[[0, 4]]))) if has_spread else np.nan)
        else:
            points.append(_pose(message)[:2])
        times.append(time)
    if len(points) < 2:
        raise KappaPlaceError(f"{connections[0].topic} contains fewer than two poses. Set pose_topic=….")
    array = np.array(points, dtype=np.float64)
    if not satellite:
        return Trajectory(np.array(times), array)
    positions, frame = project(array[:, 0], array[:, 1])
    accuracy = np.array(spread) if np.isfinite(spread).all() else None
    return Trajectory(np.array(times), positions, frame, accuracy=accuracy)


def _write_images(reader: AnyReader, connections: list[Connection], rows: set[int], out: Path) -> list[Path]:
    files = []
    for row, (message, _) in enumerate(_messages(reader, connections, "Writing images")):
        if row not in rows:
            continue
        data, suffix = _encoded(message)
        files.append(out / f"{row:07d}{suffix}")
        if not files[-1].is_file():
            write_file(files[-1], data)
    return files


def image_of_message(message: RawImage | CompressedImage) -> Image.Image:
    """Convert a ROS message to an image.

    Args:
        message: A sensor_msgs Image or CompressedImage, of ROS or of the package rosbags.

    Returns:
        The image.

    Raises:
        KappaPlaceError: If the encoding is not supported.
    """
    if hasattr(message, "format"):
        return Image.open(io.BytesIO(bytes(message.data)))
    return Image.fromarray(_pixels(message))


def _encoded(message: RawImage | CompressedImage) -> tuple[bytes, str]:
    """Return the bytes and the suffix of an image file; images compressed by the camera are unchanged."""
    if hasattr(message, "format"):
        data = bytes(message.data)
        return data, ".png" if data.startswith(b"\x89PNG") else ".jpg"
    buffer = io.BytesIO()
    image_of_message(message).save(buffer, format="PNG")
    return buffer.getvalue(), ".png"


def _pixels(message: RawImage) -> NDArray[np.uint8]:
    if message.encoding not in _ENCODINGS:
        raise KappaPlaceError(f"Unknown encoding {message.encoding!r}. Supported: {', '.join(_ENCODINGS)}.")
    depth, order = _ENCODINGS[message.encoding]
    rows = np.frombuffer(bytes(message.data), dtype=np.uint8).reshape(message.height, message.step)
    pixels = rows[:, : message.width * depth].reshape(message.height, message.width, depth)[:, :, order]
    return np.ascontiguousarray(pixels[:, :, 0] if len(order) == 1 else pixels)


READER = Reader(
    "rosbag", "a ROS 1 bag, ROS 2 bag or MCAP file with images and GPS or odometry", read_bag, extra="rosbag"
)
