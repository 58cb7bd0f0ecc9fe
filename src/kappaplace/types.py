"""Small types that several packages share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

Json: TypeAlias = Union[bool, int, float, str, Sequence["Json"], Mapping[str, "Json"], None]  # noqa: UP007
"""A value of a JSON file."""


class Embeddings(NamedTuple):
    """Output of a model for a batch of images.

    The fields are tensors in models and training, otherwise NumPy float32 arrays. It is a NamedTuple, so that
    ``torch.compile``, ``torch.export`` and data-parallel wrappers pass it through unchanged.
    """

    descriptor: Any
    """Unit vectors, N×d."""
    kappa: Any = None
    """Concentration κ > 0 of each descriptor, N; None if the model has no κ head."""
    variance: Any = None
    """Variance of each descriptor, N, from heads that are not von Mises-Fisher (STUN); otherwise None."""
    patches: Any = None
    """Feature maps for patch matching, N×C×H×W in float16, if they were requested; otherwise None."""

    def take(self, rows: Any) -> Embeddings:
        """Return the embeddings of some rows only.

        Args:
            rows: Row numbers, a slice or a mask, as the arrays accept them.

        Returns:
            The same fields, one entry per selected row.

        >>> Embeddings(np.eye(3), np.array([9.0, 4.0, 1.0])).take([2, 0]).kappa.tolist()
        [1.0, 9.0]
        """
        return Embeddings(*(None if part is None else part[rows] for part in self))


class Matches(NamedTuple):
    """The K most similar references of each query, best first."""

    indices: NDArray[np.int64]
    """Rows of the references, N×K."""
    similarities: NDArray[np.float32]
    """Cosine similarity of query and reference, N×K."""
