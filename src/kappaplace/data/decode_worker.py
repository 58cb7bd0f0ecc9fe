"""A process that decodes images for its parent: its messages, the memory both share, and its program.

The worker is a separate program. The parent may therefore run threads, a GPU and any script; the worker
imports neither that script nor torch. It ends with the socket to its parent and writes no file.

Messages are JSON, one packet each. A pass begins with a `Pass` and, if all images get the same size, the
shared memory of the batches; tasks follow. A task without an offset in that memory, or with an image that
does not fit, is answered with separate memory. An image that the worker cannot read is left to the parent.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import socket
import sys
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kappaplace.data.images import Preprocessing
from kappaplace.types import Json

MAX_MESSAGE = 192 * 1024  # less than a socket takes at once; a few paths need a hundredth of it
READY = b"ready"
_PARENT_CHECK_S = 5.0

Pixels: TypeAlias = NDArray[np.uint8]
"""Pixels of one image, H×W×3, or of several."""
Size: TypeAlias = tuple[int, int]
"""Height and width."""
Answer: TypeAlias = list[Size | None]
"""Size of each image of a task; None if it could not be read."""


class Pass(NamedTuple):
    """Settings for all images of one pass over a loader."""

    preprocessing: Preprocessing
    unresized: Size | None = None
    """Images that are decoded to this size are not resized."""

    @property
    def size(self) -> Size | None:
        """Size of the images in the memory of the batches; None if sizes may differ."""
        return self.unresized or self.preprocessing.fixed_size

    def to_dict(self) -> dict[str, Json]:
        """Return the settings as JSON values."""
        return {"preprocessing": self.preprocessing.to_dict(), "unresized": self.unresized}


class Task(NamedTuple):
    """A few images to decode."""

    paths: list[str]
    offset: int | None
    """Offset of the first image in the memory of the batches; None to answer with separate memory."""


def send(link: socket.socket, message: Json, memory: Sequence[int] = ()) -> None:
    """Send one packet.

    Args:
        link: Socket to the other process.
        message: Any JSON value.
        memory: File descriptors to pass on.
    """
    socket.send_fds(link, [json.dumps(message).encode()], memory)


def receive(link: socket.socket) -> tuple[bytes, list[int]]:
    """Return a packet and its file descriptors; no bytes if the other process has ended."""
    try:
        data, memory, _, _ = socket.recv_fds(link, MAX_MESSAGE, 1)
    except ConnectionError:
        return b"", []
    return data, memory


def main(link_number: int, parent: int) -> None:
    """Decode for the process `parent` until it ends or closes the socket."""
    link = socket.socket(fileno=link_number)
    link.settimeout(_PARENT_CHECK_S)
    decoder = None
    try:
        link.send(READY)
        while True:
            try:
                data, memory = receive(link)
            except TimeoutError:
                # Another child of the parent may keep the parent's end of the socket open after its death.
                if os.getppid() != parent:
                    return
                continue
            if not data:
                return
            message = json.loads(data)
            if isinstance(message, dict):
                unresized = message["unresized"]
                preprocessing = Preprocessing.from_dict(message["preprocessing"])
                decoder = _Decoder(Pass(preprocessing, unresized and tuple(unresized)), memory)
            elif decoder is not None:
                decoder.answer(link, Task(*message))
    except BrokenPipeError:  # the parent no longer waits for the answer
        return


class _Decoder:
    def __init__(self, settings: Pass, memory: list[int]) -> None:
        self.settings = settings
        self.batches = mapped(memory[0]) if memory else None
        for descriptor in memory:
            os.close(descriptor)

    def answer(self, link: socket.socket, task: Task) -> None:
        images = [self._image(path) for path in task.paths]
        answer: Answer = [None if image is None else (image.height, image.width) for image in images]
        size = self.settings.size
        fits = size is not None and all(each in (None, size) for each in answer)
        if task.offset is None or self.batches is None or not fits:
            self._answer_separately(link, images, answer)
            return
        assert size is not None
        for i, image in enumerate(images):
            if image is not None:
                unpack(image, pixels_at(self.batches, task.offset + i * math.prod(size) * 3, size))
        send(link, answer)

    def _answer_separately(
        self, link: socket.socket, images: list[Image.Image | None], answer: Answer
    ) -> None:
        offsets, total = layout(answer)
        if not total:
            send(link, answer)
            return
        memory = shared_memory(total)
        try:
            separate = mapped(memory)
            for image, offset in zip(images, offsets, strict=True):
                if image is not None:
                    unpack(image, pixels_at(separate, offset, (image.height, image.width)))
            send(link, answer, [memory])
        finally:
            os.close(memory)

    def _image(self, path: str) -> Image.Image | None:
        try:
            return self.settings.preprocessing.image(path, self.settings.unresized)
        except Exception:
            # The parent tries again: its Pillow may support more formats, and it raises its own error.
            return None


def unpack(image: Image.Image, out: Pixels) -> Pixels:
    """Write the pixels of an image into `out`, H×W×3, and return it.

    Pillow writes a PPM directly into `out` in small pieces. Converting to an array would copy the pixels
    twice more, which is noticeable with only two decoding threads.
    """
    # saving briefly modifies the image, so it must be a resized one, which no caller has
    if type(image) is Image.Image:
        file = _Stream(out)
        image.save(file, "PPM")  # type: ignore[arg-type]
        if file.position == out.size:
            return out
    out[...] = np.asarray(image)
    return out


class _Stream:
    """A file for Pillow that keeps the pixels of a PPM and drops its header."""

    def __init__(self, out: Pixels) -> None:
        self.memory = out.data.cast("B")
        self.position = -len(f"P6\n{out.shape[1]} {out.shape[0]}\n255\n")

    def write(self, data: bytes) -> int:
        if self.position >= 0:
            self.memory[self.position : self.position + len(data)] = data
        self.position += len(data)
        return len(data)


def shared_memory(size: int) -> int:
    """Return a file descriptor of unnamed memory, which is freed with the last process that uses it."""
    memory = os.memfd_create("kappaplace")
    os.ftruncate(memory, size)
    return memory


def mapped(memory: int) -> mmap.mmap:
    """Map the memory of a file descriptor."""
    return mmap.mmap(memory, 0)


def pixels_at(memory: mmap.mmap, offset: int, size: tuple[int, ...]) -> Pixels:
    """Return a view of the images at an offset.

    Args:
        memory: The memory.
        offset: Offset in bytes.
        size: Height and width of the images, after any leading axes.

    Returns:
        …×H×W×3, without a copy.
    """
    return np.ndarray((*size, 3), np.uint8, memory, offset)


def layout(answer: Answer) -> tuple[list[int], int]:
    """Return the offset of each image of an answer in separate memory, and the total size in bytes."""
    offsets, total = [], 0
    for size in answer:
        offsets.append(total)
        total += 0 if size is None else math.prod(size) * 3
    return offsets, total


class Spares:
    """Arrays of earlier batches, reused when nothing else refers to them.

    The first access to new memory costs up to a tenth of the decoding time. Tensors and views of a batch
    refer to its array, so the reference count shows when the array is free.

    Args:
        most: Maximum number of arrays to keep.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.buffers: list[Pixels] = []

    def take(self, shape: tuple[int, ...]) -> Pixels:
        """Return an array of this shape, with arbitrary content."""
        for i, buffer_shape in enumerate([buffer.shape for buffer in self.buffers]):
            if buffer_shape == shape and _references(self.buffers, i) == _UNUSED:
                return self.buffers[i]
        fresh = np.empty(shape, np.uint8)
        if len(self.buffers) < self.most:
            self.buffers.append(fresh)
        return fresh


