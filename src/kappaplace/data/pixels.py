"""Pixels out of Pillow's memory into ours, with as few copies as Pillow allows."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels: TypeAlias = NDArray[np.uint8]
"""H×W×3, or several such images."""


def unpack(image: Image.Image, out: Pixels) -> Pixels:
    """The pixels of an image, written into `out`, H×W×3.

    Saving as PPM streams them there in small pieces, while converting to an array copies them twice more,
    which two decoding threads would notice.
    """
    if type(image) is Image.Image:  # ours alone, as resized: saving briefly marks an image
        file = _Stream(out)
        image.save(file, "PPM")  # type: ignore[arg-type]
        if file.position == out.size:
            return out
    out[...] = np.asarray(image)
    return out


class _Stream:
    """A file to Pillow that keeps the pixels of a PPM and drops its header."""

    def __init__(self, out: Pixels) -> None:
        self.memory = out.data.cast("B")
        self.position = -len(f"P6\n{out.shape[1]} {out.shape[0]}\n255\n")

    def write(self, data: bytes) -> int:
        if self.position >= 0:
            self.memory[self.position : self.position + len(data)] = data
        self.position += len(data)
        return len(data)
