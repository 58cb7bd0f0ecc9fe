"""Images with poses: tables, their readers and checks, decoding, augmentation and degradation.

Names load on first use: only those that compute on batches import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kappaplace._names import lazy_exports

if TYPE_CHECKING:
    from kappaplace.data.augment import CosPlaceAugmentation as CosPlaceAugmentation
    from kappaplace.data.check import TableProblems as TableProblems
    from kappaplace.data.check import TableSummary as TableSummary
    from kappaplace.data.check import find_problems as find_problems
    from kappaplace.data.check import summarize as summarize
    from kappaplace.data.decoding import HEIF as HEIF
    from kappaplace.data.decoding import THUMBNAIL_SIZE as THUMBNAIL_SIZE
    from kappaplace.data.decoding import Source as Source
    from kappaplace.data.decoding import Thumbnail as Thumbnail
    from kappaplace.data.decoding import decode as decode
    from kappaplace.data.decoding import open_image as open_image
    from kappaplace.data.decoding import small_image as small_image
    from kappaplace.data.decoding import thumbnail as thumbnail
    from kappaplace.data.degradation import DEGRADATIONS as DEGRADATIONS
    from kappaplace.data.degradation import degrade as degrade
    from kappaplace.data.degradation import random_degradation as random_degradation
    from kappaplace.data.frames import SequenceImage as SequenceImage
    from kappaplace.data.frames import is_stream as is_stream
    from kappaplace.data.frames import sequence_images as sequence_images
    from kappaplace.data.geodesy import LOCAL_FRAME as LOCAL_FRAME
    from kappaplace.data.geodesy import ZONE_SHIFT as ZONE_SHIFT
    from kappaplace.data.geodesy import frame_codes as frame_codes
    from kappaplace.data.geodesy import project as project
    from kappaplace.data.geodesy import project_point as project_point
    from kappaplace.data.geodesy import unproject as unproject
    from kappaplace.data.geodesy import zone_index as zone_index
    from kappaplace.data.images import Preprocessing as Preprocessing
    from kappaplace.data.loader import ImageLoader as ImageLoader
    from kappaplace.data.loader import Workers as Workers
    from kappaplace.data.loader import default_workers as default_workers
    from kappaplace.data.near import Circle as Circle
    from kappaplace.data.near import Near as Near
    from kappaplace.data.near import Neighborhood as Neighborhood
    from kappaplace.data.poses import PLANAR as PLANAR
    from kappaplace.data.poses import SPATIAL as SPATIAL
    from kappaplace.data.poses import Poses as Poses
    from kappaplace.data.poses import as_planar as as_planar
    from kappaplace.data.poses import as_spatial as as_spatial
    from kappaplace.data.poses import between as between
    from kappaplace.data.poses import chain as chain
    from kappaplace.data.poses import check_poses as check_poses
    from kappaplace.data.poses import compose as compose
    from kappaplace.data.poses import distance_traveled as distance_traveled
    from kappaplace.data.poses import identity_pose as identity_pose
    from kappaplace.data.poses import pose_matrices as pose_matrices
    from kappaplace.data.poses import pose_positions as pose_positions
    from kappaplace.data.poses import wrap_angle as wrap_angle
    from kappaplace.data.positives import NoPositives as NoPositives
    from kappaplace.data.positives import Positives as Positives
    from kappaplace.data.positives import positives_within as positives_within
    from kappaplace.data.protocols import PROTOCOLS as PROTOCOLS
    from kappaplace.data.protocols import Protocol as Protocol
    from kappaplace.data.protocols import get_protocol as get_protocol
    from kappaplace.data.protocols import read_protocol as read_protocol
    from kappaplace.data.readers import READERS as READERS
    from kappaplace.data.readers import read_layout as read_layout
    from kappaplace.data.readers.layout import images_or_error as images_or_error
    from kappaplace.data.readers.rosbag import image_of_message as image_of_message
    from kappaplace.data.readers.rosbag import read_bag as read_bag
    from kappaplace.data.readers.rosbag import unpack_images as unpack_images
    from kappaplace.data.readers.rosbag import whole_poses as whole_poses
    from kappaplace.data.readers.trajectory import TimedPoses as TimedPoses
    from kappaplace.data.readers.trajectory import from_headings as from_headings
    from kappaplace.data.readers.trajectory import read_poses as read_poses
    from kappaplace.data.readers.trajectory import sample_by_distance as sample_by_distance
    from kappaplace.data.resample import resized as resized
    from kappaplace.data.split import Split as Split
    from kappaplace.data.split import SplitOptions as SplitOptions
    from kappaplace.data.split import split_table as split_table
    from kappaplace.data.table import DEFAULT_RADIUS as DEFAULT_RADIUS
    from kappaplace.data.table import PlaceImages as PlaceImages
    from kappaplace.data.table import concatenate as concatenate
    from kappaplace.data.table_io import TABLE_FORMATS as TABLE_FORMATS
    from kappaplace.data.table_io import recorded_hash as recorded_hash
else:
    __all__, __getattr__ = lazy_exports(__name__, __file__)
