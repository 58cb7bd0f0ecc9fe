"""Maps of images on disk, in which queries are localized.

`PlaceMap` is all that most users need; see docs/maps.md. Names load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kappaplace._names import lazy_exports

if TYPE_CHECKING:
    from kappaplace.maps.answer import AnswerFile as AnswerFile
    from kappaplace.maps.answer import CandidatePlace as CandidatePlace
    from kappaplace.maps.answer import CandidateSet as CandidateSet
    from kappaplace.maps.answer import DecidedAnswer as DecidedAnswer
    from kappaplace.maps.answer import Localization as Localization
    from kappaplace.maps.answer import Match as Match
    from kappaplace.maps.answer import Pose as Pose
    from kappaplace.maps.answer import decide_answer as decide_answer
    from kappaplace.maps.answer import write_csv as write_csv
    from kappaplace.maps.answer import write_pairs as write_pairs
    from kappaplace.maps.build import Report as Report
    from kappaplace.maps.build import add_images as add_images
    from kappaplace.maps.directions import Directions as Directions
    from kappaplace.maps.embed import load_named_model as load_named_model
    from kappaplace.maps.embed import model_of as model_of
    from kappaplace.maps.embed import preprocessing_of as preprocessing_of
    from kappaplace.maps.follow import Follower as Follower
    from kappaplace.maps.geotag_files import Tag as Tag
    from kappaplace.maps.geotag_files import undo_geotags as undo_geotags
    from kappaplace.maps.geotags import Geotags as Geotags
    from kappaplace.maps.geotags import PhotoTag as PhotoTag
    from kappaplace.maps.geotags import TagAnswer as TagAnswer
    from kappaplace.maps.geotags import TagMatch as TagMatch
    from kappaplace.maps.geotags import geotag as geotag
    from kappaplace.maps.localize import rerank_of as rerank_of
    from kappaplace.maps.messages import TOPICS as TOPICS
    from kappaplace.maps.messages import Stamped as Stamped
    from kappaplace.maps.messages import reason_of as reason_of
    from kappaplace.maps.messages import ros_messages as ros_messages
    from kappaplace.maps.messages import write_mcap as write_mcap
    from kappaplace.maps.options import AddOptions as AddOptions
    from kappaplace.maps.options import BuildOptions as BuildOptions
    from kappaplace.maps.options import FitOptions as FitOptions
    from kappaplace.maps.options import GeotagOptions as GeotagOptions
    from kappaplace.maps.options import LabelOptions as LabelOptions
    from kappaplace.maps.options import LocalizeOptions as LocalizeOptions
    from kappaplace.maps.options import OnError as OnError
    from kappaplace.maps.options import Order as Order
    from kappaplace.maps.options import PairOptions as PairOptions
    from kappaplace.maps.options import Patches as Patches
    from kappaplace.maps.options import SequenceOptions as SequenceOptions
    from kappaplace.maps.options import area_of as area_of
    from kappaplace.maps.pairs import PairAnswer as PairAnswer
    from kappaplace.maps.pairs import calibrate_pairs as calibrate_pairs
    from kappaplace.maps.pairs import compare_pairs as compare_pairs
    from kappaplace.maps.pairs import pair_probability as pair_probability
    from kappaplace.maps.pairs import read_pairs as read_pairs
    from kappaplace.maps.pairs import save_answers as save_answers
    from kappaplace.maps.place_map import PlaceMap as PlaceMap
    from kappaplace.maps.positions import check_positions_file as check_positions_file
    from kappaplace.maps.positions import write_positions as write_positions
    from kappaplace.maps.sequence import HistogramFilter as HistogramFilter
    from kappaplace.maps.sequence import PoseMotion as PoseMotion
    from kappaplace.maps.sequence import RouteMotion as RouteMotion
    from kappaplace.maps.sequence import WalkMotion as WalkMotion
    from kappaplace.maps.sequence import place_matrix as place_matrix
    from kappaplace.maps.sources import as_table as as_table
    from kappaplace.maps.store import MapStore as MapStore
    from kappaplace.maps.store import verify_folder as verify_folder
    from kappaplace.maps.store.manifest import MANIFEST as MANIFEST
    from kappaplace.maps.store.manifest import Manifest as Manifest
    from kappaplace.maps.store.manifest import read_manifest as read_manifest
    from kappaplace.maps.store.manifest import write_manifest as write_manifest
    from kappaplace.maps.store.segments import SEGMENTS as SEGMENTS
    from kappaplace.maps.store.segments import StaleMap as StaleMap
    from kappaplace.maps.tune.calibrate import calibrate_map as calibrate_map
    from kappaplace.maps.tune.calibrate import reranking_note as reranking_note
    from kappaplace.maps.tune.fit import FitResult as FitResult
    from kappaplace.maps.tune.fit import estimate_fit as estimate_fit
    from kappaplace.maps.tune.fit import fit_map as fit_map
    from kappaplace.maps.tune.fit_check import FIT_RECORD as FIT_RECORD
    from kappaplace.maps.tune.fit_check import LEVELS as LEVELS
    from kappaplace.maps.tune.fit_check import FitRecord as FitRecord
    from kappaplace.maps.tune.fit_check import KappaCheck as KappaCheck
    from kappaplace.maps.tune.fit_check import read_record as read_record
    from kappaplace.maps.tune.label import calibrate_map_on_labels as calibrate_map_on_labels
    from kappaplace.maps.tune.label import label_map as label_map
    from kappaplace.maps.tune.label import match_picture as match_picture
    from kappaplace.maps.tune.label import query_picture as query_picture
    from kappaplace.maps.tune.label_sheet import Sheet as Sheet
    from kappaplace.maps.tune.label_sheet import head_lines as head_lines
    from kappaplace.maps.tune.monitor import MapMonitor as MapMonitor
    from kappaplace.maps.tune.monitor import Observation as Observation
    from kappaplace.maps.tune.monitor import is_answer_file as is_answer_file
    from kappaplace.maps.tune.monitor import observe as observe
    from kappaplace.maps.tune.monitor import read_answer_lines as read_answer_lines
    from kappaplace.maps.tune.monitor import read_observations as read_observations
    from kappaplace.maps.tune.monitor import read_outcomes as read_outcomes
    from kappaplace.maps.tune.self_calibrate import self_calibrate_map as self_calibrate_map
    from kappaplace.maps.tune.self_calibrate import sparse_note as sparse_note
else:
    __all__, __getattr__ = lazy_exports(__name__, __file__)
