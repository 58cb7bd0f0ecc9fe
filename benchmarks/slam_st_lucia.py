"""Closures between two drives over one route (St Lucia, no odometry): precision and recall.

python benchmarks/slam_st_lucia.py --data DATA/st_lucia [--model MODEL] [--cache FOLDER] [--csv FILE]

Uses every second frame: the first drive, followed by a stretch of the second one. The calibration is fitted
on 60 to 70% of the route and tested on the last 30%; the model was trained on the first 60%. A closure within
the first drive, or with a frame that is not a listed positive, is false. Compares probabilities, without and
with patch matching of ten matches, with fixed thresholds on cosine and on the patch agreement.

Intervals of the difference to the threshold on cosine: bootstrap of blocks of 20 consecutive proposals, the
same for both.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kappaplace.metrics import ROUTE_BLOCK, Resampling, bootstrap, compare
from kappaplace.models.checkpoint import load_model
from kappaplace.models.embedding import embed_patches
from kappaplace.slam import ClosingSettings, Frame, LoopCloser
from kappaplace.slam.calibrate import DriveExamples, examples_of, fit_closures, scores_for
from kappaplace.slam.evaluation import closure_quality, false_at_recall, recall_curve
from record import Option, append_row, log_row, parse_options
from slam_sequences import _st_lucia_embeddings

RISKS = (0.01, 0.05, 0.1, 0.2)
RECALLS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
COMPARED = 10


class Maps:
    """Patch features by path, computed once and kept in a folder, if any."""

    def __init__(self, model: Path | None, folder: Path | None) -> None:
        self.model = load_model(model)
        self.file = None if folder is None else folder / "maps.pt"
        self.maps: dict[str, torch.Tensor] = {}
        if self.file is not None and self.file.is_file():
            self.maps = torch.load(self.file)

    def __call__(self, images: Sequence[Any]) -> torch.Tensor:
        names = ["/".join(Path(path).parts[-2:]) for path in images]
        missing = [row for row, name in enumerate(names) if name not in self.maps]
        if missing:
            new = embed_patches(self.model, self.model.preprocessing, [images[row] for row in missing])
            self.maps |= {names[row]: one.clone() for row, one in zip(missing, new, strict=True)}
        return torch.stack([self.maps[name] for name in names])

    def keep(self) -> None:
        if self.file is not None:
            torch.save(self.maps, self.file)


def drive(args: argparse.Namespace, low: float, high: float) -> tuple[list[Frame], np.ndarray]:
    """Return the first drive with a stretch of the second, and which frames show the same place."""
    stored = _st_lucia_embeddings(args.data, args.model, args.cache and args.cache / "embeddings.npz")
    paths = {part: sorted((args.data / part).glob("*.webp"))[::2] for part in ("ref", "query")}
    truth = json.loads((args.data / "gt.json").read_text())["positives"][::2]
    count = len(stored["ref_descriptor"])
    center = np.array([np.median(frames) / 2 for frames in truth])
    rows = np.flatnonzero((center >= low * count) & (center < high * count))
    last = count if high == 1.0 else int(high * count)  # later frames are not used

    def frame(part: str, row: int) -> Frame:
        return Frame(stored[f"{part}_descriptor"][row], float(stored[f"{part}_kappa"][row]), paths[part][row])

    frames = [frame("ref", row) for row in range(last)] + [frame("query", row) for row in rows]
    same = np.zeros((len(frames), len(frames)), bool)
    for at, row in enumerate(rows):
        positives = [each // 2 for each in truth[row] if each % 2 == 0 and each // 2 < last]
        same[last + at, positives] = True
    return frames, same


def proposals(frames: list[Frame], same: np.ndarray, verify: int, maps: Maps) -> DriveExamples:
    settings = ClosingSettings(recent_frames=40, near_frames=5, verify=verify)
    closer = LoopCloser(None, settings, scores=scores_for(True, verify), patch_maps=maps)
    for frame in frames:
        closer.add(frame)
    return examples_of(closer, same)


Ranked = tuple[np.ndarray, np.ndarray]
"""Confidence of every proposal (−∞ without enough support), and whether it is correct."""


def paired(ours: Ranked, cosine: Ranked, examples: DriveExamples) -> list[dict[str, Any]]:
    """Compare the false closures of both at each recall, with intervals of the difference."""
    # Nothing of the first drive can be closed.
    second_drive = np.arange(len(examples.closures)) >= np.argmin(examples.outside)
    plan = Resampling.of(len(second_drive), strata=second_drive, block=ROUTE_BLOCK, resamples=2000)
    rows = []
    for recall in RECALLS:

        def false(value: np.ndarray, right: np.ndarray, outside: np.ndarray, target: float = recall) -> float:
            usable = np.isfinite(value)
            curve = recall_curve(value[usable], right[usable], int((~outside).sum()))
            count = false_at_recall(*curve, target)
            return count if np.isfinite(count) else np.nan  # the recall is never reached

        a, b = (bootstrap(false, (*ranked, examples.outside), plan) for ranked in (ours, cosine))
        difference = compare(a, b)
        rows.append(
            {
                "recall": recall,
                "ours": a.value,
                "cosine": b.value,
                "low": difference.low,
                "high": difference.high,
                "half": _fraction(a.samples <= b.samples / 2, np.isfinite(a.samples - b.samples)),
            }
        )
    return rows


def _fraction(marks: np.ndarray, defined: np.ndarray) -> float:
    return float(marks[defined].mean()) if defined.any() else float("nan")


def beside(file: Path | None, name: str) -> Path | None:
    """Return the path of another table next to a file, if there is one."""
    return file and file.with_name(f"{file.stem}_{name}.csv")


def main() -> None:
    args = parse_options(
        __doc__,
        data=Option(Path, required=True),
        model=Option(Path, help="default: the shipped model"),
        cache=Option(Path, help="folder for embeddings and patch features"),
        csv=Path,
    )
    maps = Maps(args.model, args.cache)
    fixed: tuple[np.ndarray, np.ndarray] | None = None
    nearest: Ranked | None = None
    for verify in (0, COMPARED):
        # Half of the frames of a slow drive: a spacing of 2 frames keeps enough examples.
        calibration = fit_closures([proposals(*drive(args, 0.6, 0.7), verify, maps)], thin=2.0)
        examples = proposals(*drive(args, 0.7, 1.0), verify, maps)
        maps.keep()
        possible, agreed = int((~examples.outside).sum()), examples.support >= 2
        probability = calibration.probability(examples.features)
        signals = {"cosine": [c.similarity for c in examples.closures], "probability": probability}
        if verify:
            signals["agreement"] = [c.agreement for c in examples.closures]
        curves = {
            name: recall_curve(np.asarray(values)[agreed], examples.right[agreed], possible)
            for name, values in signals.items()
        }
        fixed = fixed or curves["cosine"]  # of the nearest descriptors, without re-ranking
        print(f"{possible} frames can be closed, {len(examples.closures)} proposals, {verify} re-ranked")
        for name, curve in curves.items():
            counts = "  ".join(f"{r:.2f}: {false_at_recall(*curve, r):.0f}" for r in RECALLS)
            print(f"false closures at recall, {name:12s} {counts}")
        for risk in RISKS:
            quality = closure_quality(agreed & (probability >= 1 - risk), examples.right, possible)
            row = {
                "compared": verify,
                "max_risk": risk,
                "accepted": quality.accepted,
                "false": quality.false,
                "precision": quality.precision,
                "recall": quality.recall,
                "false_cosine_at_recall": false_at_recall(*fixed, quality.recall),
            }
            log_row(args.csv, row)
        ranks = {
            name: (np.where(agreed, values, -np.inf), examples.right) for name, values in signals.items()
        }
        nearest = nearest or ranks["cosine"]
        for row in paired(ranks["probability"], nearest, examples):
            row = {"compared": verify, **row}
            log_row(beside(args.csv, "paired"), row)
        for recall in RECALLS:
            at = {name: false_at_recall(*curve, recall) for name, curve in curves.items()}
            append_row(
                beside(args.csv, "curves"), {"compared": verify, "recall": recall, "agreement": np.nan, **at}
            )


if __name__ == "__main__":
    main()
