"""A process that decodes images for its parent: paths come in, pixels go into memory that both see.

It is started as a program of its own, so the parent may hold threads, a GPU and any script, and it imports
neither that script nor torch. It lives as long as the socket to its parent, and writes no file.

Messages are JSON, one packet each. A pass begins with a `Pass` and, where all images are to have one size,
the memory of the batches; then come tasks. A task without a place in that memory, or with an image that
does not fit into it, is answered with memory of its own. An image that cannot be read is left to the parent.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from kappaplace.data.images import Preprocessing
from kappaplace.data.pixels import Pixels, unpack

MAX_MESSAGE = 192 * 1024  # below what a socket takes at once; a few paths need a hundredth
READY = b"ready"
_LOOK_AROUND_S = 5.0


class Pass(NamedTuple):
    """What is to be done with all images of a pass."""

    preprocessing: Preprocessing
    unresized: tuple[int, int] | None = None
    """Images that are decoded to this (height, width) stay as they are."""

    @property
    def size(self) -> tuple[int, int] | None:
        """What images have in the memory of batches; None if it may be anything."""
        return self.unresized or self.preprocessing.fixed_size

    def to_dict(self) -> dict[str, Any]:
        return {"preprocessing": self.preprocessing.to_dict(), "unresized": self.unresized}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Pass:
        left = values["unresized"]
        return cls(Preprocessing.from_dict(values["preprocessing"]), left and (left[0], left[1]))


class Task(NamedTuple):
    """A few images to decode."""

    paths: list[str]
    place: int | None
    """Where in the batches' memory the first one goes; None: into memory of the answer."""


Answer = list[tuple[int, int] | None]
"""(height, width) of each image; None where it could not be read."""


def send(link: socket.socket, message: Any, memory: Sequence[int] = ()) -> None:
    """One packet; `memory`: file descriptors to go with it."""
    socket.send_fds(link, [json.dumps(message).encode()], memory)


def receive(link: socket.socket) -> tuple[bytes, list[int]]:
    """A packet and the memory that came with it; no bytes once the other side has ended."""
    try:
        data, memory, _, _ = socket.recv_fds(link, MAX_MESSAGE, 1)
    except ConnectionError:
        return b"", []
    return data, memory


def main(link_number: int, parent: int) -> None:
    """Serve the process `parent` over this socket."""
    link = socket.socket(fileno=link_number)
    link.settimeout(_LOOK_AROUND_S)
    decoder = None
    try:
        link.send(READY)
        while True:
            try:
                data, memory = receive(link)
            except TimeoutError:
                # Another child of the parent may hold its end of the socket after it is gone.
                if os.getppid() != parent:
                    return
                continue
            if not data:
                return
            message = json.loads(data)
            if isinstance(message, dict):
                decoder = _Decoder(Pass.from_dict(message), memory)
            elif decoder is not None:
                decoder.answer(link, Task(*message))
    except BrokenPipeError:  # nobody waits for it any more
        return


class _Decoder:
    def __init__(self, wanted: Pass, memory: list[int]) -> None:
        self.wanted = wanted
        self.batches = mapped(memory[0]) if memory else None
        for descriptor in memory:
            os.close(descriptor)

    def answer(self, link: socket.socket, task: Task) -> None:
        images = [self._image(path) for path in task.paths]
        answer: Answer = [None if image is None else (image.height, image.width) for image in images]
        size = self.wanted.size
        fits = size is not None and all(one in (None, size) for one in answer)
        if task.place is None or self.batches is None or not fits:
            self._into_own(link, images, answer)
            return
        assert size is not None
        for i, image in enumerate(images):
            if image is not None:
                unpack(image, pixels_at(self.batches, task.place + i * size[0] * size[1] * 3, size))
        send(link, answer)

    def _into_own(self, link: socket.socket, images: list[Image.Image | None], answer: Answer) -> None:
        places, total = layout(answer)
        if not total:
            send(link, answer)
            return
        memory = shared_memory(total)
        try:
            own = mapped(memory)
            for image, place in zip(images, places, strict=True):
                if image is not None:
                    unpack(image, pixels_at(own, place, (image.height, image.width)))
            send(link, answer, [memory])
        finally:
            os.close(memory)

    def _image(self, path: str) -> Image.Image | None:
        try:
            return self.wanted.preprocessing.image(path, self.wanted.unresized)
        except Exception:
            # The parent tries it again: its Pillow may know more, and the error is then its own.
            return None


def shared_memory(size: int) -> int:
    """A file descriptor of memory without a name: it is gone with the last process that holds it."""
    memory = os.memfd_create("kappaplace")
    os.ftruncate(memory, size)
    return memory


def mapped(memory: int) -> mmap.mmap:
    return mmap.mmap(memory, 0)


def pixels_at(memory: mmap.mmap, place: int, size: tuple[int, ...]) -> Pixels:
    """The images of this size (…×H×W) that lie there."""
    return np.ndarray((*size, 3), np.uint8, memory, place)


def layout(answer: Answer) -> tuple[list[int], int]:
    """Where each image of an answer lies in its own memory, and how much there is."""
    places, total = [], 0
    for size in answer:
        places.append(total)
        total += 0 if size is None else size[0] * size[1] * 3
    return places, total
