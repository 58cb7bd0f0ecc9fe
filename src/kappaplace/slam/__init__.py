"""Loop closing for robots: closures with a probability, pose graphs and localization along a route.

`LoopCloser` proposes closures and decides which ones to accept. `pose_graph` optimizes the trajectory (GTSAM,
extra ``slam``). `sequence` localizes a camera along the route of an existing map.
"""

from kappaplace.slam.loop_closer import ClosingSettings, LoopCloser
from kappaplace.slam.types import Closure, Frame

__all__ = ["ClosingSettings", "Closure", "Frame", "LoopCloser"]
