"""How descriptors are kept: as they are, in half the bytes, in a quarter, or as codes of at most 128 bytes.

float16 and int8 round each number; int8 has one scale a reference, which gives it its unit length back. Codes
(pq) mean something through the map's codebook alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.codes import Codebook
from kappaplace.retrieval.engines.rows import quantize

COARSE = ("int8", "pq")
"""What rounds so much that similarities are no longer those a calibration was fitted on."""


def encode(
    descriptors: NDArray[np.floating], storage: str, codebook: Codebook | None = None
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
    if storage == "pq":
        assert codebook is not None  # a manifest without one is refused
        return codebook.encode(values), None
    codes, scale = quantize(values)
    return codes, scale


def decode(
    stored: NDArray[np.generic],
    scale: NDArray[np.float32] | None,
    codebook: Codebook | None = None,
    *,
    turned: bool = False,
) -> NDArray[np.float32]:
    """The float32 that stored descriptors stand for; ``turned``: those of codes in the space of the codes."""
    if codebook is not None:
        return codebook.decode(np.asarray(stored, np.uint8), turned=turned)
    values = np.asarray(stored, np.float32)
    return values if scale is None else values * scale[:, None]
