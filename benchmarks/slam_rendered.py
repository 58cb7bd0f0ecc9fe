"""Loop closing on rendered drives: images of the synthetic city through a real model, 20 seeds.

python benchmarks/slam_rendered.py [--model MODEL] [--seeds 20] [--first-seed 0] [--cache FOLDER] [--csv FILE]

The drives, decisions and metrics of `slam_city.py`, but smaller (1.4 km, 2 × 2 blocks, an image every 6 m)
and with rendered images of 160 pixels, in good and bad weather, instead of simulated descriptors. The shipped
model is calibrated on eight other rendered cities, without and with patch matching of ten matches.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kappaplace.calibration.calibration import Calibration
from kappaplace.models.checkpoint import load_model
from kappaplace.models.embedding import embed_images, embed_patches
from kappaplace.slam import ClosingSettings, Frame, LoopCloser
from kappaplace.slam.calibrate import examples_of, fit_closures, scores_for
from kappaplace.slam.evaluation import same_place
from kappaplace.slam.pose_graph import IncrementalGraph
from kappaplace.types import Embeddings
from kappaplace_city import SyntheticCity
from kappaplace_city.drives import drive_through
from kappaplace_city.weather import harsh
from record import Option, append_row, parse_options
from slam_city import CALIBRATION_SEED, Drive, at_equal_recall, print_curves, rows_of, summary

SIZE, COMPARED = 160, 10


class RenderedImages:
    """The drive of one seed: poses, images, embeddings and patch agreements, with a cache."""

    def __init__(self, seed: int, model: Any, cache: Path | None) -> None:
        self.seed, self.model = seed, model
        self.preprocessing = replace(model.preprocessing, size=SIZE)
        city = SyntheticCity(seed, (2, 2), aliased=0.3, featureless=0.15)
        self.route = drive_through(city, seed=seed, legs=20, step=6.0)
        rng = np.random.default_rng([seed, 80])
        poses = np.column_stack([self.route.truth[:, :2], self.route.heading])
        stretch = np.arange(len(poses)) // 15
        weather = harsh(stretch.max() + 1, rng, 0.6).take(stretch)
        self.images = city.render(poses, weather, SIZE, rng.integers(0, 2**31, len(poses)), workers=1)
        self.file = None if cache is None else cache / f"{seed}.npz"
        self.agreements: dict[tuple[int, int], float] = {}
        stored = self._stored()
        if stored is None:
            new = embed_images(model, self.preprocessing, list(self.images), progress=False)
            self.embeddings = Embeddings(new.descriptor, new.kappa)
            self.keep()
        else:
            self.embeddings = Embeddings(stored["descriptor"], stored["kappa"])
            pairs = [(query, match) for query, match in stored["pairs"].tolist()]
            self.agreements = dict(zip(pairs, stored["agreement"].tolist(), strict=True))

    def _stored(self) -> dict[str, Any] | None:
        if self.file is None or not self.file.is_file():
            return None
        return dict(np.load(self.file))

    def closer(self, calibration: Calibration | None, verify: int, max_risk: float) -> LoopCloser:
        return LoopCloser(
            calibration,
            ClosingSettings(verify=verify, max_risk=max_risk),
            scores=scores_for(True, verify),
            patch_maps=partial(embed_patches, self.model, self.preprocessing),
            agreements=self.agreements,
        )

    def keep(self, closer: LoopCloser | None = None) -> None:
        if closer is not None and closer.cells is not None:
            self.agreements = dict(closer.cells.agreements)
        if self.file is not None:
            pairs = np.array(list(self.agreements), np.int64).reshape(-1, 2)
            columns = {"descriptor": self.embeddings.descriptor, "kappa": self.embeddings.kappa}
            np.savez(self.file, **columns, pairs=pairs, agreement=list(self.agreements.values()))


class RenderedDrive(Drive):
    """A rendered drive, evaluated like a simulated one."""

    def __init__(
        self, source: RenderedImages, calibration: Calibration | None, verify: int, max_risk: float
    ) -> None:
        self.seed, self.calibration, self.route = source.seed, calibration, source.route
        closer = source.closer(calibration, verify, max_risk)
        self.incremental = IncrementalGraph()
        columns = (source.embeddings.descriptor, source.embeddings.kappa, source.images, self.route.odometry)
        for z, kappa, image, pose in zip(*columns, strict=True):
            self.incremental.add(pose, closer.add(Frame(z, float(kappa), image, pose)))
        source.keep(closer)
        rows = np.arange(len(self.route.truth))
        self.proposals = examples_of(closer, same_place(self.route.truth, rows[:, None], rows[None]))


def main() -> None:
    args = parse_options(
        __doc__,
        model=Option(str, help="name or folder; default: the shipped model"),
        seeds=20,
        first_seed=0,
        calibration=Option(8, help="number of drives for calibration"),
        max_risk=0.1,
        compared=Option([0, COMPARED], help="numbers of re-ranked matches"),
        cache=Option(Path, help="folder for embeddings"),
        csv=Path,
    )
    model = load_model(args.model)
    if args.cache:
        args.cache.mkdir(parents=True, exist_ok=True)
    training = [
        RenderedImages(CALIBRATION_SEED + number, model, args.cache) for number in range(args.calibration)
    ]
    test = [RenderedImages(args.first_seed + number, model, args.cache) for number in range(args.seeds)]
    rows: list[dict[str, Any]] = []
    plain: list[Drive] = []
    for verify in args.compared:
        fitted_on = [RenderedDrive(source, None, verify, args.max_risk) for source in training]
        calibration = fit_closures([drive.proposals for drive in fitted_on])
        drives: list[Drive] = [RenderedDrive(source, calibration, verify, args.max_risk) for source in test]
        plain = plain or drives
        name = "ours, cells compared" if verify else "ours"
        print(f"{name}:")
        print_curves(drives)
        # Fixed thresholds use the nearest descriptor without re-ranking.
        recall, thresholds = at_equal_recall(drives, fitted_on, plain)
        print(f"recall {recall:.3f}")
        for drive, other in zip(drives, plain, strict=True):
            fixed = [row for row in rows_of(other, *thresholds) if row["closures"] != "ours"]
            own = [row for row in rows_of(drive, *thresholds) if row["closures"] == "ours"]
            facts = {"beside": name, "max_risk": args.max_risk}
            rows += [row | facts for row in fixed] + [row | facts | {"closures": name} for row in own]
        summary([row for row in rows if row["beside"] == name])
        for row in rows:
            if row["beside"] == name:
                append_row(args.csv, row)


if __name__ == "__main__":
    main()
