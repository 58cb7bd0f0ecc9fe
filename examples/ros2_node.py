"""Loop closures as a ROS 2 node: images and odometry in, one JSON message per proposed closure out.

    python examples/ros2_node.py --ros-args -p model:=runs/pt/model -p calibration:=closures.json \\
        -r image:=/camera/image_raw -r odometry:=/odom

Publishes `closures` (std_msgs/String): query_time, match_time, probability, accepted, relative, sigma and
the other fields of `kappaplace.slam.Closure`. `ClosureStream` does the work and does not need ROS: import it
for any other middleware. Only `main` imports ROS.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
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
    from nav_msgs.msg import Odometry
    from rclpy.node import Node
    from rclpy.qos import qos_profile_sensor_data
    from sensor_msgs.msg import Image
    from std_msgs.msg import String

    rclpy.init()
    node = Node("kappaplace_closures")
    defaults = {"model": "", "calibration": "", "max_risk": 0.01, "every": 1.0}
    for name, default in defaults.items():
        node.declare_parameter(name, default)
    stream = make_stream(**{name: node.get_parameter(name).value for name in defaults})
    publisher = node.create_publisher(String, "closures", 10)

    def publish(texts: list[str]) -> None:
        for text in texts:
            publisher.publish(String(data=text))

    node.create_subscription(
        Image, "image", lambda message: publish(on_image(stream, message)), qos_profile_sensor_data
    )
    node.create_subscription(Odometry, "odometry", lambda message: publish(on_odometry(stream, message)), 50)
    rclpy.spin(node)


if __name__ == "__main__":
    main()
