"""Loop closing for robots: closures with a probability, pose graphs and localization along a route.

`LoopCloser` proposes closures and decides which ones to accept. `optimize` optimizes the trajectory (GTSAM,
extra ``slam``). `HistogramFilter` localizes a camera along the route of an existing map.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kappaplace._names import lazy_exports

if TYPE_CHECKING:
    from kappaplace.maps import HistogramFilter as HistogramFilter
    from kappaplace.maps import PoseMotion as PoseMotion
    from kappaplace.maps import RouteMotion as RouteMotion
    from kappaplace.maps import place_matrix as place_matrix
    from kappaplace.slam.calibrate import DriveExamples as DriveExamples
    from kappaplace.slam.calibrate import calibration_for as calibration_for
    from kappaplace.slam.calibrate import collect as collect
    from kappaplace.slam.calibrate import fit_closures as fit_closures
    from kappaplace.slam.calibrate import scores_for as scores_for
    from kappaplace.slam.drive_files import DriveInput as DriveInput
    from kappaplace.slam.drive_files import closure_message as closure_message
    from kappaplace.slam.drive_files import read_drive as read_drive
    from kappaplace.slam.evaluation import same_place as same_place
    from kappaplace.slam.graph_factors import KERNELS as KERNELS
    from kappaplace.slam.loop_closer import ClosingSettings as ClosingSettings
    from kappaplace.slam.loop_closer import LoopCloser as LoopCloser
    from kappaplace.slam.pose_graph import IncrementalGraph as IncrementalGraph
    from kappaplace.slam.pose_graph import optimize as optimize
    from kappaplace.slam.run import SlamOptions as SlamOptions
    from kappaplace.slam.run import SlamRun as SlamRun
    from kappaplace.slam.run import drive_embeddings as drive_embeddings
    from kappaplace.slam.run import drive_frames as drive_frames
    from kappaplace.slam.run import run_slam as run_slam
    from kappaplace.slam.types import Closure as Closure
    from kappaplace.slam.types import Frame as Frame
else:
    __all__, __getattr__ = lazy_exports(__name__, __file__)
