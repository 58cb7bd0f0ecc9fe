"""``kappaplace slam``: close the loops of a drive, and learn what closures are worth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kappaplace.calibration import Calibration

app = typer.Typer(help="Loop closures that do not corrupt the map.", no_args_is_help=True)

FRAMES = typer.Argument(
    metavar="FRAMES", help="A folder of images, a table of `data import`, or a ROS bag / MCAP."
)
ODOMETRY = typer.Option(help="TUM, KITTI or GPX file; tables and bags may have poses of their own.")
EVERY = typer.Option(help="Metres of the way between frames; 0: every image.")
DIMENSIONS = typer.Option(help="2: on the ground, 3: in space.")
MODEL = typer.Option(help="Model folder or name; our own unless stated.")
IMAGE_TOPIC = typer.Option(help="Of a bag: topic of the images.")
POSE_TOPIC = typer.Option(help="Of a bag: topic of the odometry.")
DEVICE = typer.Option(help="cpu, cuda, cuda:1, mps.")


@app.command("run")
def run(
    frames: Annotated[Path, FRAMES],
    out: Annotated[Path, typer.Option(help="Folder for trajectory, graph, closures, picture and report.")],
    odometry: Annotated[Path | None, ODOMETRY] = None,
    model: Annotated[str, MODEL] = "",
    calibration: Annotated[
        Path | None,
        typer.Option(help="A calibrated map, or a file of `slam calibrate`; else what came with the model."),
    ] = None,
    max_risk: Annotated[float, typer.Option(help="Accept closures with a probability of 1 − this.")] = 0.01,
    outside_rate: Annotated[
        float | None, typer.Option(help="Share of frames expected to show nothing seen before.")
    ] = None,
    drift: Annotated[
        float, typer.Option(help="Deviation of odometry as a share of the way; 0: do not ask odometry.")
    ] = 0.05,
    recent: Annotated[
        float, typer.Option(help="Metres of the way within which frames are no closure.")
    ] = 60.0,
    inliers: Annotated[
        int, typer.Option(help="Local features that must fit one camera motion; 0: do not look.")
    ] = 0,
    agreement: Annotated[
        float, typer.Option(help="Share of the images' cells that must agree; 0: do not look.")
    ] = 0.0,
    kernel: Annotated[
        str,
        typer.Option(
            help="Robust back end: gnc (default), none (default with --incremental), cauchy, dcs, switchable."
        ),
    ] = "",
    incremental: Annotated[
        bool, typer.Option("--incremental", help="Optimise frame by frame (iSAM2).")
    ] = False,
    dimensions: Annotated[int, DIMENSIONS] = 2,
    every: Annotated[float, EVERY] = 1.0,
    truth: Annotated[Path | None, typer.Option(help="True poses, to measure errors against.")] = None,
    image_topic: Annotated[str, IMAGE_TOPIC] = "",
    pose_topic: Annotated[str, POSE_TOPIC] = "",
    device: Annotated[str, DEVICE] = "",
    batch_size: Annotated[int, typer.Option(help="Images embedded together.")] = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Find where a drive comes back to, close those loops that can be trusted, and correct the trajectory.

    Writes trajectory.tum, odometry.tum, graph.g2o, closures.jsonl, trajectory.png, report.html, report.json
    and map.npz (for `kappaplace map import`). Embeddings are kept: the same command with other thresholds is
    quick.

    Examples:

        kappaplace slam run frames/ --odometry odometry.tum --out closed --calibration town.map

        kappaplace slam run drive.mcap --pose-topic /odom --out closed --calibration closures.json
    """
    from kappaplace.data import read_poses
    from kappaplace.errors import KappaPlaceError
    from kappaplace.reports import write_slam
    from kappaplace.slam import KERNELS, ClosingSettings, run_slam

    if kernel and kernel not in KERNELS:
        raise KappaPlaceError(f"Unknown kernel '{kernel}'; choose among: {', '.join(KERNELS)}.")
    settings = ClosingSettings(
        max_risk=max_risk,
        outside_rate=outside_rate,
        recent=recent,
        drift=drift or None,
        least_inliers=inliers or None,
        least_agreement=agreement or None,
    )
    drive = _drive(frames, odometry, dimensions, every, image_topic, pose_topic, out)
    true_poses = None if truth is None else read_poses(truth, dimensions)
    loaded, source = _model(model)
    chosen = _calibration(loaded, calibration)
    found = run_slam(
        drive,
        loaded,
        chosen,
        out,
        settings=settings,
        kernel=kernel or None,
        incremental=incremental,
        truth=true_poses,
        batch_size=batch_size,
        device=device or None,
        notes=[_origin(chosen, source)],
    )
    write_slam(found, out)
    typer.echo(json.dumps(found.facts) if as_json else f"{found.sentence}\nReport: {out / 'report.html'}")


