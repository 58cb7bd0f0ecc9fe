"""What can be searched: references in memory, a matrix of similarities, or references with some left out.

A map on disk is one more implementation (`kappaplace.maps.references`). Scores never ask which one it is.
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

PatchMaps: TypeAlias = "Callable[[Sequence[Source]], Tensor]"
"""Feature maps N×C×H×W of images."""
Floats = NDArray[np.float64]
NO_IMAGES = "This score looks at the images; give those of queries and references."
NO_PATCHES = (
    "This score compares feature maps; evaluate a model that shows its stages (ResNet, EfficientNet-Lite)."
)
Rows = NDArray[np.int64]
RADIUS = 25.0  # metres, the field's convention; used for positions without a neighbourhood
SAMPLE = 4096
"""References that the z-score compares with: mean and deviation to two percent."""


class Column(Protocol):
    """Rows of an array, or of what reads like one."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: Rows | slice, /) -> NDArray[np.floating]: ...


class References(Protocol):
    """What queries are compared with."""

    @property
    def descriptors(self) -> Column | None:
        """R×d, float32 when read; None if only similarities are known."""

    @property
    def kappa(self) -> Column | None:
        """κ of each; NaN if unknown."""

    @property
    def positions(self) -> Column | None:
        """x and y of each in metres, R×2; NaN if unknown."""

    @property
    def near(self) -> IsNear:
        """Whether references a and b (rows, broadcast) show the same place."""

    def __len__(self) -> int: ...

    def search(self, queries: NDArray[np.floating], k: int, area: Circle | None = None) -> Matches:
        """Return the k best references of each query, fewer if there are fewer."""

    def outside(self, queries: NDArray[np.floating], top: Rows, area: Circle | None = None) -> Floats:
        """Return the best similarity of each query to a reference that is not near its top match."""

    def aliases(self, rows: Rows) -> Floats:
        """Return the best similarity of each of these references to one of another place."""

    def sample(self) -> Rows:
        """Return the fixed rows that the z-score compares with."""

    def background(self, queries: NDArray[np.floating], rows: Rows | None = None) -> tuple[Floats, Floats]:
        """Return mean and deviation of each query's similarities to these references, or to the sample."""

    def images(self, rows: Rows) -> Sequence[Source]:
        """Return the images of some references."""

    def local(self, rows: Rows, kind: str = "patches") -> Tensor:
        """Return local features of some references, stored with them or computed from their images."""


@dataclass(frozen=True, eq=False)
class Queries:
    """What is known of some queries before retrieval; give what there is."""

    embeddings: Embeddings | None = None
    images: Sequence[Source] | None = None
    """Paths of the N queries, or anything else that `kappaplace.data.images.decode` reads."""
    patch_maps: PatchMaps | None = None
    """Feature maps of images, from the model that made the descriptors."""
    similarities: NDArray[np.floating] | None = None
    """N×R cosines to all references, instead of descriptors; a memory map works."""

    @property
    def vectors(self) -> NDArray[np.floating]:
        """What references are searched with: descriptors N×d, or rows of the similarity matrix N×R."""
        if self.similarities is not None:
            return self.similarities
        if self.embeddings is None or self.embeddings.descriptor is None:
            raise KappaPlaceError(
                "This score needs similarities beyond the top K; give the descriptors of queries and "
                "references, or the full similarity matrix."
            )
        return self.embeddings.descriptor


def draw(count: int, sample: int, seed: int = 0) -> Rows:
    """Draw a fixed random sample of ``count`` rows, ascending; all of them if they are no more.

    >>> draw(3, 10).tolist()
    [0, 1, 2]
    """
    if count <= sample:
        return np.arange(count, dtype=np.int64)
    drawn = np.random.default_rng(seed).choice(count, sample, replace=False, shuffle=False)
    return np.sort(drawn).astype(np.int64)


@dataclass(frozen=True, eq=False)
class ArrayReferences:
    """References in memory, or in arrays that are mapped from disk; give what there is."""

    embeddings: Embeddings | None = None
    positions: NDArray[np.float64] | None = None
    neighborhood: IsNear | None = None
    """Which references show the same place; None: within 25 m, if positions are known."""
    paths: Sequence[Source] | None = None
    patch_maps: PatchMaps | None = None
    device: str = "cpu"
    count: int | None = None
    """How many there are, if nothing else tells."""

    def __post_init__(self) -> None:
        if self.positions is not None and np.shape(self.positions)[1:] != (2,):
            raise KappaPlaceError(
                f"Reference positions of shape {np.shape(self.positions)} are not R×2; give x and y in "
                "metres."
            )

    def __len__(self) -> int:
        known = (self.descriptors, self.kappa, self.positions, self.paths)
        return min((len(part) for part in known if part is not None), default=self.count or 0)

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
            return Near.metres(np.asarray(self.positions, np.float64), RADIUS)
        raise KappaPlaceError(
            "This score needs to know which references show one place; give their neighbourhood or positions."
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

    def local(self, rows: Rows, kind: str = "patches") -> Tensor:
        if self.patch_maps is None:
            raise KappaPlaceError(NO_PATCHES)
        return self.patch_maps(self.images(rows))

    def _descriptors(self) -> NDArray[np.floating]:
        if self.descriptors is None:
            raise KappaPlaceError(
                "This score needs similarities beyond the top K; give the descriptors of queries and "
                "references, or the full similarity matrix."
            )
        return self.descriptors

    def _within(self, area: Circle) -> Rows:
        if self.positions is None:
            raise KappaPlaceError("Searching an area needs the positions of the references; give them.")
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
class LeaveOut:
    """References without some of them, others for each query: what self-calibration searches.

    A query is its row of similarities to all references, −inf for those that are left out.
    """

    whole: References
    rows: NDArray[np.floating]
    """The rows of all queries, N×R."""

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
        order = np.argsort(-queries, axis=1, kind="stable")[:, :k].astype(np.int64)
        return Matches(order, np.take_along_axis(queries, order, axis=1).astype(np.float32))

    def outside(self, queries: NDArray[np.floating], top: Rows, area: Circle | None = None) -> Floats:
        far = ~np.asarray(self.near(top[:, None], np.arange(len(self))[None, :]))
        return np.where(far, queries, -np.inf).max(axis=1).astype(np.float64)

    def aliases(self, rows: Rows) -> Floats:
        """Return the same among the references that are left for each query; one row per query."""
        assert self.descriptors is not None
        between = of_descriptors(self.descriptors[rows], self.descriptors[:])(
            slice(None), slice(None)
        ).numpy()
        return self.outside(np.where(np.isfinite(self.rows), between, -np.inf), rows)

    def sample(self) -> Rows:
        return self.whole.sample()

    def background(self, queries: NDArray[np.floating], rows: Rows | None = None) -> tuple[Floats, Floats]:
        """Return the moments with the mean of the others in place of references that are left out."""
        similarities = queries[:, self.sample() if rows is None else rows]
        present = np.isfinite(similarities)
        mean = np.where(present, similarities, 0).sum(axis=1) / np.maximum(present.sum(axis=1), 1)
        filled = np.where(present, similarities, mean[:, None]).astype(np.float32)
        return row_moments(of_matrix(filled), len(filled), filled.shape[1])

    def images(self, rows: Rows) -> Sequence[Source]:
        return self.whole.images(rows)

    def local(self, rows: Rows, kind: str = "patches") -> Tensor:
        return self.whole.local(rows, kind)
