"""Loop closures as a ROS 2 node: images and odometry in, one JSON message a proposed closure out.

    python examples/ros2_node.py --ros-args -p model:=runs/pt/model -p calibration:=closures.json \\
        -r image:=/camera/image_raw -r odometry:=/odom

Publishes `closures` (std_msgs/String): query_time, match_time, probability, accepted, relative, sigma and
the rest of `kappaplace.slam.Closure`. All work is done by `kappaplace.slam.ClosureStream`; without
ROS, everything above `main` can be imported and used.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from kappaplace.data import as_planar, image_of_message
from kappaplace.models import load_model
from kappaplace.retrieval import patch_maps_of
from kappaplace.slam import ClosingSettings, ClosureStream, LoopCloser, calibration_for


def make_stream(
    model: str, calibration: str = "", *, max_risk: float = 0.01, every: float = 1.0
) -> ClosureStream:
    """A stream that is ready to be fed; empty strings stand for what came with the package."""
    loaded = load_model(model or None)
    settings = ClosingSettings(max_risk=max_risk)
    found = calibration_for(loaded, calibration or None)
    closer = LoopCloser(found, settings, embed=loaded.embed, patch_maps=patch_maps_of(loaded))
    return ClosureStream(closer, every=every)


def seconds(stamp: Any) -> float:
    """Of a builtin_interfaces/Time."""
    return float(stamp.sec) + float(stamp.nanosec) * 1e-9


def pose_of(odometry: Any) -> np.ndarray:
    """x, y, yaw of a nav_msgs/Odometry."""
    at, turned = odometry.pose.pose.position, odometry.pose.pose.orientation
    return as_planar(np.array([at.x, at.y, at.z, turned.x, turned.y, turned.z, turned.w]))


def on_image(stream: ClosureStream, message: Any) -> list[str]:
    """Feed an image message; texts to publish."""
    found = stream.on_image(seconds(message.header.stamp), image_of_message(message))
    return [json.dumps(each) for each in found]


def on_odometry(stream: ClosureStream, message: Any) -> list[str]:
    """Feed an odometry message; texts to publish."""
    found = stream.on_odometry(seconds(message.header.stamp), pose_of(message))
    return [json.dumps(each) for each in found]


def main() -> None:
    import rclpy
    from nav_msgs.msg import Odometry
    from rclpy.node import Node
    from rclpy.qos import qos_profile_sensor_data
    from sensor_msgs.msg import Image
    from std_msgs.msg import String

    rclpy.init()
    node = Node("kappaplace_closures")
    for name, default in (("model", ""), ("calibration", ""), ("max_risk", 0.01), ("every", 1.0)):
        node.declare_parameter(name, default)
    given = {name: node.get_parameter(name).value for name in ("model", "calibration", "max_risk", "every")}
    stream = make_stream(given.pop("model"), given.pop("calibration"), **given)
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
