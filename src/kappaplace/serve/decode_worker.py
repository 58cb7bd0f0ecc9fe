"""A process that decodes uploads for the service: its messages, its limits, and its program.

A message is a JSON object after its length, then bytes: the upload on the way there, pixels on the way back.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time

from kappaplace.data import Preprocessing, decode, open_image
from kappaplace.errors import KappaPlaceError
from kappaplace.types import Json

MEMORY = 4 << 30
"""Address space of the process."""
_LENGTH = 4
_MARKER = re.compile(rb"\xff+([^\x00\xff])")
_SCAN, _END, _ALONE = 0xDA, 0xD9, (0x01, *range(0xD0, 0xD9))


class Ended(Exception):
    """The other process has closed the connection."""


def send(link: socket.socket, header: dict[str, Json], data: bytes, end: float | None = None) -> None:
    """Send a message; raises `TimeoutError` at `end`, a time of `time.monotonic`."""
    text = json.dumps(header | {"bytes": len(data)}).encode()
    _until(link, end)
    link.sendall(len(text).to_bytes(_LENGTH, "big") + text)
    link.sendall(data)


def receive(link: socket.socket, end: float | None = None) -> tuple[dict[str, Json], bytes]:
    """Return a message; raises `TimeoutError` at `end`, and `Ended` if the other process has ended."""
    length = int.from_bytes(_exactly(link, _LENGTH, end), "big")
    header: dict[str, Json] = json.loads(_exactly(link, length, end))
    return header, _exactly(link, int(header["bytes"]), end)


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
    """Decode for the process at the other end of a socket until that closes it."""
    _limit("RLIMIT_AS", MEMORY)
    _limit("RLIMIT_FSIZE", 0)
    _limit("RLIMIT_CORE", 0)
    link = socket.socket(fileno=number)
    try:
        while True:
            request, data = receive(link)
            used = sum(os.times()[:2])
            _limit("RLIMIT_CPU", int(used) + 1 + int(request["seconds"]), soft=True)
            try:
                answer = _decoded(request, data)
            except KappaPlaceError as error:
                answer = {"error": str(error)}, b""
            except MemoryError:
                answer = {"error": "The image needs too much memory. Send a smaller one."}, b""
            send(link, *answer)
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


def _decoded(request: dict[str, Json], data: bytes) -> tuple[dict[str, Json], bytes]:
    if count_scans(data, int(request["scans"])) > int(request["scans"]):
        raise KappaPlaceError(
            f"The image is a progressive JPEG of more than {request['scans']} scans. Save it again with "
            "another program."
        )
    preprocessing = Preprocessing.from_dict(request["preprocessing"])
    limits = {"max_pixels": int(request["max_pixels"]), "formats": request["formats"]}
    size = preprocessing.size
    target = (size, size) if isinstance(size, int) else size
    # The same reduction while decoding as for a file, so that both get the same answer.
    image = decode(data, target=target, **limits)
    height, width = preprocessing.output_size(image.height, image.width)
    if height * width > limits["max_pixels"]:
        raise KappaPlaceError(
            f"The image has {image.width}×{image.height} pixels, which is too narrow for the model. Crop it."
        )
    image = preprocessing.image(image)
    with open_image(data, limits["formats"]) as original:
        kind = original.format or ""
    return {"size": image.size, "format": kind}, image.tobytes()


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
        if marker not in _ALONE:  # a segment with its length; libjpeg skips what is between segments, too
            at += max(2, int.from_bytes(data[at : at + 2], "big"))
    return scans
