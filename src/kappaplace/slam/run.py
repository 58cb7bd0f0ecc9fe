"""Processing of a whole drive: embed, close loops, optimize the trajectory, and write files for other
programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TypedDict

import numpy as np

from kappaplace.calibration import Calibration
from kappaplace.data import Poses, TimedPoses, distance_traveled
from kappaplace.errors import KappaPlaceError
from kappaplace.files import DAMAGED_ARRAYS, make_folder, write_file
from kappaplace.models import AnyModel, EmbeddingStore
from kappaplace.progress import track
from kappaplace.retrieval import AGREEMENT, Pair, patch_maps_of
from kappaplace.slam.drive_files import DriveInput, write_g2o, write_json_lines, write_tum
from kappaplace.slam.evaluation import TrajectoryError, load_evo, trajectory_error
from kappaplace.slam.graph_factors import Kernel, OdometryNoise, kernel_named, load_gtsam
from kappaplace.slam.growing_map import save_arrays
from kappaplace.slam.loop_closer import ClosingSettings, LoopCloser
from kappaplace.slam.pose_graph import IncrementalGraph, optimize
from kappaplace.slam.types import Frame
from kappaplace.types import Embeddings

EMBEDDINGS, COMPARED = "embeddings", "cells.npz"
BLOCK = 64
UNCONTRADICTED = (
    "The accepted closures agree with odometry within their noise, so the trajectory is unchanged."
)


@dataclass(frozen=True)
class SlamOptions:
    """Options for processing a drive."""

    closing: ClosingSettings = field(default_factory=ClosingSettings)
    """Conditions for closing a loop."""
    noise: OdometryNoise = field(default_factory=OdometryNoise)
    """Standard deviations of odometry."""
    kernel: Kernel | None = None
    """Robust kernel of the pose graph. Default: gnc, or none with ``incremental``."""
    incremental: bool = False
    """Optimize frame by frame (iSAM2)."""
    batch_size: int = 32
    """Number of images to embed at once."""
    device: str | None = None
    """Device of the model: cpu, cuda, cuda:1, mps. Default: the current device of the model."""


class Facts(TypedDict):
    """Numbers of ``report.json``."""

    frames: int
    metres: float
    proposals: int
    accepted: int
    rejected: dict[str, int]
    largest_correction: float
    error_odometry: dict[str, float] | None
    error: dict[str, float] | None


@dataclass(frozen=True, eq=False)
class SlamRun:
    """Result of `run_slam`."""

    closer: LoopCloser
    """All frames and closures."""
    poses: Poses
    """Optimized poses, one per frame."""
    before: TrajectoryError | None = None
    """Error of odometry; None without ground truth."""
    after: TrajectoryError | None = None
    """Error of the optimized trajectory; None without ground truth."""
    notes: tuple[str, ...] = ()
    """Remarks for the report."""

    @property
    def facts(self) -> Facts:
        """Plain values for JSON."""
        proposals, accepted = self.closer.closures, self.closer.accepted
        shift = np.linalg.norm(self.poses[:, :2] - self.closer.odometry[:, :2], axis=1)
        return {
            "frames": len(self.poses),
            "metres": float(distance_traveled(self.closer.odometry)[-1]),
            "proposals": len(proposals),
            "accepted": len(accepted),
            "rejected": dict(Counter(closure.reason for closure in proposals if not closure.accepted)),
            "largest_correction": float(shift.max()),
            "error_odometry": None if self.before is None else asdict(self.before),
            "error": None if self.after is None else asdict(self.after),
        }

    @property
    def sentence(self) -> str:
        """Summary for people."""
        facts = self.facts
        summary = (
            f"{facts['frames']:,} frames over {facts['metres']:,.0f} m: {facts['accepted']:,} of "
            f"{facts['proposals']:,} proposed closures accepted, trajectory corrected by up to "
            f"{facts['largest_correction']:.1f} m."
        )
        if self.before is not None and self.after is not None:
            summary += (
                f" Absolute error {self.before.absolute:.2f} m with odometry only, "
                f"{self.after.absolute:.2f} m now."
            )
        return summary


def run_slam(
    drive: DriveInput,
    model: AnyModel,
    calibration: Calibration,
    out: str | Path,
    options: SlamOptions | None = None,
    *,
    truth: TimedPoses | None = None,
) -> SlamRun:
    """Close loops over a drive and write trajectory, graph and closures to a folder.

    `kappaplace.reports.write_slam` adds a figure and a page. Embeddings and patch agreements are kept in the
    folder, so a second run with the same frames and model does not compute them again.

    Args:
        drive: Frames with odometry.
        model: Model that embeds the images.
        calibration: Calibration of closures.
        out: Output folder.
        options: Options for processing the drive. Default: `SlamOptions()`.
        truth: True trajectory, to measure errors.

    Returns:
        The closures, the optimized trajectory and its errors.

    Raises:
        KappaPlaceError: If the input does not fit together, or GTSAM is not installed (evo with ``truth``).
    """
    load_gtsam()  # before the long part
    options = options or SlamOptions()
    kernel = kernel_named(options.kernel or ("none" if options.incremental else "gnc"))
    graph = IncrementalGraph(options.noise, kernel) if options.incremental else None
    true_poses, inside = None, np.zeros(0, bool)
    if truth is not None:
        load_evo()
        true_poses, inside = truth.at(drive.time)
        if inside.sum() < 3:
            raise KappaPlaceError(
                f"The true trajectory covers {inside.sum()} frames, but at least 3 are required. "
                "Check that the trajectory and the images use the same clock."
            )
    out = make_folder(out)
    stamp = sha256("\n".join([model.fingerprint, str(AGREEMENT), *_stamps(drive)]).encode()).hexdigest()
    closer = LoopCloser(
        calibration,
        options.closing,
        patch_maps=patch_maps_of(model),
        agreements=_stored_agreements(out / COMPARED, stamp),
    )
    embeddings = drive_embeddings(drive, model, out, batch_size=options.batch_size, device=options.device)
    try:
        with track("Closing loops", len(drive)) as bar:
            for frame in drive_frames(drive, embeddings):
                closure = closer.add(frame)
                if graph is not None:
                    assert frame.odometry is not None  # every frame of a drive has it
                    graph.add(frame.odometry, closure)
                bar.advance()
    finally:
        if closer.cells is not None:
            _save_agreements(out / COMPARED, stamp, closer.cells.agreements)
    if graph is not None:
        poses = graph.poses
    else:
        poses = optimize(drive.odometry, closer.accepted, noise=options.noise, kernel=kernel)
    before = after = None
    if true_poses is not None:
        before = trajectory_error(true_poses[inside], drive.odometry[inside])
        after = trajectory_error(true_poses[inside], poses[inside])
    origin = calibration.facts.get("origin", "") or "other places"
    notes = [f"Probabilities were fitted on {origin}; no risk is guaranteed for this drive."]
    if closer.accepted and np.array_equal(poses, drive.odometry):
        notes.append(UNCONTRADICTED)
    if drive.skipped:
        notes.append(f"{drive.skipped:,} images outside the time of the trajectory were skipped.")
    run = SlamRun(closer, poses, before, after, tuple(notes))
    _write(run, drive, out, options.noise)
    return run


def drive_frames(drive: DriveInput, embeddings: Embeddings) -> list[Frame]:
    """Return the frames of a drive for `LoopCloser.add`."""
    kappa = [None] * len(drive) if embeddings.kappa is None else embeddings.kappa.tolist()
    columns = (embeddings.descriptor, kappa, drive.paths, drive.odometry, drive.time.tolist(), drive.names)
    return [Frame(*values) for values in zip(*columns, strict=True)]


def drive_embeddings(
    drive: DriveInput, model: AnyModel, out: Path, *, batch_size: int = 32, device: str | None = None
) -> Embeddings:
    """Embed all frames of a drive, and reuse the embeddings of an earlier run of the same model.

    Args:
        drive: Frames.
        model: Model that embeds the images.
        out: Folder in which embeddings are kept.
        batch_size: Number of images to embed at once.
        device: Device of the model. Default: its current device.

    Returns:
        Embeddings in the order of the frames.
    """
    earlier = _embeddings_of_010(out / "embeddings.npz", model.fingerprint, drive)
    if earlier is not None:
        return earlier
    store = EmbeddingStore.of(model, out / EMBEDDINGS, batch_size=batch_size, device=device)
    return replace(store, block=BLOCK).embed(drive.paths)


def _stamps(drive: DriveInput) -> list[str]:
    """Identify images by path and modification time."""
    return [
        f"{path}|{Path(path).stat().st_mtime_ns}" if Path(path).exists() else path for path in drive.paths
    ]


def _embeddings_of_010(file: Path, fingerprint: str, drive: DriveInput) -> Embeddings | None:
    """Read the embeddings file of version 0.1.0. Return None unless it has all frames of the drive."""
    try:
        with np.load(file) as stored:
            row_of = {str(name): row for row, name in enumerate(stored["files"])}
            rows = [row_of.get(key, -1) for key in _stamps(drive)]
            if str(stored["model"]) != fingerprint or min(rows) < 0:
                return None
            kappa = stored["kappa"][rows] if len(stored["kappa"]) else None
            return Embeddings(stored["descriptor"][rows], kappa)
    except DAMAGED_ARRAYS:
        return None  # missing or damaged: images are embedded again


def _stored_agreements(file: Path, stamp: str) -> dict[Pair, float]:
    """Read the patch agreements of an earlier run over exactly these frames (pairs of indices)."""
    try:
        with np.load(file) as stored:
            if str(stored["stamp"]) != stamp:
                return {}
            pairs = [(query, match) for query, match in stored["pairs"].tolist()]
            return dict(zip(pairs, stored["agreement"].tolist(), strict=True))
    except DAMAGED_ARRAYS:
        return {}


def _save_agreements(file: Path, stamp: str, agreements: Mapping[Pair, float]) -> None:
    pairs = np.array(list(agreements), np.int64).reshape(-1, 2)
    save_arrays(file, {"stamp": stamp, "pairs": pairs, "agreement": np.array(list(agreements.values()))})


def _write(run: SlamRun, drive: DriveInput, out: Path, noise: OdometryNoise) -> None:
    closures = run.closer.closures
    write_tum(out / "trajectory.tum", run.poses, drive.time)
    write_tum(out / "odometry.tum", drive.odometry, drive.time)
    write_g2o(out / "graph.g2o", run.poses, drive.odometry, closures, noise)
    write_json_lines(out / "closures.jsonl", closures, drive.names)
    run.closer.map.export(out / "map.npz")
    write_file(out / "report.json", json.dumps(run.facts, indent=1))
