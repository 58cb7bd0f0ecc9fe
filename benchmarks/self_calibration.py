"""Self-calibration of maps against real queries, for several variants and spacings.

python benchmarks/self_calibration.py [--seeds 0 1 2] [--spacings 5 10 20] [--csv FILE]

Trains the small model of the demo (two minutes), builds a map of an unseen district of each city, calibrates
it on its own images in several variants, and evaluates the probabilities on 600 queries from the district and
67 from another one (10%). ``present`` is the fraction of queries whose image stays in the map, ``crop`` the
smallest part of the image that a query keeps. present 0, crop 1 removes every query image from the map; "by
density" is the default of the package.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image

from kappaplace.calibration.calibration import Calibration, query_features
from kappaplace.cli.demo import DemoSettings, train_model
from kappaplace.data.table import PlaceImages
from kappaplace.maps import PlaceMap
from kappaplace.maps.tune import self_calibrate
from kappaplace.maps.tune.calibrate import MATCHES, _by_position
from kappaplace.metrics import brier, log_loss
from kappaplace.retrieval.evidence import retrieve
from kappaplace_city import CityViews, SyntheticCity
from record import log_row, parse_options

BY_DENSITY = "by density"
WAYS = ((0.0, 1.0), (0.0, 0.5), (1.0, 1.0), (1.0, 0.5), (0.75, 1.0), (0.75, 0.5), (BY_DENSITY, 0.5))
"""present, crop"""
BINS = 10


def main() -> None:
    args = parse_options(__doc__, seeds=[0, 1, 2], spacings=[5.0, 10.0, 20.0], csv=Path)
    settings = DemoSettings()
    model = train_model(_city(0).views("train", spacing=20.0, strength=0.6, seed=0), settings, print)
    for seed in args.seeds:
        for spacing in args.spacings:
            with tempfile.TemporaryDirectory() as folder:
                for row in evaluated(Path(folder), model, seed, spacing, settings.size):
                    log_row(args.csv, row)


def _city(seed: int) -> SyntheticCity:
    return SyntheticCity(seed, (3, 3), aliased=0.12, featureless=0.12)


def evaluated(folder: Path, model: Any, seed: int, spacing: float, size: int) -> list[dict[str, Any]]:
    """Return one row per variant, on one map."""
    common: dict[str, Any] = {"queries": 600, "query_strength": 0.6, "seed": seed}
    inside = _city(seed).views("test", spacing=spacing, **common)
    outside = _city(seed).views("val", spacing=30.0, **common)
    table = _written(inside, folder / "here", size)
    elsewhere = _written(outside.select(outside.is_query).select(np.arange(67)), folder / "there", size)
    town = PlaceMap.build(table, folder / "map", model)
    queries = [*table.queries.image_paths(), *elsewhere.image_paths()]
    embeddings = town.embed(queries, 256)
    evidence = retrieve(town.queries(embeddings), town.references, MATCHES)
    matches = evidence.matches.indices
    right = np.zeros(len(queries), bool)
    right[: len(table.queries)] = _by_position(town, table.queries.positions, matches[: len(table.queries)])[
        0
    ][:, 0]
    rows = []
    for present, crop in WAYS:
        calibration = _calibrated(town, present, crop)
        metrics = _evaluate(calibration, query_features(evidence, calibration.scores), right)
        rows.append({"city": seed, "spacing": spacing, "present": present, "crop": crop, **metrics})
    return rows


def _calibrated(town: PlaceMap, present: float | str, crop: float) -> Calibration:
    """Self-calibrate with other constants than the default."""
    changed: dict[str, Any] = {"CROP": crop}
    if present != BY_DENSITY:
        changed |= {"PRESENT": present, "distinct_rate": lambda *_: 0.0}
    with ExitStack() as stack:
        for name, value in changed.items():
            stack.enter_context(patch.object(self_calibrate, name, value))
        return self_calibrate.self_calibrate_map(town)


def _written(views: CityViews, folder: Path, size: int) -> PlaceImages:
    folder.mkdir()
    names = [f"{i:05d}.png" for i in range(len(views.positions))]
    for name, image in zip(names, views.render(size), strict=True):
        Image.fromarray(np.asarray(image)).save(folder / name)
    columns = {"heading": views.heading, "is_query": views.is_query, "frame": "EPSG:32610"}
    return PlaceImages.create(names, views.positions, root=folder, name="city", **columns)


def _evaluate(calibration: Calibration, features: Any, right: Any) -> dict[str, Any]:
    probability = calibration.probability(features)
    decisions = calibration.decide(features)
    accepted, rejected = decisions == "accept", decisions == "reject"
    return {
        "right": round(float(right.mean()), 3),
        "mean probability": round(float(probability.mean()), 3),
        "ECE": round(_ece(probability, right), 3),
        "brier": round(brier(probability, right), 3),
        "log-loss": round(log_loss(probability, right), 3),
        "accepted": round(float(accepted.mean()), 3),
        "wrong of accepted": round(float((~right[accepted]).mean()), 3) if accepted.any() else "",
        "rejected": round(float(rejected.mean()), 3),
        "right of rejected": round(float(right[rejected].mean()), 3) if rejected.any() else "",
    }


def _ece(probability: Any, right: Any) -> float:
    """Return the gap of mean probability and fraction correct in ten bins, weighted by count."""
    home = np.minimum((probability * BINS).astype(int), BINS - 1)
    gaps = [abs((probability - right)[home == number].sum()) for number in range(BINS)]
    return float(sum(gaps) / len(right))


if __name__ == "__main__":
    main()
