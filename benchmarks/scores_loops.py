"""Every closed-form score as a plain loop over queries, from its definition.

Closed-form scores use the K best matches, κ, variance and positions. Scores that search the map again
(aliasing, z-score) or open images (geometric verification) are excluded. The margin is closed-form if the
matches contain a reference of another place, as in this data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import ive

from kappaplace.retrieval.evidence import Evidence
from kappaplace.retrieval.references import RADIUS, ArrayReferences, Queries
from kappaplace.types import Embeddings, Matches
from kappaplace.uncertainty import SCORES

DIM = 512
REFERENCES = 50_000
CITY = 5000.0  # metres across


class Found(NamedTuple):
    """Matches: one row per query, then one row per reference."""

    similarities: np.ndarray
    indices: np.ndarray
    kappa: np.ndarray
    variance: np.ndarray
    reference_kappa: np.ndarray
    positions: np.ndarray

    def first(self, queries: int) -> Found:
        of_queries = ("similarities", "indices", "kappa", "variance")
        return self._replace(**{name: getattr(self, name)[:queries] for name in of_queries})

    def lists(self) -> Found:
        return Found(*(part.tolist() for part in self))

    def evidence(self) -> Evidence:
        """Create the evidence for one run, because evidence caches shared results."""

        def blank(rows: int) -> np.ndarray:  # only their length is used
            return np.broadcast_to(np.zeros(DIM, np.float32), (rows, DIM))

        reference = Embeddings(blank(len(self.reference_kappa)), self.reference_kappa)
        return Evidence(
            Queries(Embeddings(blank(len(self.kappa)), self.kappa, self.variance)),
            ArrayReferences(reference, self.positions),
            Matches(self.indices, self.similarities),
        )


def made_up(queries: int, matches: int) -> Found:
    """Create matches close to the first one and matches anywhere; the last one is another place."""
    rng = np.random.default_rng(1)
    positions = rng.random((REFERENCES, 2)) * CITY
    positions = positions[np.lexsort((positions[:, 1], positions[:, 0] // RADIUS))]  # neighbours in rows
    top = rng.integers(0, REFERENCES, (queries, 1))
    near = (top + rng.integers(-20, 21, (queries, matches))) % REFERENCES
    anywhere = rng.integers(0, REFERENCES, (queries, matches))
    indices = np.where(rng.random((queries, matches)) < 0.5, near, anywhere)
    indices[:, :1], indices[:, -1:] = top, (top + REFERENCES // 2) % REFERENCES
    similarities = np.sort(rng.beta(6, 4, (queries, matches)), axis=1)[:, ::-1].astype(np.float32)
    return Found(
        similarities,
        indices,
        rng.gamma(4, 100, queries) + 30,  # below 30 the loop's Bessel function is 0
        rng.random(queries),
        rng.gamma(4, 100, REFERENCES) + 30,
        positions,
    )


def distance(similarity: float) -> float:
    return math.sqrt(max(0.0, 2 - 2 * float(similarity)))


def loop_l2(found: Found) -> list[float]:
    return [distance(row[0]) for row in found.similarities]


def loop_l2_match(found: Found) -> list[list[float]]:
    return [[distance(s) for s in row] for row in found.similarities]


def loop_cosine(found: Found) -> list[float]:
    return [1 - float(row[0]) for row in found.similarities]


def loop_cosine_match(found: Found) -> list[list[float]]:
    return [[1 - float(s) for s in row] for row in found.similarities]


def loop_pa(found: Found) -> list[float]:
    values = []
    for row in found.similarities:
        first, second = distance(row[0]), distance(row[1])
        values.append(first / second if second > 0 else 1.0)
    return values


def loop_tld_distribution(found: Found) -> list[float]:
    values = []
    for row in found.similarities:
        others = [float(s) for s in row[1:]]
        mean = sum(others) / len(others)
        spread = math.sqrt(sum((s - mean) ** 2 for s in others) / len(others))
        gap = max(0.0, float(row[0]) - mean)
        values.append(spread / (spread + gap) if spread + gap > 0 else 1.0)
    return values


def loop_tld_ratio_spread(found: Found) -> list[float]:
    values = []
    for row in found.similarities:
        ratios = [(1 + float(s)) / (1 + float(row[0])) for s in row[1:]]
        values.append(sum(ratios) / len(ratios))
    return values


def loop_tld_statistical(found: Found) -> list[float]:
    both = zip(loop_tld_distribution(found), loop_tld_ratio_spread(found), strict=True)
    return [math.sqrt(a * b) for a, b in both]


def loop_sue(found: Found, k: int = 10, slope: float = 350.0, cap: float = 500.0) -> list[float]:
    values = []
    for row, references in zip(found.similarities, found.indices, strict=True):
        distances = [distance(s) for s in row[:k]]
        nearest = min(distances)
        weights = [math.exp(-slope * (d - nearest)) for d in distances]
        total = sum(weights)
        variance = 0.0
        for axis in (0, 1):
            places = [float(found.positions[r][axis]) for r in references[:k]]
            mean = sum(w * x for w, x in zip(weights, places, strict=True)) / total
            for w, x in zip(weights, places, strict=True):
                variance += w / total * min(max(x - mean, -cap), cap) ** 2
        values.append(variance / 2)
    return values


def loop_log_sue(found: Found) -> list[float]:
    return [math.log(value + 1e-10) for value in loop_sue(found)]


def loop_variance(found: Found) -> list[float]:
    return [float(value) for value in found.variance]


def loop_inverse_kappa(found: Found) -> list[float]:
    return [1 / max(float(kappa), 1.0) for kappa in found.kappa]


def resultant(a: float, b: float, cosine: float) -> float:
    return math.sqrt(a * a + b * b + 2 * a * b * cosine)


def of_pairs(found: Found, k: int, value: Callable[[float, float, float], float]) -> list[list[float]]:
    """Return a value from κ of query and reference and their cosine, for the k best matches."""
    rows = []
    for similarities, references, kappa in zip(found.similarities, found.indices, found.kappa, strict=True):
        row = []
        for cosine, reference in zip(similarities[:k], references[:k], strict=True):
            row.append(value(float(kappa), float(found.reference_kappa[reference]), float(cosine)))
        rows.append(row)
    return rows


def inverse_resultant(a: float, b: float, cosine: float) -> float:
    return 1 / resultant(a, b, cosine)


def log_normalizer(kappa: float) -> float:
    order = DIM / 2 - 1
    bessel = math.log(ive(order, kappa)) + kappa
    return order * math.log(kappa) - DIM / 2 * math.log(2 * math.pi) - bessel


def minus_log_overlap(a: float, b: float, cosine: float) -> float:
    return log_normalizer(resultant(a, b, cosine)) - log_normalizer(a) - log_normalizer(b)


def matches_of(found: Found) -> int:
    return len(found.similarities[0])


def loop_margin(found: Found) -> list[float]:
    values = []
    for row, references in zip(found.similarities, found.indices, strict=True):
        x, y = found.positions[references[0]]
        for similarity, reference in zip(row, references, strict=True):
            other_x, other_y = found.positions[reference]
            if math.hypot(other_x - x, other_y - y) > RADIUS:  # the first is the best: they are sorted
                values.append(float(similarity) - float(row[0]))
                break
    return values


class ScoreTask(NamedTuple):
    """One score at one level: the package and the loop."""

    name: str
    ours: Callable[[Evidence], np.ndarray]
    loop: Callable[[Found], object]


Loop = Callable[[Found], object]


def _task(name: str, query: Loop, match: Loop | None = None) -> list[ScoreTask]:
    score = SCORES[name]
    tasks = [ScoreTask(name, score.query, query)]
    if match is not None:
        assert score.match is not None
        tasks.append(ScoreTask(f"{name}, match", score.match, match))
    return tasks


SCORE_TASKS = [
    *_task("l2", loop_l2, loop_l2_match),
    *_task("cosine", loop_cosine, loop_cosine_match),
    *_task("pa", loop_pa),
    *_task("tld-distribution", loop_tld_distribution),
    *_task("tld-ratio-spread", loop_tld_ratio_spread),
    *_task("tld-statistical", loop_tld_statistical),
    *_task("sue", loop_sue),
    *_task("log-sue", loop_log_sue),
    *_task("variance", loop_variance),
    *_task("inverse-kappa", loop_inverse_kappa),
    *_task(
        "kappaplace",
        lambda found: [row[0] for row in of_pairs(found, 1, inverse_resultant)],
        lambda found: of_pairs(found, matches_of(found), inverse_resultant),
    ),
    *_task(
        "expected-likelihood",
        lambda found: [row[0] for row in of_pairs(found, 1, minus_log_overlap)],
        lambda found: of_pairs(found, matches_of(found), minus_log_overlap),
    ),
    *_task("margin", loop_margin),
]
