"""Fit the calibration that is shipped with the model, on datasets of several families of places.

python recipes/kappaplace_lite0/calibrate.py --model runs/lite0/model --out calibration.json \
    --set sped=DATA/sped --set gardens=DATA/gp_dayleft_dayright --set gardens=DATA/gp_nightright_dayleft

A dataset is a folder with positives, or a table; the text before = is its family. Every dataset becomes a
map, with the scores of the map in production. Each map also gets queries of other families, which are
out-of-map.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.examples import Examples, examples_of, join
from kappaplace.calibration.fit import fit_calibration
from kappaplace.calibration.options import CalibrateOptions
from kappaplace.calibration.sources import ORIGIN
from kappaplace.data import TABLE_FORMATS, PlaceImages, read_layout
from kappaplace.errors import KappaPlaceError
from kappaplace.files import write_file
from kappaplace.maps import PlaceMap
from kappaplace.maps.tune.calibrate import collect_evidence
from kappaplace.models.checkpoint import AnyModel, load_model

MOST = 400  # queries per dataset, so that no family dominates
FOREIGN = 50  # out-of-map queries per map
OUTSIDE_RATE = 0.1  # assumed fraction of out-of-map queries in production
TRUTH = {"gt.json": "gt-json", "ground_truth_new.npy": "vpr-bench", "ground_truth.npy": "vpr-bench"}
"""Layout of a folder, by the file with its positives."""
FIT_SHARE = 0.9  # there is no guarantee, so nearly all queries are used for the fit


def spread(count: int, most: int) -> NDArray[np.int64]:
    """Return up to ``most`` rows, evenly along a route."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def read_table(path: Path) -> PlaceImages:
    """Read queries and references of a folder or table."""
    if path.is_file() and path.suffix.lower() in TABLE_FORMATS:
        table = PlaceImages.open(path)
    else:
        layouts = [layout for file, layout in TRUTH.items() if (path / file).is_file()]
        if path.is_dir() and not layouts:
            raise KappaPlaceError(f"{path} has none of {', '.join(TRUTH)}. Pass a table of `data import`.")
        table = read_layout((layouts or ["gt-json"])[0], path)
    if not table.positives().counts.any():
        raise KappaPlaceError(f"No query of {path} has a positive. Check its {', '.join(TRUTH)}.")
    return table


def ask(place_map: PlaceMap, files: list[str], right: list[NDArray[np.int64]], verify: int) -> Examples:
    """Return the scores of queries on a map; ``right`` are the correct references of each query, if any."""
    evidence = collect_evidence(place_map, files, verify)
    matches = evidence.matches.indices
    hits = np.stack([np.isin(row, answers) for row, answers in zip(matches, right, strict=True)])
    return examples_of(evidence, hits, np.array([len(answers) == 0 for answers in right]))


def gather(
    model: AnyModel,
    sets: list[tuple[str, PlaceImages]],
    verify: int = 0,
    *,
    most: int = MOST,
    foreign: int = FOREIGN,
) -> Examples:
    """Collect examples of all datasets, each as its own map, and of queries that no map of theirs has."""
    blocks = []
    for family, table in sets:
        with tempfile.TemporaryDirectory() as folder:
            place_map = PlaceMap.build(table, Path(folder) / "map", model)
            names = place_map.store.find(table.references.paths.tolist())
            rows, positives = spread(len(table.query_rows), most), table.positives()
            files = table.image_paths(table.query_rows[rows])
            blocks.append(ask(place_map, files, [names[positives.of(int(row))] for row in rows], verify))
            others = [each for kind, each in sets if kind != family] if foreign else []
            files = [
                path
                for other in others
                for path in other.image_paths(
                    other.query_rows[spread(len(other.query_rows), max(foreign // len(others), 1))]
                )
            ]
            if files:
                blocks.append(ask(place_map, files, [np.empty(0, np.int64)] * len(files), verify))
            place_map.close()
    return join(blocks)


def fit(examples: Examples, families: list[str], verify: int = 0) -> Calibration:
    """Fit probabilities of answers and of pairs, without guaranteed thresholds."""
    assert examples.outside is not None
    rate = OUTSIDE_RATE if examples.outside.any() else None
    options = CalibrateOptions(max_risk=None, outside_rate=rate, fit_share=FIT_SHARE)
    return fit_calibration(replace(examples, facts={ORIGIN: ", ".join(families)}, rerank=verify), options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--set", action="append", required=True, metavar="FAMILY=DIR", dest="sets")
    parser.add_argument(
        "--verify", type=int, default=10, help="number of matches to re-rank by patch matching"
    )
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    parts = [word.partition("=") for word in arguments.sets]
    if not all(equals for _, equals, _ in parts):
        raise KappaPlaceError("Pass each dataset as --set FAMILY=DIR.")
    sets = [(family, read_table(Path(folder))) for family, _, folder in parts]
    families = list(dict.fromkeys(family for family, _ in sets))
    calibration = fit(gather(load_model(arguments.model), sets, arguments.verify), families, arguments.verify)
    write_file(arguments.out, json.dumps(calibration.to_dict()) + "\n")
    facts = calibration.facts
    print(
        f"{arguments.out}: {facts['queries']:,} queries, {facts['right']:,} correct, "
        f"{', '.join(calibration.scores)}"
    )


if __name__ == "__main__":
    try:
        main()
    except KappaPlaceError as error:
        raise SystemExit(str(error)) from None
