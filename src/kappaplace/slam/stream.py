"""The core of a node: images and odometry come as they like, messages of closures go out.

Nothing here knows of ROS or any other middleware; `examples/ros2_node.py` is a thin shell around it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from kappaplace.data import Poses, TimedPoses, between, check_poses, pose_positions
from kappaplace.errors import KappaPlaceError
from kappaplace.slam.graph_files import closure_message
from kappaplace.slam.loop_closer import LoopCloser
from kappaplace.slam.types import Closure, Frame

if TYPE_CHECKING:
    from kappaplace.data import Source

KEPT = 2000
"""Poses of odometry that are kept to look up the time of an image."""
WAITING = 32
"""Images that may wait for their odometry; older ones are dropped."""


class ClosureStream:
    """Pairs images with odometry by time, keeps one image every so many metres, and asks the closer."""

    def __init__(
        self, closer: LoopCloser, *, every: float = 1.0, send: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        """``send`` gets a message for every proposal; messages are returned as well."""
        self.closer, self.every, self.send = closer, every, send
        self.times: list[float] = []
        """Of the frames that the closer has seen."""
        self.dropped = 0
        """Images for which odometry never came."""
        self._odometry: deque[tuple[float, Poses]] = deque(maxlen=KEPT)
        self._images: deque[tuple[float, Source]] = deque()
        self._last: Poses | None = None

    def on_odometry(self, time: float, pose: Any) -> list[dict[str, Any]]:
        """A pose of odometry; times must rise. Images that waited for it are looked at now."""
        if self._odometry and time <= self._odometry[-1][0]:
            return []  # sent twice or late: what is known already says more
        self._odometry.append((float(time), check_poses(pose, "odometry")))
        return self._look()

    def on_image(self, time: float, image: Source) -> list[dict[str, Any]]:
        """An image; it waits until odometry has passed its time."""
        if self._images and time < self._images[-1][0]:
            raise KappaPlaceError(f"Images must come in order: {time:.3f} after {self._images[-1][0]:.3f}.")
        self._images.append((float(time), image))
        if len(self._images) > WAITING:
            self._images.popleft()
            self.dropped += 1
        return self._look()

    def _look(self) -> list[dict[str, Any]]:
        messages = []
        while self._images and len(self._odometry) >= 2 and self._images[0][0] <= self._odometry[-1][0]:
            time, image = self._images.popleft()
            if time < self._odometry[0][0]:
                self.dropped += 1
                continue
            closure = self._take(time, image)
            if closure is not None:
                messages.append(self._message(closure))
        for message in messages:
            if self.send is not None:
                self.send(message)
        return messages

    def _take(self, time: float, image: Source) -> Closure | None:
        stamps, poses = zip(*self._odometry, strict=True)
        pose = TimedPoses(np.array(stamps), np.stack(poses)).at(np.array([time]))[0][0]
        if self._last is not None:
            driven = float(np.linalg.norm(pose_positions(between(self._last, pose))))
            if driven < self.every:
                return None
        self._last = pose
        self.times.append(time)
        return self.closer.add(Frame(image=image, odometry=pose, time=time))

    def _message(self, closure: Closure) -> dict[str, Any]:
        times = {"query_time": self.times[closure.query], "match_time": self.times[closure.match]}
        return {**closure_message(closure), **times}
