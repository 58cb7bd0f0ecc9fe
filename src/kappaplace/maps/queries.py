"""What `PlaceMap.localize` is asked with: one image or many, their names, a circle."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kappaplace.data.images import Source
from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval import Circle

Near = tuple[tuple[float, float], float]
"""((x, y), radius)"""


def is_one_image(images: Any) -> bool:
    """Whether what was given is an image rather than a list of them, so that one answer is expected."""
    if isinstance(images, np.ndarray):
        return images.ndim < 4
    return isinstance(images, str | os.PathLike | bytes) or not isinstance(images, Sequence | Iterator)


def query_names(sources: Sequence[Source]) -> list[str]:
    """A name for each query: its path, or its number."""
    return [
        os.fspath(source) if isinstance(source, str | os.PathLike) else f"query {i}"
        for i, source in enumerate(sources)
    ]


def circle_of(near: Near | None) -> Circle | None:
    """The circle that engines search in."""
    if near is None:
        return None
    try:
        (x, y), radius = near
        return float(x), float(y), float(radius)
    except (TypeError, ValueError):
        raise KappaPlaceError(
            f"A place to search near is given as ((x, y), radius) in metres of the map, not {near!r}."
        ) from None
