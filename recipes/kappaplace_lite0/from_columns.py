"""Fit the same calibration from the columns of benchmarks/real/run.py, without embedding images again.

python recipes/kappaplace_lite0/from_columns.py --columns columns/NAME.npz --out calibration.json

It uses the scores that work on unseen families (benchmarks/real/README.md). κ, aliasing and the z-score are
excluded, because their scales differ between datasets. The first ten matches are re-ranked by patch
agreement, like `localize` does with ``rerank``.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from calibrate import FIT_SHARE, OUTSIDE_RATE, spread
from domain import QUERIES, balanced
from numpy.typing import NDArray

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.combination import fit_combination
from kappaplace.calibration.domain import KAPPA, Domain, fit_domain
from kappaplace.calibration.examples import Examples
from kappaplace.calibration.fit import fit_calibration
from kappaplace.calibration.options import CalibrateOptions
from kappaplace.calibration.sources import ORIGIN
from kappaplace.data.appearance import APPEARANCE
from kappaplace.files import write_file
from kappaplace.maps.tune.monitor import DISTANCE

SCORES = ("cosine", "margin", "patches", "patch-margin")
PAIR_SCORES = ("cosine", "patches")
BENDS = 3  # curves instead of lines halve the error of probabilities on unseen families
ALONE = ("sped", "essex3in1")  # datasets with one image per place
FRAMES = 10  # frames of the same place on the other routes
NAMES = {
    "st_lucia": "St Lucia",
    "nordland_winter_summer": "Nordland",
    "sped": "SPED",
    "gp_dayleft_dayright": "Gardens Point",
    "gp_nightright_dayleft": "Gardens Point",
}


def ordered(
    columns: dict[str, NDArray], encoder: str, name: str, variant: str
) -> tuple[NDArray, NDArray, NDArray]:
    """Return scores N×F, pair scores N×K×2 and outcomes N×K of a dataset, with re-ranked matches."""
    key = f"{encoder}/{name}/{variant}"
    agreement = columns[f"{key}/agreement"].astype(np.float64)
    order = np.argsort(-agreement, axis=1, kind="stable")
    by = {
        what: np.take_along_axis(columns[f"{key}/{what}"], order, 1)
        for what in ("similarities", "indices", "hits")
    }
    agreement = np.take_along_axis(agreement, order, 1)
    similarity, place = by["similarities"].astype(np.float64), by["indices"].astype(np.int64)
    near = np.abs(place - place[:, :1]) <= (0 if name in ALONE else FRAMES)
    best_far = np.where(near, -np.inf, similarity).max(1)
    # If all ten show the same place, the best other place is that of the most similar match.
    stored = columns[f"{key}/margin"] + columns[f"{key}/similarities"][:, 0]
    best_far = np.where(np.isneginf(best_far), stored, best_far)
    patch_margin = np.where(near, 0.0, agreement).max(1) - agreement[:, 0]
    of_query = np.stack(
        [1 - similarity[:, 0], best_far - similarity[:, 0], 1 - agreement[:, 0], patch_margin], 1
    )
    return of_query, np.stack([1 - similarity, 1 - agreement], -1), by["hits"]


def fit(
    columns: dict[str, NDArray],
    encoder: str,
    head: str,
    families: dict[str, str] = NAMES,
    calibrator: str = "best",
) -> Calibration:
    """Fit on original, degraded and out-of-map queries of the datasets of some families."""
    parts = [(n, v) for n in families for v in ("clean", "damaged", "outside")]
    blocks = [ordered(columns, encoder, *part) for part in parts]
    features, pairs, hits = (np.concatenate(x) for x in zip(*blocks, strict=True))
    outside = np.concatenate(
        [np.full(len(x[0]), v == "outside") for x, (_, v) in zip(blocks, parts, strict=True)]
    )
    kappa = np.concatenate([columns[f"{head}/{n}/{v}/kappa_q"] for n, v in parts])
    examples = Examples(
        features,
        hits[:, 0],
        SCORES,
        pairs,
        hits,
        PAIR_SCORES,
        outside,
        signals={DISTANCE: features[:, 0], "kappa": kappa.astype(np.float64)},
        facts={ORIGIN: ", ".join(dict.fromkeys(families.values()))},
        rerank=hits.shape[1],
    )
    options = CalibrateOptions(
        max_risk=None, outside_rate=OUTSIDE_RATE, fit_share=FIT_SHARE, calibrator=calibrator
    )
    combination = fit_combination(features, hits[:, 0], SCORES, bends=BENDS)
    calibration = fit_calibration(examples, options, combination=combination)
    return replace(calibration, domain=domain_of(columns, encoder, head, families))


def domain_of(columns: dict[str, NDArray], encoder: str, head: str, names: dict[str, str]) -> Domain | None:
    """Return what correctly answered queries of each family look like; None without their appearance."""
    families: dict[str, list[tuple[NDArray, NDArray]]] = {}
    for name, family in names.items():
        if f"appearance/{name}" not in columns:
            return None
        features, _, hits = ordered(columns, encoder, name, "clean")
        rows, kappa = spread(len(features), QUERIES), columns[f"{head}/{name}/clean/kappa_q"]
        table = [features[rows], np.log(kappa[rows, None]), columns[f"appearance/{name}"]]
        families.setdefault(family, []).append((np.concatenate(table, 1), hits[rows, 0]))
    parts = []
    for blocks in families.values():
        table, right = (np.concatenate(part) for part in zip(*blocks, strict=True))
        part = fit_domain(dict(zip((*SCORES, KAPPA, *APPEARANCE), table.T, strict=True)), right)
        assert part is not None
        parts.append(part)
    return balanced(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--columns", type=Path, required=True)
    parser.add_argument("--encoder", default="contrastive")
    parser.add_argument("--head", default="layers-mlp")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with np.load(arguments.columns) as stored:
        calibration = fit({key: stored[key] for key in stored.files}, arguments.encoder, arguments.head)
    write_file(arguments.out, json.dumps(calibration.to_dict()) + "\n")
    print(
        f"{arguments.out}: {calibration.facts['queries']:,} queries, {calibration.facts['right']:,} correct"
    )


if __name__ == "__main__":
    main()