class SharedBatches:
    """A fixed number of batches in memory that other processes can map, too, through its `descriptor`.

    A batch that is still referenced keeps the memory, even after `close`. Pages that are never written to
    take no memory.

    Args:
        most: Number of batches.
        shape: Largest shape of a batch, N×H×W×3.
    """

    def __init__(self, most: int, shape: tuple[int, ...]) -> None:
        self.stride = -(-max(1, math.prod(shape)) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.descriptor = shared_memory(most * self.stride)
        try:
            self._memory = mapped(self.descriptor)
        except BaseException:
            os.close(self.descriptor)
            raise
        self._batches = [np.empty(0, np.uint8) for _ in range(most)]

    def take(self, shape: tuple[int, ...]) -> tuple[Pixels, int] | None:
        """Return an array N×H×W×3 and its offset in the memory; None if all batches are in use."""
        for i in range(len(self._batches)):
            if _references(self._batches, i) == _UNUSED:
                self._batches[i] = pixels_at(self._memory, i * self.stride, shape[:-1])
                return self._batches[i], i * self.stride
        return None

    def close(self) -> None:
        """Close the descriptor: from now on no other process can map the memory."""
        os.close(self.descriptor)


def _references(batches: list[Pixels], i: int) -> int:
    return sys.getrefcount(batches[i])


# Reference count of an array that is only in the list: measured, because it differs between Python versions.
_UNUSED = _references([np.empty(0, np.uint8)], 0)
