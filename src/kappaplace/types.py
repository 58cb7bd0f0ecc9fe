"""The small types that travel between the rooms of the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

Json: TypeAlias = Union[bool, int, float, str, Sequence["Json"], Mapping[str, "Json"], None]  # noqa: UP007
"""What a JSON file can contain."""


class Embeddings(NamedTuple):
    """What a model says of a batch of images.

    Tensors inside models and training, NumPy float32 arrays everywhere else. A NamedTuple, so that
    ``torch.compile``, ``torch.export`` and data-parallel wrappers pass it through untouched.
    """

    descriptor: Any
    """Unit vectors, N×d."""
    kappa: Any = None
    """Concentration κ > 0 of each descriptor, N; None for a model without a kappa head."""
    variance: Any = None
    """Scalar variance of each descriptor, N, from heads that are not von Mises-Fisher (STUN); else None."""

    def take(self, rows: Any) -> Embeddings:
        """The same embeddings for some rows only.

        >>> Embeddings(np.eye(3), np.array([9.0, 4.0, 1.0])).take([2, 0]).kappa.tolist()
        [1.0, 9.0]
        """
        return Embeddings(*(None if part is None else part[rows] for part in self))


class Matches(NamedTuple):
    """The K best references of each query, best first."""

    indices: NDArray[np.int64]
    """Rows of the reference set, N×K."""
    similarities: NDArray[np.float32]
    """Cosine similarity of query and reference, N×K."""
