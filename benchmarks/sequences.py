"""Sequences of images against single images and SeqSLAM's averages, on two real routes, in frames.

python benchmarks/sequences.py --data DATA --maps FOLDER [--csv FILE] [--picture FILE]

The map is the last 40% of the first drive, which the shipped model was not trained on, once whole and once
with a part that no reference shows. Queries are the frames of the second drive: the first quarter
(validation) chooses the length of the averages and a threshold on each confidence for 10% risk, the rest is
tested. `smoothed` uses all images of a part, `causal` only earlier ones; `+ κ` weighs each image by its κ
(the logarithm of its likelihood, by κ over the median κ of the map, at most 1) and is not in the package.

A position is correct if it is within the tolerance of the dataset. R@1: of the queries that the map shows.
Share and risk: of all queries, at the threshold of the validation part; accepted and its risk: by the
decision of the package. AUROC: correct positions against the others.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace import PlaceImages, PlaceMap
from kappaplace.maps import BuildOptions, Localization
from kappaplace.maps.follow import Follower
from kappaplace.maps.sequence import Likelihood
from kappaplace.metrics import auroc
from record import Option, log_row, parse_options
from slam_sequences import average_scores

SETS = {"st_lucia": 5, "nordland_winter_summer": 2}
"""Tolerance in frames."""
FIRST, TEST = 0.6, 0.7
"""Fractions of the route where the map and the tested part begin."""
WITHHELD = ((0.64, 0.67), (0.80, 0.88))
"""Fractions of the route that the second map does not show."""
LENGTHS = (5, 10, 20)
RISK = 0.1


class Route(NamedTuple):
    """The answers of one map to the frames of the second drive."""

    place_map: PlaceMap
    answers: list[Localization]
    descriptors: NDArray[np.floating]
    truth: NDArray[np.float64]
    """Frame of the first drive that shows the place of each query."""
    radius: float

    def take(self, rows: NDArray[np.int64]) -> Route:
        """Return some of the queries."""
        answers = [self.answers[row] for row in rows.tolist()]
        return Route(self.place_map, answers, self.descriptors[rows], self.truth[rows], self.radius)


class Result(NamedTuple):
    """Position and confidence of each query, by one method."""

    frames: NDArray[np.float64]
    confidence: NDArray[np.float64]
    accepted: NDArray[np.bool_] | None = None


class WeighedByKappa(Follower):
    """Uncertain images count less."""

    def _likelihood(self, answer: Localization) -> Likelihood | None:
        seen = super()._likelihood(answer)
        if seen is None:
            return None
        usual = np.median(self.store.gather("kappa", np.arange(len(self.store))))
        weight = min(1.0, answer.kappa / usual)
        at_match = (seen.matched + seen.missed) ** weight - seen.missed**weight
        return Likelihood(at_match, seen.missed**weight, seen.outside**weight)


def routes(data: Path, name: str, maps: Path) -> dict[str, tuple[Route, Route]]:
    """Build both maps of a route, and return validation and test part of each."""
    radius = float(SETS[name])
    positives = json.loads((data / name / "gt.json").read_text())["positives"]
    queries, references = (sorted(map(str, (data / name / side).iterdir())) for side in ("query", "ref"))
    truth = np.array([np.median(rows) if rows else np.nan for rows in positives])
    count = len(references)
    rows = np.arange(int(FIRST * count), count)
    where = np.stack([rows.astype(float), np.zeros(len(rows))], 1)
    table = PlaceImages.create(
        [references[row] for row in rows.tolist()], where, name=name, root="/", radius=radius
    )
    whole, part = maps / f"{name}.map", maps / f"{name}_gap.map"
    if not whole.exists():
        PlaceMap.build(table, whole, options=BuildOptions(radius=radius))
    if not part.exists():
        shutil.copytree(whole, part)
        hidden = np.concatenate([np.arange(int(a * count), int(b * count)) for a, b in WITHHELD])
        gap = PlaceMap.open(part)
        stored = set(gap.store.names())
        gap.remove([references[row] for row in hidden.tolist() if references[row] in stored])
    tested = np.flatnonzero(truth >= FIRST * count)
    files = [queries[row] for row in tested.tolist()]
    embeddings = PlaceMap.open(whole).embed(files, patches=True)
    out = {}
    for kind, folder in (("whole", whole), ("gap", part)):
        town = PlaceMap.open(folder)
        answers = town.localize_embeddings(embeddings, files, images=files)
        route = Route(town, answers, embeddings.descriptor, truth[tested], radius)
        later = truth[tested] >= TEST * count
        out[kind] = (route.take(np.flatnonzero(~later)), route.take(np.flatnonzero(later)))
    return out


def of_answers(answers: Sequence[Localization]) -> Result:
    """Return the positions of answers, and their probabilities."""
    return Result(
        np.array([answer.matches[0].x for answer in answers]),
        np.array([answer.probability or 0.0 for answer in answers]),
        np.array([answer.decision == "accept" for answer in answers]),
    )


def fused(route: Route, kind: type[Follower], *, causal: bool) -> Result:
    """Return the answers of a sequence."""
    town = route.place_map
    follower = kind(town.store, town.calibration or town.borrowed)
    if not causal:
        return of_answers(follower.fuse(route.answers, route.descriptors))
    return of_answers([follower.add(*pair) for pair in zip(route.answers, route.descriptors, strict=True)])


def averages(route: Route, length: int) -> Result:
    """Return the best line of SeqSLAM, with the margin to the best one that ends over 10 frames away."""
    frames = route.place_map.store.positions[:, 0]
    order = np.argsort(frames)
    frames = frames[order]
    scores = average_scores(route.descriptors @ route.place_map.store.descriptors[:][order].T, length)
    best = scores.argmax(axis=1)
    far = np.abs(frames[best][:, None] - frames) > 10
    return Result(frames[best], scores.max(axis=1) - np.where(far, scores, -np.inf).max(axis=1))


def correct(route: Route, result: Result) -> NDArray[np.bool_]:
    """Return which positions are within the tolerance."""
    return np.abs(result.frames - route.truth) <= route.radius


def recall(route: Route, result: Result) -> float:
    """Return R@1 of the queries that the map shows."""
    gap = np.abs(route.truth[:, None] - route.place_map.store.positions[:, 0])
    return float(correct(route, result)[gap.min(axis=1) <= route.radius].mean())


def threshold(route: Route, result: Result) -> float:
    """Return the lowest confidence at which the queries above it have at most 10% errors."""
    order = np.argsort(-result.confidence, kind="stable")
    risk = np.cumsum(~correct(route, result)[order]) / np.arange(1, len(order) + 1)
    rows = np.flatnonzero(risk <= RISK)
    return float(result.confidence[order[rows[-1]]]) if len(rows) else np.inf


def measured(route: Route, result: Result, least: float) -> dict[str, float | str]:
    """Return the numbers of one method on the tested part."""
    right, above = correct(route, result), result.confidence >= least
    own = result.accepted
    return {
        "queries": len(right),
        "recall_at_1": recall(route, result),
        "auroc": float(auroc(-result.confidence, right)),
        "threshold": least,
        "share": float(above.mean()),
        "risk": float((~right[above]).mean()) if above.any() else 0.0,
        "accepted": "" if own is None else float(own.mean()),
        "accepted_risk": "" if own is None else float((~right[own]).mean()) if own.any() else 0.0,
    }


def methods(route: Route, length: int) -> dict[str, Result]:
    """Return the result of every method."""
    return {
        "single": of_answers(route.answers),
        "average": averages(route, length),
        "causal": fused(route, Follower, causal=True),
        "causal + κ": fused(route, WeighedByKappa, causal=True),
        "smoothed": fused(route, Follower, causal=False),
        "smoothed + κ": fused(route, WeighedByKappa, causal=False),
    }


def main() -> None:
    options = parse_options(
        __doc__,
        data=Option(Path, "folder of the datasets", required=True),
        maps=Option(Path, "folder of the maps", required=True),
        csv=Path,
        picture=Path,
    )
    curves = {}
    for name in SETS:
        for kind, (validation, test) in routes(options.data, name, options.maps).items():
            length = max(LENGTHS, key=lambda each: recall(validation, averages(validation, each)))
            chosen, results = methods(validation, length), methods(test, length)
            for method, result in results.items():
                facts = {"set": name, "map": kind, "method": method}
                least = threshold(validation, chosen[method])
                facts |= {"length": length if method == "average" else ""}
                log_row(
                    options.csv,
                    {**facts, "validation": recall(validation, chosen[method])}
                    | measured(test, result, least),
                )
                curves[name, kind, method] = (correct(test, result), result.confidence)
    if options.picture:
        draw(curves, options.picture)


def draw(
    curves: dict[tuple[str, str, str], tuple[NDArray[np.bool_], NDArray[np.float64]]], file: Path
) -> None:
    """Draw risk against share."""
    import matplotlib

    from kappaplace.reports.figures import COLORS, PLOT_STYLE, new_figure

    panels = list(dict.fromkeys(key[:2] for key in curves))
    with matplotlib.rc_context(PLOT_STYLE):
        figure = new_figure(8.0, 5.6)
        for axis, panel in zip(figure.subplots(2, 2).ravel(), panels, strict=True):
            for number, method in enumerate(("single", "average", "causal", "smoothed")):
                right, confidence = curves[(*panel, method)]
                wrong = np.cumsum(~right[np.argsort(-confidence, kind="stable")])
                counts = np.arange(1, len(right) + 1)
                axis.plot(counts / len(right), wrong / counts, color=COLORS[number], label=method)
            axis.axhline(RISK, color="gray", linewidth=0.8, linestyle="--")
            missing = "" if panel[1] == "whole" else ", with a gap in the map"
            axis.set_title(f"{panel[0].replace('_', ' ').title()}{missing}", fontsize=9)
            axis.set(xlabel="share of accepted images", ylabel="risk", ylim=(0, 0.3))
        figure.axes[0].legend()
        figure.savefig(file, dpi=110)


if __name__ == "__main__":
    main()
