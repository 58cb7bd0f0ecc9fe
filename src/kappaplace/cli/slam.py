"""`kappaplace slam`: close the loops of a drive, and calibrate the probabilities of loop closures."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kappaplace.cli.options import AsJson, EncoderOptions, command
from kappaplace.errors import KappaPlaceError
from kappaplace.records import Help, Setting

if TYPE_CHECKING:
    from kappaplace.slam import ClosingSettings, DriveInput

app = typer.Typer(
    help="Close the loops of a drive, with a probability for each loop closure.", no_args_is_help=True
)
_Frames = Annotated[
    Path,
    typer.Argument(
        metavar="FRAMES",
        help="Frames: an image folder, a table from `data import`, or a ROS bag / MCAP file.",
    ),
]


@dataclass(frozen=True)
class DriveOptions:
    """Options for reading the frames of a drive and their odometry."""

    odometry: Annotated[
        Path | None,
        Help("Odometry file (TUM, KITTI or GPX). Default: the poses in the table or bag."),
    ] = None
    every: Annotated[
        float, Help("Minimum distance travelled between two frames, in metres; 0 uses every image.")
    ] = 1.0
    image_topic: Annotated[str, Help("Topic of the images in a bag. Default: the only image topic.")] = ""
    pose_topic: Annotated[str, Help("Topic of the odometry in a bag. Default: the only pose topic.")] = ""

    def read(self, frames: Path, out: Path, dimensions: int = 2) -> DriveInput:
        """Return the frames with their odometry.

        Args:
            frames: Image folder, table or bag.
            out: Folder for the images of a bag.
            dimensions: 2 for planar poses, 3 for full 3D poses.

        Returns:
            The frames in the order of the drive.
        """
        from kappaplace.slam import read_drive

        return read_drive(
            frames,
            self.odometry,
            dimensions=dimensions,
            every=self.every,
            image_topic=self.image_topic,
            pose_topic=self.pose_topic,
            unpack=str(out / "frames"),
        )


@dataclass(frozen=True)
class LoopClosingOptions:
    """Conditions for accepting a loop closure."""

    calibration: Annotated[
        Path | None,
        Help("Calibrated map, or file written by `slam calibrate`. Default: the shipped calibration."),
    ] = None
    max_risk: Annotated[float, Help("Accept a closure if its probability is at least 1 − this value.")] = 0.01
    outside_rate: Annotated[
        float | None,
        Setting("expected fraction of frames that show a new place. Default: the calibrated one."),
    ] = None
    drift: Annotated[
        float,
        Setting(
            "odometry drift (standard deviation) as a fraction of the distance travelled; 0 ignores odometry."
        ),
    ] = 0.05
    recent: Annotated[
        float, Setting("minimum distance travelled between the two frames of a closure, in metres.")
    ] = 60.0
    inliers: Annotated[
        int, Setting("minimum number of SIFT matches that fit one camera motion; 0 skips the check.")
    ] = 0
    agreement: Annotated[
        float, Setting("minimum fraction of matching patches, from 0 to 1; 0 skips the check.")
    ] = 0.0

    def settings(self) -> ClosingSettings:
        """Return the checked settings of loop closing."""
        from kappaplace.slam import ClosingSettings

        return ClosingSettings(
            max_risk=self.max_risk,
            outside_rate=self.outside_rate,
            recent=self.recent,
            drift=self.drift or None,
            least_inliers=self.inliers or None,
            least_agreement=self.agreement or None,
        )


@dataclass(frozen=True)
class GraphOptions:
    """Options for optimizing the pose graph."""

    kernel: Annotated[
        Literal["gnc", "none", "cauchy", "dcs", "switchable"] | None,
        Help("Robust kernel of the closures. Default: gnc, or none with --incremental."),
    ] = None
    incremental: Annotated[bool, Help("Optimize frame by frame (iSAM2).", ("--incremental",))] = False
    dimensions: Annotated[
        Literal["2", "3"], Help("Pose dimension: 2 for planar poses (x, y, yaw), 3 for full 3D poses.")
    ] = "2"


@command(app)
def run(
    frames: _Frames,
    out: Annotated[
        Path, typer.Option(help="Folder for the trajectory, pose graph, closures, figure and report.")
    ],
    drive_options: DriveOptions,
    closing: LoopClosingOptions,
    graph: GraphOptions,
    *,
    truth: Annotated[
        Path | None, typer.Option(help="File with true poses (TUM, KITTI or GPX), to measure the errors.")
    ] = None,
    encoder: EncoderOptions,
    as_json: AsJson = False,
) -> None:
    """Find loop closures in a drive, accept those within the risk limit, and correct the trajectory.

    Writes trajectory.tum, odometry.tum, graph.g2o, closures.jsonl, trajectory.png, report.html, report.json
    and map.npz (for `kappaplace map import`). Embeddings are stored, so a second run with other options is
    fast.

    Examples:

        kappaplace slam run frames/ --odometry odometry.tum --out closed --calibration town.map

        kappaplace slam run drive.mcap --pose-topic /odom --out closed --calibration closures.json
    """
    from kappaplace.data import read_poses
    from kappaplace.maps import load_named_model
    from kappaplace.reports import write_slam
    from kappaplace.slam import SlamOptions, calibration_for, run_slam

    dimensions = int(graph.dimensions)
    drive = drive_options.read(frames, out, dimensions)
    true_poses = None if truth is None else read_poses(truth, dimensions)
    model, _ = load_named_model(encoder.model or None)
    slam_options = SlamOptions(
        closing.settings(),
        kernel=graph.kernel,
        incremental=graph.incremental,
        batch_size=encoder.batch_size,
        device=encoder.device or None,
    )
    fitted = calibration_for(model, closing.calibration)
    result = run_slam(drive, model, fitted, out, slam_options, truth=true_poses)
    write_slam(result, out)
    typer.echo(json.dumps(result.facts) if as_json else f"{result.sentence}\nReport: {out / 'report.html'}")


@dataclass(frozen=True)
class LabelOptions:
    """Options that define the same place, and how matches are compared."""

    radius: Annotated[float, Help("Maximum distance between two frames of the same place, in metres.")] = 12.0
    angle: Annotated[float, Help("Maximum angle between two frames of the same place, in degrees.")] = 45.0
    rerank: Annotated[
        int,
        Help(
            "Number of top matches to re-rank by patch matching, now and whenever the calibration is used "
            "(10 works well).",
            ("--rerank", "--verify"),
        ),
    ] = 0


@command(app)
def calibrate(
    frames: _Frames,
    truth: Annotated[Path, typer.Option(help="True poses: a TUM, KITTI or GPX file.")],
    out: Annotated[Path, typer.Option(help="Calibration file to write (.json).")],
    drive_options: DriveOptions,
    labels: LabelOptions,
    encoder: EncoderOptions,
) -> None:
    """Calibrate the probabilities of loop closures on a drive with known poses, for similar drives.

    Examples:

        kappaplace slam calibrate frames/ --odometry odometry.tum --truth truth.tum --out closures.json

        kappaplace slam calibrate drive.mcap --truth truth.tum --out closures.json --rerank 10
    """
    import numpy as np

    from kappaplace.calibration import MODEL, save_calibration
    from kappaplace.data import read_poses
    from kappaplace.files import make_folder
    from kappaplace.maps import load_named_model
    from kappaplace.retrieval import patch_maps_of
    from kappaplace.slam import (
        ClosingSettings,
        collect,
        drive_embeddings,
        drive_frames,
        fit_closures,
        same_place,
        scores_for,
    )

    settings = ClosingSettings(verify=labels.rerank)
    drive = drive_options.read(frames, out.parent)
    poses, inside = read_poses(truth, 2).at(drive.time)
    if not inside.any():
        raise KappaPlaceError(
            f"No frame falls into the time of {truth}. Pass true poses with the timestamps of the images."
        )
    drive, poses = drive.select(np.flatnonzero(inside)), poses[inside]
    model, _ = load_named_model(encoder.model or None)
    folder, size = make_folder(out.parent), encoder.batch_size
    embeddings = drive_embeddings(drive, model, folder, batch_size=size, device=encoder.device or None)
    rows = np.arange(len(drive))
    same = same_place(poses, rows[:, None], rows[None], labels.radius, labels.angle)
    scores, maps = scores_for(embeddings.kappa is not None, labels.rerank), patch_maps_of(model)
    examples = collect(drive_frames(drive, embeddings), same, settings, scores=scores, patch_maps=maps)
    fitted = fit_closures([examples])
    save_calibration(replace(fitted, facts={**fitted.facts, MODEL: model.fingerprint}), out)
    supported = examples.support >= 2
    correct = examples.right[supported].mean()
    typer.echo(
        f"{int(supported.sum()):,} proposals supported by other frames, {correct:.0%} of them correct."
    )
    typer.echo(f"Calibration written to {out}.")
