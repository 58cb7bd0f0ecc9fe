"""Which references of a map show one place: the question that margin, aliasing and pose fusion ask."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.maps.store import MapStore
from kappaplace.retrieval.exact import Near


def near_of(store: MapStore) -> Near:
    """The neighbourhood that the manifest states, as a question about references.

    As in a table of images: an image is near itself, one without a position is near nothing else, and frames
    of different routes are never near each other.
    """
    kind, value = store.manifest.near.kind, store.manifest.near.value
    if kind == "metres":
        positions = store.positions

        def metres(a: Any, b: Any) -> NDArray[np.bool_]:
            gap = positions[a] - positions[b]
            return np.equal(a, b) | (gap[..., 0] ** 2 + gap[..., 1] ** 2 <= value**2)

        return metres
    if kind == "frames":
        routes = store.whole("routes")

        def frames(a: Any, b: Any) -> NDArray[np.bool_]:
            first, second = routes[a], routes[b]
            gap = np.abs(first[..., 1] - second[..., 1])
            return np.equal(a, b) | ((gap <= value) & (first[..., 0] == second[..., 0]))

        return frames
    return lambda a, b: np.equal(a, b)