@app.command("calibrate")
def calibrate(
    frames: Annotated[Path, FRAMES],
    truth: Annotated[Path, typer.Option(help="True poses: TUM, KITTI or GPX.")],
    out: Annotated[Path, typer.Option(help="File to write, .json.")],
    odometry: Annotated[Path | None, ODOMETRY] = None,
    model: Annotated[str, MODEL] = "",
    radius: Annotated[float, typer.Option(help="Metres within which frames show one place.")] = 12.0,
    angle: Annotated[float, typer.Option(help="Degrees within which they look the same way.")] = 45.0,
    verify: Annotated[
        int, typer.Option(help="Compare so many matches cell by cell (10 is good), here and in use.")
    ] = 0,
    every: Annotated[float, EVERY] = 1.0,
    image_topic: Annotated[str, IMAGE_TOPIC] = "",
    pose_topic: Annotated[str, POSE_TOPIC] = "",
    device: Annotated[str, DEVICE] = "",
) -> None:
    """Learn from a drive with known poses how probable closures are; for drives like it.

    Example:

        kappaplace slam calibrate frames/ --odometry odometry.tum --truth truth.tum --out closures.json

        kappaplace slam calibrate frames/ --odometry odometry.tum --truth truth.tum --out closures.json \
            --verify 10
    """
    from dataclasses import replace

    import numpy as np

    from kappaplace.calibration import MODEL as MODEL_FACT
    from kappaplace.calibration import save_calibration
    from kappaplace.data import read_poses
    from kappaplace.errors import KappaPlaceError
    from kappaplace.files import make_folder
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

    settings = ClosingSettings(verify=verify)
    drive = _drive(frames, odometry, 2, every, image_topic, pose_topic, out.parent)
    known, inside = read_poses(truth, 2).at(drive.time)
    if not inside.any():
        raise KappaPlaceError(f"No frame falls into the time of {truth}; are its times the images' own?")
    drive, known = drive.select(np.flatnonzero(inside)), known[inside]
    loaded, _ = _model(model)
    made = drive_embeddings(drive, loaded, make_folder(out.parent), device=device or None)
    rows = np.arange(len(drive))
    same = same_place(known, rows[:, None], rows[None], radius, angle)
    scores = scores_for(made.kappa is not None, verify)
    frames_fed = drive_frames(drive, made)
    examples = collect(frames_fed, same, settings, scores=scores, patch_maps=patch_maps_of(loaded))
    fitted = fit_closures([examples])
    fitted = replace(fitted, facts={**fitted.facts, MODEL_FACT: loaded.fingerprint})
    save_calibration(fitted, out)
    agreed = examples.support >= 2
    typer.echo(
        f"{int(agreed.sum()):,} proposals with support, {examples.right[agreed].mean():.0%} of them right; "
        f"calibration written to {out}."
    )


def _drive(
    frames: Path,
    odometry: Path | None,
    dimensions: int,
    every: float,
    image_topic: str,
    pose_topic: str,
    out: Path,
) -> Any:
    from kappaplace.slam import read_drive

    return read_drive(
        frames,
        odometry,
        dimensions=dimensions,
        every=every,
        image_topic=image_topic,
        pose_topic=pose_topic,
        unpack=str(out / "frames"),
    )


def _model(model: str) -> tuple[Any, str]:
    from kappaplace.maps import loaded

    return loaded(model or None)


def _calibration(model: Any, source: Path | None) -> Calibration:
    from kappaplace.slam import calibration_for

    return calibration_for(model, source)


def _origin(calibration: Calibration, source: str) -> str:
    origin = calibration.facts.get("origin", "")
    return f"Probabilities learnt on {origin or 'other places'}; no risk is guaranteed for this drive."
