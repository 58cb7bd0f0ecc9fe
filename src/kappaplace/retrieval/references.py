"""Searchable references: in memory, as a similarity matrix, or with exclusions per query.

A map on disk is another implementation, see `kappaplace.maps.references`. Scores work with each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.near import Circle, Near, within
from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.codes import Column
from kappaplace.retrieval.exact import (
    IsNear,
    best_outside,
    of_descriptors,
    of_matrix,
    row_moments,
    search,
    search_matrix,
)
from kappaplace.types import Embeddings, Matches

if TYPE_CHECKING:
    from torch import Tensor

    from kappaplace.data.images import Source
    from kappaplace.retrieval.patch_codes import LocalFeatures

PatchMaps: TypeAlias = "Callable[[Sequence[Source]], Tensor]"
"""Function that returns the feature maps N×C×H×W of images."""
Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
NO_IMAGES = "This score needs the images of queries and references. Pass paths or images."
NO_PATCHES = "This score needs feature maps. Use a model that provides them (ResNet, EfficientNet-Lite)."
NO_SIMILARITIES = (
    "This score needs similarities beyond the top K. Pass the descriptors of queries and references, or the "
    "full similarity matrix."
)
RADIUS = 25.0  # in metres, as usual; for positions without a neighborhood
SAMPLE = 4096
"""Number of references in the sample for the z-score, whose mean and deviation are within 2%."""


class References(Protocol):
    """References that queries are compared with."""

    @property
    def descriptors(self) -> Column | None:
        """Unit descriptors R×d, float32 when read; None if only similarities are known."""

    @property
    def kappa(self) -> Column | None:
        """κ of each reference (R); NaN if unknown."""

    @property
    def positions(self) -> Column | None:
        """x and y of each reference in metres, R×2; NaN if unknown."""

    @property
    def near(self) -> IsNear:
        """Whether references a and b (rows, broadcast) show the same place."""

    def __len__(self) -> int: ...

    def search(self, queries: NDArray[np.floating], k: int, area: Circle | None = None) -> Matches:
        """Return the k best references of each query.

        Args:
            queries: Descriptors N×d, or rows of the similarity matrix N×R.
            k: Number of matches per query; fewer if there are fewer references.
            area: Search only this circle: x, y and radius in metres.

        Returns:
            Rows and similarities, best first.
        """

    def outside(self, queries: NDArray[np.floating], top: Rows, area: Circle | None = None) -> Floats:
        """Return the best similarity of each query to a reference that is not near its top match.

        Args:
            queries: Descriptors N×d, or rows of the similarity matrix N×R.
            top: Top match of each query (N).
            area: Search only this circle: x, y and radius in metres.

        Returns:
            Similarities (N); −inf if all references are near.
        """

    def aliases(self, rows: Rows) -> Floats:
        """Return the best similarity of references to a reference of another place.

        Args:
            rows: Row numbers of the references.

        Returns:
            Similarities, one per row; −inf if all references are near.
        """

    def sample(self) -> Rows:
        """Return the fixed sample for the z-score.

        Returns:
            Row numbers, ascending.
        """

    def background(self, queries: NDArray[np.floating], rows: Rows | None = None) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of the similarities of each query.

        Args:
            queries: Descriptors N×d, or rows of the similarity matrix N×R.
            rows: References to compare with. Default: the sample.

        Returns:
            Mean and standard deviation, N each.
        """

    def images(self, rows: Rows) -> Sequence[Source]:
        """Return the images of references.

        Args:
            rows: Row numbers of the references.

        Returns:
            One image per row.
        """

    def local(self, rows: Rows) -> LocalFeatures:
        """Return local features of references: the cells of their feature maps, stored or computed.

        Args:
            rows: Row numbers of the references.

        Returns:
            The features, always in the same basis.
        """


