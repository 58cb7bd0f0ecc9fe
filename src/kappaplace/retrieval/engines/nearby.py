"""Which references lie within a circle."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.near import Near
from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.engines.base import Circle


class Nearby:
    """Positions with a k-d tree that the first question builds; a NaN position is nowhere."""

    def __init__(self, positions: NDArray[np.floating] | None, references: int) -> None:
        if positions is not None and np.shape(positions) != (references, 2):
            raise KappaPlaceError(
                f"Positions of shape {np.shape(positions)} do not fit {references} references; "
                "give x and y of each, NaN where unknown."
            )
        self._near = Near(positions=positions)

    def rows(self, circle: Circle) -> NDArray[np.int64]:
        """Rows within the circle, ascending."""
        return self._near.within(circle)
