"""A process that decodes uploads for the service: its messages, its limits, and its program.

A message contains the length of a JSON object, the object, and bytes. These are the upload in a request, and
the pixels in a reply.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
import time
from typing import NamedTuple

from kappaplace.data import Preprocessing, decode, open_image
from kappaplace.errors import KappaPlaceError
from kappaplace.types import Json

MEMORY = 4 << 30
"""Maximum address space of the process in bytes."""
_LENGTHS = struct.Struct(">IQ")
_MARKER = re.compile(rb"\xff+([^\x00\xff])")
_SCAN, _END, _ALONE = 0xDA, 0xD9, (0x01, *range(0xD0, 0xD9))


class Request(NamedTuple):
    """Instructions for decoding an upload, and its limits."""

    preprocessing: dict[str, Json]
    max_pixels: int
    formats: list[str]
    scans: int
    seconds: int


class Reply(NamedTuple):
    """Result of decoding an upload: an image, or an error message."""

    error: str = ""
    size: tuple[int, int] = (0, 0)
    """Width and height."""
    format: str = ""


class Ended(Exception):
    """The other process has closed the connection."""


def send(link: socket.socket, header: Request | Reply, data: bytes, end: float | None = None) -> None:
    """Send a message; raises `TimeoutError` at `end`, a time of `time.monotonic`."""
    text = json.dumps(header).encode()
    _until(link, end)
    link.sendall(_LENGTHS.pack(len(text), len(data)) + text)
    link.sendall(data)


def receive(link: socket.socket, end: float | None = None) -> tuple[bytes, bytes]:
    """Return the JSON and the data of a message; raises `Ended` if the other process has ended."""
    header, data = _LENGTHS.unpack(_exactly(link, _LENGTHS.size, end))
    return _exactly(link, header, end), _exactly(link, data, end)


def _exactly(link: socket.socket, count: int, end: float | None) -> bytes:
    data = bytearray(count)
    view, received = memoryview(data), 0
    while received < count:
        _until(link, end)
        size = link.recv_into(view[received:])
        if not size:
            raise Ended
        received += size
    return bytes(data)


def _until(link: socket.socket, end: float | None) -> None:
    if end is not None:
        link.settimeout(max(1e-3, end - time.monotonic()))


def main(number: int) -> None:
    """Decode uploads for the process at the other end of a socket until that process closes the socket."""
    _limit("RLIMIT_AS", MEMORY)
    _limit("RLIMIT_FSIZE", 0)
    _limit("RLIMIT_CORE", 0)
    link = socket.socket(fileno=number)
    try:
        while True:
            header, data = receive(link)
            request = Request(*json.loads(header))
            used = sum(os.times()[:2])
            _limit("RLIMIT_CPU", int(used) + 1 + request.seconds, soft=True)
            try:
                reply, pixels = _decoded(request, data)
            except KappaPlaceError as error:
                reply, pixels = Reply(str(error)), b""
            except MemoryError:
                reply, pixels = Reply("The image needs too much memory. Send a smaller one."), b""
            send(link, reply, pixels)
    except (Ended, OSError):  # the service has ended, or no longer waits
        return


def _limit(name: str, value: int, soft: bool = False) -> None:
    """Set a limit of this process; a soft one can be raised again."""
    import resource

    kind = getattr(resource, name)
    most = resource.getrlimit(kind)[1]
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    with contextlib.suppress(ValueError, OSError):  # a system without this limit
        resource.setrlimit(kind, (value, most if soft else value))


def _decoded(request: Request, data: bytes) -> tuple[Reply, bytes]:
    if count_scans(data, request.scans) > request.scans:
        raise KappaPlaceError(
            f"The image is a progressive JPEG of more than {request.scans} scans. Save it again with another "
            "program."
        )
    preprocessing = Preprocessing.from_dict(request.preprocessing)
    size = preprocessing.size
    target = (size, size) if isinstance(size, int) else size
    # The same reduction while decoding as for a file, so that both get the same answer.
    image = decode(data, max_pixels=request.max_pixels, target=target, formats=request.formats)
    height, width = preprocessing.output_size(image.height, image.width)
    if height * width > request.max_pixels:
        raise KappaPlaceError(
            f"The image has {image.width}×{image.height} pixels, which is too narrow for the model. Crop it."
        )
    image = preprocessing.image(image)
    with open_image(data, request.formats) as original:
        return Reply(size=image.size, format=original.format or ""), image.tobytes()


def count_scans(data: bytes, most: int) -> int:
    """Count the scans of a JPEG by its markers, without decoding; other files have none.

    Args:
        data: The encoded image.
        most: Number of scans after which counting stops.

    Returns:
        The number of scans, at most one more than `most`.
    """
    scans, at = 0, 2
    while data.startswith(b"\xff\xd8") and scans <= most and (match := _MARKER.search(data, at)):
        at, marker = match.end(), match[1][0]
        if marker == _END:
            break
        scans += marker == _SCAN
        if marker not in _ALONE:  # a segment with its length; libjpeg also skips bytes between segments
            at += max(2, int.from_bytes(data[at : at + 2], "big"))
    return scans
