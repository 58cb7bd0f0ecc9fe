"""Loop closures with a probability, pose graphs that take them in, and filters over sequences.

`loop_closer` proposes and decides, `pose_graph` optimises (GTSAM, extra ``slam``), `sequence` follows a
route through a map that is there already; `city_drive` and `city_descriptors` are drives whose truth is
known.
"""

from kappaplace.slam.loop_closer import ClosingSettings, LoopCloser
from kappaplace.slam.types import Closure, Frame

__all__ = ["ClosingSettings", "Closure", "Frame", "LoopCloser"]
