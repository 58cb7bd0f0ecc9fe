"""What is known of a query after the search, in the form that every score reads.

The same numbers reach the calibration when it is fitted and when it is used, because both come from here. The
cost does not grow with the map beyond the search itself: distinctiveness lies ready, the z-score asks a fixed
sample, and the margin mostly finds its answer further down the list of matches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kappaplace.data.images import Source
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.store import Indices, MapStore
from kappaplace.retrieval import Circle, Search
from kappaplace.retrieval.exact import Near, Similarities, best_outside, of_descriptors, of_matrix
from kappaplace.types import Embeddings, Matches
from kappaplace.uncertainty.base import Score
from kappaplace.uncertainty.evidence import Evidence, Scores
from kappaplace.uncertainty.fused import features_of
from kappaplace.uncertainty.patches import AGREEMENT, COMPARED, agreements
from kappaplace.uncertainty.registry import SCORES, available, score_named

DEEP = 64
"""Matches looked at for the best one outside the top match's place, before the whole map is asked."""
QUERY_SIGNALS = ("cosine", "pa", "margin", "aliasing", "z-score", "inverse-kappa", "kappaplace")
PAIR_SIGNALS = ("cosine", "kappaplace")
PATCH_SIGNALS = ("patches", "patch-margin")
"""Of queries whose first matches were compared cell by cell."""


@dataclass(frozen=True, eq=False)
class MapEvidence(Evidence):
    """Evidence about the references that were retrieved, counted from 0 among themselves."""

    references: Indices = None  # type: ignore[assignment]  # dataclasses want a default after a default
    """Which references of the map they are."""
    aliases: Scores = None  # type: ignore[assignment]
    """Distinctiveness of each: its highest similarity to a far reference of the map."""
    outside: Scores = None  # type: ignore[assignment]
    """Highest similarity of each query outside the place of its top match."""
    sample: NDArray[np.float32] = None  # type: ignore[assignment]
    """Descriptors of the references that the z-score compares with."""
    own_aliases: Scores | None = None
    """Distinctiveness of each query's top match, where some references are taken out for this query alone."""
    sample_similarities: NDArray[np.float32] | None = None
    """Similarities to the sample, N×S, in the same case."""

    @property
    def best_outside(self) -> Scores:
        return self.outside

    @property
    def best_alias(self) -> Scores:
        return self.aliases[self.top] if self.own_aliases is None else self.own_aliases

    @property
    def all_similarities(self) -> tuple[Similarities, int]:
        """To the fixed sample alone, which stands for the map."""
        if self.sample_similarities is not None:
            return of_matrix(self.sample_similarities), self.sample_similarities.shape[1]
        assert self.query is not None  # always given, see `Gatherer`
        return of_descriptors(self.query.descriptor, self.sample, self.device), len(self.sample)


