"""A whole drive: embed, close loops, optimise, write what others read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from kappaplace.calibration import Calibration
from kappaplace.data import Poses, TimedPoses, distance_travelled
from kappaplace.errors import KappaPlaceError
from kappaplace.files import DAMAGED_ARRAYS, make_folder, replace_file
from kappaplace.models import AnyModel, embed_images, join
from kappaplace.progress import track
from kappaplace.retrieval import Pair, patch_maps_of
from kappaplace.slam.drive_inputs import DriveInput
from kappaplace.slam.evaluation import TrajectoryError, load_evo, trajectory_error
from kappaplace.slam.graph_factors import Kernel, OdometryNoise, load_gtsam
from kappaplace.slam.graph_files import write_g2o, write_json_lines, write_tum
from kappaplace.slam.loop_closer import ClosingSettings, LoopCloser
from kappaplace.slam.pose_graph import IncrementalGraph, optimise
from kappaplace.slam.types import Frame
from kappaplace.types import Embeddings

EMBEDDINGS, COMPARED = "embeddings.npz", "cells.npz"
BLOCK = 64
UNCONTRADICTED = (
    "The accepted closures do not contradict odometry beyond their own noise: the trajectory stays as it was."
)


@dataclass(frozen=True, eq=False)
class SlamRun:
    """What a run found."""

    closer: LoopCloser
    poses: Poses
    """Optimised, one a frame."""
    before: TrajectoryError | None = None
    """Errors of odometry alone and of the optimised trajectory, where the truth was given."""
    after: TrajectoryError | None = None
    notes: tuple[str, ...] = ()
    """What a report must say beside its numbers."""

    @property
    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        proposals, accepted = self.closer.closures, self.closer.accepted
        shift = np.linalg.norm(self.poses[:, :2] - self.closer.odometry[:, :2], axis=1)
        return {
            "frames": len(self.poses),
            "metres": float(distance_travelled(self.closer.odometry)[-1]),
            "proposals": len(proposals),
            "accepted": len(accepted),
            "rejected": dict(Counter(closure.reason for closure in proposals if not closure.accepted)),
            "largest_correction": float(shift.max()),
            "error_odometry": None if self.before is None else asdict(self.before),
            "error": None if self.after is None else asdict(self.after),
        }

    @property
    def sentence(self) -> str:
        """For people."""
        facts = self.facts
        said = (
            f"{facts['frames']:,} frames over {facts['metres']:,.0f} m: {facts['accepted']:,} of "
            f"{facts['proposals']:,} "
            f"proposed closures accepted, trajectory corrected by up to {facts['largest_correction']:.1f} m."
        )
        if self.before is not None and self.after is not None:
            said += (
                f" Absolute error {self.before.absolute:.2f} m by odometry, {self.after.absolute:.2f} m now."
            )
        return said


def run_slam(
    drive: DriveInput,
    model: AnyModel,
    calibration: Calibration,
    out: str | Path,
    *,
    settings: ClosingSettings | None = None,
    noise: OdometryNoise | None = None,
    kernel: Kernel | None = None,
    incremental: bool = False,
    truth: TimedPoses | None = None,
    batch_size: int = 32,
    device: str | None = None,
    notes: Sequence[str] = (),
) -> SlamRun:
    """Close loops over a drive and write trajectory, graph and closures into ``out``.

    `kappaplace.reports.write_slam` adds a picture and a page.

    Embeddings and compared cells are kept there: the same frames and model are not looked at twice. Without
    a stated ``kernel`` closures are weighed against each other (GNC); frame by frame that cannot be done.
    """
    load_gtsam()  # before the long part
    kernel = kernel or ("none" if incremental else "gnc")
    graph = IncrementalGraph(noise, kernel) if incremental else None
    known, inside = None, np.zeros(0, bool)
    if truth is not None:
        load_evo()
        known, inside = truth.at(drive.time)
        if inside.sum() < 3:
            raise KappaPlaceError(
                "The true trajectory covers fewer than three frames; are its times the images' own?"
            )
    out = make_folder(out)
    stamp = sha256("\n".join([model.fingerprint, *_stamps(drive)]).encode()).hexdigest()
    closer = LoopCloser(
        calibration, settings, patch_maps=patch_maps_of(model), compared=_compared(out / COMPARED, stamp)
    )
    made = drive_embeddings(drive, model, out, batch_size=batch_size, device=device)
    try:
        with track("Closing loops", len(drive)) as bar:
            for frame in drive_frames(drive, made):
                closure = closer.add(frame)
                if graph is not None:
                    assert frame.odometry is not None  # a drive has it throughout
                    graph.add(frame.odometry, closure)
                bar.advance()
    finally:
        if closer.cells is not None:
            _keep_compared(out / COMPARED, stamp, closer.cells.known)
    if graph is not None:
        poses = graph.poses
    else:
        poses = optimise(drive.odometry, closer.accepted, noise=noise, kernel=kernel)
    before = after = None
    if known is not None:
        before = trajectory_error(known[inside], drive.odometry[inside])
        after = trajectory_error(known[inside], poses[inside])
    if closer.accepted and np.array_equal(poses, drive.odometry):
        notes = [*notes, UNCONTRADICTED]
    if drive.left_out:
        notes = [*notes, f"{drive.left_out:,} images lie outside the trajectory's time and were left out."]
    found = SlamRun(closer, poses, before, after, tuple(notes))
    _write(found, drive, out, noise)
    return found


def drive_frames(drive: DriveInput, made: Embeddings) -> list[Frame]:
    """Frames as the closer takes them."""
    kappa = [None] * len(drive) if made.kappa is None else [float(value) for value in made.kappa]
    return [
        Frame(descriptor, sure, image, odometry, float(time), name)
        for descriptor, sure, image, odometry, time, name in zip(
            made.descriptor, kappa, drive.paths, drive.odometry, drive.time, drive.names, strict=True
        )
    ]


def drive_embeddings(
    drive: DriveInput, model: AnyModel, out: Path, *, batch_size: int = 32, device: str | None = None
) -> Embeddings:
    """Of all frames; what an earlier run of the same model has embedded is taken from ``out``."""
    stamp, file = model.fingerprint, out / EMBEDDINGS
    known = _known(file, stamp)
    files = _stamps(drive)
    todo = [row for row, name in enumerate(files) if name not in known]
    try:
        with track("Embedding", len(todo)) as bar:
            for start in range(0, len(todo), BLOCK):
                rows = todo[start : start + BLOCK]
                part = embed_images(
                    model,
                    model.preprocessing,
                    [drive.paths[row] for row in rows],
                    batch_size=batch_size,
                    device=device,
                    progress=False,
                )
                for at, row in enumerate(rows):
                    known[files[row]] = part.take(slice(at, at + 1))
                bar.advance(len(rows))
    finally:  # an image that cannot be read, or a stop, does not cost what was done
        if todo and known:
            _keep(file, stamp, list(known), join(list(known.values())))
    return join([known[name] for name in files])


def _stamps(drive: DriveInput) -> list[str]:
    """Images by path and time of change."""
    return [
        f"{path}|{Path(path).stat().st_mtime_ns}" if Path(path).exists() else path for path in drive.paths
    ]


def _known(file: Path, stamp: str) -> dict[str, Embeddings]:
    try:
        with np.load(file) as stored:
            if str(stored["model"]) != stamp:
                return {}
            kappa = stored["kappa"] if len(stored["kappa"]) else None
            whole = Embeddings(stored["descriptor"], kappa)
            return {str(name): whole.take(slice(row, row + 1)) for row, name in enumerate(stored["files"])}
    except DAMAGED_ARRAYS:
        return {}  # not there, or of no use: embedded again


def _keep(file: Path, stamp: str, files: Sequence[str], made: Embeddings) -> None:
    kappa = np.empty(0, np.float32) if made.kappa is None else made.kappa

    def write(part: Path) -> None:
        with part.open("wb") as stream:
            np.savez(stream, model=stamp, files=np.array(files), descriptor=made.descriptor, kappa=kappa)

    replace_file(file, write)


def _compared(file: Path, stamp: str) -> dict[Pair, float]:
    """What an earlier run over the very same frames has compared; they are known by number only."""
    try:
        with np.load(file) as stored:
            if str(stored["stamp"]) != stamp:
                return {}
            pairs = [(query, match) for query, match in stored["pairs"].tolist()]
            return dict(zip(pairs, stored["agreement"].tolist(), strict=True))
    except DAMAGED_ARRAYS:
        return {}


def _keep_compared(file: Path, stamp: str, known: Mapping[Pair, float]) -> None:
    pairs = np.array(list(known), np.int64).reshape(-1, 2)

    def write(part: Path) -> None:
        with part.open("wb") as stream:
            np.savez(stream, stamp=stamp, pairs=pairs, agreement=np.array(list(known.values())))

    replace_file(file, write)


def _write(found: SlamRun, drive: DriveInput, out: Path, noise: OdometryNoise | None) -> None:
    closures = found.closer.closures
    write_tum(out / "trajectory.tum", found.poses, drive.time)
    write_tum(out / "odometry.tum", drive.odometry, drive.time)
    write_g2o(out / "graph.g2o", found.poses, drive.odometry, closures, noise)
    write_json_lines(out / "closures.jsonl", closures, drive.names)
    found.closer.map.export(out / "map.npz")
    text = json.dumps(found.facts, indent=1)
    replace_file(out / "report.json", lambda part: part.write_text(text, encoding="utf-8"))
