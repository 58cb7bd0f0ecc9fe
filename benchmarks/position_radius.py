"""Is "within r metres with 95%" true, and is the mean of several matches better than the best one?

python benchmarks/position_radius.py --data DATA --maps FOLDER [--csv results/position_radius.csv]
python benchmarks/position_radius.py --sets simulated --splits 1000 --csv results/position_radius.csv

- simulated: ten cities (`kappaplace_city.drives`): a drive is the map, a second one through the same streets and
  a third one elsewhere are the queries. Metres; nothing is rendered.
- city: one rendered city, half of the queries calibrates. Metres.
- st_lucia, nordland_winter_summer: the last 40% of both drives, on which the included model was not trained. The
  map ends before the last 30% of it, so that about 30% of the queries are out-of-map. In frames.

Each split divides the places at random: one half calibrates, the other is tested. Rows:

- radius: fraction of the answers with a radius, fraction of the true positions within it, overall and by quarter
  of difficulty (of the uncertainty, among all tested answers), and the median radius.
- spread: the same for "± spread" of the matches that agree, which earlier versions printed, for k = 2 and 10.
- position: median error of near answers and error beyond which one in four is, of the best match and of means.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kappaplace import PlaceImages, PlaceMap, SyntheticCity
from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.examples import Examples, examples_of, join
from kappaplace.calibration.fit import fit_calibration
from kappaplace.calibration.options import CalibrateOptions, thin_to_places
from kappaplace.calibration.radius import LIMIT, distances, position_errors
from kappaplace.maps import BuildOptions
from kappaplace.retrieval.evidence import Evidence, retrieve
from kappaplace.retrieval.references import ArrayReferences, Queries
from kappaplace.slam.evaluation import same_place
from kappaplace_city.drives import CityDrive, drive_through, look_at
from record import Option, log_row, parse_options

ROUTES = {"st_lucia": 5.0, "nordland_winter_summer": 2.0}
"""Tolerance of each route in frames."""
START, KNOWN = 0.6, 0.7
"""Where the tested part of a route begins, and the fraction of it that the map shows."""
CITIES, SAME, K, BLOCK = 10, 12.0, 10, 64
LEVEL = 0.95
Floats = NDArray[np.float64]


class Answers:
    """Answers of one map with the poses of their candidates, stored as one file."""

    def __init__(self, examples: Examples, candidates: Floats, cosines: Floats, true: Floats) -> None:
        self.examples, self.candidates, self.cosines, self.true = examples, candidates, cosines, true

    def take(self, rows: NDArray[np.int64]) -> Answers:
        """Return some of the answers."""
        e = self.examples
        part = replace(
            e,
            features=e.features[rows],
            right=e.right[rows],
            outside=e.outside[rows],
            pairs=e.pairs[rows],
            pair_right=e.pair_right[rows],
            groups=e.groups[rows],
            errors=e.errors[rows],
            signals={},
            domain={},
            names=(),
        )
        return Answers(part, self.candidates[rows], self.cosines[rows], self.true[rows])


STORED = ("features", "right", "outside", "pairs", "pair_right", "groups", "errors")


def stored(file: Path, compute: object) -> Answers:
    """Return the answers of a file, which is written first if it does not exist."""
    if not file.exists():
        answers = compute()  # type: ignore[operator]
        e = answers.examples
        columns = {name: getattr(e, name) for name in STORED}
        words = {
            "scores": list(e.scores),
            "pair_scores": list(e.pair_scores),
            "limit": e.limit,
            "rerank": e.rerank,
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(
            file,
            meta=json.dumps(words),
            candidates=answers.candidates,
            cosines=answers.cosines,
            true=answers.true,
            **columns,
        )
    with np.load(file) as f:
        words = json.loads(str(f["meta"]))
        examples = Examples(**{name: f[name] for name in STORED}, **words)
        return Answers(examples, f["candidates"], f["cosines"], f["true"])


def of_map(town: PlaceMap, images: list[str], true: Floats) -> Answers:
    """Localize images whose true poses are known."""
    blocks, candidates, cosines = [], [], []
    radius, rerank = town.manifest.radius, town.rerank_count(None)
    for start in range(0, len(images), BLOCK):
        part, poses = images[start : start + BLOCK], true[start : start + BLOCK]
        embeddings = town.embed(part, patches=rerank > 0)
        evidence = retrieve(town.queries(embeddings, part), town.references, K, rerank=rerank)
        where = town.store.gather("poses", evidence.matches.indices)[..., :3]
        outside = np.array([not len(town.references.within((x, y, radius))) for x, y, _ in poses.tolist()])
        blocks.append(example_block(evidence, where, poses, outside, radius))
        candidates.append(where)
        cosines.append(evidence.cosines)
        print(f"{start + len(part)} of {len(images)}", flush=True)
    examples = join(blocks)
    examples = replace(examples, groups=places(true, radius))
    return Answers(examples, np.concatenate(candidates), np.concatenate(cosines), true)


def example_block(
    evidence: Evidence, where: Floats, poses: Floats, outside: NDArray[np.bool_], radius: float
) -> Examples:
    """Return the scores and errors of some queries."""
    gap = where[..., :2] - poses[:, None, :2]
    right = np.hypot(gap[..., 0], gap[..., 1]) <= radius
    errors = position_errors(where[:, 0], poses)
    return replace(examples_of(evidence, right, outside), errors=errors, limit=LIMIT * radius)


def places(true: Floats, radius: float) -> NDArray[np.int64]:
    """Return the place of each query: the nearest of places that are at least one radius apart."""
    centers = true[thin_to_places(true[:, :2], radius), :2]
    return np.hypot(*(true[:, None, :2] - centers[None]).transpose(2, 0, 1)).argmin(axis=1)


def route(data: Path, name: str, maps: Path) -> Answers:
    tolerance = ROUTES[name]
    positives = json.loads((data / name / "gt.json").read_text())["positives"]
    photos, references = (sorted(map(str, (data / name / side).iterdir())) for side in ("query", "ref"))
    true = np.array([np.median(rows) if rows else np.nan for rows in positives])
    first = int(START * len(references))
    rows = np.arange(first, first + int(KNOWN * (len(references) - first)))
    where = np.stack([rows.astype(float), np.zeros(len(rows))], 1)
    folder, options = maps / f"{name}.map", BuildOptions(radius=tolerance)
    table = PlaceImages.create(
        [references[row] for row in rows.tolist()], where, name=name, root="/", radius=tolerance
    )
    town = PlaceMap.open(folder) if folder.exists() else PlaceMap.build(table, folder, options=options)
    tested = np.flatnonzero(true >= first)
    poses = np.column_stack([true[tested], np.zeros(len(tested)), np.full(len(tested), np.nan)])
    return of_map(town, [photos[row] for row in tested.tolist()], poses)