class Gatherer:
    """Collects the evidence of queries on one version of a map."""

    def __init__(
        self, store: MapStore, search: Search, patch_maps: Callable[[Sequence[Source]], Tensor] | None = None
    ) -> None:
        self.store, self.search, self.patch_maps = store, search, patch_maps
        self._sample: NDArray[np.float32] | None = None

    @property
    def near(self) -> Near:
        """Which references show one place."""
        return self.store.near

    @property
    def sample(self) -> NDArray[np.float32]:
        if self._sample is None:
            self._sample = self.store.descriptors[self.store.sample]
        return self._sample

    def matches(self, queries: NDArray[np.float32], k: int, circle: Circle | None = None) -> Matches:
        """At least the k best references, and some more, so that the margin has its answer at once."""
        return self.search.search(queries, max(k, DEEP), circle)

    def verified(
        self, query: Embeddings, deep: Matches, images: Sequence[Source], count: int
    ) -> tuple[Matches, Scores]:
        """The first ``count`` matches by how many cells agree, the others behind; and their agreement."""
        count = min(count, deep.indices.shape[1])
        first = Matches(deep.indices[:, :count], deep.similarities[:, :count])
        found = agreements(self.of_matches(query, first, np.zeros(len(images)), images), count)
        order = np.argsort(-found, axis=1, kind="stable")
        indices, similarities = deep.indices.copy(), deep.similarities.copy()
        indices[:, :count] = np.take_along_axis(first.indices, order, 1)
        similarities[:, :count] = np.take_along_axis(first.similarities, order, 1)
        return Matches(indices, similarities), np.take_along_axis(found, order, 1)

    def evidence(
        self,
        query: Embeddings,
        deep: Matches,
        k: int,
        circle: Circle | None = None,
        *,
        images: Any = None,
        agreement: Scores | None = None,
    ) -> MapEvidence:
        """Evidence of the first k of these matches; the others only serve the margin.

        ``agreement`` is that of `verified`.
        """
        k = min(k, deep.indices.shape[1])
        outside = self._outside(query, deep, circle)
        first = Matches(deep.indices[:, :k], deep.similarities[:, :k])
        evidence = self.of_matches(query, first, outside, images)
        if agreement is not None:
            remember_agreement(evidence, agreement)
        return evidence

    def of_matches(self, query: Embeddings, matches: Matches, outside: Scores, images: Any) -> MapEvidence:
        """Evidence of matches in any order, for those who rank them anew."""
        references, local = np.unique(matches.indices, return_inverse=True)
        kappa = self.store.gather("kappa", references).astype(np.float64)
        known = len(references) > 0 and bool(np.isfinite(kappa).all())
        near = self.near
        return MapEvidence(
            Matches(local.reshape(matches.indices.shape).astype(np.int64), matches.similarities),
            query=query,
            reference=Embeddings(self.store.descriptors[references], kappa if known else None),
            reference_positions=self.store.gather("poses", references)[:, :2],
            near=lambda a, b: near(references[a], references[b]),
            query_images=images,
            patch_maps=self.patch_maps if images else None,
            reference_images=[self.store.image_path(r) for r in references.tolist()] if images else None,
            references=references,
            aliases=self._aliases(references),
            outside=outside,
            sample=self.sample,
        )

    def _aliases(self, references: Indices) -> Scores:
        """As stored; of references that came after the last look at the whole map, found now."""
        found = self.store.distinctiveness[references].astype(np.float64)
        unknown = np.flatnonzero(np.isnan(found))
        if len(unknown):
            rows = references[unknown]
            descriptors = self.store.descriptors
            found[unknown] = best_outside(
                of_descriptors(descriptors, descriptors), rows, rows, len(self.store), self.near
            )
        return found

    def _outside(self, query: Embeddings, deep: Matches, circle: Circle | None) -> Scores:
        """Of each query, the highest similarity to a reference that is not near its top match."""
        top = deep.indices[:, :1]
        near = self.near(top, deep.indices)
        best = np.max(np.where(near, -np.inf, deep.similarities.astype(np.float64)), axis=1, initial=-np.inf)
        among = None if circle is None else self.search.within(circle)
        count = len(self.store) if among is None else len(among)
        rows = np.flatnonzero(np.isneginf(best))
        if len(rows) and count > deep.indices.shape[1]:
            columns = self.store.descriptors if among is None else self.store.descriptors.only(among)
            numbers = np.arange(count) if among is None else among
            best[rows] = best_outside(
                of_descriptors(*columns.beside(query.descriptor)),
                rows,
                top[rows, 0],
                count,
                lambda a, b: self.near(a, numbers[b]),
            )
        return best


def remember_agreement(evidence: MapEvidence, agreement: Scores) -> None:
    """What `Gatherer.verified` found: the signals are those of the matches it compared, however many more are
    shown."""
    evidence.memo[AGREEMENT] = agreement
    evidence.memo[COMPARED] = agreement.shape[1]


def query_features(evidence: Evidence, names: Sequence[str]) -> Scores:
    """Scores of each query as columns, N×F, in this order."""
    return features_of(evidence, [score_named(name) for name in names])


def pair_features(evidence: Evidence, names: Sequence[str]) -> Scores:
    """Scores of each match, N×K×F, in this order."""
    return np.stack([_match(score_named(name), evidence) for name in names], axis=-1)


def _match(score: Score, evidence: Evidence) -> Scores:
    if score.match is None:
        raise KappaPlaceError(f"The score {score.name} judges queries, not single matches; choose another.")
    return score.match(evidence)


def usable_signals(evidence: Evidence, names: Sequence[str] = QUERY_SIGNALS) -> list[str]:
    """Those of these scores that the evidence allows: without κ fewer, with one match fewer."""
    return [score.name for score in available([SCORES[name] for name in names], evidence)[0]]
