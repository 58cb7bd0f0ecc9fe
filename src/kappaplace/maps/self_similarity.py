"""Self-similarity of a map: would the shipped calibration accept the wrong place, because places look alike?

A sample of references is localized in the map without their own place, from stored descriptors and patches.
No answer can be correct then. The shipped probabilities were fitted on other places, where such answers are
rarely accepted. On a map that repeats itself (floors, corridors) they often are, and real queries would be
answered with the wrong floor. Then the shipped probabilities are withheld. This needs no labels or images.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kappaplace.calibration.calibration import Calibration, query_features
from kappaplace.calibration.sources import ACCEPT_RISK
from kappaplace.checks import Floats, Rows, percent
from kappaplace.data.near import Near
from kappaplace.maps.references import MapReferences
from kappaplace.maps.store import MapStore
from kappaplace.retrieval.evidence import DEEP, Evidence
from kappaplace.retrieval.exact import search_matrix
from kappaplace.retrieval.patches import by_agreement, cell_agreement
from kappaplace.retrieval.references import LeaveOut, Queries, draw
from kappaplace.types import Embeddings, Matches

SURROUNDINGS = {"metres": 4.0, "frames": 10.0}
"""Factor by which the neighborhood is widened: images a little farther on a street still show the place."""
NEXT = 10.0
"""Number of images before and after, in the order of the map, that count as its surroundings otherwise."""
SAMPLE = 60
"""Number of references to localize without their place."""
FEWEST = 20
"""Smallest number of references for a conclusion."""
ACCEPT = 1 - ACCEPT_RISK
"""Probability from which shipped calibrations accept an answer."""
PATCHES = "patches"
TRUE_PAIRS = 0.75
"""Look-alikes agree more strongly than this fraction of true pairs, which differ in time or season."""
REPEATED = 0.25
"""Fraction of look-alikes above which a map repeats itself."""
EXAMPLES = 3
REPEATS = (
    "This map repeats itself; calibrate it. The shipped calibration accepts {share} of its places as another "
    "place, so there are no probabilities and no decisions."
)


@dataclass(frozen=True)
class SelfSimilarity:
    """References that were localized without their place."""

    sample: int
    """Number of references."""
    accepted: tuple[str, ...]
    """Names of the look-alikes: the shipped calibration accepts them as another place, and their patches
    agree with it as strongly as those of true pairs."""

    @property
    def rate(self) -> float:
        """Fraction of the references that are accepted as another place."""
        return len(self.accepted) / max(self.sample, 1)

    @property
    def repeats(self) -> bool:
        """Whether the map repeats itself."""
        return self.sample >= FEWEST and self.rate > REPEATED

    @property
    def sentence(self) -> str:
        """The result in words, with examples."""
        examples = ", ".join(self.accepted[:EXAMPLES])
        named = f" (such as {examples})" if examples else ""
        return f"{len(self.accepted):,} of {self.sample:,} sampled places look like another place{named}"

    @property
    def note(self) -> str:
        """Note for answers; empty if the map does not repeat itself."""
        return REPEATS.format(share=percent(round(self.rate, 2))) if self.repeats else ""


def self_similarity(references: MapReferences, calibration: Calibration) -> SelfSimilarity | None:
    """Localize references without their own place.

    Args:
        references: References of the map.
        calibration: Shipped calibration of the model.

    Returns:
        The result; None if the map is too small, or lacks the patches that the calibration needs.
    """
    rows = draw(len(references), SAMPLE)
    stored = references.store.has_patches(rows)
    if calibration.rerank:
        rows = rows[stored]
    rows, evidence = _without_their_place(references, rows, calibration.rerank)
    if evidence is None:
        return None
    probability = _probability(evidence, calibration)
    alike = probability >= ACCEPT
    if evidence.agreement is not None:
        alike &= evidence.agreement[:, 0] >= _true_agreement(calibration)
    kept = rows[alike].tolist()
    return SelfSimilarity(len(rows), tuple(references.store.name(row) for row in kept))


def _true_agreement(calibration: Calibration) -> float:
    """Return the patch agreement that few true pairs of other places exceed; 0 if it is unknown."""
    domain = calibration.domain
    if domain is None or PATCHES not in domain.columns or not domain.rows:
        return 0.0
    column = domain.columns.index(PATCHES)  # the score is one minus the agreement
    return float(np.quantile([1 - row[column] for row in domain.rows], TRUE_PAIRS))


def _probability(evidence: Evidence, calibration: Calibration) -> Floats:
    """Return the shipped probability that each answer is correct, for in-map queries as at run time."""
    uncertainty = calibration.uncertainty(query_features(evidence, calibration.scores))
    return calibration.right.probability(uncertainty, calibration.outside_rate)


def _around(store: MapStore) -> Near:
    """Return the rule that excludes the place of a reference and its surroundings."""
    rule = store.manifest.near
    if rule.kind == "self":  # images of one walk are usually stored in their order
        return Near.frames(NEXT)
    wide = replace(rule, value=rule.value * SURROUNDINGS[rule.kind])
    return Near.of(wide, lambda: store.positions, lambda: store.whole("routes").T[::-1])


def _without_their_place(references: MapReferences, rows: Rows, rerank: int) -> tuple[Rows, Evidence | None]:
    """Return references, and their evidence as queries of a map without their place."""
    everyone = np.arange(len(references))
    descriptors = references.descriptors[rows]
    similarities = np.concatenate(
        [
            descriptors @ references.descriptors[start : start + 16384].T
            for start in range(0, len(everyone), 16384)
        ],
        axis=1,
    )
    similarities[_around(references.store)(rows[:, None], everyone[None, :])] = -np.inf
    usable = np.isfinite(similarities).sum(axis=1) >= max(rerank, 2)
    if usable.sum() < 2:
        return rows, None
    rows, similarities = rows[usable], similarities[usable]
    kappa = references.kappa[rows]
    embeddings = Embeddings(descriptors[usable], kappa if np.isfinite(kappa).all() else None)
    queries = Queries(embeddings, references.images(rows), references.patch_maps, similarities)
    pool = search_matrix(similarities, min(DEEP, len(references)), gaps=True)
    agreement = None
    if rerank:
        pool, agreement = by_agreement(pool, _agreement(references, rows, pool.indices[:, :rerank]))
    count = rerank or 1
    first = Matches(pool.indices[:, :count], pool.similarities[:, :count])
    evidence = Evidence(queries, LeaveOut(references, similarities), first, agreement, pool, None, count)
    return rows, evidence


def _agreement(references: MapReferences, rows: Rows, others: Rows) -> Floats:
    """Return the patch agreement of references with others, from stored patches."""
    table = np.empty(others.shape)
    for number, (row, own) in enumerate(zip(rows.tolist(), others, strict=True)):
        local = references.local(np.array([row, *own.tolist()]))
        values = cell_agreement(local.cells[:1], local.cells[1:], local.size)
        matches = local.take(np.arange(1, len(own) + 1))
        table[number] = matches.scaled(values).double().cpu().numpy()
    return table
