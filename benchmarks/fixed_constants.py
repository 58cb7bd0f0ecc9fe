"""What the fixed constants of SLAM and mapping systems mean on two real drives.

python benchmarks/fixed_constants.py --data DATA [--model MODEL] [--cache FOLDER] [--csv FILE]

Queries are the last 40% of the second drive (the shipped model was trained on the first 60% of the route),
references the first drive. With "new places", the references of the last 20% are missing, so half of the
queries show a place that is not in the map, as most frames of a SLAM drive do. Each rule of another system is
applied to our descriptors (or to ORB features), never to its own, and `kappaplace.audit` measures it.

- RTAB-Map, `Rtabmap/LoopThr` 0.11: the posterior that the place is known, of the Bayes filter of Labbé and
  Michaud over the route, with the likelihood (1 + cosine) / 2 and `VirtualPlaceLikelihoodRatio` 0 (its
  default) or 1.
- VGGT-SLAM, `--lc_thres` 0.95 and 0.80 in its code: Euclidean distance of unit descriptors.
- pySLAM: every candidate of the first five with at least 0.75 of the best score; then 20 ORB matches that
  pass the ratio test of 0.75.
- hloc, `min_score` 0: cosine.
- Kimera-VIO, `alpha` 0.1: similarity relative to the similarity with the frame before.
- MASt3R-SLAM (`min_thresh` 0.005, a score of ASMK over its own features) and VINS-Fusion (0.05 and 0.015, a
  score of DBoW2 over its own vocabulary) cannot be carried over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace import audit, load_model
from kappaplace.evaluation import AuditOptions, ScoredAnswers
from kappaplace.metrics import ROUTE_BLOCK
from kappaplace.models.embedding.store import EmbeddingStore
from record import Option, log_row, parse_options

SETS = ("st_lucia", "nordland_winter_summer")
TESTED, NEW = 0.6, 0.8
"""Where the tested frames and the new places begin, as a fraction of the route."""
PREDICTION = (
    *(0.1, 0.36, 0.30, 0.16, 0.062, 0.0151, 0.00255, 0.000324, 2.5e-05, 1.3e-06, 4.8e-08, 1.2e-09, 1.9e-11),
    *(2.2e-13, 1.7e-15, 8.5e-18, 2.9e-20, 6.9e-23),
)
"""`Bayes/PredictionLC`: a new place, the same place, and its neighbors by their distance in frames."""
NEW_PRIOR = 0.9
"""`Bayes/VirtualPlacePriorThr`: stay at new places."""
CANDIDATES, OF_BEST = 5, 0.75
"""Candidates of pySLAM, and the fraction of the best score that they need."""
PAIRS = "part of the best score"
"""The only rule that accepts several candidates of a frame; no threshold is set on it."""
FEATURES, RATIO = 1000, 0.75
"""ORB features per image, and the ratio test."""


class Drive(NamedTuple):
    """Two drives over one route."""

    cosines: NDArray[np.float64]
    """Similarity of tested frames and references, N×R."""
    before: NDArray[np.float64]
    """Similarity of each tested frame with the frame before it, N."""
    right: NDArray[np.bool_]
    """Whether a reference shows the place of a frame, N×R."""
    queries: list[str]
    references: list[str]


def drive(folder: Path, model: str | None, cache: Path | None, new_places: bool) -> Drive:
    """Embed both drives and select the tested frames and the references."""
    encoder = load_model(model) if model else load_model()
    store = EmbeddingStore.of(encoder, cache, batch_size=16)
    names = {side: sorted(map(str, (folder / side).iterdir())) for side in ("query", "ref")}
    vectors = {side: store.embed(files).descriptor.astype(np.float64) for side, files in names.items()}
    positives = json.loads((folder / "gt.json").read_text())["positives"]
    right = np.zeros((len(names["query"]), len(names["ref"])), bool)
    for row, columns in enumerate(positives):
        right[row, columns] = True
    tested = np.arange(int(TESTED * len(right)), len(right))
    count = int(NEW * right.shape[1]) if new_places else right.shape[1]
    query, reference = vectors["query"], vectors["ref"][:count]
    before = np.einsum("ij,ij->i", query[tested], query[tested - 1])
    files = [names["query"][row] for row in tested.tolist()]
    return Drive(query[tested] @ reference.T, before, right[tested, :count], files, names["ref"][:count])


def posterior(cosines: NDArray[np.float64], ratio: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the probability that the place of each frame is known, and its most probable reference."""
    places = cosines.shape[1]
    motion = np.zeros((places + 1, places + 1))
    motion[0, 0], motion[1:, 0] = NEW_PRIOR, (1 - NEW_PRIOR) / places
    step = np.abs(np.subtract.outer(np.arange(places), np.arange(places)))
    weights = np.append(PREDICTION[1:], 0.0)[np.minimum(step, len(PREDICTION) - 1)]
    motion[1:, 1:] = (1 - PREDICTION[0]) * weights / weights.sum(axis=0)
    motion[0, 1:] = PREDICTION[0]
    belief = np.ones(places + 1)
    known, best = np.empty(len(cosines)), np.empty(len(cosines), np.int64)
    for row, values in enumerate((1 + cosines) / 2):
        mean, deviation = values.mean(), values.std(ddof=1)
        scaled = (values - mean) / deviation if ratio else (values - deviation) / mean
        new = deviation / (values.max() - mean) if ratio else mean / deviation
        belief = (motion @ belief) * np.append(new + 1, np.where(values > mean + deviation, scaled, 1.0))
        belief /= belief.sum()
        known[row], best[row] = 1 - belief[0], int(belief[1:].argmax())
    return known, best