@dataclass(frozen=True, eq=False)
class Queries:
    """Queries of a retrieval. Omit fields that are not available."""

    embeddings: Embeddings | None = None
    """Descriptors and κ of the N queries."""
    images: Sequence[Source] | None = None
    """Paths of the N queries, or other sources that `kappaplace.data.images.decode` reads."""
    patch_maps: PatchMaps | None = None
    """Function that returns the feature maps of images, with the model of the descriptors. It is not used if
    the embeddings contain them."""
    similarities: NDArray[np.floating] | None = None
    """N×R cosines to all references, instead of descriptors; a memory map works."""

    @property
    def vectors(self) -> NDArray[np.floating]:
        """Input of a search: descriptors N×d, or rows of the similarity matrix N×R."""
        if self.similarities is not None:
            return self.similarities
        if self.embeddings is None or self.embeddings.descriptor is None:
            raise KappaPlaceError(NO_SIMILARITIES)
        return self.embeddings.descriptor


def draw(count: int, sample: int, seed: int = 0) -> Rows:
    """Sample rows at random, the same rows for the same seed.

    Args:
        count: Number of rows to sample from.
        sample: Number of rows to sample; all rows if there are no more.
        seed: Random seed.

    Returns:
        Row numbers, ascending.

    >>> draw(3, 10).tolist()
    [0, 1, 2]
    """
    if count <= sample:
        return np.arange(count, dtype=np.int64)
    rows = np.random.default_rng(seed).choice(count, sample, replace=False, shuffle=False)
    return np.sort(rows).astype(np.int64)


@dataclass(frozen=True, eq=False)
class ArrayReferences(References):
    """References in memory or in memory maps. Omit fields that are not available."""

    embeddings: Embeddings | None = None
    """Descriptors and κ of the R references."""
    positions: NDArray[np.float64] | None = None
    """x and y of each reference in metres, R×2; NaN if unknown."""
    neighborhood: IsNear | None = None
    """Function that returns whether two references show the same place. Default: positions within 25 m."""
    paths: Sequence[Source] | None = None
    """Images of the references."""
    patch_maps: PatchMaps | None = None
    """Function that returns the feature maps of images."""
    device: str = "cpu"
    """Device that computes similarities."""
    count: int | None = None
    """Number of references, if no other field has one entry per reference."""

    def __post_init__(self) -> None:
        if self.positions is not None and np.shape(self.positions)[1:] != (2,):
            raise KappaPlaceError(
                f"Positions must be R×2 (x and y in metres), got shape {np.shape(self.positions)}."
            )

    def __len__(self) -> int:
        columns = (self.descriptors, self.kappa, self.positions, self.paths)
        return min((len(column) for column in columns if column is not None), default=self.count or 0)

    @property
    def descriptors(self) -> NDArray[np.floating] | None:
        return None if self.embeddings is None else self.embeddings.descriptor

    @property
    def kappa(self) -> NDArray[np.floating] | None:
        return None if self.embeddings is None else self.embeddings.kappa

    @cached_property
    def near(self) -> IsNear:
        if self.neighborhood is not None:
            return self.neighborhood
        if self.positions is not None:
            return Near.meters(np.asarray(self.positions, np.float64), RADIUS)
        raise KappaPlaceError(
            "This score needs the places of the references. Pass their positions or a neighborhood."
        )

    def search(self, queries: NDArray[np.floating], k: int, area: Circle | None = None) -> Matches:
        if area is None:
            return search(queries, self._descriptors(), k, device=self.device)
        rows = self._within(area)
        best = search(queries, self._descriptors()[rows], min(k, len(rows)), device=self.device)
        return Matches(rows[best.indices], best.similarities)

    def outside(self, queries: NDArray[np.floating], top: Rows, area: Circle | None = None) -> Floats:
        rows = np.arange(len(self)) if area is None else self._within(area)
        columns = self._descriptors() if area is None else self._descriptors()[rows]
        similarities = of_descriptors(queries, columns, self.device)
        return best_outside(
            similarities, np.arange(len(queries)), top, len(rows), lambda a, b: self.near(a, rows[b])
        ).astype(np.float64)

    def aliases(self, rows: Rows) -> Floats:
        unique, of_row = np.unique(rows, return_inverse=True)
        descriptors = self._descriptors()
        similarities = of_descriptors(descriptors, descriptors, self.device)
        best = best_outside(similarities, unique, unique, len(descriptors), self.near)
        return best.astype(np.float64)[of_row]

    def sample(self) -> Rows:
        return draw(len(self), SAMPLE)

    def background(self, queries: NDArray[np.floating], rows: Rows | None = None) -> tuple[Floats, Floats]:
        similarities = of_descriptors(queries, self._descriptors(), self.device)
        return row_moments(similarities, len(queries), self.sample() if rows is None else rows)

    def images(self, rows: Rows) -> Sequence[Source]:
        if self.paths is None:
            raise KappaPlaceError(NO_IMAGES)
        return [self.paths[row] for row in rows.tolist()]

    def local(self, rows: Rows) -> LocalFeatures:
        if self.patch_maps is None:
            raise KappaPlaceError(NO_PATCHES)
        from kappaplace.retrieval.patch_codes import LocalFeatures

        return LocalFeatures.of(self.patch_maps(self.images(rows)))

    def _descriptors(self) -> NDArray[np.floating]:
        if self.descriptors is None:
            raise KappaPlaceError(NO_SIMILARITIES)
        return self.descriptors

    def _within(self, area: Circle) -> Rows:
        if self.positions is None:
            raise KappaPlaceError("Searching an area needs the positions of the references. Pass positions.")
        x, y = np.asarray(self.positions, np.float64).T
        return np.flatnonzero(within([x - area[0], y - area[1]], area[2]))


