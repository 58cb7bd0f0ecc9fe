"""Everything that is known after retrieval, and what several scores share of it.

What is missing is None; asking for it raises one sentence that says what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.data import near as nearness
from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.exact import Near, Similarities, best_outside, of_descriptors, of_matrix
from kappaplace.types import Embeddings, Matches

if TYPE_CHECKING:
    from torch import Tensor

    from kappaplace.data.images import Source

Scores = NDArray[np.float64]
RADIUS = 25.0  # metres, the field's convention; used where positions are given without a neighbourhood


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything known after retrieval. Only the matches are a must."""

    matches: Matches
    query: Embeddings | None = None
    reference: Embeddings | None = None
    reference_positions: NDArray[np.float64] | None = None
    """R×2 in metres; NaN where unknown."""
    near: Near | None = None
    """Whether references a and b show one place (`PlaceImages.is_near`); None: within 25 m, if positions are
    given."""
    similarity_matrix: NDArray[np.floating] | None = None
    """N×R, for whoever has no descriptors; a memory map will do."""
    query_images: Sequence[Source] | None = None
    """Paths of the N queries, or anything else that `kappaplace.data.images.decode` reads."""
    reference_images: Sequence[Source] | None = None
    """The same of the R references."""
    patch_maps: Callable[[Sequence[Source]], Tensor] | None = None
    """Feature maps N×C×H×W of images, from the model that made the descriptors."""
    device: str = "cpu"
    """Where similarities beyond the top K are multiplied out."""

    def __post_init__(self) -> None:
        queries = len(self.matches.indices)
        highest = int(self.matches.indices.max()) if self.matches.indices.size else -1
        _check_length("query images", self.query_images, queries, exact=True)
        _check_length("reference images", self.reference_images, highest + 1)
        _check_length("reference positions", self.reference_positions, highest + 1)
        if self.reference_positions is not None and np.shape(self.reference_positions)[1:] != (2,):
            raise KappaPlaceError(
                f"Reference positions of shape {np.shape(self.reference_positions)} are not R×2; "
                "give x and y in metres."
            )
        if self.similarity_matrix is not None:
            rows, columns = self.similarity_matrix.shape
            if rows != queries or columns <= highest:
                raise KappaPlaceError(
                    f"A similarity matrix of {rows}×{columns} does not fit {queries} queries matched with "
                    f"references up to row {highest}; give one row a query and one column a reference."
                )

    @cached_property
    def distances(self) -> Scores:
        """Euclidean distance between unit vectors, N×K."""
        return np.sqrt(np.maximum(2.0 - 2.0 * self.matches.similarities.astype(np.float64), 0.0))

    @cached_property
    def cosines(self) -> Scores:
        """Similarities in double precision, N×K."""
        return self.matches.similarities.astype(np.float64)

    @property
    def top(self) -> NDArray[np.int64]:
        """The best reference of each query, N."""
        return self.matches.indices[:, 0]

    @property
    def query_kappa(self) -> Scores:
        """κ of each query, N."""
        return _kappa(self.query, "queries")

    @property
    def reference_kappa(self) -> Scores:
        """κ of each reference, R."""
        return _kappa(self.reference, "references")

    @property
    def match_kappa(self) -> Scores:
        """κ of each retrieved reference, N×K."""
        return self.reference_kappa[self.matches.indices]

    @property
    def query_variance(self) -> Scores:
        """Scalar variance of each query's descriptor, N."""
        if self.query is None or self.query.variance is None:
            raise KappaPlaceError(
                "This score needs the variance of the queries; use a model that predicts one."
            )
        return np.asarray(self.query.variance, dtype=np.float64)

    @property
    def dim(self) -> int:
        """Length of a descriptor."""
        for embeddings in (self.query, self.reference):
            if embeddings is not None and embeddings.descriptor is not None:
                return int(embeddings.descriptor.shape[1])
        raise KappaPlaceError("This score needs the descriptors, or at least their length; give them.")

    @property
    def is_near(self) -> Near:
        """The neighbourhood of references: the one given, or 25 m around their positions."""
        if self.near is not None:
            return self.near
        if self.reference_positions is not None:
            return nearness.Near.metres(np.asarray(self.reference_positions, np.float64), RADIUS)
        raise KappaPlaceError(
            "This score needs to know which references show one place; give their neighbourhood or positions."
        )

    @cached_property
    def positions(self) -> Scores:
        """Positions of the references, R×2, known for every one that was retrieved."""
        if self.reference_positions is None:
            raise KappaPlaceError("This score needs the positions of the references; give them in metres.")
        positions = np.asarray(self.reference_positions, np.float64)
        unposed: NDArray[np.bool_] = np.isnan(positions[:, 0]) | np.isnan(positions[:, 1])
        if unposed.any() and (affected := int(unposed[self.matches.indices].any(axis=1).sum())):
            raise KappaPlaceError(
                f"This score needs the positions of all retrieved references, {affected:,} queries have "
                "matches without one; leave unposed references out of the map."
            )
        return positions

    @property
    def reference_descriptors(self) -> NDArray[np.floating]:
        """Descriptors of the references, R×d."""
        if self.reference is None or self.reference.descriptor is None:
            raise KappaPlaceError(
                "This score compares references with each other; give their descriptors, a similarity matrix "
                "of queries and references does not hold that."
            )
        return self.reference.descriptor

    @property
    def all_similarities(self) -> tuple[Similarities, int]:
        """Similarity of any query and reference in blocks, and how many references there are."""
        queries, references = (
            None if side is None else side.descriptor for side in (self.query, self.reference)
        )
        if queries is not None and references is not None:
            return of_descriptors(queries, references, self.device), len(references)
        if self.similarity_matrix is not None:
            return of_matrix(self.similarity_matrix), self.similarity_matrix.shape[1]
        raise KappaPlaceError(
            "This score needs similarities beyond the top K; give the descriptors of queries and references, "
            "or the full similarity matrix."
        )

    @cached_property
    def outside_in_list(self) -> Scores:
        """Highest similarity among the K matches that lie outside the top match's place; −inf if none."""
        near = self.is_near(self.top[:, None], self.matches.indices)
        return np.max(np.where(near, -np.inf, self.cosines), axis=1)

    @cached_property
    def best_outside(self) -> Scores:
        """Highest similarity of each query to a reference outside the place of its top match; −inf if none.

        The K matches are the best there are, so the first of them that lies outside is the answer. Only
        queries whose matches are all of one place are searched once more.
        """
        best = self.outside_in_list.copy()
        open_rows = np.flatnonzero(np.isneginf(best))
        if len(open_rows):
            similarities, references = self.all_similarities
            centres = self.top[open_rows]
            best[open_rows] = best_outside(similarities, open_rows, centres, references, self.is_near)
        return best

    @cached_property
    def best_alias(self) -> Scores:
        """Highest similarity of each top match to a reference outside its own place; −inf if none."""
        descriptors = self.reference_descriptors
        similarities = of_descriptors(descriptors, descriptors, self.device)
        tops, of_query = np.unique(self.top, return_inverse=True)
        best = best_outside(similarities, tops, tops, len(descriptors), self.is_near)
        return best.astype(np.float64)[of_query]

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """Where scores with options keep what is dear to compute, by what it was made from."""
        return {}


def _kappa(embeddings: Embeddings | None, whose: str) -> Scores:
    if embeddings is None or embeddings.kappa is None:
        raise KappaPlaceError(f"This score needs κ of the {whose}; use a model with a kappa head.")
    return np.asarray(embeddings.kappa, dtype=np.float64)


def _check_length(what: str, values: Any, needed: int, exact: bool = False) -> None:
    if values is not None and (len(values) < needed or (exact and len(values) != needed)):
        raise KappaPlaceError(
            f"There are {len(values):,} {what} but the matches speak of {needed:,}"
            f"{'' if exact else ' or more'}; give one for each, in the same order."
        )
