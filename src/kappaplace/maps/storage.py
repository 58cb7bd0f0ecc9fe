"""How descriptors are kept: as they are, in half the bytes, or in a quarter.

float16 and int8 round each number; int8 has one scale a reference, which gives it its unit length back.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.engines.rows import quantize


def encode(
    descriptors: NDArray[np.floating], storage: str
) -> tuple[NDArray[np.generic], NDArray[np.float32] | None]:
    """Descriptors as they are stored, and one scale a row for int8."""
    values = np.ascontiguousarray(descriptors, np.float32)
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values).all(axis=1)))
        raise KappaPlaceError(
            f"The descriptor of row {row} is NaN or infinite; check the model and the image."
        )
    if storage == "float32":
        return values, None
    if storage == "float16":
        return values.astype(np.float16), None
    codes, scale = quantize(values)
    return codes, scale


def decode(stored: NDArray[np.generic], scale: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """The float32 that stored descriptors stand for."""
    values = np.asarray(stored, np.float32)
    return values if scale is None else values * scale[:, None]
