"""Loop closing on simulated drives through a synthetic city: closures, trajectories, corrupted maps.

python benchmarks/slam_city.py [--seeds 20] [--first-seed 0] [--csv results/slam_city.csv]
                               [--picture results/slam_city.png]

Nothing is rendered: `kappaplace_city.drives` simulates descriptors and κ. The calibration is fitted on drives
through other cities, and so is the threshold on cosine that reaches 99% precision. "At equal recall" is the
threshold that reaches the recall of our closures over all test drives; in production it is unknown.
Every method except "top-1" requires two of the last four proposals to agree.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kappaplace.calibration.calibration import Calibration
from kappaplace.data.poses import distance_traveled
from kappaplace.reports.figures import COLORS, PLOT_STYLE, new_figure
from kappaplace.reports.runs import draw_trajectory
from kappaplace.slam import Frame, LoopCloser
from kappaplace.slam.calibrate import WITH_KAPPA, DriveExamples, collect, examples_of, fit_closures
from kappaplace.slam.evaluation import (
    closure_quality,
    corrupted,
    false_at_recall,
    recall_curve,
    same_place,
    trajectory_error,
)
from kappaplace.slam.pose_graph import IncrementalGraph, optimize
from kappaplace_city import SyntheticCity
from kappaplace_city.drives import CityDrive, drive_through, look_at
from record import Option, append_row, parse_options

CALIBRATION_SEED = 1000
PRECISION = 0.99
GATE = 3.0
"""Standard deviations of drift that the gated baseline allows."""
RECALLS = (0.1, 0.2, 0.3, 0.4, 0.5)


class Drive:
    """One seed: the drive, all proposals and their outcomes."""

    def __init__(self, seed: int, calibration: Calibration | None = None) -> None:
        self.seed, self.calibration = seed, calibration
        city = SyntheticCity(seed, (4, 4), aliased=0.3, featureless=0.15)
        self.route: CityDrive = drive_through(city, seed=seed, legs=60)
        embeddings = look_at(city, "test", self.route, seed=seed).embeddings
        rows = np.arange(len(self.route.truth))
        same = same_place(self.route.truth, rows[:, None], rows[None])
        frames = [
            Frame(z, float(k), odometry=o)
            for z, k, o in zip(embeddings.descriptor, embeddings.kappa, self.route.odometry, strict=True)
        ]
        if calibration is None:
            self.proposals = collect(frames, same)
            return
        closer = LoopCloser(calibration, scores=WITH_KAPPA)
        self.incremental = IncrementalGraph()
        for frame in frames:
            self.incremental.add(frame.odometry, closer.add(frame))
        self.proposals: DriveExamples = examples_of(closer, same)

    @property
    def possible(self) -> int:
        return int((~self.proposals.outside).sum())

    def values(self, name: str) -> np.ndarray:
        if name == "appearance":
            assert self.calibration is not None
            return self.calibration.probability(self.proposals.features)
        return np.array([getattr(closure, name) for closure in self.proposals.closures])

    @property
    def supported(self) -> np.ndarray:
        return self.proposals.support >= 2

    @property
    def plausible(self) -> np.ndarray:
        """Whether a hard gate on odometry accepts each proposal."""
        query, match = self.values("query"), self.values("match")
        position, traveled = self.route.odometry[:, :2], distance_traveled(self.route.odometry)
        gap = np.hypot(*(position[query] - position[match]).T)
        return gap <= GATE * 0.05 * (traveled[query] - traveled[match]) + 10.0


def main() -> None:
    args = parse_options(
        __doc__,
        seeds=20,
        first_seed=0,
        calibration=Option(10, help="number of drives for calibration"),
        csv=Path,
        picture=Path,
    )
    training = [Drive(CALIBRATION_SEED + number) for number in range(args.calibration)]
    calibration = fit_closures([drive.proposals for drive in training])
    drives = [Drive(args.first_seed + number, calibration) for number in range(args.seeds)]
    _, thresholds = at_equal_recall(drives, training, drives)
    precise, equal, gated = thresholds
    print(f"cosine from {precise:.3f} (99% precision elsewhere), {equal:.3f}, {gated:.3f} (equal recall)")
    print_curves(drives)
    rows = [row for drive in drives for row in rows_of(drive, *thresholds)]
    for row in rows:
        append_row(args.csv, row)
    summary(rows)
    if args.picture:
        _draw(drives, equal, args.picture)


def at_equal_recall(
    ours: list[Drive], training: list[Drive], drives: list[Drive]
) -> tuple[float, tuple[float, float, float]]:
    """Return our recall, and cosines for 99% precision elsewhere, for this recall, and for it with a gate."""
    closed = sum(int((d.values("accepted") & d.proposals.right).sum()) for d in ours)
    recall = closed / sum(d.possible for d in ours)
    equal = _threshold_at(drives, recall, [d.supported for d in drives])
    gated = _threshold_at(drives, recall, [d.supported & d.plausible for d in drives])
    return recall, (_threshold_for_precision(training), equal, gated)


def _threshold_for_precision(drives: list[Drive]) -> float:
    """Return the lowest cosine with 99% precision on the training drives; otherwise the most precise one."""
    value = np.concatenate([d.values("similarity")[d.supported] for d in drives])
    right = np.concatenate([d.proposals.right[d.supported] for d in drives])
    order = np.argsort(-value)
    precision = np.cumsum(right[order]) / np.arange(1, len(order) + 1)
    enough = np.flatnonzero((precision >= PRECISION) & (np.arange(len(order)) >= 50))
    last = enough[-1] if len(enough) else 50 + int(np.argmax(precision[50:]))
    return float(value[order][last])


def _threshold_at(drives: list[Drive], recall: float, usable: list[np.ndarray]) -> float:
    """Return the highest cosine at which all drives together reach a recall."""
    value = np.concatenate(
        [d.values("similarity")[u & d.proposals.right] for d, u in zip(drives, usable, strict=True)]
    )
    target = int(np.ceil(recall * sum(d.possible for d in drives) - 1e-9))
    return float(np.sort(value)[::-1][min(target, len(value)) - 1])


def rows_of(drive: Drive, precise: float, equal: float, gated: float) -> list[dict[str, Any]]:
    cosine, everything = drive.values("similarity"), np.ones(len(drive.proposals.right), bool)
    before = trajectory_error(drive.route.truth, drive.route.odometry)
    methods = {
        "top-1 always": everything,
        "cosine, 99 % precision elsewhere": drive.supported & (cosine >= precise),
        "cosine, at equal recall": drive.supported & (cosine >= equal),
        "cosine and odometry gate, at equal recall": drive.supported & drive.plausible & (cosine >= gated),
        "ours": drive.values("accepted"),
    }
    rows = []
    for name, taken in methods.items():
        closures = [
            replace(c, accepted=True) for c, t in zip(drive.proposals.closures, taken, strict=True) if t
        ]
        kernels: list[tuple[Any, bool]] = [("none", False), ("cauchy", False), ("dcs", False)]
        if name in ("top-1 always", "ours"):
            kernels += [("switchable", False), ("gnc", False)]
            kernels += [("cauchy", True), ("dcs", True), ("switchable", True)]
        for kernel, by_probability in kernels:
            poses = optimize(drive.route.odometry, closures, kernel=kernel, by_probability=by_probability)
            rows.append(_row(drive, name, kernel, by_probability, taken, before, poses))
    rows.append(_row(drive, "ours", "none, iSAM2", False, methods["ours"], before, drive.incremental.poses))
    return rows


def _row(
    drive: Drive,
    name: str,
    kernel: str,
    by_probability: bool,
    taken: np.ndarray,
    before: Any,
    poses: np.ndarray,
) -> dict[str, Any]:
    quality = closure_quality(taken, drive.proposals.right, drive.possible)
    after = trajectory_error(drive.route.truth, poses)
    return {
        "seed": drive.seed,
        "closures": name,
        "kernel": kernel,
        "by_probability": int(by_probability),
        "accepted": quality.accepted,
        "false": quality.false,
        "possible": quality.possible,
        "ate_odometry": before.absolute,
        "ate": after.absolute,
        "rpe_odometry": before.relative,
        "rpe": after.relative,
        "worse": int(corrupted([before.absolute], [after.absolute])),
    }


def _curves(drives: list[Drive]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    possible = sum(d.possible for d in drives)
    signals = {
        "cosine": ("similarity", False),
        "cosine and odometry gate": ("similarity", True),
        "probability of images": ("appearance", False),
        "images and odometry gate": ("appearance", True),
        "probability": ("probability", False),
    }
    out = {}
    for name, (signal, gate) in signals.items():
        rows = [d.supported & d.plausible if gate else d.supported for d in drives]
        value = np.concatenate([d.values(signal)[r] for d, r in zip(drives, rows, strict=True)])
        right = np.concatenate([d.proposals.right[r] for d, r in zip(drives, rows, strict=True)])
        out[name] = recall_curve(value, right, possible)
    return out


def print_curves(drives: list[Drive]) -> None:
    for name, (recall, false) in _curves(drives).items():
        counts = "  ".join(f"{r:.1f}: {false_at_recall(recall, false, r):.0f}" for r in RECALLS)
        print(f"false closures at recall, {name:26s} {counts}")


def summary(rows: list[dict[str, Any]]) -> None:
    print("| closures | kernel | by probability | recall | false | median ATE, m | worse than odometry |")
    print("|---|---|---|---|---|---|---|")
    for key in dict.fromkeys((r["closures"], r["kernel"], r["by_probability"]) for r in rows):
        own = [r for r in rows if (r["closures"], r["kernel"], r["by_probability"]) == key]
        right = sum(r["accepted"] - r["false"] for r in own) / sum(r["possible"] for r in own)
        error = np.median([r["ate"] for r in own])
        worse = corrupted([r["ate_odometry"] for r in own], [r["ate"] for r in own])
        false = sum(r["false"] for r in own)
        by = "yes" if key[2] else ""
        print(f"| {key[0]} | {key[1]} | {by} | {right:.3f} | {false:,} | {error:.1f} | {worse:.0%} |")
    first = [r for r in rows if r["closures"] == "top-1 always" and r["kernel"] == "none"]
    print(f"odometry alone: median ATE {np.median([r['ate_odometry'] for r in first]):.1f} m")


def _draw(drives: list[Drive], equal: float, file: Path) -> None:
    """Draw the drive that the fixed threshold harms most, and false closures against recall."""
    import matplotlib

    def harm(drive: Drive) -> int:
        return int((drive.supported & (drive.values("similarity") >= equal) & ~drive.proposals.right).sum())

    drive = max(drives, key=harm)
    taken = drive.supported & (drive.values("similarity") >= equal)
    fixed = [replace(c, accepted=bool(t)) for c, t in zip(drive.proposals.closures, taken, strict=True)]
    start = np.append(drive.route.truth[0, :2], 0.0)
    with matplotlib.rc_context(PLOT_STYLE):
        figure = new_figure(12, 4.2)
        axes = figure.subplots(1, 3)
        both = {"fixed threshold": fixed, "ours": list(drive.proposals.closures)}
        for axis, (name, closures) in zip(axes, both.items(), strict=False):
            accepted = [c for c in closures if c.accepted]
            poses = optimize(drive.route.odometry, accepted)
            error = trajectory_error(drive.route.truth, poses).absolute
            here, odometry, truth = (
                each - start for each in (poses, drive.route.odometry, drive.route.truth)
            )
            shown = closures if name == "ours" else accepted
            draw_trajectory(axis, here, shown, odometry=odometry, truth=truth)
            axis.set_title(f"{name}: error {error:.1f} m")
            axis.legend(fontsize=7)
        for (name, (recall, false)), color in zip(_curves(drives).items(), COLORS, strict=False):
            axes[2].plot(recall, false, color=color, label=name)
        axes[2].set_yscale("symlog", linthresh=1)
        axes[2].set_xlabel("recall of closures")
        axes[2].set_ylabel(f"false closures in {len(drives)} drives")
        axes[2].legend(fontsize=8)
        figure.savefig(file, dpi=110)


if __name__ == "__main__":
    main()
