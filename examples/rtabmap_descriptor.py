"""KappaPlace descriptors in RTAB-Map: a script for its Python bridge of global descriptors, `PyDescriptor`.

    rtabmap --Mem/GlobalDescriptorStrategy 1 --Kp/TfIdfLikelihoodUsed false --Mem/RehearsalSimilarity 1 \
        --Rtabmap/VirtualPlaceLikelihoodRatio 1 \
        --PyDescriptor/Dim 512 --PyDescriptor/Path /path/to/rtabmap_descriptor.py

RTAB-Map (built with Python) imports this file, calls ``init(dim)`` once and ``extract(image)`` for every new
node, and compares nodes by (1 + cosine) / 2. The environment variable KAPPAPLACE_MODEL names another model
than the pretrained one. `kappaplace audit` finds out what `Rtabmap/LoopThr` means on your drives.

What its C++ side expects, which `tests/examples/test_rtabmap_descriptor.py` checks:

- The image is H×W×C, in the order blue, green, red, or gray with C = 1. It is in the memory of RTAB-Map, as
  bytes of the NumPy type int8 (or S1 in older versions), whatever the values are.
- The result is an own array of float32, 1×D, with the same D for every node.
- No function may raise. After an exception in ``init``, RTAB-Map crashes; after one in ``extract``, a node
  without a descriptor ends the program at the next comparison. A failed image therefore gets zeros, which are
  equally similar to all nodes.
"""

from __future__ import annotations

import os
import sys
import traceback

import numpy as np
from numpy.typing import NDArray

if not hasattr(sys, "argv"):
    sys.argv = [""]  # an embedded interpreter has none, and torch reads it

from kappaplace import load_model

model = None
length = 0
"""Length of every descriptor."""


def init(dim: int) -> None:
    """Load the model.

    Args:
        dim: `PyDescriptor/Dim`. The length of the descriptors is that of the model, if it can be loaded.
    """
    global model, length
    length = int(dim)
    try:
        name = os.environ.get("KAPPAPLACE_MODEL")
        model = load_model(name) if name else load_model()
        if model.dim != dim:
            print(
                f"PyDescriptor/Dim is {dim}, but the model has {model.dim}: using {model.dim}.",
                file=sys.stderr,
            )
        length = model.dim
    except Exception:
        model = None
        traceback.print_exc()


def extract(image: NDArray[np.generic]) -> NDArray[np.float32]:
    """Return the descriptor of an image.

    Args:
        image: Image, H×W×C.

    Returns:
        Descriptor of unit length, 1×D; zeros if the image or the model is not usable.
    """
    descriptor = np.zeros((1, length), np.float32)
    try:
        if model is not None:
            pixels = np.ascontiguousarray(image).view(np.uint8)
            pixels = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels[:, :, ::-1]
            descriptor[:] = model.embed([np.ascontiguousarray(pixels)]).descriptor
    except Exception:
        descriptor[:] = 0
        traceback.print_exc()
    return descriptor