class MatrixReferences(ArrayReferences):
    """References of which only similarities are known: a query is its row of the N×R matrix."""

    def search(self, queries: NDArray[np.floating], k: int, area: Circle | None = None) -> Matches:
        return search_matrix(queries, k)

    def outside(self, queries: NDArray[np.floating], top: Rows, area: Circle | None = None) -> Floats:
        rows = np.arange(len(queries))
        return best_outside(of_matrix(queries), rows, top, queries.shape[1], self.near).astype(np.float64)

    def background(self, queries: NDArray[np.floating], rows: Rows | None = None) -> tuple[Floats, Floats]:
        return row_moments(of_matrix(queries), len(queries), self.sample() if rows is None else rows)


@dataclass(frozen=True, eq=False)
class LeaveOut(References):
    """References with exclusions that differ per query, for self-calibration.

    A query is its row of similarities to all references, −inf for the excluded ones.
    """

    whole: References
    """All references."""
    rows: NDArray[np.floating]
    """Rows of all queries, N×R."""

    @property
    def descriptors(self) -> Column | None:
        return self.whole.descriptors

    @property
    def kappa(self) -> Column | None:
        return self.whole.kappa

    @property
    def positions(self) -> Column | None:
        return self.whole.positions

    @property
    def near(self) -> IsNear:
        return self.whole.near

    def __len__(self) -> int:
        return len(self.whole)

    def search(self, queries: NDArray[np.floating], k: int, area: Circle | None = None) -> Matches:
        return search_matrix(queries, k, gaps=True)

    def outside(self, queries: NDArray[np.floating], top: Rows, area: Circle | None = None) -> Floats:
        rows = np.arange(len(queries))
        return best_outside(of_matrix(queries), rows, top, len(self), self.near).astype(np.float64)

    def aliases(self, rows: Rows) -> Floats:
        """Return the highest similarity between the reference of each query and another place. Only
        references that are not excluded for this query count."""
        assert self.descriptors is not None
        between = of_descriptors(self.descriptors[rows], self.descriptors[:])(
            slice(None), slice(None)
        ).numpy()
        return self.outside(np.where(np.isfinite(self.rows), between, -np.inf), rows)

    def sample(self) -> Rows:
        return self.whole.sample()

    def background(self, queries: NDArray[np.floating], rows: Rows | None = None) -> tuple[Floats, Floats]:
        """Return mean and standard deviation; excluded references count as the mean of the others."""
        similarities = queries[:, self.sample() if rows is None else rows]
        present = np.isfinite(similarities)
        mean = np.where(present, similarities, 0).sum(axis=1) / np.maximum(present.sum(axis=1), 1)
        filled = np.where(present, similarities, mean[:, None]).astype(np.float32)
        return row_moments(of_matrix(filled), len(filled), filled.shape[1])

    def images(self, rows: Rows) -> Sequence[Source]:
        return self.whole.images(rows)

    def local(self, rows: Rows) -> LocalFeatures:
        return self.whole.local(rows)
