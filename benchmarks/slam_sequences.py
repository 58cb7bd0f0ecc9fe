"""Sequences: a Bayes filter on match probabilities against SeqSLAM's averages, for 1 to 10 consecutive
images.

python benchmarks/slam_sequences.py [--seeds 5] [--csv results/slam_sequences.csv] [--picture FILE]
                                    [--st-lucia DATA/st_lucia --model MODEL [--cache FILE]]

Synthetic: a second drive over the route of the first in other weather, both simulated; the filter has
    odometry.
St Lucia: every second frame of two drives without odometry, tested where the model was not trained (the last
30% of the route) and calibrated on the stretch before (60 to 70%). The filter starts without knowledge for
every query and length. AUROC uses the probability of the filter; for averages, the margin to the best frame
of another place.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.combination import features_of
from kappaplace.calibration.examples import Examples
from kappaplace.calibration.fit import fit_calibration
from kappaplace.calibration.options import CalibrateOptions
from kappaplace.data.poses import between
from kappaplace.metrics import auroc
from kappaplace.retrieval.evidence import Evidence, retrieve
from kappaplace.retrieval.references import ArrayReferences, Queries
from kappaplace.slam import HistogramFilter, PoseMotion, RouteMotion, place_matrix
from kappaplace.slam.calibrate import WITH_KAPPA
from kappaplace.slam.evaluation import same_place
from kappaplace.types import Embeddings, Matches
from kappaplace.uncertainty import SCORES
from kappaplace_city import SyntheticCity
from kappaplace_city.drives import drive_through, look_at
from record import Option, append_row, parse_options

LENGTHS = tuple(range(1, 11))
FEWEST_WRONG = 10
"""Smallest number of incorrect queries for an AUROC."""
K = 20


class Route(NamedTuple):
    """Two drives over one route."""

    query: Embeddings
    reference: Embeddings
    right: np.ndarray
    """Whether a frame of the map shows the place of a query, N×R."""
    near: np.ndarray
    """Which frames of the map show the same place, R×R."""
    alike: np.ndarray
    """The same as weights that decrease with the distance, R×R."""
    steps: list[csr_matrix]
    """Motion matrix from each query to the next."""
    motion: Any


def simulated(seed: int) -> Route:
    city = SyntheticCity(seed, (4, 4), aliased=0.3, featureless=0.15)
    first = drive_through(city, legs=40, seed=seed)
    second = drive_through(city, seed=seed + 5000, corners=first.corners)
    embeddings = [
        look_at(city, "test", drive, seed=number).embeddings
        for drive, number in ((first, seed), (second, seed + 5000))
    ]
    rows, queries = np.arange(len(first.truth)), np.arange(len(second.truth))
    both = np.concatenate([first.truth, second.truth])
    near = same_place(both, rows[:, None], rows[None], 12.0)
    right = same_place(both, queries[:, None] + len(rows), rows[None], 12.0)
    gap = first.truth[:, None, :2] - first.truth[None, :, :2]
    alike = near * np.exp(-0.5 * (gap**2).sum(axis=2) / 4.0**2)
    motion = PoseMotion(first.truth)
    motions = between(second.odometry[:-1], second.odometry[1:])
    return Route(
        embeddings[1], embeddings[0], right, near, alike, [motion.matrix(step) for step in motions], motion
    )


def st_lucia(data: Path, model: Path, cache: Path | None, low: float, high: float) -> Route:
    """Return the queries of a stretch, with the whole first drive as the map."""
    stored = _st_lucia_embeddings(data, model, cache)
    truth = json.loads((data / "gt.json").read_text())["positives"][::2]
    reference = Embeddings(stored["ref_descriptor"], stored["ref_kappa"])
    count = len(reference.descriptor)
    right = np.zeros((len(truth), count), bool)
    for row, frames in enumerate(truth):
        right[row, [frame // 2 for frame in frames if frame % 2 == 0]] = True
    center = np.array([np.median(frames) / 2 for frames in truth])
    rows = np.flatnonzero((center >= low * count) & (center < high * count))
    index = np.arange(count)
    gap = np.abs(index[:, None] - index[None])
    near = gap <= 2  # five frames of the drive itself
    motion = RouteMotion(count)
    query = Embeddings(stored["query_descriptor"], stored["query_kappa"]).take(rows)
    alike = near * np.exp(-0.5 * gap**2)
    steps = [motion.matrix()] * (len(rows) - 1)
    return Route(query, reference, right[rows], near, alike, steps, motion)


def _st_lucia_embeddings(data: Path, model: Path, cache: Path | None) -> dict[str, np.ndarray]:
    if cache is not None and cache.is_file():
        return dict(np.load(cache))
    from kappaplace.models.checkpoint import load_model

    loaded, out = load_model(model), {}
    for part in ("ref", "query"):
        made = loaded.embed(sorted((data / part).glob("*.webp"))[::2])
        out |= {f"{part}_descriptor": made.descriptor, f"{part}_kappa": made.kappa}
    if cache is not None:
        np.savez(cache, **out)
    return out


def evidence_of(route: Route) -> Evidence:
    references = ArrayReferences(route.reference, neighborhood=lambda a, b: route.near[a, b])
    return retrieve(Queries(route.query), references, K)


def calibrated(routes: list[Route]) -> Calibration:
    """Fit probabilities of best matches and of pairs."""
    features, pairs, right, hits = [], [], [], []
    for route in routes:
        evidence = evidence_of(route)
        features.append(features_of(evidence, [SCORES[name] for name in WITH_KAPPA]))
        pairs.append(_pairs(evidence))
        hit = np.take_along_axis(route.right, evidence.matches.indices, 1)
        hits.append(hit)
        right.append(hit[:, 0])
    examples = Examples(
        np.concatenate(features),
        np.concatenate(right),
        WITH_KAPPA,
        np.concatenate(pairs),
        np.concatenate(hits),
        ("cosine", "kappaplace"),
    )
    return fit_calibration(examples, CalibrateOptions(max_risk=None))


def _pairs(evidence: Evidence) -> np.ndarray:
    return np.stack([SCORES[name].match(evidence) for name in ("cosine", "kappaplace")], axis=-1)  # type: ignore[misc]


def evaluated(route: Route, calibration: Calibration) -> list[dict[str, Any]]:
    evidence = evidence_of(route)
    matches: Matches = evidence.matches
    pairs = calibration.pair_probability(_pairs(evidence))
    # The probability of the answer is distributed over the matches in proportion to their pair probabilities.
    top = calibration.probability(features_of(evidence, [SCORES[name] for name in WITH_KAPPA]))
    pairs = pairs / pairs.max(axis=1, keepdims=True) * top[:, None]
    candidates = np.flatnonzero(route.right.any(axis=1))
    candidates = candidates[candidates >= max(LENGTHS) - 1]
    similarity = np.asarray(route.query.descriptor @ route.reference.descriptor.T)
    place = place_matrix(route.alike)
    rows = []
    for length in LENGTHS:
        rows.append(
            {"method": "average", "length": length, **_average(route, similarity, candidates, length)}
        )
        rows.append(
            {
                "method": "filter",
                "length": length,
                **_filter(route, place, matches, pairs, candidates, length),
            }
        )
    return rows


def average_scores(
    similarities: np.ndarray, length: int, speeds: Sequence[float] = (0.8, 0.9, 1.0, 1.1, 1.2)
) -> np.ndarray:
    """Average similarities along the best straight line of a route (SeqSLAM).

    Lines of the first queries are shorter; lines that would leave the map stay at its first frame.

    Args:
        similarities: Similarities of queries and map frames in order, N×R.
        length: Number of queries per line.
        speeds: Map frames per query frame.

    Returns:
        Mean similarity along the best line that ends at each query and map frame, N×R.
    """
    values = np.asarray(similarities, np.float64)
    queries, references = values.shape
    columns = np.arange(references)
    best = np.full(values.shape, -np.inf)
    for speed in speeds if length > 1 else speeds[:1]:
        total, used = np.zeros_like(values), np.zeros((queries, 1))
        for back in range(length):
            shifted = np.maximum(columns - round(back * speed), 0)
            total[back:] += values[: queries - back][:, shifted]
            used[back:] += 1
        best = np.maximum(best, total / used)
    return best


def _average(route: Route, similarity: np.ndarray, candidates: np.ndarray, length: int) -> dict[str, float]:
    scores = average_scores(similarity, length)[candidates]
    best = scores.argmax(axis=1)
    elsewhere = np.where(route.near[best], -np.inf, scores).max(axis=1)
    right = route.right[candidates, best]
    return _facts(right, elsewhere - scores.max(axis=1))


def _filter(
    route: Route, place: csr_matrix, matches: Matches, pairs: np.ndarray, candidates: np.ndarray, length: int
) -> dict[str, float]:
    best, confidence = [], []
    belief = HistogramFilter(route.motion, place)
    for query in candidates:
        belief.reset()
        for row in range(query - length + 1, query + 1):
            if row > query - length + 1:
                belief.advance(route.steps[row - 1])
            belief.see(matches.indices[row], pairs[row])
        estimate = belief.estimate
        best.append(estimate.frame)
        confidence.append(estimate.probability)
    return _facts(route.right[candidates, np.array(best)], -np.array(confidence))


def _facts(right: np.ndarray, uncertainty: np.ndarray) -> dict[str, float]:
    return {
        "queries": len(right),
        "recall_at_1": float(right.mean()),
        "auroc": float(auroc(uncertainty, right)),
    }


def main() -> None:
    args = parse_options(
        __doc__,
        seeds=5,
        csv=Path,
        picture=Path,
        st_lucia=Path,
        model=Path,
        cache=Option(Path, help="file for the embeddings of St Lucia"),
    )
    rows = []
    if args.seeds:
        calibration = calibrated([simulated(2000 + number) for number in range(4)])
        for seed in range(args.seeds):
            rows += [
                {"set": "synthetic", "seed": seed, **row} for row in evaluated(simulated(seed), calibration)
            ]
    if args.st_lucia:
        source = (args.st_lucia, args.model, args.cache)
        calibration = calibrated([st_lucia(*source, 0.6, 0.7)])
        rows += [
            {"set": "st_lucia", "seed": 0, **row}
            for row in evaluated(st_lucia(*source, 0.7, 1.0), calibration)
        ]
    for row in rows:
        append_row(args.csv, row)
    _summary(rows)
    if args.picture:
        _draw(rows, args.picture)


def _means(rows: list[dict[str, Any]], name: str, method: str, metric: str) -> list[float]:
    """Return the mean over seeds per length; NaN if there are too few incorrect queries for an AUROC."""
    out = []
    for length in LENGTHS:
        own = [r for r in rows if (r["set"], r["method"], r["length"]) == (name, method, length)]
        wrong = sum((1 - r["recall_at_1"]) * r["queries"] for r in own)
        values = [r[metric] for r in own if np.isfinite(r[metric])]
        enough = metric != "auroc" or wrong >= FEWEST_WRONG
        out.append(float(np.mean(values)) if values and enough else float("nan"))
    return out


def _summary(rows: list[dict[str, Any]]) -> None:
    for name in dict.fromkeys(row["set"] for row in rows):
        for what in ("recall_at_1", "auroc"):
            for method in ("average", "filter"):
                values = "  ".join(f"{value:.3f}" for value in _means(rows, name, method, what))
                print(f"{name:10s} {what:12s} {method:8s} {values}")


def _draw(rows: list[dict[str, Any]], file: Path) -> None:
    import matplotlib

    from kappaplace.reports.figures import COLORS, PLOT_STYLE, new_figure

    names = list(dict.fromkeys(row["set"] for row in rows))
    with matplotlib.rc_context(PLOT_STYLE):
        figure = new_figure(7.5, 2.8 * len(names))
        grid = figure.subplots(len(names), 2, squeeze=False)
        for line, name in zip(grid, names, strict=True):
            for axis, what, label in zip(line, ("recall_at_1", "auroc"), ("R@1", "AUROC"), strict=True):
                for method, color in (("average", COLORS[1]), ("filter", COLORS[0])):
                    means = _means(rows, name, method, what)
                    if not np.isfinite(means[-1]):
                        note = f"fewer than {FEWEST_WRONG} incorrect queries"
                        axis.text(0.5, 0.5, note, transform=axis.transAxes, ha="center", fontsize=9)
                        axis.set_xticks([])
                        axis.set_yticks([])
                        break
                    axis.plot(LENGTHS, means, "o-", color=color, label=method)
                axis.set_title(f"{name.replace('_', ' ')}: {label}")
                axis.set_xlabel("consecutive images")
            line[0].legend()
        figure.savefig(file, dpi=110)


if __name__ == "__main__":
    main()
