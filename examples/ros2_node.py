"""A ROS 2 node: loop closures from images and odometry, or the position of a camera in a map.

    python examples/ros2_node.py --ros-args -p model:=runs/pt/model -p calibration:=closures.json \\
        -r image:=/camera/image_raw -r odometry:=/odom

    python examples/ros2_node.py --ros-args -p map:=town.map -r image:=/camera/image_raw

Without a map it publishes `closures` (std_msgs/String): query_time, match_time, probability, accepted,
relative, sigma and the other fields of `kappaplace.slam.Closure`. With a map it fuses the images as a
sequence. It publishes accepted positions as /kappaplace/fix (sensor_msgs/NavSatFix), or /kappaplace/pose
(geometry_msgs/PoseWithCovarianceStamped) if the map has no latitude and longitude. /diagnostics reports every
image, with the reason if it is not accepted. `kappaplace localize --sequence BAG --out poses.mcap` writes the
same messages. `ClosureStream` and `MapStream` do the work without ROS; only `main` imports it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from kappaplace.data import (
    Poses,
    TimedPoses,
    as_planar,
    between,
    check_poses,
    image_of_message,
    pose_positions,
)
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import TOPICS, PlaceMap, Stamped, ros_messages
from kappaplace.models import load_model
from kappaplace.retrieval import patch_maps_of
from kappaplace.slam import ClosingSettings, Closure, Frame, LoopCloser, calibration_for, closure_message
from kappaplace.types import Json

if TYPE_CHECKING:
    from kappaplace.data import Source

MOST_POSES = 2000
"""Number of odometry poses kept for looking up the time of an image."""
WAITING = 32
"""Number of images that may wait for their odometry; older ones are dropped."""
Message = dict[str, Json]


class ClosureStream:
    """Pairs images with odometry by time, keeps one image per distance, and passes it to a `LoopCloser`."""

    def __init__(
        self, closer: LoopCloser, *, every: float = 1.0, send: Callable[[Message], None] | None = None
    ) -> None:
        """Start a stream.

        Args:
            closer: Proposes and decides closures.
            every: Minimum distance travelled between frames, in metres.
            send: Function that receives a message per proposal; messages are also returned.
        """
        self.closer, self.every, self.send = closer, every, send
        self.times: list[float] = []
        """Time stamps of the frames that were passed to the closer."""
        self.dropped = 0
        """Number of images without odometry."""
        self._odometry: deque[tuple[float, Poses]] = deque(maxlen=MOST_POSES)
        self._images: deque[tuple[float, Source]] = deque()
        self._last: Poses | None = None

    def on_odometry(self, time: float, pose: Poses) -> list[Message]:
        """Add a pose of odometry and process the images that waited for it; late poses are ignored."""
        if self._odometry and time <= self._odometry[-1][0]:
            return []
        self._odometry.append((float(time), check_poses(pose, "odometry")))
        return self._process()

    def on_image(self, time: float, image: Source) -> list[Message]:
        """Add an image, which waits for odometry with a later time."""
        if self._images and time < self._images[-1][0]:
            raise KappaPlaceError(
                f"Images must arrive in order, got {time:.3f} s after {self._images[-1][0]:.3f} s."
            )
        self._images.append((float(time), image))
        if len(self._images) > WAITING:
            self._images.popleft()
            self.dropped += 1
        return self._process()

    def _process(self) -> list[Message]:
        messages = []
        while self._images and len(self._odometry) >= 2 and self._images[0][0] <= self._odometry[-1][0]:
            time, image = self._images.popleft()
            if time < self._odometry[0][0]:
                self.dropped += 1
                continue
            closure = self._add(time, image)
            if closure is not None:
                messages.append(self._message(closure))
        for message in messages:
            if self.send is not None:
                self.send(message)
        return messages

    def _add(self, time: float, image: Source) -> Closure | None:
        stamps, poses = zip(*self._odometry, strict=True)
        pose = TimedPoses(np.array(stamps), np.stack(poses)).at(np.array([time]))[0][0]
        if self._last is not None:
            distance = float(np.linalg.norm(pose_positions(between(self._last, pose))))
            if distance < self.every:
                return None
        self._last = pose
        self.times.append(time)
        return self.closer.add(Frame(image=image, odometry=pose, time=time))

    def _message(self, closure: Closure) -> Message:
        times = {"query_time": self.times[closure.query], "match_time": self.times[closure.match]}
        return {**closure_message(closure), **times}


class MapStream:
    """Localizes images in a map, each with the help of those before it."""

    def __init__(self, place_map: PlaceMap, types: Callable[[str], Any], every: float = 1.0) -> None:
        """Start a stream.

        Args:
            place_map: A calibrated map.
            types: Function that returns the class of a message by its name, such as `ros_type`.
            every: Minimum time between images in seconds; images in between are ignored.
        """
        self.map, self.types, self.every = place_map, types, every
        self._follower = place_map.follow()
        self._last = -float("inf")

    def on_image(self, time: float, image: Source) -> list[Stamped]:
        """Localize an image and return the messages to publish."""
        if time - self._last < self.every:
            return []
        self._last = time
        (answer,) = self.map.localize_sequence([image], follower=self._follower)
        return ros_messages(answer, time, self.types, self.map.manifest.radius)


def ros_type(name: str) -> Any:
    """Return the class of a message by its name, such as ``sensor_msgs/msg/NavSatFix``."""
    package, _, kind = name.split("/")
    return getattr(import_module(f"{package}.msg"), kind)


def make_stream(
    model: str, calibration: str = "", *, max_risk: float = 0.01, every: float = 1.0
) -> ClosureStream:
    """Load a model and start a stream; empty strings mean the shipped model and calibration."""
    loaded = load_model(model or None)
    settings = ClosingSettings(max_risk=max_risk)
    probabilities = calibration_for(loaded, calibration or None)
    closer = LoopCloser(probabilities, settings, embed=loaded.embed, patch_maps=patch_maps_of(loaded))
    return ClosureStream(closer, every=every)


def seconds(stamp: Any) -> float:
    """Convert a builtin_interfaces/Time."""
    return float(stamp.sec) + float(stamp.nanosec) * 1e-9


def pose_of(odometry: Any) -> Poses:
    """Return x, y and yaw of a nav_msgs/Odometry."""
    at, turn = odometry.pose.pose.position, odometry.pose.pose.orientation
    return as_planar(np.array([at.x, at.y, at.z, turn.x, turn.y, turn.z, turn.w]))


def on_image(stream: ClosureStream, message: Any) -> list[str]:
    """Pass a sensor_msgs/Image to the stream and return texts to publish."""
    messages = stream.on_image(seconds(message.header.stamp), image_of_message(message))
    return [json.dumps(each) for each in messages]


def on_odometry(stream: ClosureStream, message: Any) -> list[str]:
    """Pass a nav_msgs/Odometry to the stream and return texts to publish."""
    messages = stream.on_odometry(seconds(message.header.stamp), pose_of(message))
    return [json.dumps(each) for each in messages]


def main() -> None:
    """Run the node until ROS shuts down."""
    import rclpy
    from rclpy.node import Node
    from rclpy.qos import qos_profile_sensor_data

    rclpy.init()
    node = Node("kappaplace")
    defaults = {"map": "", "model": "", "calibration": "", "max_risk": 0.01, "every": 1.0}
    for name, default in defaults.items():
        node.declare_parameter(name, default)
    values = {name: node.get_parameter(name).value for name in defaults}
    place_map = values.pop("map")
    if place_map:
        localizing(
            node, MapStream(PlaceMap.open(place_map), ros_type, values["every"]), qos_profile_sensor_data
        )
    else:
        closing(node, make_stream(**values), qos_profile_sensor_data)
    try:
        rclpy.spin(node)
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


def localizing(node: Any, stream: MapStream, images: Any) -> None:
    """Publish positions and diagnostics of the images of a node."""
    publishers = {kind: node.create_publisher(ros_type(kind), topic, 10) for kind, topic in TOPICS.items()}

    def on_image(message: Any) -> None:
        for each in stream.on_image(seconds(message.header.stamp), image_of_message(message)):
            publishers[each.kind].publish(each.message)

    node.create_subscription(ros_type("sensor_msgs/msg/Image"), "image", on_image, images)


def closing(node: Any, stream: ClosureStream, images: Any) -> None:
    """Publish closures of the images and odometry of a node."""
    text = ros_type("std_msgs/msg/String")
    publisher = node.create_publisher(text, "closures", 10)

    def publish(texts: list[str]) -> None:
        for each in texts:
            publisher.publish(text(data=each))

    image, odometry = ros_type("sensor_msgs/msg/Image"), ros_type("nav_msgs/msg/Odometry")
    node.create_subscription(image, "image", lambda message: publish(on_image(stream, message)), images)
    node.create_subscription(odometry, "odometry", lambda message: publish(on_odometry(stream, message)), 50)


if __name__ == "__main__":
    main()
