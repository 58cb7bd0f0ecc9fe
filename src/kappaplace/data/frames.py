"""Images of a sequence, one after another: a folder, a video, a ROS bag, or a stream from a camera."""

from __future__ import annotations

import math
import time as clock
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from PIL import Image

from kappaplace.data.readers.layout import IMAGE_SUFFIXES, images_or_error
from kappaplace.data.readers.rosbag import bag_images
from kappaplace.data.readers.video import EXTRA, VIDEOS
from kappaplace.errors import KappaPlaceError, import_extra

if TYPE_CHECKING:
    from kappaplace.data.decoding import Source

BAGS = (".bag", ".mcap", ".db3")
STREAMS = ("rtsp://", "rtmp://", "http://", "https://", "udp://")


class SequenceImage(NamedTuple):
    """An image of a sequence."""

    name: str
    time: float | None
    """Seconds since 1970; None if unknown."""
    image: Source


def is_stream(source: str) -> bool:
    """Return whether a source is a camera (its number) or the URL of a stream, which has no end."""
    return source.isdecimal() or source.lower().startswith(STREAMS)


def sequence_images(
    sources: Sequence[str | Path], every: float = 1.0, topic: str = "", start: float | None = None
) -> Iterator[SequenceImage]:
    """Read the images of a sequence in order.

    Args:
        sources: Image files in their order; or one folder of images, video, ROS 1 bag, ROS 2 bag, MCAP file,
            number of a camera, or URL of a stream.
        every: Seconds between two images of a video, bag or stream. Folders are read completely.
        topic: Image topic of a bag. Default: the only one.
        start: Time of the first frame of a video, in seconds since 1970. Default: unknown.

    Yields:
        Name, time and image; nothing is written to disk.

    Raises:
        KappaPlaceError: If the source cannot be read.
    """
    if not sources:
        raise KappaPlaceError("The sequence has no source. Pass a folder, a video, a bag or a stream.")
    source, path = str(sources[0]), Path(sources[0])
    if len(sources) > 1 or path.suffix.lower() in IMAGE_SUFFIXES:
        return (SequenceImage(name, None, name) for name in map(str, sources))
    if is_stream(source):
        return _of_capture(source, every, clock.time)
    if not path.exists():
        raise KappaPlaceError(
            f"There is no sequence {path}. Pass a folder, a video, a bag, a camera number or a URL."
        )
    if path.suffix.lower() in BAGS or (path / "metadata.yaml").is_file():
        return _of_bag(path, every, topic)
    if path.is_dir():
        names = images_or_error(path, natural=True)
        return (SequenceImage(str(path / name), None, str(path / name)) for name in names)
    if path.suffix.lower() in VIDEOS:
        return _of_capture(str(path), every, start)
    raise KappaPlaceError(f"{path} is not a folder of images, a video or a bag. Pass one.")


def _of_bag(bag: Path, every: float, topic: str) -> Iterator[SequenceImage]:
    due = -math.inf
    for number, (time, image) in enumerate(bag_images(bag, topic)):
        if time >= due:
            due = time + every
            yield SequenceImage(f"{bag.name}/{number:07d}", time, image())


def _of_capture(
    source: str, every: float, start: float | Callable[[], float] | None
) -> Iterator[SequenceImage]:
    """Yield frames of a video that starts at a time, or of a stream with its clock, until it ends."""
    cv2 = import_extra("cv2", *EXTRA)
    now = start if callable(start) else None
    capture = cv2.VideoCapture(int(source) if source.isdecimal() else source)
    rate = float(capture.get(cv2.CAP_PROP_FPS))
    if not capture.isOpened() or not (now or rate > 0):
        capture.release()
        raise KappaPlaceError(f"{source} cannot be read as a video. Check it, or convert it.")
    number, due, label = 0, -math.inf, source if now else Path(source).name
    try:
        while capture.grab():
            seconds = now() if now else number / rate
            if seconds >= due - 1e-9:
                due = seconds + every
                time = seconds if now else None if start is None else start + seconds  # type: ignore[operator]
                pixels = capture.retrieve()[1]
                yield SequenceImage(f"{label}/{number:07d}", time, Image.fromarray(pixels[:, :, ::-1].copy()))
            number += 1
    finally:
        capture.release()
    if number == 0:
        raise KappaPlaceError(f"{source} has no frame. Check the file or the camera.")
