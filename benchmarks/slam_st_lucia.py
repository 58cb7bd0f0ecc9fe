"""Closures between two drives over one route (St Lucia, no odometry): precision and recall.

python benchmarks/slam_st_lucia.py --data DATA/st_lucia --model MODEL [--cache FILE] [--csv FILE]

Every second frame. The first drive is fed, then a stretch of the second one: the calibration learns from 60
to 70 % of the route, the last 30 % are asked; a model of this package's protocol was trained on the first 60
%. A closure within the first drive, or with a frame that is no stated positive, is false.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from kappaplace.slam import ClosingSettings, Frame, LoopCloser
from kappaplace.slam.calibrate import WITH_KAPPA, Examples, examples_of, fit_closures
from kappaplace.slam.evaluation import closure_quality, false_at_recall, recall_curve
from record import append_row
from slam_sequences import _st_lucia_embeddings

SETTINGS = ClosingSettings(recent_frames=40, near_frames=5)
RISKS = (0.01, 0.05, 0.1, 0.2)


def drive(args: argparse.Namespace, low: float, high: float) -> tuple[list[Frame], np.ndarray]:
    """The first drive and a stretch of the second, and which frames show one place."""
    stored = _st_lucia_embeddings(args.data, args.model, args.cache)
    truth = json.loads((args.data / "gt.json").read_text())["positives"][::2]
    count = len(stored["ref_descriptor"])
    centre = np.array([np.median(frames) / 2 for frames in truth])
    rows = np.flatnonzero((centre >= low * count) & (centre < high * count))
    last = count if high == 1.0 else int(high * count)  # what comes later is not known yet
    frames = [Frame(z, float(k)) for z, k in zip(stored["ref_descriptor"], stored["ref_kappa"], strict=True)][
        :last
    ]
    frames += [Frame(stored["query_descriptor"][row], float(stored["query_kappa"][row])) for row in rows]
    same = np.zeros((len(frames), len(frames)), bool)
    for at, row in enumerate(rows):
        positives = [frame // 2 for frame in truth[row] if frame % 2 == 0 and frame // 2 < last]
        same[last + at, positives] = True
    return frames, same


def proposals(frames: list[Frame], same: np.ndarray) -> Examples:
    closer = LoopCloser(None, SETTINGS, scores=WITH_KAPPA)
    for frame in frames:
        closer.add(frame)
    return examples_of(closer, same)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    # One frame in two of a slow drive: thinning by 2 keeps enough examples.
    calibration = fit_closures([proposals(*drive(args, 0.6, 0.7))], thin=2.0)
    found = proposals(*drive(args, 0.7, 1.0))
    possible, agreed = int((~found.outside).sum()), found.support >= 2
    cosine = np.array([closure.similarity for closure in found.closures])
    probability = calibration.probability(found.features)
    curves = {
        name: recall_curve(values[agreed], found.right[agreed], possible)
        for name, values in (("cosine", cosine), ("probability", probability))
    }
    print(f"{possible} frames of the second drive have a positive; {len(found.closures)} proposals")
    for name, (recall, false) in curves.items():
        counts = "  ".join(
            f"{r:.1f}: {false_at_recall(recall, false, r):.0f}" for r in (0.5, 0.6, 0.7, 0.8, 0.9)
        )
        print(f"false closures at recall, {name:12s} {counts}")
    for risk in RISKS:
        quality = closure_quality(agreed & (probability >= 1 - risk), found.right, possible)
        recall, false = curves["cosine"]
        row = {
            "max_risk": risk,
            "accepted": quality.accepted,
            "false": quality.false,
            "precision": quality.precision,
            "recall": quality.recall,
            "false_cosine_at_recall": false_at_recall(recall, false, quality.recall),
        }
        print("  ".join(f"{key} {value:.4g}" for key, value in row.items()))
        if args.csv:
            append_row(args.csv, row)


if __name__ == "__main__":
    main()
