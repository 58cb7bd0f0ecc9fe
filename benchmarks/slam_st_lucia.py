"""Closures between two drives over one route (St Lucia, no odometry): precision and recall.

python benchmarks/slam_st_lucia.py --data DATA/st_lucia [--model MODEL] [--cache FOLDER] [--csv FILE]

Every second frame. The first drive is fed, then a stretch of the second one: the calibration learns from 60
to 70 % of the route, the last 30 % are asked; a model of this package's protocol, and the one that comes with
it, was trained on the first 60 %. A closure within the first drive, or with a frame that is no stated
positive, is false. Without and with ten matches compared cell by cell; fixed thresholds on cosine and on the
share of cells that agree beside them.

How sure the difference to the threshold on cosine is: bootstrap of blocks of 20 proposals in a row, the same
for both.
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
from kappaplace.slam.calibrate import Examples, examples_of, fit_closures, scores_for
from kappaplace.slam.evaluation import closure_quality, false_at_recall, recall_curve
from record import Option, append_row, log_row, parse_options
from slam_sequences import _st_lucia_embeddings

RISKS = (0.01, 0.05, 0.1, 0.2)
RECALLS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
COMPARED = 10


class Maps:
    """Feature maps by path, each made once and kept in a folder if there is one."""

    def __init__(self, model: Path | None, folder: Path | None) -> None:
        self.model = load_model(model)
        self.file = None if folder is None else folder / "maps.pt"
        self.known: dict[str, torch.Tensor] = {}
        if self.file is not None and self.file.is_file():
            self.known = torch.load(self.file)

    def __call__(self, images: Sequence[Any]) -> torch.Tensor:
        names = ["/".join(Path(path).parts[-2:]) for path in images]
        missing = [row for row, name in enumerate(names) if name not in self.known]
        if missing:
            made = embed_patches(self.model, self.model.preprocessing, [images[row] for row in missing])
            self.known |= {names[row]: one.clone() for row, one in zip(missing, made, strict=True)}
        return torch.stack([self.known[name] for name in names])

    def keep(self) -> None:
        if self.file is not None:
            torch.save(self.known, self.file)


def drive(args: argparse.Namespace, low: float, high: float) -> tuple[list[Frame], np.ndarray]:
    """The first drive and a stretch of the second, and which frames show one place."""
    stored = _st_lucia_embeddings(args.data, args.model, args.cache and args.cache / "embeddings.npz")
    paths = {part: sorted((args.data / part).glob("*.webp"))[::2] for part in ("ref", "query")}
    truth = json.loads((args.data / "gt.json").read_text())["positives"][::2]
    count = len(stored["ref_descriptor"])
    centre = np.array([np.median(frames) / 2 for frames in truth])
    rows = np.flatnonzero((centre >= low * count) & (centre < high * count))
    last = count if high == 1.0 else int(high * count)  # what comes later is not known yet

    def frame(part: str, row: int) -> Frame:
        return Frame(stored[f"{part}_descriptor"][row], float(stored[f"{part}_kappa"][row]), paths[part][row])

    frames = [frame("ref", row) for row in range(last)] + [frame("query", row) for row in rows]
    same = np.zeros((len(frames), len(frames)), bool)
    for at, row in enumerate(rows):
        positives = [each // 2 for each in truth[row] if each % 2 == 0 and each // 2 < last]
        same[last + at, positives] = True
    return frames, same


def proposals(frames: list[Frame], same: np.ndarray, verify: int, maps: Maps) -> Examples:
    settings = ClosingSettings(recent_frames=40, near_frames=5, verify=verify)
    closer = LoopCloser(None, settings, scores=scores_for(True, verify), patch_maps=maps)
    for frame in frames:
        closer.add(frame)
    return examples_of(closer, same)


Ranked = tuple[np.ndarray, np.ndarray]
"""Of every proposal: its confidence (−∞ where too few agree) and whether it is right."""


def paired(ours: Ranked, cosine: Ranked, found: Examples) -> list[dict[str, Any]]:
    """False closures of both at each recall, and how sure their difference is."""
    # Nothing of the first drive can be closed.
    second_drive = np.arange(len(found.closures)) >= np.argmin(found.outside)
    plan = Resampling.of(len(second_drive), strata=second_drive, block=ROUTE_BLOCK, resamples=2000)
    rows = []
    for recall in RECALLS:

        def false(value: np.ndarray, right: np.ndarray, outside: np.ndarray, wanted: float = recall) -> float:
            usable = np.isfinite(value)
            curve = recall_curve(value[usable], right[usable], int((~outside).sum()))
            count = false_at_recall(*curve, wanted)
            return count if np.isfinite(count) else np.nan  # a recall that is never reached

        a, b = (bootstrap(false, (*ranked, found.outside), plan) for ranked in (ours, cosine))
        difference = compare(a, b)
        rows.append(
            {
                "recall": recall,
                "ours": a.value,
                "cosine": b.value,
                "low": difference.low,
                "high": difference.high,
                "half": _share(a.samples <= b.samples / 2, np.isfinite(a.samples - b.samples)),
            }
        )
    return rows


def _share(marks: np.ndarray, defined: np.ndarray) -> float:
    return float(marks[defined].mean()) if defined.any() else float("nan")


def beside(file: Path | None, name: str) -> Path | None:
    """Return the path of another table next to a file, if there is one."""
    return file and file.with_name(f"{file.stem}_{name}.csv")


def main() -> None:
    args = parse_options(
        __doc__,
        data=Option(Path, required=True),
        model=Option(Path, help="the one that comes with the package, unless stated"),
        cache=Option(Path, help="folder for embeddings and feature maps"),
        csv=Path,
    )
    maps = Maps(args.model, args.cache)
    fixed: tuple[np.ndarray, np.ndarray] | None = None
    nearest: Ranked | None = None
    for verify in (0, COMPARED):
        # One frame in two of a slow drive: thinning by 2 keeps enough examples.
        calibration = fit_closures([proposals(*drive(args, 0.6, 0.7), verify, maps)], thin=2.0)
        found = proposals(*drive(args, 0.7, 1.0), verify, maps)
        maps.keep()
        possible, agreed = int((~found.outside).sum()), found.support >= 2
        probability = calibration.probability(found.features)
        ways = {"cosine": [c.similarity for c in found.closures], "probability": probability}
        if verify:
            ways["agreement"] = [c.agreement for c in found.closures]
        curves = {
            name: recall_curve(np.asarray(values)[agreed], found.right[agreed], possible)
            for name, values in ways.items()
        }
        fixed = fixed or curves["cosine"]  # of the nearest descriptors, as anybody would have it
        print(f"{possible} frames can be closed, {len(found.closures)} proposals, {verify} compared by cells")
        for name, curve in curves.items():
            counts = "  ".join(f"{r:.2f}: {false_at_recall(*curve, r):.0f}" for r in RECALLS)
            print(f"false closures at recall, {name:12s} {counts}")
        for risk in RISKS:
            quality = closure_quality(agreed & (probability >= 1 - risk), found.right, possible)
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
        ranks = {name: (np.where(agreed, values, -np.inf), found.right) for name, values in ways.items()}
        nearest = nearest or ranks["cosine"]
        for row in paired(ranks["probability"], nearest, found):
            row = {"compared": verify, **row}
            log_row(beside(args.csv, "paired"), row)
        for recall in RECALLS:
            at = {name: false_at_recall(*curve, recall) for name, curve in curves.items()}
            append_row(
                beside(args.csv, "curves"), {"compared": verify, "recall": recall, "agreement": np.nan, **at}
            )


if __name__ == "__main__":
    main()