def orb_matches(drive: Drive) -> NDArray[np.int64]:
    """Return the number of ORB matches of each frame with its best reference."""
    import cv2

    orb = cv2.ORB.create(nfeatures=FEATURES)
    matcher = cv2.BFMatcher(cv2.NORM_HAMMING)

    def features(name: str) -> NDArray[np.uint8] | None:
        image = cv2.imread(name, cv2.IMREAD_GRAYSCALE)
        assert image is not None
        return orb.detectAndCompute(image, np.ones_like(image))[1]  # type: ignore[return-value]

    counts = []
    for file, row in zip(drive.queries, drive.cosines.argmax(axis=1).tolist(), strict=True):
        query, reference = features(file), features(drive.references[row])
        pairs = [] if query is None or reference is None else matcher.knnMatch(query, reference, k=2)
        counts.append(sum(len(p) == 2 and p[0].distance < RATIO * p[1].distance for p in pairs))
    return np.array(counts)


Rule = tuple[str, str, float, ScoredAnswers]
"""System, its rule, its constant, and the answers that the rule is applied to."""


def rules(drive: Drive) -> Iterator[Rule]:
    """Yield the rule of each system that can be carried over."""
    answerable = np.asarray(drive.right.any(axis=1), np.bool_)
    rows = np.arange(len(answerable))
    top = drive.cosines.argmax(axis=1)

    def answers(
        scores: NDArray[np.number], best: NDArray[np.int64] = top, lower: bool = False
    ) -> ScoredAnswers:
        correct = drive.right[rows, best]
        return ScoredAnswers(scores.astype(float), correct, lower, answerable, sequence=True)

    for ratio in (0, 1):
        known, best = posterior(drive.cosines, ratio)
        yield "RTAB-Map", f"posterior, ratio {ratio}", 0.11, answers(known, best)
    cosine = drive.cosines[rows, top]
    distance = np.sqrt(np.maximum(2 - 2 * cosine, 0))
    for value in (0.95, 0.80):
        yield "VGGT-SLAM", "distance", value, answers(distance, lower=True)
    order = np.argsort(-drive.cosines, axis=1)[:, :CANDIDATES]
    relative = np.take_along_axis(drive.cosines, order, 1) / cosine[:, None]
    pairs = np.repeat(rows, CANDIDATES)
    yield (
        "pySLAM",
        PAIRS,
        OF_BEST,
        ScoredAnswers(relative.ravel(), drive.right[pairs, order.ravel()], answerable=answerable[pairs]),
    )
    yield "pySLAM", "ORB matches", 20, answers(orb_matches(drive))
    yield "hloc", "cosine", 0.0, answers(cosine)
    yield "Kimera-VIO", "relative to the frame before", 0.1, answers(cosine / drive.before)


def main() -> None:
    options = parse_options(
        __doc__,
        data=Option(Path, "folder of the datasets", required=True),
        model=Option("", "model instead of the shipped one"),
        cache=Option(Path, "folder of stored embeddings"),
        max_risk=Option(0.1, "wanted risk", kind=float),
        csv=Path,
    )
    for name in SETS:
        for new_places in (True, False):
            route = drive(options.data / name, options.model or None, options.cache, new_places)
            for system, rule, constant, answers in rules(route):
                pairs = rule == PAIRS
                block = CANDIDATES * ROUTE_BLOCK if pairs else None
                result = audit(answers, AuditOptions(constant, options.max_risk, block=block))
                yours, safe = result.yours, None if pairs else result.safe
                numbers = {
                    "set": name,
                    "new_places": "half" if new_places else "none",
                    "system": system,
                    "rule": rule,
                    "constant": constant,
                    "queries": result.answers,
                    "observations": result.observations,
                    "accepted": f"{yours.coverage:.3f}",
                    **{key: _cell(getattr(yours, key)) for key in ("risk", "low", "high", "recall")},
                    "max_risk": options.max_risk,
                    "safe": "" if safe is None else f"{safe.threshold:.4g}",
                    "safe_accepted": "" if safe is None else f"{safe.coverage:.3f}",
                    "safe_risk": "" if safe is None else _cell(safe.risk),
                }
                log_row(options.csv, numbers)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main()
