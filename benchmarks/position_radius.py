"""Is "within r metres with 95%" true, and is the mean of several matches better than the best one?

python benchmarks/position_radius.py --data DATA --maps FOLDER [--csv results/position_radius.csv]
python benchmarks/position_radius.py --sets simulated --splits 1000 --csv results/position_radius.csv

- simulated: ten cities (`kappaplace_city.drives`): a drive is the map, a second one through the same streets
  and a third one elsewhere are the queries. Metres; nothing is rendered.
- city: one rendered city, half of the queries calibrates. Metres.
- st_lucia, nordland_winter_summer: the last 40% of both drives, on which the included model was not trained.
  The map ends before the last 30% of it, so that about 30% of the queries are out-of-map. In frames.

Each split divides the places at random: one half calibrates, the other is tested. Simulated cities use one
query per place, the others all (they have too few places). Rows:

- radius: fraction of the answers with a radius, fraction of the true positions within it, overall and by
  quarter of difficulty (of the uncertainty, among all tested answers), and the median radius.
- spread: the same for "± spread" of the matches that agree, which earlier versions printed, for k = 2 and 10,
  of the answers with a radius and with more than one match that agrees.
- position: median error of the answers with a radius, and error beyond which one in four is, of the best
  match and of means of the matches within the radius of a place, on the calibrating half (validation) and on
  the other one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
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


def rendered(maps: Path, seed: int) -> Answers:
    """Return the answers of a rendered city with references every ten metres, in four directions."""
    from PIL import Image

    views = SyntheticCity(seed, (2, 2)).views("test", queries=400, query_strength=0.5, seed=seed)
    folder = maps / f"city-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [f"{i:05d}.png" for i in range(len(views.positions))]
    if not (folder / paths[-1]).exists():
        for path, image in zip(paths, views.render(128), strict=True):
            Image.fromarray(np.asarray(image)).save(folder / path)
    rows = np.flatnonzero(~views.is_query)
    table = PlaceImages.create(
        [paths[row] for row in rows.tolist()],
        views.positions[rows],
        heading=views.heading[rows],
        root=folder,
        frame="EPSG:32610",
    )
    built = maps / f"city-{seed}.map"
    town = PlaceMap.open(built) if built.exists() else PlaceMap.build(table, built)
    queries = np.flatnonzero(views.is_query)
    return of_map(town, [str(folder / paths[row]) for row in queries.tolist()], views.poses[queries])


def simulated(seed: int) -> Answers:
    """Return the answers of a simulated city: nothing is rendered."""
    city = SyntheticCity(seed, (8, 8), aliased=0.3, featureless=0.15)
    first = drive_through(city, legs=120, seed=seed)
    drives = [drive_through(city, seed=seed + 5000, corners=first.corners)]
    drives.append(drive_through(city, legs=40, seed=seed + 9000))
    poses = poses_of(first)
    references = ArrayReferences(
        look_at(city, "test", first, seed=seed).embeddings,
        poses[:, :2],
        lambda a, b: same_place(first.truth, a, b, SAME),
    )
    blocks, candidates, cosines, true = [], [], [], []
    for number, drive in enumerate(drives):
        own = poses_of(drive)
        if number:  # the second drive of the queries only adds places that the map does not show
            gap = np.hypot(*(own[:, None, :2] - poses[None, :, :2]).transpose(2, 0, 1)).min(axis=1)
            rows = np.flatnonzero(gap > LIMIT * SAME)[::2]
        else:
            rows = np.arange(len(own))
        embeddings = look_at(city, "test", drive, seed=seed + 5000 + number).embeddings.take(rows)
        evidence = retrieve(Queries(embeddings), references, K)
        where = poses[evidence.matches.indices]
        blocks.append(example_block(evidence, where, own[rows], np.full(len(rows), number > 0), SAME))
        candidates.append(where)
        cosines.append(evidence.cosines)
        true.append(own[rows])
    whole = np.concatenate(true)
    examples = replace(join(blocks), groups=places(whole, SAME))
    return Answers(examples, np.concatenate(candidates), np.concatenate(cosines), whole)


def poses_of(drive: CityDrive) -> Floats:
    """Return x, y and heading."""
    return np.column_stack([drive.truth[:, :2], drive.heading])


class Counts:
    """Sums over splits."""

    def __init__(self, thin: bool) -> None:
        self.thin, self.tested = thin, 0
        self.known, self.inside = np.zeros(4), np.zeros(4)
        self.radii: list[Floats] = []
        self.spread_shown, self.spread_inside = dict.fromkeys((2, K), 0), dict.fromkeys((2, K), 0)
        self.errors: dict[tuple[str, str], list[Floats]] = {}

    def add(self, answers: Answers, seed: int) -> None:
        """Calibrate on one half of the places and test on the other."""
        rng = np.random.default_rng(seed)
        groups = answers.examples.groups
        rows = _one_per_place(groups, rng) if self.thin else np.arange(len(groups))
        place = rng.permutation(np.unique(groups))
        first = np.isin(groups[rows], place[: len(place) // 2])
        fit, test = answers.take(rows[first]), answers.take(rows[~first])
        options = CalibrateOptions(seed=seed, radius_level=LEVEL)
        calibration = fit_calibration(replace(fit.examples, labeled=False), options)
        model = calibration.radius
        if model is None:
            return
        u = calibration.uncertainty(test.examples.features)
        radius = model.estimate(u, test.candidates[:, 0, 2]).radius
        known, error = np.isfinite(radius), distances(test.examples.errors)
        quarter = np.argsort(np.argsort(u, kind="stable"), kind="stable") * 4 // len(u)
        self.tested += len(u)
        self.known += np.bincount(quarter[known], minlength=4)
        self.inside += np.bincount(quarter[known & (error <= radius)], minlength=4)
        self.radii.append(radius[known])
        weights = calibration.pair_probability(test.examples.pairs)
        near = fit.examples.limit / LIMIT
        for k in self.spread_shown:
            mean, spread, count = mean_position(test.candidates[:, :k], weights[:, :k], near)
            printed = known & (count > 1)
            self.spread_shown[k] += int(printed.sum())
            self.spread_inside[k] += int((_apart(mean, test.true) <= spread)[printed].sum())
        for part, own in (("validation", fit), ("test", test)):
            self._positions(part, own, calibration)

    def _positions(self, part: str, own: Answers, calibration: Calibration) -> None:
        u = calibration.uncertainty(own.examples.features)
        assert calibration.radius is not None
        known = np.isfinite(calibration.radius.estimate(u, own.candidates[:, 0, 2]).radius)
        near = own.examples.limit / LIMIT
        probability = calibration.pair_probability(own.examples.pairs)
        weights = {
            "mean by probability": probability,
            "mean by cosine": own.cosines,
            "mean by cosine, 50 times as steep": np.exp(50 * (own.cosines - own.cosines[:, :1])),
        }
        means = {name: mean_position(own.candidates, weight, near)[0] for name, weight in weights.items()}
        for name, mean in {"best match": own.candidates[:, 0, :2], **means}.items():
            error = _apart(mean, own.true)[known]
            self.errors.setdefault((part, name), []).append(error)

    def rows(self, name: str, splits: int) -> Iterator[dict[str, object]]:
        """Yield the rows of one set."""
        known, inside = self.known.sum(), self.inside.sum()
        by_quarter = " ".join(
            f"{i / n:.3f}" if n else "–" for i, n in zip(self.inside, self.known, strict=True)
        )
        shared = {"set": name, "splits": splits}
        radii = np.concatenate(self.radii)
        yield {
            **shared,
            "measure": f"radius {LEVEL:.0%}",
            "share": f"{known / self.tested:.3f}",
            "inside": f"{inside / max(known, 1):.3f}",
            "by quarter": by_quarter,
            "median": f"{np.median(radii):.1f}" if len(radii) else "–",
            "share by quarter": " ".join(f"{n / (self.tested / 4):.2f}" for n in self.known),
        }
        for k, shown in self.spread_shown.items():
            yield {
                **shared,
                "measure": f"spread of k={k}",
                "share": f"{shown / self.tested:.3f}",
                "inside": f"{self.spread_inside[k] / max(shown, 1):.3f}",
                "by quarter": "",
                "median": "",
                "share by quarter": "",
            }
        for (part, method), errors in self.errors.items():
            error = np.concatenate(errors)
            if not len(error):
                continue
            yield {
                **shared,
                "measure": f"{method}, {part}",
                "share": "",
                "inside": "",
                "by quarter": "",
                "median": f"{np.median(error):.2f} (75%: {np.quantile(error, 0.75):.2f})",
                "share by quarter": "",
            }


def mean_position(candidates: Floats, weights: Floats, radius: float) -> tuple[Floats, Floats, Floats]:
    """Return the mean of the matches within the radius of the best one, its spread, and their number."""
    gap = candidates[..., :2] - candidates[:, :1, :2]
    agree = np.hypot(gap[..., 0], gap[..., 1]) <= radius
    weight = np.where(agree, np.maximum(weights, 1e-12), 0.0)
    weight /= weight.sum(axis=1, keepdims=True)
    mean = (weight[..., None] * candidates[..., :2]).sum(axis=1)
    around = ((candidates[..., :2] - mean[:, None]) ** 2).sum(axis=2)
    return mean, np.sqrt((weight * around).sum(axis=1)), agree.sum(axis=1)


def _apart(position: Floats, true: Floats) -> Floats:
    return np.hypot(*(position - true[:, :2]).T)


def _one_per_place(groups: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    order = rng.permutation(len(groups))
    return order[np.unique(groups[order], return_index=True)[1]]


def main() -> None:
    """Print and store the rows of each set."""
    options = parse_options(
        __doc__,
        data=Option(Path, "folder of the datasets"),
        maps=Option(Path("build/position_radius"), "folder of the maps and answers", kind=Path),
        sets=["simulated", "city", *ROUTES],
        splits=200,
        csv=Path,
    )
    for name in options.sets:
        if name == "simulated":
            sources = [
                stored(options.maps / f"simulated-{n}.npz", lambda n=n: simulated(n)) for n in range(CITIES)
            ]
        elif name == "city":
            sources = [stored(options.maps / "city.npz", lambda: rendered(options.maps, 0))]
        else:
            file = options.maps / f"{name}.npz"
            sources = [stored(file, lambda name=name: route(options.data, name, options.maps))]
        counts = Counts(thin=name == "simulated")
        for split in range(options.splits):
            counts.add(sources[split % len(sources)], split)
        for row in counts.rows(name, options.splits):
            log_row(options.csv, row)


if __name__ == "__main__":
    main()
